"""drtk termweight: known answers of docs/methods/term-weights.md, the records it writes, statistics, and rejected options."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.expansion.term_weights import TERM_WEIGHTS, bprop
from drtk.text.word_pieces import WordPieceTokenizer
from tests.run_commands import open_pipe, run_command, write_text
from tests.tiny_models import find_minilm, make_passages, save_tiny_encoder

CATS = ["the cat sat", "the dog sat", "the perveance beam"]
HEARTS = ["the heart disease of heart", "the stock market of", "the heart of stock"]
ATTENTION = [[0.02, 0.06, 0.04, 0.02, 0.02], [0.03, 0.05, 0.04, 0.01], [0.04, 0.03, 0.02, 0.01]]


def corpus(path: Path, texts: Sequence[str], **fields: Any) -> Path:
    rows = [{"_id": f"d{number}", "text": text, **fields} for number, text in enumerate(texts)]
    return write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def rows(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run_command(capfd, "termweight", *arguments).splitlines()]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("model") / "m")


class Planted:
    """Attention of the worked example instead of a model's."""

    room = 510

    def __init__(self, *_: object, **__: object) -> None:
        known = [tuple(pieces.ids) for pieces in WordPieceTokenizer(find_minilm())(HEARTS)]
        self._known = dict(zip(known, ATTENTION, strict=True))

    def __call__(self, texts: Sequence[Sequence[int]], hidden: object = None) -> list[np.ndarray]:
        return [np.array(self._known[tuple(text)]) for text in texts]


BPROP = {
    "score": [0.432280, 0.704512, 0.907938, 0.492704, 0.704512],
    "softmax": [0.200632, 0.263408, 0.322831, 0.213129, 0.263408],
    "attention": [0.220588, 0.294118, 0.264706, 0.220588, 0.294118],
}


def test_bprop_weighs_the_worked_example(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bprop, "FirstTokenAttention", Planted)
    corpus(here / "c", HEARTS)
    call = ["c", "--method", "bprop", "--model", find_minilm()]
    for emit, expected in BPROP.items():
        short = (
            [] if emit == "attention" else ["--set", "min_words=0"]
        )  # attention alone weighs short passages like any
        weighted = rows(capfd, *call, "--set", f"emit={emit}", *short)
        assert weighted[0]["weights"] == pytest.approx(expected, abs=2e-6)
        if emit == "score":
            assert weighted[1]["weights"] == pytest.approx([0.509740, 0.778330, 0.951673, 0.387328], abs=2e-6)
            assert weighted[2]["weights"] == pytest.approx([0.577080, 0.661291, 0.548120, 0.495648], abs=2e-6)
    by_maximum = rows(capfd, *call, "--set", "min_words=0", "--set", "weight_norm=max")[0]["weights"]
    assert by_maximum == pytest.approx([0.476111, 0.775948, 1.0, 0.542662, 0.775948], abs=2e-6)
    assert rows(capfd, *call)[0]["weights"] == [0.25] * 5  # fewer than ten words: the, heart, disease, of


@pytest.mark.parametrize(
    ("method", "cat_sat", "beam"),
    [
        ("tfidf", [0, 0.730423, 0.269577], [0, 1 / 2, 1 / 2, 1 / 2, 1 / 2]),
        ("inv-freq", [0.181818, 0.545455, 0.272727], [1 / 3 / (1 / 3 + 2), *[1 / (1 / 3 + 2)] * 4]),
    ],
)
def test_shares_are_among_words_and_not_among_pieces(
    here: Path, capfd: pytest.CaptureFixture[str], method: str, cat_sat: list[float], beam: list[float]
) -> None:
    corpus(here / "c", CATS)
    weighted = rows(capfd, "c", "--method", method, "--tokenizer", find_minilm(), "--set", "weight_norm=sum")
    assert weighted[0]["weights"] == pytest.approx(cat_sat, abs=2e-6)
    assert weighted[2]["weights"] == pytest.approx(beam, abs=2e-6)  # the, per ##ve ##ance, beam


def test_bm25_weights_add_up_to_the_worked_scores(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    texts = ["a b b c", "a c", "b d d", "c d e e e"]
    corpus(here / "c", texts)
    call = ["c", "--tokenizer", find_minilm(), "--method"]
    scores = []
    for text, row in zip(texts, rows(capfd, *call, "bm25", "--set", "k1=0.82", "--set", "b=0.68"), strict=True):
        weights = dict(zip(text.split(), row["weights"], strict=True))
        scores.append(sum(weights.get(word, 0) for word in ("b", "d")))
    assert scores == pytest.approx([0.478089, 0, 0.904166, 0.336647], abs=2e-6)
    idf = rows(capfd, *call, "idf")  # b and d are in two of four passages, e in one
    assert idf[2]["weights"] == pytest.approx([0.693147] * 3)
    assert idf[3]["weights"][-1] == pytest.approx(1.20397, abs=1e-5)


def arguments(method: str, model: Path) -> list[str | Path]:
    return ["--method", method, "--model" if TERM_WEIGHTS.load(method).with_model else "--tokenizer", model]


@pytest.mark.parametrize("method", ["bprop", "tfidf"])
def test_there_is_a_weight_for_each_word_piece_of_text_and_title(
    here: Path, tiny: Path, capfd: pytest.CaptureFixture[str], method: str
) -> None:
    tokenizer = WordPieceTokenizer(str(tiny))
    made = [
        json.dumps({"_id": p.id, "title": p.title, "text": p.text, "colour": "red"}) + "\n" for p in make_passages(20)
    ]
    write_text(
        here / "c",
        "".join(made) + '{"_id": "empty", "text": ""}\n{"_id": "odd", "text": "— ’ \\u200b\\ud83d\\ude00"}\n',
    )
    found = rows(capfd, "c", *arguments(method, tiny))
    assert len(found) == 22
    for row in found:
        pieces, of_title = tokenizer([row["text"], row.get("title", "")])
        assert len(row["weights"]) == len(pieces.ids)
        assert len(row.get("title_weights", [])) == len(of_title.ids)
        assert all(weight >= 0 for weight in row["weights"])
        assert row["metadata"]["weights_tokenizer"] == str(tiny)
    assert found[0]["colour"] == "red"
    assert sum(sum(row["weights"]) for row in found) > 0
    without = rows(capfd, "c", *arguments(method, tiny), "--set", "title=none")
    assert not any("title_weights" in row for row in without)


def test_all_pieces_of_a_word_weigh_alike_or_the_first_has_it_all(
    here: Path, tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "riverward castleous castleous planets and gardeners"
    corpus(here / "c", [text, "other words"])
    call = [*arguments("bprop", tiny), "--set", "words=plain"]
    copied, first = (rows(capfd, "c", *call, "--set", f"spread={how}")[0]["weights"] for how in ("copy", "first"))
    pieces = WordPieceTokenizer(str(tiny))([text])[0]
    assert len(set(pieces.words)) < len(pieces.words)
    head: dict[int, float] = {}
    for word, one, two in zip(pieces.words, copied, first, strict=True):
        if word in head:
            assert (one, two) == (head[word], 0)
        else:
            head[word] = one
            assert one == two
    assert head[1] == head[2]  # the two of castleous


@pytest.mark.parametrize("method", ["bprop", "bm25"])
def test_statistics_in_parts_give_what_the_whole_gives(
    here: Path, tiny: Path, capfd: pytest.CaptureFixture[str], method: str
) -> None:
    texts = [passage.text for passage in make_passages(40)]
    whole = corpus(here / "whole", texts)
    lines = whole.read_text().splitlines(keepends=True)
    write_text(here / "1", "".join(lines[:13]))
    write_text(here / "2", "".join(lines[13:]))
    call = arguments(method, tiny)
    expected = rows(capfd, "whole", *call)
    for part in ("1", "2"):
        run_command(capfd, "termweight", part, *call, "--collect", "-o", f"s{part}")
    assert rows(capfd, "whole", *call, "--collection", "s1", "--collection", "s2") == expected
    write_text(here / "joined", (here / "s1").read_text() + (here / "s2").read_text())
    assert rows(capfd, "whole", *call, "--collection", "joined") == expected
    run_command(capfd, "termweight", *call, "--merge", "--collection", "s1", "--collection", "s2", "-o", "merged")
    assert len((here / "merged").read_text().splitlines()) == 1
    assert rows(capfd, "whole", *call, "--collection", "merged") == expected
    assert rows(capfd, "1", *call, "--collection", "merged") == expected[:13]


def test_statistics_of_the_input_are_collected_and_reused(
    here: Path, tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    corpus(here / "c", CATS)
    call = ["c", *arguments("tfidf", tiny)]
    piped = rows(capfd, *call)
    run_command(capfd, "termweight", *call, "-o", "out")
    assert [json.loads(line) for line in (here / "out").read_text().splitlines()] == piped
    made = (here / "out.collection.jsonl").stat().st_mtime_ns
    run_command(capfd, "termweight", *call, "-o", "out", "--force")
    assert (here / "out.collection.jsonl").stat().st_mtime_ns == made
    corpus(here / "c", [*CATS, "another one"])
    run_command(capfd, "termweight", *call, "-o", "out", "--force")
    assert (here / "out.collection.jsonl").stat().st_mtime_ns != made


def test_pipes_are_kept_while_they_are_read_twice_and_side_files_too(
    here: Path, tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = corpus(here / "c", CATS)
    side = write_text(here / "s", "".join(f'{{"_id": "d{number}", "colour": "red"}}\n' for number in range(3)))
    expected = rows(capfd, "c", *arguments("tfidf", tiny), "--with", "s")
    assert {row["colour"] for row in expected} == {"red"}
    with open_pipe(source.read_bytes()) as one, open_pipe(side.read_bytes()) as other:
        assert rows(capfd, one, *arguments("tfidf", tiny), "--with", other) == expected
    with open_pipe(side.read_bytes()) as other:
        run_command(capfd, "termweight", "c", *arguments("tfidf", tiny), "--with", other, "-o", "out")
    assert [json.loads(line) for line in (here / "out").read_text().splitlines()] == expected
    shown = run_command(capfd, "show", "--term-weights", "out")
    with open_pipe((here / "out").read_bytes()) as pipe:
        assert run_command(capfd, "show", "--term-weights", pipe) == shown
    assert shown.startswith("d0\nthe cat sat\n")


def test_statistics_of_other_choices_are_rejected(here: Path, tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    corpus(here / "c", CATS)
    call = arguments("idf", tiny)
    run_command(capfd, "termweight", "c", *call, "--collect", "--set", "stemmer=porter", "-o", "s")
    with pytest.raises(MismatchError, match="s:1: collected with stemmer porter, not none"):
        rows(capfd, "c", *call, "--collection", "s")
    with pytest.raises(MismatchError, match=r"s:1: expected 'attention' statistics, got 'counts'"):
        rows(capfd, "c", *arguments("bprop", tiny), "--collection", "s")


def test_stems_and_stop_words(here: Path, tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    corpus(here / "c", ["the river and rivers", "castles"])
    plain, stemmed, stopped = (
        rows(capfd, "c", *arguments("idf", tiny), *more)[0]["weights"]
        for more in ([], ["--set", "stemmer=porter"], ["--set", "stopwords=lucene"])
    )
    assert plain[0] == pytest.approx(0.693147, abs=2e-6)  # the: in one of two
    assert 0 not in stemmed
    assert stopped[0] == 0
    assert sum(weight > 0 for weight in stopped) < len(stopped)
    write_text(here / "stop", "river\n")
    own = rows(capfd, "c", *arguments("idf", tiny), "--set", "stopwords=stop")[0]["weights"]
    assert own != plain
    assert own[0] == plain[0]


def test_attention_alone_needs_no_collection(here: Path, tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    corpus(here / "c", CATS)
    call = ["c", *arguments("bprop", tiny), "--set", "emit=attention"]
    assert rows(capfd, *call)[0]["weights"]
    assert "collecting statistics" not in capfd.readouterr().err
    for more, complaint in ((["--collect"], "collect"), (["--collection", "c"], "collection")):
        with pytest.raises(UsageError, match=f"`{complaint}` has no effect, because the method uses no"):
            rows(capfd, *call, *more)


def test_hidden_continuations_change_attention_but_not_its_place(
    here: Path, tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    corpus(here / "c", ["riverward castleous planets and gardeners winterish violinal market"])
    call = ["c", *arguments("bprop", tiny), "--set", "emit=attention", "--set", "words=plain"]
    added, first = (rows(capfd, *call, "--set", f"sub2word={how}")[0]["weights"] for how in ("sum", "first"))
    assert added != first
    assert len(added) == len(first)
    assert 0 not in first  # a word has its first piece's


def test_words_after_the_longest_input_weigh_nothing(here: Path, tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = "rivers castles planets gardens markets winters violins engines coppers sailors"
    corpus(here / "c", [words, "other words"])
    call = ["c", *arguments("bprop", tiny), "--set", "max_length=5"]
    run_command(capfd, "termweight", *call, "--collect", "-o", "s")
    scores = ["--collection", "s", "--set"]
    for more in (
        ["--set", "emit=attention"],
        [*scores, "min_words=0"],
        [*scores, "min_words=0", "--set", "emit=softmax"],
        [*scores, "min_words=99"],
    ):
        weights = rows(capfd, *call, *more)[0]["weights"]
        assert weights[0] > 0
        assert weights[-1] == 0


def test_a_report_counts_stop_words_among_masked_pieces(
    here: Path, tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = [f"the {topic} of the " * 5 + "and , . of in to" for topic in ("rivers", "castles", "planets", "gardens")]
    corpus(here / "c", texts)
    run_command(capfd, "termweight", "c", *arguments("idf", tiny), "--stopword-share", "-o", "out")
    counts = json.loads((here / "out.meta.json").read_text())["counts"]["report"]
    assert counts["passages"] == 4
    assert 0 <= counts["highest weights"] < counts["hidden by chance"] <= counts["hidden"]
    pieces = sum(len(json.loads(line)["weights"]) for line in (here / "out").read_text().splitlines())
    assert counts["pieces"] == pieces


class Terminal(io.StringIO):
    """A stdout that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_report_is_not_mixed_with_passages_on_a_terminal(
    here: Path, tiny: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus(here / "c", CATS)
    call = ["termweight", "c", *arguments("idf", tiny), "--stopword-share"]
    assert len(run_command(capfd, *call).splitlines()) == 3  # a pipe takes the passages
    monkeypatch.setattr("sys.stdout", seen := Terminal())
    with pytest.raises(UsageError, match=r"--stopword-share requires --output"):
        app(list(map(str, call)), standalone_mode=False)
    assert seen.getvalue() == ""


OF_IDF, OF_BPROP = ["--method", "idf", "--model", "{tiny}"], ["--method", "bprop", "--model", "{tiny}"]


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--method", "nonsense"], "unknown term weighting method 'nonsense'"),
        (["--method", "tfidf"], "`method=tfidf` requires `tokenizer`"),
        (["--method", "bprop"], "`method=bprop` requires `model`"),
        ([*OF_IDF, "--collect", "--merge"], "--collect and --merge cannot be combined"),
        (
            ["--method", "idf", "--tokenizer", "{tiny}", "--merge"],
            "INPUT is only valid for computing weights; --merge joins the files",
        ),
        ([*OF_IDF, "--set", "learning_rate=1"], "`learning_rate` requires --train"),
        ([*OF_IDF, "--set", "trainer=a=1"], "`trainer` requires --train"),
        ([*OF_IDF, "--set", "saturation=sqrt"], "--set saturation requires --method bprop"),
        ([*OF_IDF, "--set", "k1=1.2"], "--set k1 requires --method bm25"),
        ([*OF_IDF, "--set", "max_length=9"], "--set max_length requires --method bprop or deepct or deepimpact"),
        ([*OF_IDF, "--set", "expand=queries"], "--set expand requires --method deepimpact"),
        (
            ["--method", "deepct", "--model", "{tiny}", "--set", "stemmer=porter"],
            "--set stemmer requires --method bprop or tfidf",
        ),
        (
            [*OF_BPROP, "--set", "emit=attention", "--set", "contrast=difference"],
            "--set contrast has no effect with `emit=attention`",
        ),
        (
            [*OF_BPROP, "--set", "emit=attention", "--set", "min_words=2"],
            "--set min_words has no effect with `emit=attention`",
        ),
        ([*OF_BPROP, "--set", "softmax_temperature=2"], "--set softmax_temperature requires `emit=softmax`"),
        (
            [*OF_IDF, "--collect", "--stopword-share"],
            "`stopword_share` is only valid for computing weights; --collect writes statistics",
        ),
        (
            [*OF_IDF, "--collect", "--set", "weight_norm=sum"],
            "`weight_norm` is only valid for computing weights; --collect writes statistics",
        ),
        ([*OF_IDF, "--collect", "--bare"], "`bare` is only valid for computing weights; --collect writes statistics"),
        (
            [*OF_IDF, "--collect", "--collection", "c"],
            "`collection` is only valid for computing weights; --collect writes statistics",
        ),
    ],
)
def test_contradictory_options_are_rejected(
    here: Path, tiny: Path, capfd: pytest.CaptureFixture[str], more: list[str], complaint: str
) -> None:
    corpus(here / "c", CATS)
    with pytest.raises(UsageError, match=complaint):
        rows(capfd, "c", *(word.replace("{tiny}", str(tiny)) for word in more))


def test_the_options_of_counting_may_be_given_to_all_kinds_of_work(
    here: Path, tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    corpus(here / "c", CATS)
    call = [*arguments("bprop", tiny), "--set", "saturation=sqrt", "--set", "stemmer=porter"]
    run_command(capfd, "termweight", "c", *call, "--collect", "-o", "s")
    run_command(capfd, "termweight", *call, "--merge", "--collection", "s", "-o", "m")
    assert len(rows(capfd, "c", *call, "--collection", "m", "--set", "emit=softmax")) == 3
    with pytest.raises(UsageError, match="`merge` requires the files to merge as `collection`"):
        run_command(capfd, "termweight", *arguments("idf", tiny), "--merge")


def test_a_tokenizer_other_than_the_models_is_rejected(
    here: Path, tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    corpus(here / "c", CATS)
    with pytest.raises(MismatchError, match="the weights are for the word pieces of"):
        rows(capfd, "c", "--method", "bprop", "--model", tiny, "--tokenizer", find_minilm())
    with pytest.raises(DrtkError, match="no such folder"):
        rows(capfd, "c", "--method", "idf", "--tokenizer", "./nothing/here")

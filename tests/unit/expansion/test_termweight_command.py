"""drtk termweight: known answers of docs/methods/term-weights.md, the records it writes, statistics, and rejected options."""

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.errors import MismatchError, UsageError
from drtk.expansion.term_weights import TERM_WEIGHTS, bprop, compute
from drtk.runtime.integrity import read_json
from drtk.text.word_pieces import WordPieceTokenizer
from tests.expansion_collection import read_rows, write_rows
from tests.run_commands import Capture, open_pipe, run_command, run_rows, write_text
from tests.tiny_models import find_minilm, make_passages, save_tiny_encoder

load_tokenizer = cache(WordPieceTokenizer)
CATS = ["the cat sat", "the dog sat", "the perveance beam"]
HEARTS = ["the heart disease of heart", "the stock market of", "the heart of stock"]
ATTENTION = [[0.02, 0.06, 0.04, 0.02, 0.02], [0.03, 0.05, 0.04, 0.01], [0.04, 0.03, 0.02, 0.01]]


@pytest.fixture(autouse=True)
def _cached_tokenizers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load each tokenizer once: MiniLM's takes most of the time of a command."""
    monkeypatch.setattr(compute, "WordPieceTokenizer", load_tokenizer)


def write_corpus(texts: Sequence[str], path: str = "c") -> Path:
    return write_rows(Path(path), [{"_id": f"d{number}", "text": text} for number, text in enumerate(texts)])


def weigh(capfd: Capture, command: str) -> list[dict[str, Any]]:
    return run_rows(capfd, f"termweight {command}")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("model") / "m")


class PlantedAttention:
    """Attention values of the worked example in place of a model."""

    room = 510

    def __init__(self, *_: object, **__: object) -> None:
        ids = [tuple(pieces.ids) for pieces in load_tokenizer(find_minilm())(HEARTS)]
        self._attention = dict(zip(ids, ATTENTION, strict=True))

    def __call__(self, texts: Sequence[Sequence[int]], masked: object = None) -> list[np.ndarray]:
        return [np.array(self._attention[tuple(text)]) for text in texts]


BPROP = {
    "score": [
        [0.432280, 0.704512, 0.907938, 0.492704, 0.704512],
        [0.509740, 0.778330, 0.951673, 0.387328],
        [0.577080, 0.661291, 0.548120, 0.495648],
    ],
    "softmax": [[0.200632, 0.263408, 0.322831, 0.213129, 0.263408]],
    "attention": [[0.220588, 0.294118, 0.264706, 0.220588, 0.294118]],
}


def test_bprop_weighs_the_worked_example(capfd, monkeypatch):
    monkeypatch.setattr(bprop, "FirstTokenAttention", PlantedAttention)
    write_corpus(HEARTS)
    call = f"c --method bprop --model {find_minilm()}"
    for emit, expected in BPROP.items():
        short = "" if emit == "attention" else "--set min_words=0"  # plain attention also weighs short passages
        rows = weigh(capfd, f"{call} --set emit={emit} {short}")
        for row, weights in zip(rows, expected, strict=False):
            assert row["weights"] == pytest.approx(weights, abs=2e-6)
    by_maximum = weigh(capfd, f"{call} --set min_words=0 --set weight_norm=max")[0]["weights"]
    assert by_maximum == pytest.approx([0.476111, 0.775948, 1.0, 0.542662, 0.775948], abs=2e-6)
    write_corpus(HEARTS[1:], "others")
    weigh(capfd, f"others {call.removeprefix('c ')} --collect -o s")
    unseen = weigh(capfd, f"{call} --set min_words=0 --collection s")[0]["weights"]
    # disease, which the collection lacks, is as rare as its rarest word, heart: -log2 .133929 = 2.900461
    assert unseen == pytest.approx([0.408785, 0.853078, 0.767770, 0.499199, 0.853078], abs=2e-6)
    assert weigh(capfd, call)[0]["weights"] == [0.25] * 5  # fewer than ten words: the, heart, disease, of


def test_weights_are_normalized_over_words_and_not_over_pieces(capfd):
    write_corpus(CATS)
    rows = weigh(capfd, f"c --method tfidf --tokenizer {find_minilm()} --set weight_norm=sum")
    assert rows[0]["weights"] == pytest.approx([0, 0.730423, 0.269577], abs=2e-6)
    assert rows[2]["weights"] == pytest.approx([0, 1 / 2, 1 / 2, 1 / 2, 1 / 2])  # the, per ##ve ##ance, beam
    rows = weigh(capfd, f"c --method inv-freq --tokenizer {find_minilm()} --set weight_norm=sum")
    assert rows[0]["weights"] == pytest.approx([0.181818, 0.545455, 0.272727], abs=2e-6)  # 1/3, 1, 1/2


def options(method: str, model: Path) -> str:
    return f"--method {method} --{'model' if TERM_WEIGHTS.load(method).with_model else 'tokenizer'} {model}"


@pytest.mark.parametrize("method", ["bprop", "tfidf"])
def test_there_is_a_weight_for_each_word_piece_of_text_and_title(encoder, capfd, method):
    passages = [{"_id": p.id, "title": p.title, "text": p.text, "color": "red"} for p in make_passages(20)]
    odd = {"_id": "odd", "text": "— ’ \u200b\U0001f600"}
    write_rows(Path("c"), [*passages, {"_id": "empty", "text": ""}, odd])
    rows = weigh(capfd, f"c {options(method, encoder)}")
    assert len(rows) == 22
    for row in rows:
        text, title = load_tokenizer(str(encoder))([row["text"], row.get("title", "")])
        assert len(row["weights"]) == len(text.ids)
        assert len(row.get("title_weights", [])) == len(title.ids)
        assert all(weight >= 0 for weight in row["weights"])
        assert row["metadata"]["weights_tokenizer"] == str(encoder)
    assert rows[0]["color"] == "red"
    assert sum(sum(row["weights"]) for row in rows) > 0
    without = weigh(capfd, f"c {options(method, encoder)} --set title=none")
    assert not any("title_weights" in row for row in without)


def test_the_weight_of_a_word_is_copied_to_its_pieces_or_given_to_the_first(encoder, capfd):
    text = "riverward castleous castleous planets and gardeners"
    write_corpus([text, "other words"])
    call = f"c {options('bprop', encoder)} --set words=plain --set spread"
    copied, first = (weigh(capfd, f"{call}={how}")[0]["weights"] for how in ("copy", "first"))
    pieces = load_tokenizer(str(encoder))([text])[0]
    assert len(set(pieces.words)) < len(pieces.words)
    word_weights: dict[int, float] = {}
    for word, copied_weight, first_weight in zip(pieces.words, copied, first, strict=True):
        assert first_weight == (0 if word in word_weights else copied_weight)
        assert word_weights.setdefault(word, copied_weight) == copied_weight
    assert word_weights[1] == word_weights[2]  # the two of castleous
    call = f"c {options('bprop', encoder)} --set emit=attention --set words=plain --set sub2word"
    summed, first = (weigh(capfd, f"{call}={how}")[0]["weights"] for how in ("sum", "first"))
    assert summed != first
    assert len(summed) == len(first)
    assert 0 not in first


def test_statistics_in_parts_give_what_the_whole_gives(encoder, capfd):
    rows = read_rows(write_corpus([passage.text for passage in make_passages(40)]))
    call = options("bprop", encoder)
    expected = weigh(capfd, f"c {call}")
    for name, part in (("1", rows[:13]), ("2", rows[13:])):
        write_rows(Path(name), part)
        weigh(capfd, f"{name} {call} --collect -o s{name}")
    assert weigh(capfd, f"c {call} --collection s1 --collection s2") == expected
    weigh(capfd, f"{call} --merge --collection s1 --collection s2 -o merged")
    assert len(read_rows(Path("merged"))) == 1
    assert weigh(capfd, f"1 {call} --collection merged") == expected[:13]


def test_statistics_of_the_input_are_collected_and_reused(encoder, capfd):
    write_corpus(CATS)
    call, file = f"c {options('tfidf', encoder)}", Path("out.collection.jsonl")
    piped = weigh(capfd, call)
    weigh(capfd, f"{call} -o out")
    assert read_rows(Path("out")) == piped
    written = file.stat().st_mtime_ns
    weigh(capfd, f"{call} -o out --force")
    assert file.stat().st_mtime_ns == written
    write_corpus([*CATS, "another one"])
    weigh(capfd, f"{call} -o out --force")
    assert file.stat().st_mtime_ns != written


def test_pipes_are_read_twice_and_side_files_too(encoder, capfd):
    source = write_corpus(CATS)
    side = write_rows(Path("s"), [{"_id": f"d{number}", "color": "red"} for number in range(3)])
    call = options("tfidf", encoder)
    expected = weigh(capfd, f"c {call} --with s")
    assert {row["color"] for row in expected} == {"red"}
    with open_pipe(source.read_bytes()) as one, open_pipe(side.read_bytes()) as other:
        assert weigh(capfd, f"{one} {call} --with {other}") == expected
    with open_pipe(side.read_bytes()) as other:
        weigh(capfd, f"c {call} --with {other} -o out")
    assert read_rows(Path("out")) == expected
    shown = run_command(capfd, "show", "--term-weights", "out")
    with open_pipe(Path("out").read_bytes()) as pipe:
        assert run_command(capfd, "show", "--term-weights", pipe) == shown
    assert shown.startswith("d0\nthe cat sat\n")


def test_stems_and_stop_words(encoder, capfd):
    write_corpus(["the river and rivers", "castles"])
    write_text(Path("stop"), "river\n")
    plain, stemmed, lucene, own = (
        weigh(capfd, f"c {options('idf', encoder)} {more}")[0]["weights"]
        for more in ("", "--set stemmer=porter", "--set stopwords=lucene", "--set stopwords=stop")
    )
    assert plain[0] == pytest.approx(0.693147, abs=2e-6)  # the: in one of two
    assert 0 not in stemmed
    assert lucene[0] == 0
    assert sum(weight > 0 for weight in lucene) < len(lucene)
    assert own != plain
    assert own[0] == plain[0]


def test_plain_attention_needs_no_collection(encoder, capfd):
    write_corpus(CATS)
    call = f"c {options('bprop', encoder)} --set emit=attention"
    assert weigh(capfd, call)[0]["weights"]
    assert "collecting statistics" not in capfd.readouterr().err
    for more, name in (("--collect", "collect"), ("--collection c", "collection")):
        with pytest.raises(UsageError, match=f"`{name}` has no effect, because the method uses no"):
            weigh(capfd, f"{call} {more}")


def test_words_beyond_the_maximum_input_length_have_weight_0(encoder, capfd):
    write_corpus(["rivers castles planets gardens markets winters violins engines coppers sailors", "other words"])
    call = f"c {options('bprop', encoder)} --set max_length=5"
    weigh(capfd, f"{call} --collect -o s")
    scores = "--collection s --set"
    minima = (f"{scores} min_words=0", f"{scores} min_words=0 --set emit=softmax", f"{scores} min_words=99")
    for more in ("--set emit=attention", *minima):
        weights = weigh(capfd, f"{call} {more}")[0]["weights"]
        assert weights[0] > 0
        assert weights[-1] == 0


def test_a_report_counts_stop_words_among_masked_pieces(encoder, capfd):
    write_corpus([f"the {topic} of the " * 5 + "and , . of in to" for topic in ("rivers", "castles", "planets", "x")])
    weigh(capfd, f"c {options('idf', encoder)} --stopword-share -o out")
    counts = read_json(Path("out.meta.json"))["counts"]["report"]
    assert counts["passages"] == 4
    assert 0 <= counts["highest weights"] < counts["masked at random"] <= counts["masked"]
    assert counts["pieces"] == sum(len(row["weights"]) for row in read_rows(Path("out")))


def test_a_report_is_not_mixed_with_passages_on_a_terminal(encoder, capfd, monkeypatch):
    write_corpus(CATS)
    call = f"c {options('idf', encoder)} --stopword-share"
    assert len(weigh(capfd, call)) == 3  # a pipe takes the passages
    monkeypatch.setattr("sys.stdout", terminal := io.StringIO())
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    with pytest.raises(UsageError, match=r"--stopword-share requires --output"):
        app(["termweight", *call.split()], standalone_mode=False)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("tfidf", "`method=tfidf` requires `tokenizer`"),
        ("bprop", "`method=bprop` requires `model`"),
        ("idf {model} --collect --merge", "--collect and --merge cannot be combined"),
        ("idf {model} --merge", "INPUT cannot be combined with --merge, which sums the files"),
        ("idf {model} --set learning_rate=1", "`learning_rate` requires --train"),
        ("idf {model} --set saturation=sqrt", "--set saturation requires --method bprop"),
        ("idf {model} --set k1=1.2", "--set k1 requires --method bm25"),
        ("idf {model} --set max_length=9", "--set max_length requires --method bprop or deepct or deepimpact"),
        ("bprop {model} --set emit=attention --set contrast=difference", "contrast has no effect with `emit=att"),
        ("bprop {model} --set softmax_temperature=2", "--set softmax_temperature requires `emit=softmax`"),
        ("idf {model} --collect --stopword-share", "`stopword_share` cannot be combined with --collect"),
        ("idf {model} --collect --set weight_norm=sum", "`weight_norm` cannot be combined with --collect"),
        ("idf {model} --collect --bare", "`bare` cannot be combined with --collect, which writes statistics"),
        ("idf {model} --collect --collection c", "`collection` cannot be combined with --collect"),
    ],
)
def test_contradictory_options_are_rejected(encoder, capfd, call, message):
    write_corpus(CATS)
    with pytest.raises(UsageError, match=message):
        weigh(capfd, f"c --method {call.format(model=f'--model {encoder}')}")


def test_options_of_counting_are_valid_for_collecting_merging_and_weighing(encoder, capfd):
    write_corpus(CATS)
    call = f"{options('bprop', encoder)} --set saturation=sqrt --set stemmer=porter"
    weigh(capfd, f"c {call} --collect -o s")
    weigh(capfd, f"{call} --merge --collection s -o m")
    assert len(weigh(capfd, f"c {call} --collection m --set emit=softmax")) == 3
    with pytest.raises(UsageError, match="`merge` requires the files to merge as `collection`"):
        weigh(capfd, f"{options('idf', encoder)} --merge")
    with pytest.raises(MismatchError, match=r"its word pieces differ from those of the model .*; omit `tokenizer`"):
        weigh(capfd, f"c --method bprop --model {encoder} --tokenizer {find_minilm()}")


@pytest.mark.parametrize("more", ["bm25 --tokenizer {} --set words=treebank", "bprop --set sub2word=first --model {}"])
def test_worker_processes_do_not_change_the_weights(encoder, capfd, monkeypatch, more):
    monkeypatch.setattr(compute, "_MODEL_BATCH", 30)
    corpus = write_corpus([passage.text for passage in make_passages(70)])
    command = f"{corpus} --method {more.format(encoder)} --set num_workers"
    one, two = (weigh(capfd, f"{command}={count}") for count in (1, 2))
    assert len(one) == 70
    assert one == two

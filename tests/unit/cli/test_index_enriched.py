"""drtk index --expand, --term-weights and --type impact through the commands: what was added to passages is what is found."""

from __future__ import annotations

import math
from pathlib import Path

import orjson
import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.text.word_pieces import WordPieceTokenizer
from tests.bm25_data import skip_without_lucene
from tests.run_commands import run_command, write_text
from tests.tiny_models import save_tiny_encoder

ENGINES = ("bm25", "bm25s")
EXPANDED = [
    {"_id": "p1", "text": "wing", "queries": ["which bird", "what soars"]},
    {"_id": "p2", "text": "sea", "continuations": "salty water", "queries": []},
    {"_id": "p3", "text": "bird"},
]


def rows(path: Path, given: list[dict]) -> Path:
    return write_text(path, "".join(orjson.dumps(row).decode() + "\n" for row in given))


def told(capfd, *arguments: str | Path) -> str:
    """What `drtk ARGUMENTS` writes to stderr."""
    capfd.readouterr()
    app([str(argument) for argument in arguments], standalone_mode=False)
    found: str = capfd.readouterr().err
    return found


def columns(run: str) -> dict[tuple[str, str], float]:
    return {(line.split()[0], line.split()[2]): float(line.split()[4]) for line in run.splitlines()}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_encoder(tmp_path_factory.mktemp("model") / "m"))


def meta(folder: str) -> dict:
    found: dict = orjson.loads((Path(folder) / "meta.json").read_bytes())
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_added_texts_are_found_and_passages_without_them_counted(engine: str, place: Path, capfd) -> None:
    if engine == "bm25":
        skip_without_lucene()
    rows(place / "corpus.jsonl", EXPANDED)
    rows(
        place / "queries.jsonl",
        [{"_id": "q1", "text": "bird"}, {"_id": "q2", "text": "soars"}, {"_id": "q3", "text": "salty"}],
    )
    run_command(capfd, "index", "corpus.jsonl", "--type", engine, "-o", "plain")
    assert set(columns(run_command(capfd, "search", "plain", "queries.jsonl"))) == {("q1", "p3")}
    wide = ("--type", engine, "-o", "wide", "--expand", "queries", "--expand", "continuations")
    complaints = told(capfd, "index", "corpus.jsonl", *wide)
    assert complaints.count("1 of 3 passages have no 'queries'") == 1
    assert complaints.count("2 of 3 passages have no 'continuations'") == 1
    assert set(columns(run_command(capfd, "search", "wide", "queries.jsonl"))) == {
        ("q1", "p1"), ("q1", "p3"), ("q2", "p1"), ("q3", "p2"),
    }  # fmt: skip
    assert meta("wide")["settings"]["expand"] == ["queries", "continuations"]
    assert meta("wide")["counts"] == {"passages": 3, "without queries": 1, "without continuations": 2}


def test_the_strings_follow_title_and_text_with_spaces(place: Path, capfd) -> None:
    # p1 has the words wing which bird what soars: 5; p2 sea: 1; p3 bird: 1; avgdl 7/3. bird: idf ln(1 + 1.5/2.5) = .470004
    # p1: .470004 / (1 + .9 (.6 + .4 * 5/(7/3))) = .203339; p3: .470004 / (1 + .9 (.6 + .4 * 1/(7/3))) = .277405
    rows(place / "corpus.jsonl", EXPANDED)
    rows(place / "queries.jsonl", [{"_id": "q1", "text": "bird"}])
    run_command(capfd, "index", "corpus.jsonl", "--type", "bm25s", "-o", "i", "--expand", "queries")
    found = columns(run_command(capfd, "search", "i", "queries.jsonl"))
    expected = {
        ("q1", f"p{n}"): math.log(1.6) / (1 + 0.9 * (0.6 + 0.4 * length * 3 / 7)) for n, length in ((1, 5), (3, 1))
    }
    assert found == pytest.approx(expected, abs=1e-5)
    assert expected["q1", "p1"] == pytest.approx(0.203339, abs=2e-6)


@pytest.mark.parametrize("value", [7, ["a", None]])
def test_a_field_of_another_type_is_told_with_its_line(value: object, place: Path, capfd) -> None:
    rows(place / "corpus.jsonl", [EXPANDED[0], {"_id": "p9", "text": "x", "queries": value}])
    arguments = ("index", "corpus.jsonl", "--type", "bm25s", "--expand", "queries")
    with pytest.raises(
        RecordError, match=r"corpus\.jsonl:2: passage 'p9': 'queries' must be a string or a list of strings"
    ):
        run_command(capfd, *arguments, "-o", "i")
    run_command(capfd, *arguments, "-o", "i", "--skip-bad", "1", "--force")
    assert meta("i")["counts"] == {"passages": 1, "skipped": 1}


def test_a_field_that_no_passage_has_is_a_fault(place: Path, capfd) -> None:
    rows(place / "corpus.jsonl", EXPANDED)
    with pytest.raises(DrtkError, match="none of 3 passages has a field 'querys'"):
        run_command(capfd, "index", "corpus.jsonl", "--type", "bm25s", "--expand", "querys", "-o", "i")


def weighted(tokenizer: str, id: str, text: str, by_word: dict[str, float]) -> dict:
    """A row whose pieces weigh what their word (parted by spaces) does; "*" is the weight of later pieces."""
    (pieces,) = WordPieceTokenizer(tokenizer)([text])
    words = [text[:begin].count(" ") for begin, _ in pieces.offsets]
    weights = [
        by_word["*"] if at and words[at] == words[at - 1] else by_word[text.split()[word]]
        for at, word in enumerate(words)
    ]
    return {"_id": id, "text": text, "weights": weights, "metadata": {"weights_tokenizer": tokenizer}}


@pytest.fixture
def weights(place: Path, tokenizer: str) -> Path:
    rows(place / "queries.jsonl", [{"_id": "q1", "text": "rivers"}, {"_id": "q2", "text": "engines"}])
    return rows(
        place / "weighted.jsonl",
        [
            weighted(tokenizer, "p1", "rivers engines rivers", {"rivers": 0.04, "engines": 0.01, "*": 1.0}),
            weighted(tokenizer, "p2", "engines rivers", {"rivers": 0.0049, "engines": 0.03, "*": 1.0}),
        ],
    )


# p1 becomes rivers x 4, engines x 1; p2 engines x 3 (rivers: round(.49) = 0); N = 2, lengths 5 and 3, on average 4.
# rivers: idf ln(1 + 1.5/1.5) = .693147; engines: ln(1 + .5/2.5) = .182322.
def bm25(idf: float, tf: int, length: int, average: float, *, k1: float, b: float) -> float:
    return idf * tf / (tf + k1 * (1 - b + b * length / average))


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_are_frequencies_and_the_index_advises_how_to_search_them(engine: str, weights: Path, capfd) -> None:
    if engine == "bm25":
        skip_without_lucene()
    run_command(capfd, "index", weights, "--type", engine, "--term-weights", "-o", "i")
    assert meta("i")["bm25"] == {"k1": 10.0, "b": 0.9}
    assert (meta("i")["settings"]["term_weights"], meta("i")["settings"]["weight_scale"]) == (True, "linear")

    def expected(k1: float, b: float) -> dict[tuple[str, str], float]:
        rare, common = math.log(2), math.log(1.2)
        return {
            ("q1", "p1"): bm25(rare, 4, 5, 4, k1=k1, b=b),
            ("q2", "p1"): bm25(common, 1, 5, 4, k1=k1, b=b),
            ("q2", "p2"): bm25(common, 3, 3, 4, k1=k1, b=b),
        }

    assert "using k1 10, b 0.9 (recommended by i)" in told(capfd, "search", "i", "queries.jsonl")
    found = columns(run_command(capfd, "search", "i", "queries.jsonl"))
    # .693147 * 4 / (4 + 10 (.1 + .9 * 5/4)) = .170621
    assert found["q1", "p1"] == pytest.approx(0.170621, abs=1e-5)
    assert found == pytest.approx(expected(10, 0.9), abs=1e-5)
    found = columns(run_command(capfd, "search", "i", "queries.jsonl", "--k1", "0.9", "--b", "0.4"))
    assert found == pytest.approx(expected(0.9, 0.4), abs=1e-5)
    found = columns(run_command(capfd, "search", "i", "queries.jsonl", "--b", "0.4"))
    assert found == pytest.approx(expected(10, 0.4), abs=1e-5)


def test_the_square_root_scale_advises_its_own_parameters(weights: Path, capfd) -> None:
    # sqrt: rivers 100 * .2 = 20, engines 10; p2: engines 17 (17.3), rivers 7. Lengths 30, 24: average 27, both words common
    run_command(capfd, "index", weights, "--type", "bm25s", "--term-weights", "--set", "weight_scale=sqrt", "-o", "i")
    assert meta("i")["bm25"] == {"k1": 18.0, "b": 0.7}
    found = columns(run_command(capfd, "search", "i", "queries.jsonl"))
    common = math.log(1.2)
    assert found == pytest.approx(
        {
            ("q1", "p1"): bm25(common, 20, 30, 27, k1=18, b=0.7),
            ("q1", "p2"): bm25(common, 7, 24, 27, k1=18, b=0.7),
            ("q2", "p1"): bm25(common, 10, 30, 27, k1=18, b=0.7),
            ("q2", "p2"): bm25(common, 17, 24, 27, k1=18, b=0.7),
        },
        abs=1e-5,
    )


def test_weights_arrive_by_a_side_file_too(weights: Path, place: Path, capfd) -> None:
    given = [orjson.loads(line) for line in weights.read_bytes().splitlines()]
    rows(place / "corpus.jsonl", [{"_id": row["_id"], "text": row["text"]} for row in given])
    rows(place / "side.jsonl", [{key: row[key] for key in ("_id", "weights", "metadata")} for row in given])
    run_command(capfd, "index", weights, "--type", "bm25s", "--term-weights", "-o", "one")
    run_command(
        capfd, "index", "corpus.jsonl", "--with", "side.jsonl", "--type", "bm25s", "--term-weights", "-o", "two"
    )
    assert (
        run_command(capfd, "search", "one", "queries.jsonl")
        == run_command(capfd, "search", "two", "queries.jsonl")
        != ""
    )


def test_titles_without_weights_are_told_and_left_out(weights: Path, place: Path, capfd) -> None:
    given = [orjson.loads(line) | {"title": "violins"} for line in weights.read_bytes().splitlines()]
    rows(place / "titled.jsonl", given)
    complaints = told(capfd, "index", "titled.jsonl", "--type", "bm25s", "--term-weights", "-o", "i")
    assert "titles of 2 passages are not indexed, because the passages have no 'title_weights'" in complaints
    rows(place / "queries.jsonl", [{"_id": "q", "text": "violins"}])
    assert run_command(capfd, "search", "i", "queries.jsonl") == ""


def test_indexes_of_different_scales_are_not_searched_as_one(weights: Path, capfd) -> None:
    run_command(capfd, "index", weights, "--type", "bm25s", "--term-weights", "-o", "one")
    run_command(capfd, "index", weights, "--type", "bm25s", "-o", "two")
    with pytest.raises(MismatchError, match="the scale of term weights differs from one"):
        run_command(capfd, "search", "one", "two", "queries.jsonl")


IMPACTS = [
    {"_id": "d1", "title": "Wings", "text": "nobody reads this", "impacts": {"wing": 255, "bird": 3}},
    {"_id": "d2", "text": "nor this", "impacts": {"wing": 40, "craft": 200}},
    {"_id": "d3", "text": "bird bird", "impacts": {"bird": 120}},
]


def test_impacts_are_summed_and_the_type_needs_no_saying(place: Path, capfd) -> None:
    skip_without_lucene()
    rows(place / "corpus.jsonl", IMPACTS)
    rows(place / "queries.jsonl", [{"_id": "q1", "text": "Wings? A wing of the BIRD, the bird!"}])
    run_command(capfd, "index", "corpus.jsonl", "--type", "impact", "-o", "i")
    # d1 255 + 3, d3 120, d2 40: `bird` counts once, `wings` is no word of theirs
    assert run_command(capfd, "search", "i", "queries.jsonl") == (
        "q1 Q0 d1 1 258.0 drtk\nq1 Q0 d3 2 120.0 drtk\nq1 Q0 d2 3 40.0 drtk\n"
    )
    found = meta("i")
    assert (found["type"], found["encoder"], found["counts"]) == ("impact", None, {"passages": 3})
    assert "nobody reads this" in run_command(capfd, "search", "i", "--query", "wing bird", "-k", "1")
    with pytest.raises(UsageError, match="is only valid for indexes of type bm25, bm25s"):
        run_command(capfd, "search", "i", "queries.jsonl", "--k1", "10")
    write_text(place / "qrels.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    with pytest.raises(UsageError, match="`tune` requires an index of type bm25 or bm25s"):
        run_command(capfd, "search", "i", "queries.jsonl", "--tune", "--qrels", "qrels.tsv")


def test_parts_of_an_impact_index_score_as_the_whole(place: Path, capfd) -> None:
    skip_without_lucene()
    rows(place / "queries.jsonl", [{"_id": "q1", "text": "wing bird"}])
    for name, part in (("whole", IMPACTS), ("one", IMPACTS[:1]), ("two", IMPACTS[1:])):
        rows(place / "part.jsonl", part)
        run_command(capfd, "index", "part.jsonl", "--type", "impact", "-o", name)
    parts = run_command(capfd, "search", "one", "two", "queries.jsonl")
    assert parts == run_command(capfd, "search", "whole", "queries.jsonl")
    assert "only roughly comparable" not in told(capfd, "search", "one", "two", "queries.jsonl")


def test_what_is_no_impact_is_told_with_line_and_id(place: Path, capfd) -> None:
    skip_without_lucene()
    rows(place / "corpus.jsonl", [IMPACTS[0], {"_id": "p9", "text": "", "impacts": {"wing": 1.5}}])
    with pytest.raises(RecordError) as caught:
        run_command(capfd, "index", "corpus.jsonl", "--type", "impact", "-o", "i")
    assert str(caught.value) == "corpus.jsonl:2: passage 'p9': the impact of 'wing' must be an integer, got 1.5"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--type", "impact", "--expand", "queries"], "`expand` requires an index of type bm25 or bm25s"),
        (["--type", "exact", "--term-weights"], "`term_weights` requires an index of type bm25 or bm25s"),
        (["--type", "bm25s", "--term-weights", "--expand", "queries"], "added words have no weights"),
        (["--type", "bm25s", "--expand", "queries,"], "a field name is empty"),
        (["--type", "bm25s", "--set", "weight_scale=sqrt"], "--set weight_scale needs --term-weights"),
        (["--type", "bm25s", "--set", "tokenizer=m"], "--set tokenizer needs --term-weights"),
    ],
)
def test_what_does_not_go_together_is_wrong_usage(arguments: list[str], complaint: str, place: Path, capfd) -> None:
    rows(place / "corpus.jsonl", EXPANDED)
    with pytest.raises(UsageError, match=complaint):
        run_command(capfd, "index", "corpus.jsonl", *arguments, "-o", "i")
    assert not (place / "i").exists()


def test_weights_whose_tokenizer_has_moved_are_read_with_the_one_that_is_named(place: Path, capfd) -> None:
    save_tiny_encoder(place / "there")
    save_tiny_encoder(place / "other", vocab_size=100)
    rows(place / "c", [{"_id": "p1", "text": "rivers castles"}, {"_id": "p2", "text": "planets"}])
    run_command(capfd, "termweight", "c", "--method", "idf", "--tokenizer", "there", "-o", "w")
    index = ("index", "w", "--type", "bm25s", "--term-weights")
    run_command(capfd, *index, "-o", "before")
    shown = run_command(capfd, "show", "--term-weights", "w")
    with pytest.raises(
        MismatchError, match=r"the weights are for the word pieces of .*there, which differ from those of other"
    ):
        run_command(capfd, *index, "--set", "tokenizer=other", "-o", "i")
    with pytest.raises(MismatchError, match="differ from those of other"):
        run_command(capfd, "show", "--term-weights", "w", "--tokenizer", "other")
    (place / "there").rename(place / "moved")
    for call in ((*index, "-o", "i"), ("show", "--term-weights", "w")):
        with pytest.raises(DrtkError, match="there: no such folder; if it was moved, set `tokenizer`"):
            run_command(capfd, *call)
    assert run_command(capfd, "show", "--term-weights", "w", "--tokenizer", "moved") == shown
    run_command(capfd, *index, "--set", "tokenizer=moved", "-o", "after")
    rows(place / "q", [{"_id": "q1", "text": "rivers planets"}])
    found = [run_command(capfd, "search", folder, "q") for folder in ("before", "after")]
    assert len(columns(found[0])) == 2
    assert found[0] == found[1]
    with pytest.raises(
        RecordError, match=r"w:1: passage 'p1': 'weights' has \d+ numbers, but the tokenizer returns \d+ word pieces"
    ):
        run_command(capfd, *index, "--set", "tokenizer=other", "-o", "i")

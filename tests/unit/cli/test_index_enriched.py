"""drtk index --expand, --term-weights and --type impact: added words are found, and weights are term frequencies."""

import math
from pathlib import Path

import pytest

from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.runtime.integrity import read_json
from drtk.text.word_pieces import WordPieceTokenizer
from tests.bm25_data import skip_without_lucene
from tests.expansion_collection import read_rows, write_rows
from tests.run_commands import Capture, get_messages, run_command, write_text
from tests.tiny_models import save_tiny_encoder

pytestmark = pytest.mark.usefixtures("folder")

EXPANDED = [
    {"_id": "p1", "text": "wing", "queries": ["which bird", "what soars"]},
    {"_id": "p2", "text": "sea", "continuations": "salty water", "queries": []},
    {"_id": "p3", "text": "bird"},
]


def run(capfd: Capture, command: str) -> str:
    return run_command(capfd, *command.split())


def write_queries(*texts: str) -> None:
    """Write queries q1, q2, …"""
    write_rows(Path("queries.jsonl"), [{"_id": f"q{n}", "text": text} for n, text in enumerate(texts, start=1)])


def search(capfd: Capture, command: str) -> dict[tuple[str, str], float]:
    """Run drtk search with these arguments; return the score by query and passage."""
    lines = [line.split() for line in run(capfd, f"search {command}").splitlines()]
    return {(query, passage): float(score) for query, _, passage, _, score, _ in lines}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_encoder(tmp_path_factory.mktemp("model") / "m"))


def meta(folder: str) -> dict:
    return read_json(Path(folder) / "meta.json")


def test_added_texts_are_found_and_passages_without_them_counted(folder, capfd):
    write_rows(folder / "corpus.jsonl", EXPANDED)
    write_queries("bird", "soars", "salty")
    run(capfd, "index corpus.jsonl --type bm25s -o plain")
    assert set(search(capfd, "plain queries.jsonl")) == {("q1", "p3")}
    log = get_messages(capfd, "index corpus.jsonl --type bm25s -o wide --expand queries --expand continuations")
    assert log.count("1 of 3 passages have no 'queries'") == 1
    assert log.count("2 of 3 passages have no 'continuations'") == 1
    hits = {("q1", "p1"), ("q1", "p3"), ("q2", "p1"), ("q3", "p2")}
    assert set(search(capfd, "wide queries.jsonl")) == hits
    assert meta("wide")["settings"]["expand"] == ["queries", "continuations"]
    assert meta("wide")["counts"] == {"passages": 3, "without queries": 1, "without continuations": 2}


def test_expansions_are_appended_to_title_and_text(folder, capfd):
    # p1 has the words wing which bird what soars: 5; p2 sea: 1; p3 bird: 1; avgdl 7/3. bird: idf ln(1 + 1.5/2.5) = .470004
    # p1: .470004 / (1 + .9 (.6 + .4 * 5/(7/3))) = .203339; p3: .470004 / (1 + .9 (.6 + .4 * 1/(7/3))) = .277405
    write_rows(folder / "corpus.jsonl", EXPANDED)
    write_queries("bird")
    run(capfd, "index corpus.jsonl --type bm25s -o i --expand queries")
    expected = {
        ("q1", f"p{n}"): math.log(1.6) / (1 + 0.9 * (0.6 + 0.4 * length * 3 / 7)) for n, length in ((1, 5), (3, 1))
    }
    assert search(capfd, "i queries.jsonl") == pytest.approx(expected, abs=1e-5)
    assert expected["q1", "p1"] == pytest.approx(0.203339, abs=2e-6)


def test_fields_that_are_invalid_or_missing_everywhere_are_rejected(folder, capfd):
    write_rows(folder / "corpus.jsonl", [EXPANDED[0], {"_id": "p9", "text": "x", "queries": ["a", None]}])
    call = "index corpus.jsonl --type bm25s -o i --expand"
    with pytest.raises(RecordError, match=r"corpus\.jsonl:2: passage 'p9': 'queries' must be a string or a list of"):
        run(capfd, f"{call} queries")
    run(capfd, f"{call} queries --skip-bad 1 --force")
    assert meta("i")["counts"] == {"passages": 1, "skipped": 1}
    with pytest.raises(DrtkError, match="none of 2 passages has a field 'querys'"):
        run(capfd, f"{call} querys --skip-bad 1 --force")


def make_passage(tokenizer: str, id: str, text: str, by_word: dict[str, float]) -> dict:
    """Return a passage whose word pieces have the weight of their word; "*" is the weight of continuation pieces."""
    (pieces,) = WordPieceTokenizer(tokenizer)([text])
    words = [text[:begin].count(" ") for begin, _ in pieces.offsets]
    weights = [
        by_word["*"] if at and words[at] == words[at - 1] else by_word[text.split()[word]]
        for at, word in enumerate(words)
    ]
    return {"_id": id, "text": text, "weights": weights, "metadata": {"weights_tokenizer": tokenizer}}


@pytest.fixture
def weights(folder: Path, tokenizer: str) -> Path:
    write_queries("rivers", "engines")
    rows = [
        make_passage(tokenizer, "p1", "rivers engines rivers", {"rivers": 0.04, "engines": 0.01, "*": 1.0}),
        make_passage(tokenizer, "p2", "engines rivers", {"rivers": 0.0049, "engines": 0.03, "*": 1.0}),
    ]
    return write_rows(folder / "weighted.jsonl", rows)


# p1 becomes rivers x 4, engines x 1; p2 engines x 3 (rivers: round(.49) = 0); N = 2, lengths 5 and 3, on average 4.
# rivers: idf ln(1 + 1.5/1.5) = .693147; engines: ln(1 + .5/2.5) = .182322.
def bm25(idf: float, tf: int, length: int, average: float, *, k1: float, b: float) -> float:
    return idf * tf / (tf + k1 * (1 - b + b * length / average))


@pytest.mark.parametrize("engine", ["bm25", "bm25s"])
def test_weights_are_frequencies_and_the_index_advises_how_to_search_them(engine, weights, capfd):
    if engine == "bm25":
        skip_without_lucene()
    run(capfd, f"index {weights} --type {engine} --term-weights -o i")
    assert meta("i")["bm25"] == {"k1": 10.0, "b": 0.9}
    assert (meta("i")["settings"]["term_weights"], meta("i")["settings"]["weight_scale"]) == (True, "linear")

    def compute_expected(k1: float, b: float) -> dict[tuple[str, str], float]:
        rare, common = math.log(2), math.log(1.2)
        return {
            ("q1", "p1"): bm25(rare, 4, 5, 4, k1=k1, b=b),
            ("q2", "p1"): bm25(common, 1, 5, 4, k1=k1, b=b),
            ("q2", "p2"): bm25(common, 3, 3, 4, k1=k1, b=b),
        }

    assert "using k1 10, b 0.9 (recommended by i)" in get_messages(capfd, "search i queries.jsonl")
    # .693147 * 4 / (4 + 10 (.1 + .9 * 5/4)) = .170621
    assert search(capfd, "i queries.jsonl")["q1", "p1"] == pytest.approx(0.170621, abs=1e-5)
    for more, k1, b in (("", 10, 0.9), ("--k1 0.9 --b 0.4", 0.9, 0.4), ("--b 0.4", 10, 0.4)):
        assert search(capfd, f"i queries.jsonl {more}") == pytest.approx(compute_expected(k1, b), abs=1e-5)


def test_the_square_root_scale_advises_its_own_parameters(weights, capfd):
    # sqrt: rivers 100 * .2 = 20, engines 10; p2: engines 17 (17.3), rivers 7. Lengths 30, 24: average 27, both words common
    run(capfd, f"index {weights} --type bm25s --term-weights --set weight_scale=sqrt -o i")
    assert meta("i")["bm25"] == {"k1": 18.0, "b": 0.7}
    frequencies = {("q1", "p1"): (20, 30), ("q1", "p2"): (7, 24), ("q2", "p1"): (10, 30), ("q2", "p2"): (17, 24)}
    scores = {pair: bm25(math.log(1.2), *numbers, 27, k1=18, b=0.7) for pair, numbers in frequencies.items()}
    assert search(capfd, "i queries.jsonl") == pytest.approx(scores, abs=1e-5)


def test_titles_without_weights_are_logged_and_not_indexed(weights, folder, capfd):
    write_rows(folder / "titled.jsonl", [row | {"title": "violins"} for row in read_rows(weights)])
    log = get_messages(capfd, "index titled.jsonl --type bm25s --term-weights -o i")
    assert "titles of 2 passages are not indexed, because the passages have no 'title_weights'" in log
    write_queries("violins")
    assert search(capfd, "i queries.jsonl") == {}


def test_indexes_of_different_scales_are_not_searched_as_one(weights, capfd):
    run(capfd, f"index {weights} --type bm25s --term-weights -o one")
    run(capfd, f"index {weights} --type bm25s -o two")
    with pytest.raises(MismatchError, match="together with one: it has another scale of term weights"):
        search(capfd, "one two queries.jsonl")


IMPACTS = [
    {"_id": "d1", "title": "Wings", "text": "nobody reads this", "impacts": {"wing": 255, "bird": 3}},
    {"_id": "d2", "text": "nor this", "impacts": {"wing": 40, "craft": 200}},
    {"_id": "d3", "text": "bird bird", "impacts": {"bird": 120}},
]


def test_impacts_are_summed_and_the_type_is_recorded(folder, capfd):
    skip_without_lucene()
    write_queries("Wings? A wing of the BIRD, the bird!")
    for name, part in (("one", IMPACTS[:1]), ("two", IMPACTS[1:]), ("i", IMPACTS)):
        write_rows(folder / "corpus.jsonl", part)
        run(capfd, f"index corpus.jsonl --type impact -o {name}")
    # d1 255 + 3, d3 120, d2 40: `bird` counts once, and no passage has `wings`
    hits = "q1 Q0 d1 1 258.0 drtk\nq1 Q0 d3 2 120.0 drtk\nq1 Q0 d2 3 40.0 drtk\n"
    assert run(capfd, "search i queries.jsonl") == run(capfd, "search one two queries.jsonl") == hits
    assert "only roughly comparable" not in get_messages(capfd, "search one two queries.jsonl")
    manifest = meta("i")
    assert (manifest["type"], manifest["encoder"], manifest["counts"]) == ("impact", None, {"passages": 3})
    assert "nobody reads this" in run_command(capfd, "search", "i", "--query", "wing bird", "-k", "1")
    with pytest.raises(UsageError, match="is only valid for indexes of type bm25, bm25s"):
        run(capfd, "search i queries.jsonl --k1 10")
    write_text(folder / "qrels.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    with pytest.raises(UsageError, match="`tune` requires an index of type bm25 or bm25s"):
        run(capfd, "search i queries.jsonl --tune --qrels qrels.tsv")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("impact --expand queries", "`expand` requires an index of type bm25 or bm25s"),
        ("exact --term-weights", "`term_weights` requires an index of type bm25 or bm25s"),
        ("bm25s --term-weights --expand queries", "added words have no weights"),
        ("bm25s --expand queries,", "a field name is empty"),
        ("bm25s --set weight_scale=sqrt", "--set weight_scale requires --term-weights"),
    ],
)
def test_contradictory_options_are_rejected(more, message, folder, capfd):
    write_rows(folder / "corpus.jsonl", EXPANDED)
    with pytest.raises(UsageError, match=message):
        run(capfd, f"index corpus.jsonl -o i --type {more}")
    assert not (folder / "i").exists()


def test_passages_without_impacts_are_reported(folder, capfd):
    write_rows(folder / "corpus.jsonl", EXPANDED)
    with pytest.raises(RecordError, match=r"corpus\.jsonl:1: passage 'p1': has no 'impacts'"):
        run(capfd, "index corpus.jsonl -o i --type impact")
    assert not (folder / "i").exists()


def test_the_tokenizer_option_replaces_a_moved_tokenizer_of_weights(folder, capfd):
    save_tiny_encoder(folder / "there")
    save_tiny_encoder(folder / "other", vocab_size=100)
    write_rows(folder / "c", [{"_id": "p1", "text": "rivers castles"}, {"_id": "p2", "text": "planets"}])
    run(capfd, "termweight c --method idf --tokenizer there -o w")
    index = "index w --type bm25s --term-weights -o"
    run(capfd, f"{index} before")
    shown = run(capfd, "show --term-weights w")
    for call in (f"{index} i --set tokenizer=other", "show --term-weights w --tokenizer other"):
        with pytest.raises(MismatchError, match="differ from those of other"):
            run(capfd, call)
    (folder / "there").rename(folder / "moved")
    for call in (f"{index} i", "show --term-weights w"):
        with pytest.raises(DrtkError, match="there: no such folder; if it was moved, set `tokenizer`"):
            run(capfd, call)
    assert run(capfd, "show --term-weights w --tokenizer moved") == shown
    run(capfd, f"{index} after --set tokenizer=moved")
    write_queries("rivers planets")
    scores = [search(capfd, f"{folder} queries.jsonl") for folder in ("before", "after")]
    assert len(scores[0]) == 2
    assert scores[0] == scores[1]
    with pytest.raises(RecordError, match=r"w:1: passage 'p1': 'weights' has \d+ numbers, but the tokenizer returns"):
        run(capfd, f"{index} i --set tokenizer=other")

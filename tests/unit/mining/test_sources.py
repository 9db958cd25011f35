"""Candidate sources: several runs, indexes, existing examples, and unknown ids."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.indexing import exact as exact_index
from drtk.mining.candidates import MiningQuery
from drtk.mining.config import MineSettings, MiningInputs
from drtk.mining.sources import IndexSearch, QueryBuffer, QueryStream, parse_sources
from drtk.runtime.inputs import InputTracker
from tests.expansion_collection import read_rows, write_rows
from tests.run_commands import Capture, open_pipe, run_command, run_rows, write_text
from tests.tiny_models import save_tiny_encoder, write_collection

QRELS = "".join(f"q{q}\td{q}\t1\n" for q in range(40))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a collection of 40 queries with a BM25 index, vectors, and two dense indexes."""
    folder = tmp_path_factory.mktemp("made")
    write_collection(folder, 40)
    write_text(folder / "qrels.tsv", QRELS)
    model = str(save_tiny_encoder(folder / "model"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for call in (
            "index corpus.jsonl --type bm25s -o bm25",
            f"encode corpus.jsonl --model {model} -o vectors",
            f"encode queries.jsonl --model {model} --role query -o asked",
            "index vectors --type exact -o exact",
            "index vectors --type flat -o flat",
            "search bm25 queries.jsonl -k 12 -o bm25.run",
            "search exact queries.jsonl -k 12 -o exact.run",
        ):
            app(call.split(), standalone_mode=False)
    return folder


@pytest.fixture
def cwd(data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(data)
    return data


COMMON = ["--qrels", "qrels.tsv", "--policy", "tevatron", "--depth", "12"]


def mine(capfd: Capture, *arguments: str) -> str:
    return run_command(capfd, "mine-negatives", "-q", *arguments, *COMMON)


def test_an_index_gives_what_its_run_gives(cwd, capfd):
    texts, vectors = ["--queries", "queries.jsonl"], ["--query-vectors", "asked"]
    assert mine(capfd, "x=bm25", *texts) == mine(capfd, "x=bm25.run")
    exact = mine(capfd, "x=exact.run")
    assert mine(capfd, "x=exact", *texts) == exact
    assert mine(capfd, "x=exact", *vectors, "--set", "batch_size=7") == exact
    assert mine(capfd, "x=flat", *vectors).count("\n") == 40  # sums in another order: the last hits may differ
    both = mine(capfd, "bm25", "exact", *texts, *vectors)
    assert both == mine(capfd, "bm25", "exact", *texts, "--set", "batch_size=7")


def test_one_pass_over_vectors_that_exceed_the_memory_serves_many_queries(cwd, monkeypatch):
    monkeypatch.setattr(exact_index.os, "sysconf", lambda name: 1)
    inputs = MiningInputs(("bm25", "exact"), queries="queries.jsonl", query_vectors="asked")
    folders = {"bm25": ["bm25"], "exact": ["exact"]}
    assert IndexSearch(folders, MineSettings(), inputs, depth=20).get_batch_size() == 2**21 // 20 // 2


REJECTED = [
    ("bm25", "bm25: `queries` is required"),
    ("bm25 exact --query-vectors asked", "bm25: `queries` is required"),
    ("vectors", "vectors: is of kind 'embeddings'; expected 'index'"),
    ("exact --query-vectors asked --model model", "`model` has no effect: no dense index is searched"),
    ("bm25 --queries queries.jsonl --set max_length=9", "`max_length` has no effect: no dense index"),
    ("examples.jsonl --margin 1", "`margin` requires a run or index as a source"),
    ("examples.jsonl --set from_rank=2", "`from_rank` requires ranks, but the negatives of query 'q1' are shuffled"),
    ("examples.jsonl exact.run --margin examples=1", "`margin`: unknown source 'examples'; choose from exact"),
    ("queries.jsonl", "queries.jsonl: looks like queries or passages; expected a TREC run, .*`queries`"),
    ("corpus.jsonl", "corpus.jsonl: looks like passages; .*passages as `corpus`"),
    ("qrels.tsv", "qrels.tsv: looks like judgments, or .*judgments as `qrels`"),
    ("texts.jsonl", "texts.jsonl: contains texts, not ids"),
    ("nan.run", r"nan\.run:2: score 'nan' is not finite"),
]


def test_rejected_sources(cwd, capfd):
    write_rows(cwd / "examples.jsonl", [EXAMPLE])
    write_rows(cwd / "texts.jsonl", [{"query": "what", "pos": ["text"], "neg": ["other"]}])
    write_text(cwd / "nan.run", "q1 Q0 d1 1 2 t\nq1 Q0 d2 2 nan t\n")
    for arguments, problem in REJECTED:
        with pytest.raises(DrtkError, match=problem):
            mine(capfd, *arguments.split())


def test_only_judged_queries_are_searched_and_others_counted(cwd, capfd, tmp_path):
    write_text(tmp_path / "few.tsv", "q3\td3\t1\nq99\td1\t1\n")
    lines = (cwd / "queries.jsonl").read_text().splitlines(keepends=True)
    some, out = write_text(tmp_path / "some.jsonl", "".join(lines[:30])), tmp_path / "out.jsonl"
    run_command(capfd, "mine-negatives", "bm25", "--queries", some, "--qrels", tmp_path / "few.tsv", "-o", out)
    assert [json.loads(line)["query_id"] for line in out.read_text().splitlines()] == ["q3"]
    counts = json.loads(Path(f"{out}.meta.json").read_text())["counts"]
    assert (counts["without judgments"], counts["not in queries"]) == (29, 1)
    assert "not retrieved" not in counts
    run_command(capfd, "mine-negatives", "bm25", "exact.run", *COMMON, "--queries", some, "-o", out, "--force")
    counts = json.loads(Path(f"{out}.meta.json").read_text())["counts"]
    assert (counts["in"], counts["not in queries"]) == (30, 10)


def test_an_index_and_a_run_are_mixed_in_any_order_of_their_lines(cwd, capfd, tmp_path):
    by_index = mine(capfd, "b=bm25.run", "e=exact", "--queries", "queries.jsonl")
    assert by_index == mine(capfd, "b=bm25.run", "e=exact.run")
    assert by_index != mine(capfd, "e=exact.run", "b=bm25.run")
    sources = {source for line in by_index.splitlines() for source in json.loads(line)["sources"]["negatives"]}
    assert sources == {"b", "e"}
    lines = (cwd / "exact.run").read_text().splitlines(keepends=True)
    reversed_blocks = [line for start in range(39 * 12, -1, -12) for line in lines[start : start + 12]]
    other = write_text(tmp_path / "exact.run", "".join(reversed_blocks))
    assert mine(capfd, "b=bm25.run", f"e={other}") == by_index


def test_queries_are_taken_in_another_order_and_only_early_ones_are_buffered():
    def items() -> Iterator[MiningQuery]:
        yield from (MiningQuery(id, positives=(f"{id}{at}",)) for at, id in enumerate("abcdea"))

    aligned = QueryBuffer(items(), allowed={"a", "b", "c", "e"})
    taken = [aligned.take_query(id) for id in "acbbf"]
    assert [one and one.positives for one in taken] == [("a0",), ("c2",), ("b1",), None, None]
    assert sorted(aligned.buffered) == ["a", "e"]
    assert sorted(aligned.read_remaining()) == ["a", "e"]
    assert sorted(QueryBuffer(items(), allowed={"a"}).read_remaining()) == ["a"]


def test_unknown_ids_of_a_file_are_reported_and_can_be_skipped(cwd, capfd, tmp_path):
    text = (cwd / "exact.run").read_text().replace(" d7 ", " zz ").replace(" d9 ", " yy ")
    run, lines = write_text(tmp_path / "x.run", text), text.splitlines()
    places = [number for number, line in enumerate(lines, 1) if " zz " in line or " yy " in line]
    with pytest.raises(RecordError, match=rf"x\.run:{places[0]}: passage '(zz|yy)' is not in the corpus$"):
        mine(capfd, str(run), "--corpus", "corpus.jsonl")
    assert mine(capfd, str(run), "--corpus", "corpus.jsonl", "--skip-bad", str(len(places))).count("\n") == 40


def test_an_index_of_another_corpus_is_noticed(cwd, capfd, tmp_path):
    lines = (cwd / "corpus.jsonl").read_text().splitlines(keepends=True)
    other = write_text(tmp_path / "other.jsonl", "".join(lines[:39]))
    judged = write_text(tmp_path / "few.tsv", "q1\td1\t1\n")
    call = ["mine-negatives", "-q", "exact", "--queries", "queries.jsonl", "--qrels", judged, "--corpus", other]
    problem = r"exact: was made from another corpus \(.*corpus\.jsonl, digest [0-9a-f]{8}"
    with pytest.raises(MismatchError, match=problem):
        run_command(capfd, *call)
    with pytest.raises(MismatchError, match="exact: passage 'd39', retrieved for query 'q1', is not in the corpus"):
        run_command(capfd, *call, "--skip-corpus-check", "--depth", "40")
    assert run_command(capfd, *call[:3], *call[3:-1], "corpus.jsonl").count("\n") == 1
    with pytest.raises(MismatchError, match=r"exact\.run: was made from another corpus"):  # run, index, vectors, corpus
        run_command(capfd, "mine-negatives", "exact.run", "--qrels", judged, "--corpus", other)


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 30 chunks with "apple" three times, and two chunks of "doc", one with "apple" once, which has rank 31."""
    folder = tmp_path_factory.mktemp("chunks")
    texts = {f"o{at}#0": "apple apple apple" for at in range(30)}
    texts |= {"doc#0": "apple and so much else that is no fruit at all", "doc#1": "nothing"}
    write_rows(folder / "corpus.jsonl", [{"_id": id, "text": text} for id, text in texts.items()])
    write_rows(folder / "queries.jsonl", [{"_id": id, "text": "apple"} for id in ("q1", "q2")])
    write_text(folder / "qrels.tsv", "q1\tdoc\t1\nq2\to3\t1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        app(["index", "corpus.jsonl", "--type", "bm25s", "-o", "bm25"], standalone_mode=False)
        app(["search", "bm25", "queries.jsonl", "-k", "100", "-o", "bm25.run"], standalone_mode=False)
    return folder


BY_SOURCE = ["--qrels", "qrels.tsv", "--by", "source", "--policy", "tevatron", "--depth", "10"]


def test_an_index_gives_what_its_run_gives_where_judgments_name_documents(chunks, capfd, monkeypatch):
    monkeypatch.chdir(chunks)
    # A score 100 above the positive's would go, and all where no score of a positive is known: it lies below the depth.
    for options in ([], ["--set", "batch_size=1"], ["--margin", "-100", "--corpus", "corpus.jsonl"]):
        asked = run_command(capfd, "mine-negatives", "-q", "x=bm25", "--queries", "queries.jsonl", *BY_SOURCE, *options)
        of_run = [] if "batch_size=1" in options else options
        assert asked == run_command(capfd, "mine-negatives", "-q", "x=bm25.run", *BY_SOURCE, *of_run)
        first, second = map(json.loads, asked.splitlines())
        assert first["positives"] == ["doc#0"]
        assert len(first["negatives"]) == 10  # those of the first ten ranks, and no more
        assert second["positives"] == ["o3#0"]
        assert len(second["negatives"]) == 9


SOURCES = {"negatives": ["a", "b"]}
EXAMPLE = {"query_id": "q1", "positives": ["d1"], "negatives": ["d2", "d3"], "sources": SOURCES, "x": 1}


def test_examples_and_a_run_are_mixed(cwd, capfd, tmp_path):
    old = write_rows(tmp_path / "old.jsonl", [EXAMPLE])
    run = write_text(tmp_path / "new.run", "q1 Q0 d2 1 2 t\nq1 Q0 d5 2 1 t\nq1 Q0 d1 3 0 t\n")
    row = mine_examples(capfd, old, f"new={run}")["q1"]
    assert row["positives"] == ["d1"]
    assert dict(zip(row["negatives"], row["sources"]["negatives"], strict=True)) == {"d2": "a", "d3": "b", "d5": "new"}
    assert row["x"] == 1
    judged = write_text(tmp_path / "qrels", "q1 0 d3 1\n")
    row = mine_examples(capfd, old, "--qrels", judged)["q1"]
    assert (row["positives"], row["negatives"]) == (["d3", "d1"], ["d2"])


def test_with_a_run_score_limits_apply_to_the_run_only(cwd, capfd, tmp_path):
    # the run puts d5 first (9), the positive second (5), d6 third (4.5), d7 last (1): rank 1 goes, and what has more than 4
    old = write_rows(tmp_path / "old.jsonl", [EXAMPLE])
    run = write_text(tmp_path / "new.run", "q1 Q0 d5 1 9 t\nq1 Q0 d1 2 5 t\nq1 Q0 d6 3 4.5 t\nq1 Q0 d7 4 1 t\n")
    call = ["mine-negatives", str(old), f"new={run}", "--policy", "tevatron", "--set", "from_rank=2", "--margin", "1"]
    app([*call, "--audit", str(tmp_path / "audit.jsonl")], standalone_mode=False)
    out, told = capfd.readouterr()
    assert sorted(json.loads(out)["negatives"]) == ["d2", "d3", "d7"]
    assert told.count("--set from_rank, --margin: applied to runs and indexes only, not to training examples") == 1
    kept = json.loads((tmp_path / "audit.jsonl").read_text())["kept"]
    assert {one["id"]: one.get("rank") for one in kept} == {"d2": None, "d3": None, "d7": 4}
    row = {"qid": "q1", "pos": ["d1"], "neg": {"a": ["d2", "d3"], "b": ["d4", "d5"]}}  # these lists are ranked
    write_rows(old, [row])
    (mined,) = run_rows(capfd, "mine-negatives -q --policy tevatron --set from_rank=2", old)
    assert sorted(mined["negatives"]) == ["d3", "d5"]


# Examples with several lines per query.


def line(query: str, positives: str, negatives: str, **more: Any) -> str:
    row = {"query_id": query, "positives": positives.split(), "negatives": negatives.split(), **more}
    return json.dumps(row) + "\n"


# Two files one after the other, as UNION=yes makes them: the second positive of q1 is a negative of its first line.
FIRST = line("q1", "doc#0", "x#3") + line("q2", "y#0", "y#2 y#3")
UNION = FIRST + line("q1", "x#1", "x#4") + line("q2", "y#0", "y#2 y#4")


def mine_examples(capfd: Capture, *arguments: str, policy: str = "tevatron") -> dict[str, dict[str, Any]]:
    """Return the mined examples by query."""
    rows = run_rows(capfd, "mine-negatives -q --policy", policy, *arguments)
    assert len({row["query_id"] for row in rows}) == len(rows)  # one line a query
    return {row["query_id"]: row for row in rows}


def get_labels(row: dict[str, Any]) -> tuple[str, str]:
    return " ".join(row["positives"]), " ".join(sorted(row["negatives"]))


@pytest.fixture
def union(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "union.jsonl", UNION)
    # Every passage has the word of both queries: each query finds all eight.
    ids = ["doc#0", "x#1", "x#3", "x#4", "y#0", "y#2", "y#3", "y#4"]
    for name, names in (("corpus", ids), ("queries", ["q1", "q2"])):
        write_rows(tmp_path / f"{name}.jsonl", [{"_id": id, "text": "apple"} for id in names])
    return tmp_path


def test_all_lines_of_a_query_make_one_example_without_positives_as_negatives(union, capfd):
    actual = mine_examples(capfd, "union.jsonl")
    assert list(actual) == ["q1", "q2"]  # in the order of their first lines
    assert get_labels(actual["q1"]) == ("doc#0 x#1", "x#3 x#4")
    assert get_labels(actual["q2"]) == ("y#0", "y#2 y#3 y#4")
    write_text(union / "c.run", "q1 Q0 x#1 1 3 t\nq1 Q0 x#5 2 2 t\nq1 Q0 doc#0 3 1 t\n")
    for sources in (["union.jsonl", "c.run"], ["c.run", "union.jsonl"]):
        actual = mine_examples(capfd, *sources)
        assert get_labels(actual["q1"]) == ("doc#0 x#1", "x#3 x#4 x#5")
        assert get_labels(actual["q2"]) == ("y#0", "y#2 y#3 y#4")
    run_command(capfd, "index", "corpus.jsonl", "--type", "bm25s", "-o", "index", "-q")
    call = ["index", "union.jsonl", "--queries", "queries.jsonl", "-o", "out.jsonl"]
    mine_examples(capfd, *call)
    assert "not in queries" not in json.loads((union / "out.jsonl.meta.json").read_text())["counts"]
    actual = {row["query_id"]: row for row in read_rows("out.jsonl")}
    assert get_labels(actual["q1"]) == ("doc#0 x#1", "x#3 x#4 y#0 y#2 y#3 y#4")
    assert get_labels(actual["q2"]) == ("y#0", "doc#0 x#1 x#3 x#4 y#2 y#3 y#4")


def test_a_file_is_one_input_and_a_stream_is_read_alike(union, capfd):
    tracker = InputTracker()
    stream = QueryStream(parse_sources(["union.jsonl"], tracker), tracker)
    assert [query.query_id for query in stream] == ["q1", "q2"]
    assert [entry["bytes"] for entry in tracker.inputs] == [len(UNION)]  # though it is read three times
    whole = list(mine_examples(capfd, "u=union.jsonl").values())
    for content in (UNION.encode(), gzip.compress(UNION.encode())):
        with open_pipe(content) as source:
            assert list(mine_examples(capfd, f"u={source}").values()) == whole
    write_text(union / "array.json", json.dumps([json.loads(row) for row in UNION.splitlines()]))
    assert list(mine_examples(capfd, "u=array.json").values()) == whole


def test_sources_scores_and_fields_of_all_lines_are_kept(union, capfd):
    scores = [{"positives": [9.0], "negatives": [1.0, 5.0]}, {"positives": [8.0], "negatives": [3.0, 2.0]}]
    first = line("q", "p", "a r", sources={"negatives": ["bm25", "random"]}, scores=scores[0], x=1)
    second = line("q", "r", "b s", sources={"negatives": ["dense", "random"]}, scores=scores[1], z=2)
    write_text(union / "one.jsonl", first)
    write_text(union / "other.jsonl", second)
    write_text(union / "both.jsonl", first + second)
    for sources in (["both.jsonl"], ["one.jsonl", "other.jsonl"]):
        row = mine_examples(capfd, *sources)["q"]
        assert (row["x"], row["z"]) == (1, 2)
        assert row["positives"] == ["p", "r"]
        assert row["scores"]["positives"] == [9.0, 8.0]  # not the 5 that r had as a negative
        negatives = zip(row["negatives"], row["sources"]["negatives"], row["scores"]["negatives"], strict=True)
        assert sorted(negatives) == [("a", "bm25", 1.0), ("b", "dense", 3.0), ("s", "random", 2.0)]


def test_errors_of_later_lines_have_a_location_and_can_be_skipped(union, capfd):
    write_text(union / "union.jsonl", FIRST + "\n" + line("q1", "", "x#4") + line("q1", "x#1", "x#4"))
    with pytest.raises(RecordError, match=r"^union\.jsonl:4: 'positives' is empty$"):
        mine_examples(capfd, "union.jsonl")
    actual = mine_examples(capfd, "union.jsonl", "--skip-bad", "1")
    assert get_labels(actual["q1"]) == ("doc#0 x#1", "x#3 x#4")
    write_text(union / "union.jsonl", line("q1", "", "x#3") + UNION)  # the first line is bad: the others are used
    actual = mine_examples(capfd, "union.jsonl", "--skip-bad", "1")
    assert get_labels(actual["q1"]) == ("doc#0 x#1", "x#3 x#4")
    write_text(union / "union.jsonl", UNION + line("q2", "y#0", "zz"))
    with pytest.raises(RecordError, match=r"^union\.jsonl:5: passage 'zz' is not in the corpus$"):
        mine_examples(capfd, "union.jsonl", "--corpus", "corpus.jsonl")
    write_text(union / "union.jsonl", UNION + line("qq", "y#0", "x#1"))
    texts = ["--queries", "queries.jsonl", "--corpus", "corpus.jsonl"]
    with pytest.raises(RecordError, match=r"^union\.jsonl:5: query 'qq' is not in the queries$"):
        mine_examples(capfd, "union.jsonl", *texts, policy="nq")


def test_a_positive_keeps_its_score_if_a_system_has_another(union, capfd):
    # the limit is 8 - 3 = 5, though bm25's list gives the positive 1: 4.5 stays and 5.5 goes
    negatives = [{"pid": id, "ce-score": score} for id, score in (("p", 1.0), ("a", 4.5), ("b", 5.5))]
    row = {"qid": "q", "pos": [{"pid": "p", "ce-score": 8.0}], "neg": {"bm25": negatives}}
    write_rows(union / "hard.jsonl", [row])
    actual = mine_examples(capfd, "hard.jsonl", policy="sbert")["q"]
    assert get_labels(actual) == ("p", "a")
    assert actual["scores"] == {"positives": [8.0], "negatives": [4.5]}
    # In a later line, p is a negative of another positive.
    later = {"qid": "q", "pos": [{"pid": "x", "ce-score": 9.0}], "neg": {"bm25": [{"pid": "p", "ce-score": 1.0}]}}
    write_rows(union / "hard.jsonl", [row, later])
    actual = mine_examples(capfd, "hard.jsonl", policy="sbert")["q"]
    assert actual["scores"] == {"positives": [8.0, 9.0], "negatives": [4.5]}

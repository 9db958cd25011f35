"""Mining: selection of positives and negatives, counts, and rejected input."""

import json
from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.mining.candidates import Hits, MiningQuery
from drtk.mining.mine import RANDOM, Miner
from drtk.mining.policies import MSMARCO, TEVATRON, Policy
from drtk.mining.sources import MiningSources, QueryStream
from drtk.records import Example
from drtk.runtime.inputs import InputTracker
from tests.embedding_folders import write_embeddings
from tests.expansion_collection import write_rows
from tests.run_commands import run_command, run_rows, write_text
from tests.tiny_models import make_collection, open_corpus, save_tiny_cross_encoder, write_collection


def rows_of(text: str) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in text.splitlines()]
    return {row["query_id"]: row for row in rows}


def counts_of(output: Path) -> dict[str, Any]:
    return json.loads(Path(f"{output}.meta.json").read_text())["counts"]


EVERYTHING = Policy(negatives=1000)


def mine(
    hits: dict[str, list[str]] | list[str],
    grades: dict[str, int],
    policy: Policy = EVERYTHING,
    *,
    depth: int | None = 200,
    corpus: list[str] | None = None,
    by_source: bool = False,
    query: str = "q",
    seed: int = 1,
) -> tuple[Example | None, Miner]:
    """Return the example of a query with these hits and judgments, and the miner."""
    store = None if corpus is None else open_corpus(*corpus)
    queries = QueryStream(MiningSources([]), InputTracker(), {}, store, {query: grades}, by_source=by_source)
    miner = Miner(queries, replace(policy, depth=depth), seed)
    by_name = hits if isinstance(hits, dict) else {"run": hits}
    (pool,) = miner.mine([MiningQuery(query, {name: Hits(found) for name, found in by_name.items()})])
    return pool.example, miner


def mine_example(*args: Any, **options: Any) -> Example:
    example, _ = mine(*args, **options)
    assert example is not None
    return example


def test_no_positive_is_a_negative():
    example = mine_example(["d1", "d2", "d3", "d4"], {"d2": 1, "d4": 2, "d3": 0, "d9": 1})
    assert example.positives == ("d4", "d2", "d9")  # the higher grade first, then the order of the judgments
    assert set(example.negatives) == {"d1", "d3"}
    assert example.sources == {"negatives": ["run", "run"]}
    assert mine_example(["d1", "p", "d2", "d3"], {"p": 1}, depth=2).negatives == ("d1",)
    example = mine_example({"bm25": ["d1", "d2"], "dense": ["d2", "d3"]}, {"p": 1})
    assert example.sources is not None
    sources = dict(zip(example.negatives, example.sources["negatives"], strict=True))
    assert sources == {"d1": "bm25", "d2": "bm25", "d3": "dense"}
    for grade, reason in ((0, "without positives"), (1, "without negatives")):
        actual, miner = mine(["d1"], {"d1": grade})
        assert (actual, miner.queries.counts[reason]) == (None, 1)


def test_samples_depend_on_seed_and_query_only():
    ranking, policy = [f"d{at}" for at in range(50)], Policy(10)
    first = mine_example(ranking, {"p": 1}, policy)
    assert mine_example(ranking, {"p": 1}, policy) == first
    for other in ({"seed": 2}, {"query": "other"}):
        assert mine_example(ranking, {"p": 1}, policy, **other).negatives != first.negatives


@pytest.mark.parametrize(
    ("policy", "retrieved", "from_run", "random"),
    [(MSMARCO, 300, 200, 10), (MSMARCO, 50, 50, 160), (TEVATRON, 300, 128, 0), (TEVATRON, 50, 50, 0)],
)
def test_policies_keep_and_fill_as_published(policy, retrieved, from_run, random):
    corpus = [*(f"d{at}" for at in range(2000)), "p"]
    example = mine_example([f"d{at}" for at in range(retrieved)], {"p": 1}, policy, depth=300, corpus=corpus)
    assert example.sources is not None
    sources = example.sources["negatives"]
    assert (sources.count("run"), sources.count(RANDOM)) == (from_run, random)
    assert len(set(example.negatives)) == len(example.negatives)
    assert "p" not in example.negatives


@pytest.mark.parametrize("size", [24, 2000])
def test_an_unsampled_candidate_is_not_sampled_as_random_negative(size):
    # 12 retrieved within the depth, 4 drawn; at most so many random ones as the corpus has besides the 12 and the positive
    ranking, corpus = [f"d{at}" for at in range(20)], ["p", *(f"d{at}" for at in range(size))]
    example = mine_example(ranking, {"p": 1}, Policy(4, 40), depth=12, corpus=corpus)
    assert example.sources is not None
    by_source = zip(example.negatives, example.sources["negatives"], strict=True)
    random = {id for id, source in by_source if source == RANDOM}
    assert len(random) == min(size - 12, 40 - 4)
    assert not random & set(ranking[:12])


def test_judgments_of_documents():
    example = mine_example(["b#0", "a#7", "a#2", "c#1"], {"a": 1, "c": 1}, depth=2, by_source=True)
    assert example.positives == ("a#7", "c#1")  # positives are found at any depth
    assert example.negatives == ("b#0",)  # a#2 is of a positive document, c#1 too
    actual, miner = mine(["c#0"], {"a": 1, "b": 1}, corpus=["a#0", "a#1", "b#0", "c#0"], by_source=True)
    assert actual is not None
    assert actual.positives == ("b#0",)  # not retrieved, but the only passage of its document
    assert miner.queries.counts["positives not found"] == 1
    corpus = [*(f"a#{at}" for at in range(50)), *(f"b#{at}" for at in range(50))]
    example = mine_example(["a#3", "b#1"], {"a": 1}, Policy(0, 60), corpus=corpus, by_source=True)
    assert set(example.negatives) == {f"b#{at}" for at in range(50)} - {"b#1"}  # b#1 was retrieved, and not drawn


# Through the command: forty passages; every query finds ten, itself at rank 3. d7 is a copy of d3 but for case and commas.


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("made")
    write_collection(folder, 40)
    passages = make_collection(40)[0]
    passages[7]["text"] = passages[3]["text"].upper().replace(" ", ", ")
    write_rows(folder / "corpus.jsonl", passages)
    order = {q: [(q + 1) % 40, (q + 2) % 40, q, *((q + step) % 40 for step in range(3, 10))] for q in range(40)}
    hits = [(q, rank, d) for q, ranking in order.items() for rank, d in enumerate(ranking, start=1)]
    write_text(folder / "bm25.run", "".join(f"q{q} Q0 d{d} {rank} {20 - rank} t\n" for q, rank, d in hits))
    write_text(folder / "qrels.tsv", "".join(f"q{q}\td{q}\t1\n" for q in range(40)))
    angles = np.arange(40) * 0.1  # cos(.1) = .995, cos(.2) = .980, cos(.3) = .955, cos(.4) = .921
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    write_embeddings(folder / "vectors", vectors, [f"d{at}" for at in range(40)])
    return SimpleNamespace(folder=folder, passages=passages, order=order)


@pytest.fixture
def cwd(data: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.chdir(data.folder)
    return data


CALL = ["mine-negatives", "bm25.run", "--qrels", "qrels.tsv", "--policy", "tevatron"]
TEXTS = ["--queries", "queries.jsonl", "--corpus", "corpus.jsonl"]


DROPPED: dict[str, tuple[str, dict[str, int]]] = {
    "rank": ("--set from_rank=4", {"rank": 2 * 40}),  # 1 and 2; 3 is the positive's
    "max-score": ("--set max_score=15.5", {"max-score": 3 * 40}),  # 19, 18, 16
    "min-score": ("--set min_score=11.5", {"min-score": 2 * 40}),  # 11, 10
    "max-share": ("--max-share 0.75", {"max-share": 6 * 40}),  # above 12.75: 19, 18, 16, 15, 14, 13
    # above 15: 19, 18, 16; of q0, whose positive is not among the ten it finds, all ten
    "margin": ("--margin 2 --qrels other.tsv", {"unretrieved": 10, "margin": 3 * 39}),
    "overlap": ("--set max_overlap=1 --corpus corpus.jsonl", {"overlap": 1}),
    # within .3 of the positive's angle: three of each, but for the last of the row, which have 2, 1 and none behind them
    "cosine": ("--vectors vectors --set max_cosine=0.95", {"cosine": 3 * 37 + 2 + 1}),
}


@pytest.mark.parametrize("name", DROPPED)
def test_drops_are_counted_in_manifest_summary_and_audit(cwd, capfd, tmp_path, name):
    options, expected = DROPPED[name]
    write_text(cwd.folder / "other.tsv", (cwd.folder / "qrels.tsv").read_text().replace("q0\td0\t", "q0\td20\t"))
    capfd.readouterr()
    out, audit_file = tmp_path / "out.jsonl", tmp_path / "audit.jsonl"
    app([*CALL, *options.split(), "--audit", str(audit_file), "-o", str(out)], standalone_mode=False)
    summary = ", ".join(f"{count:,} by {by}" for by, count in expected.items())
    assert f"dropped: {summary}\n" in capfd.readouterr().err
    counts = counts_of(out)
    assert counts["dropped"] == expected
    assert counts["passages"]["dropped"] == sum(expected.values())
    audit, examples = rows_of(audit_file.read_text()), rows_of(out.read_text())
    assert Counter(one["by"] for row in audit.values() for one in row["dropped"]) == expected
    for query, row in examples.items():
        assert not {one["id"] for one in audit[query]["dropped"]} & set(row["negatives"])
    num_kept = sum(len(row["negatives"]) for row in examples.values())
    assert num_kept + sum(expected.values()) == counts["passages"]["candidates"]
    if name == "overlap":
        (drop,) = audit["q3"]["dropped"]
        assert (drop["id"], drop["by"], drop["value"], drop["limit"]) == ("d7", "overlap", 1.0, 1.0)


def test_random_passages_that_a_filter_rejects_and_queries_below_the_floor_are_counted(cwd, capfd, tmp_path):
    out, audit = tmp_path / "out.jsonl", tmp_path / "audit.jsonl"
    more = ["--corpus", "corpus.jsonl", "--vectors", "vectors", "--set", "max_cosine=0.95", "--set", "min_negatives=38"]
    run_command(capfd, *CALL, *more, "--audit", audit, "--report", tmp_path / "report.txt", "-o", out)
    row = rows_of(audit.read_text())["q5"]
    assert sorted(one["id"] for one in row["dropped"]) == ["d6", "d7", "d8"]  # which the run has
    rejected = {one["id"]: (one["source"], one["by"], one["limit"]) for one in row["random_rejected"]}
    assert rejected == dict.fromkeys(["d2", "d3", "d4"], ("random", "cosine", 0.95))  # which it has not
    # Before q's passage lie three, but for q0, q1 and q2: 37 * 3 + 2 + 1. At most 40 - 1 - 3 = 36 are left of the 38 wanted.
    counts = counts_of(out)
    assert (counts["passages"]["random_rejected"], counts["with fewer than min_negatives"]) == (114, 40)
    assert "random passages rejected by a filter" in (tmp_path / "report.txt").read_text()


def test_a_scorer_reads_as_it_was_trained_and_scores_as_score_does(cwd, capfd, tmp_path):
    model = save_tiny_cross_encoder(tmp_path / "ours")  # as train-reranker leaves it: "title: text"
    manifest = {"command": "drtk train-reranker", "settings": {}, "inputs": [], "pairing": {"title": "colon"}}
    write_text(model / "meta.json", json.dumps(manifest))
    few = write_text(tmp_path / "few.tsv", "q5\td5\t1\nq6\td6\t1\n")
    out, scored = tmp_path / "mined.jsonl", tmp_path / "scored.jsonl"
    call = ["mine-negatives", "bm25.run", "--qrels", few, "--policy", "tevatron", *TEXTS, "--scorer", model]
    for mining, scoring in (([], []), (["--set", "scorer_logits=true"], ["--set", "logits=true"])):
        run_command(capfd, *call, *mining, "-o", out, "--force")
        run_command(capfd, "score", out, *TEXTS, "--model", model, *scoring, "-o", scored, "--force")
        examples, rows = rows_of(out.read_text()), rows_of(scored.read_text())
        assert examples.keys() == rows.keys() == {"q5", "q6"}
        for query_id, row in rows.items():
            for side in ("positives", "negatives"):
                assert examples[query_id]["scores"][side] == pytest.approx(row["scores"][side], abs=5e-5)
    scores = examples["q5"]["scores"]
    margin = scores["positives"][0] - sorted(scores["negatives"])[4]
    printed = run_command(capfd, *call, "--set", "scorer_logits=true", "-q", "--set", f"ce_margin={margin}")
    limited = rows_of(printed)["q5"]["scores"]
    assert 4 <= len(limited["negatives"]) <= 5
    assert max(limited["negatives"]) <= limited["positives"][0] - margin
    with pytest.raises(MismatchError, match="ours: was trained with `title` colon, not join"):
        run_command(capfd, *call, "--set", "scorer_title=join")
    # another model in the folder's place: what the old one scored is not up to date
    run_command(capfd, *call, "-o", out, "--force")
    for renewed in (False, True):
        if renewed:
            write_text(model / "meta.json", json.dumps(manifest | {"seed": 2}))
        capfd.readouterr()
        app([*map(str, call), "-o", str(out), "--skip-done", "--force"], standalone_mode=False)
        assert ("is up to date" in capfd.readouterr().err) is not renewed


def test_the_activation_function_bounds_the_scores(tmp_path):
    from drtk.models.cross_encoder import CrossEncoderScorer

    for name, bounds in (("Identity", (-inf, inf)), ("Tanh", (-1, 1)), ("Sigmoid", (0, 1))):
        options = {"sbert_ce_default_activation_function": f"torch.nn.modules.{name}"}
        model = str(save_tiny_cross_encoder(tmp_path / name, **options))
        assert CrossEncoderScorer(model, device="cpu").score_bounds == bounds
    assert CrossEncoderScorer(model, device="cpu", logits=True).score_bounds == (-inf, inf)


REJECTED = {  # options added to a call with a run and judgments, and the error
    "--set min_negatives=5": "`min_negatives` requires `corpus`",
    "--set max_overlap=0.9": "`max_overlap` requires `corpus`",
    "--set max_cosine=0.9": "`max_cosine` requires `vectors`",
    "--scorer x": "`scorer` requires `queries` and `corpus`",
    "--scorer x --corpus corpus.jsonl": "`scorer` requires `queries` and `corpus`",
    "--policy nq": "`policy=nq` requires `queries` and `corpus`",
    "--policy sbert": "`ce_margin`, `ce_max` and `policy=sbert` require `scorer`",
    "--set ce_max=1": "`ce_margin`, `ce_max` and `policy=sbert` require `scorer`",
    "--set scorer_logits=true": "--set scorer_logits requires --scorer",
    "--set unretrieved=keep --set max_score=3": "--set unretrieved requires --margin or --max-share",
    "--set match=regex --report r.txt": "`match` requires `policy=nq`",
    "--set match_title=true": "`match_title` requires `policy=nq`",
    "--query-vectors vectors": "`query_vectors` requires an index as a source",
    "--model nosuch": "`model` requires an index as a source",
    "--set prompt=x": "`prompt` requires an index as a source",
    "--set k1=1.2": "`k1` requires an index as a source",
}


def test_options_without_an_effect_are_rejected_and_others_accepted(cwd, capfd, tmp_path):
    for options, problem in REJECTED.items():
        with pytest.raises(UsageError, match=f"^{problem}"):
            run_command(capfd, *CALL, *options.split())
    options = "--set scorer_logits=false --set unretrieved=drop --margin 1 --set match=regex --report".split()
    assert run_command(capfd, *CALL, *TEXTS, "-q", *options, tmp_path / "r.txt", "-o", tmp_path / "out.jsonl") == ""


def test_judgments_are_checked(cwd, capfd, tmp_path):
    call = ["mine-negatives", "bm25.run", "--corpus", "corpus.jsonl", "--qrels", tmp_path / "qrels"]
    with pytest.raises(UsageError, match="`qrels` is required"):
        run_command(capfd, *call[:2])
    for content, fault, problem in (
        ("", DrtkError, "qrels: contains no judgments"),
        ("x\td1\t1\n", MismatchError, r"no query has judgments \(first query id: 'q0' in the runs, 'x' in the qrels\)"),
        ("q0\td1\t1\nq0\td1\t2\n", RecordError, "qrels:2: passage 'd1' is judged twice for query 'q0'"),
        ("q1\td1\t1\nq2\tzz\t1\nq3\tzz\t1\n", RecordError, r"qrels:2: passage 'zz' is not in the corpus$"),
    ):
        write_text(tmp_path / "qrels", content)
        with pytest.raises(fault, match=problem):
            run_command(capfd, *call)
    write_text(tmp_path / "qrels", "q1\tzz\t1\n")
    with pytest.raises(RecordError, match="qrels:1: document 'zz' is not in the corpus"):
        run_command(capfd, *call, "--by", "source")
    with pytest.raises(RecordError, match=r"bm25\.run:1: expected 4 columns .* the file looks like hits of a TREC run"):
        run_command(capfd, *call[:2], "--qrels", "bm25.run")


def test_judgments_of_documents_are_detected(capfd, folder):
    write_rows(folder / "corpus.jsonl", [{"_id": f"d{n}#0", "text": "t"} for n in range(3)])
    write_text(folder / "a.run", "q1 Q0 d1#0 1 2 t\nq1 Q0 d2#0 2 1 t\n")
    write_text(folder / "qrels.tsv", "q1\td1\t1\n")
    call = ["mine-negatives", "-q", "a.run", "--qrels", "qrels.tsv"]
    with pytest.raises(RecordError, match=r"qrels\.tsv:1: 'd1' is a document .*; use `by=source`$"):
        run_command(capfd, *call, "--corpus", "corpus.jsonl")
    with pytest.raises(DrtkError, match="the judgments are of source documents, not of passages; use `by=source`"):
        run_command(capfd, *call)
    write_text(folder / "a.run", "q1 Q0 d1#0 1 2 t\nq1 Q0 d1 2 1 t\n")  # one judged document is there
    app(call, standalone_mode=False)
    assert "the judgments are of source documents, not of passages; use --by source" in capfd.readouterr().err
    write_text(folder / "qrels.tsv", "q1\tdoc\t1\n")
    problem = r"^no training examples were mined: 1 without positives \(1 positives not found\)$"
    with pytest.raises(DrtkError, match=problem):
        run_command(capfd, *call, "--by", "source", "-o", "out.jsonl")


def test_counts_of_queries_and_random_passages(capfd, folder):
    ids = [*(f"book#{at}" for at in range(2000)), *(f"other#{at}" for at in range(20))]
    write_rows(folder / "corpus.jsonl", [{"_id": id, "text": "t"} for id in ids])
    write_text(folder / "a.run", "q1 Q0 book#7 1 2 t\nq1 Q0 other#3 2 1 t\nq2 Q0 book#1 1 1 t\n")
    write_text(folder / "qrels.tsv", "q1\tbook\t1\nq9\tbook\t1\n")
    options = "--qrels qrels.tsv --corpus corpus.jsonl --by source -o out.jsonl"
    run_command(capfd, "mine-negatives", "a.run", *options.split())  # by default, no random passages
    assert json.loads((folder / "out.jsonl").read_text())["negatives"] == ["other#3"]
    assert "with fewer than min_negatives" not in counts_of(folder / "out.jsonl")
    options = f"--policy msmarco --force {options}"
    app(["mine-negatives", "a.run", *options.split()], standalone_mode=False)
    assert (
        "drtk: 19 of 20 negatives are random passages, because some queries had fewer than 210 candidates left; --set min_negatives=0 adds none\n"
        in capfd.readouterr().err
    )
    (few,) = run_rows(capfd, "mine-negatives a.run -q --negatives 4", *options.split()[:-2])
    assert len(few["negatives"]) == 4  # not filled up to the policy's 210
    row = json.loads((folder / "out.jsonl").read_text())
    assert row["positives"] == ["book#7"]
    assert set(row["negatives"]) == {f"other#{at}" for at in range(20)}  # msmarco wants 210
    assert set(row["sources"]["negatives"]) == {"a", "random"}
    counts = counts_of(folder / "out.jsonl")
    reasons = ("with fewer than min_negatives", "without judgments", "not retrieved")
    assert [counts[name] for name in reasons] == [1, 1, 1]
    write_text(folder / "empty.run", "")
    assert run_command(capfd, "mine-negatives", "empty.run", "--qrels", "qrels.tsv") == ""
    write_text(folder / "alone.run", "q1 Q0 book#7 1 2 t\n")
    with pytest.raises(DrtkError, match="1 without negatives; give `min_negatives` and `corpus`"):
        run_command(capfd, *"mine-negatives alone.run --by source --qrels qrels.tsv -o alone.jsonl".split())


# Answers, as SimLM mines NQ.


@pytest.fixture
def nq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write queries: q1 has gold d0, and answers in d1 and d4; q2 in no passage; q3 in all; q4 has no answers."""
    texts = ["Paris is in France", "he went to Paris", "Berlin", "the parish", "PARIS!", "Rome"]
    write_rows(tmp_path / "corpus.jsonl", [{"_id": f"d{n}", "title": "Paris", "text": t} for n, t in enumerate(texts)])
    answers = {"q1": ["Paris"], "q2": ["Oslo"], "q3": ["in", "he", "Berlin", "the", "Paris", "Rome"], "q4": []}
    write_rows(tmp_path / "queries.jsonl", [{"_id": id, "text": "where", "answers": a} for id, a in answers.items()])
    lines = [f"q{q} Q0 d{d} {rank} {9 - rank} t\n" for q in range(1, 5) for rank, d in enumerate([3, 4, 2, 1, 0, 5], 1)]
    write_text(tmp_path / "bm25.run", "".join(lines))
    write_text(tmp_path / "gold.tsv", "q1\td0\t1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


NQ_CALL = ["mine-negatives", "bm25.run", "--policy", "nq", *TEXTS]


def test_passages_with_answers_are_positives_and_others_negatives(nq, capfd):
    run_command(capfd, *NQ_CALL, "--qrels", "gold.tsv", "-o", "nq.jsonl")
    (row,) = map(json.loads, (nq / "nq.jsonl").read_text().splitlines())
    assert row["query_id"] == "q1"
    assert row["positives"] == ["d0", "d4", "d1"]  # gold, then by rank; the titles contain the answer and do not count
    assert sorted(row["negatives"]) == ["d2", "d3", "d5"]  # "parish" is no match for "Paris"
    counts = counts_of(nq / "nq.jsonl")
    reasons = ("without positives", "without negatives", "without answers")  # q2, q3, q4
    assert [counts[name] for name in reasons] == [1, 1, 1]
    assert counts["passages"]["became_positives"] == 2 + 6  # of q1, and all of q3
    assert json.loads(run_command(capfd, *NQ_CALL, "-q"))["positives"] == ["d4", "d1", "d0"]  # without judgments
    first = json.loads(run_command(capfd, *NQ_CALL, "-q", "--depth", "2", "--set", "min_negatives=10").splitlines()[0])
    assert first["positives"] == ["d4"]
    assert sorted(first["negatives"]) == ["d2", "d3", "d5"]  # random passages contain no answer either: not d0 and d1
    write_rows(nq / "corpus.jsonl", [{"_id": f"d{at}", "title": "Paris", "text": " "} for at in range(6)])
    # Six passages of q1, q2 and q3 are read; d0 is no candidate of q1 if it is judged, and q4 has no answers.
    for more, number in (([], 18), (["--qrels", "gold.tsv"], 17)):
        with pytest.raises(DrtkError, match=rf"corpus.jsonl: none of the {number} passages that were read has a text"):
            run_command(capfd, *NQ_CALL, *more)


# The hard negatives of sentence-transformers.

HARD = {
    "qid": 7,
    "pos": [{"pid": 1, "ce-score": 9.0}, {"pid": 2, "ce-score": 8.0}],
    "neg": {
        "bm25": [{"pid": 10 + at, "ce-score": score} for at, score in enumerate([5.1, 5.0, 4, 3, 2, 1, 0])],
        "dense": [{"pid": id, "ce-score": score} for id, score in [(10, 5.1), (12, 4), (16, 0), (30, -1), (1, 9.0)]],
    },
}


def test_the_file_of_sentence_transformers_gives_five_of_each_system_three_below_the_positives(tmp_path, capfd):
    # the lowest positive has 8: up to 8 - 3 = 5. bm25: 10 (5.1) goes, 11 (5.0) to 15 are five; dense: 12 is taken, 16 and 30
    hard = write_text(tmp_path / "hard.jsonl", json.dumps(HARD) + "\n")
    call = ["mine-negatives", "-q", hard, "--policy", "sbert"]
    row = json.loads(run_command(capfd, *call))
    assert row["positives"] == ["1", "2"]
    assert row["negatives"] == ["11", "12", "13", "14", "15", "16", "30"]
    assert row["sources"]["negatives"] == ["bm25"] * 5 + ["dense"] * 2
    assert row["scores"] == {"positives": [9.0, 8.0], "negatives": [5.0, 4.0, 3.0, 2.0, 1.0, 0.0, -1.0]}
    row = json.loads(run_command(capfd, *call, "--set", "ce_margin=2.5", "--negatives", "1"))
    assert row["negatives"] == ["10", "12"]  # 8 - 2.5 = 5.5 lets 10 in; dense gives the first that bm25 did not
    write_text(hard, json.dumps({"qid": 7, "pos": [1], "neg": {"bm25": [2, 3]}}) + "\n")
    with pytest.raises(DrtkError, match="query '7': passage '1' has no cross-encoder score"):
        run_command(capfd, *call)

"""Agreement with every line of trec_eval's reference outputs, to the four decimals that it prints.

drtk computes the measures that pytrec_eval lacks (rbp, rbp_resid, unj, relstring), or computes as older versions did
(iprec_at_recall, 11pt_avg).
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import pytest

from drtk.data.readers import load_qrels
from drtk.data.trec import load_hits
from drtk.evaluation.evaluate import Evaluation, Evaluator, RankingBuilder
from drtk.evaluation.measures import parse_measures
from tests.run_commands import Capture, run_command
from tests.shared_data import find_shared_data

WITH_PARAMETERS = (
    "iprec_at_recall..10,.20,.25,.75,.50 P.5,7,3 recall.20,2000 Rprec_mult.5.0,0.2,0.35 utility.2,-1,0,0 "
    "11pt_avg..25,.5,.75 ndcg.1=3,2=9,4=4.5 ndcg_cut.10,20,23.4 success.2,5,20"
)


@dataclass(frozen=True)
class Reference:
    """An output of trec_eval, and the call that creates it. complete: trec_eval's -c, the default of drtk"""

    output: str
    qrels: str
    run: str
    measures: str = "all_trec"
    rel: int = 1
    depth: int | None = None
    complete: bool = False


REFERENCES = [
    Reference("out.test", "qrels.test", "results.test", "official"),
    Reference("out.test.aqc", "qrels.test", "results.trunc", complete=True),
    Reference("out.test.aql", "qrels.rel_level", "results.test", "all_trec relstring_20", rel=2),
    Reference("out.test.meas_params", "qrels.test", "results.test", WITH_PARAMETERS),
    Reference("cacm/out.all_trec.q", "cacm/qrels.txt", "cacm/run.bm25.txt"),
    Reference("dl20-passage/out.all_trec.q", "dl20-passage/qrels.txt", "dl20-passage/run.txt"),
    Reference(
        "dl20-passage/out.recip_rank.M10.q", "dl20-passage/qrels.txt", "dl20-passage/run.txt", "recip_rank", depth=10
    ),
]


def evaluate(reference: Reference, folder: Path) -> Evaluation:
    judgments = load_qrels(str(folder / reference.qrels))
    hits = load_hits(str(folder / reference.run))
    tag = next(iter(hits.values())).tags[0]
    evaluator = Evaluator(judgments, parse_measures(reference.measures, rel=reference.rel))
    builder = RankingBuilder(depth=reference.depth)
    rankings = {query: builder(result) for query, result in hits.items()}
    return evaluator("run", rankings, retrieved_only=not reference.complete, tag=tag)


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda reference: f"{reference.output} {reference.qrels}")
def test_values_equal_the_trec_eval_reference(reference: Reference) -> None:
    folder = find_shared_data("trec_eval")
    ours = evaluate(reference, folder)
    lines = (folder / reference.output).read_text().splitlines()
    assert lines
    for line in lines:
        measure, query, theirs = line.split()
        value = (ours.overall if query == "all" else ours.per_query[query])[measure]
        shown = value if isinstance(value, str) else f"{value:.4f}" if isinstance(value, float) else str(value)
        if shown != theirs:  # the last printed digits may differ
            assert float(shown) == pytest.approx(float(theirs), abs=2e-4), (measure, query)


@pytest.mark.parametrize(
    ("output", "arguments"),
    [
        ("out.test.aq", ["results.test", "--qrels", "qrels.test", "--set", "retrieved_only=true"]),
        ("out.test.aqcM", ["results.trunc", "--qrels", "qrels.test", "--depth", "100"]),
        ("dl20-passage/out.all_trec.q.l2", ["dl20-passage/run.txt", "--qrels", "dl20-passage/qrels.txt", "--rel", "2"]),
    ],
)
def test_the_command_prints_what_trec_eval_prints(
    output: str, arguments: list[str], capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = find_shared_data("trec_eval")
    monkeypatch.chdir(folder)
    printed = run_command(capfd, "eval", "-q", "--per-query", "--format", "trec", "--measures", "all_trec", *arguments)
    actual, theirs = (
        sorted(line.rpartition("\t")[::2] for line in text.splitlines())
        for text in (printed, (folder / output).read_text())
    )
    assert [place for place, _ in actual] == [place for place, _ in theirs]
    for (place, value), (_, expected) in zip(actual, theirs, strict=True):
        assert value == expected or float(value) == pytest.approx(float(expected), abs=2e-4), place


def test_compatibility_equals_the_reference() -> None:
    folder = find_shared_data("trec_eval") / "compat"
    rows = list(csv.DictReader((folder / "expected.tsv").open(), delimiter="\t"))
    measures = " ".join(dict.fromkeys(row["measure"] for row in rows))
    reference = Reference("", "compat.qrels", "compat.run", measures)
    ours = evaluate(reference, folder)
    for row in rows:
        query, measure = row["query_id"], row["measure"]
        value = ours.overall[measure] if query == "all" else ours.per_query[query][measure]
        assert value == pytest.approx(float(row["value"]), abs=1e-9)

"""drtk mine-negatives: training examples from runs, indexes or examples, and judgements."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.decorators import record_filter
from drtk.cli.options import Judged, Output, Seed, SkipCorpusCheck, with_settings
from drtk.mining.config import MineSettings, MiningInputs
from drtk.runtime.filter_job import FilterJob

MinedSources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=]SOURCE…",
        help="TREC runs of training queries, index folders, or examples to mine anew; - is stdin.",
        show_default=False,
    ),
]
MinedCorpus = Annotated[
    str | None,
    typer.Option("--corpus", metavar="FILE", help="Passages: random negatives, texts; checks every id."),
]
MinedQueries = Annotated[
    str | None,
    typer.Option("--queries", metavar="FILE", help="Training queries: for indexes, --policy nq, --scorer, --report."),
]
QueryVectors = Annotated[
    str | None,
    typer.Option("--query-vectors", metavar="DIR", help="Index: ask it with a folder of drtk encode --role query."),
]
MinedVectors = Annotated[
    str | None, typer.Option("--vectors", metavar="DIR", help="Vectors of the passages, for `max_cosine` and --report.")
]
IndexModel = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="Index: where the encoder is; by default as the index says."),
]
AuditFile = Annotated[
    str | None,
    typer.Option("--audit", metavar="FILE", help="Write what became of each candidate, and why: a JSON line a query."),
]
ReportFile = Annotated[
    str | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="How many, how hard, how suspicious: a page (FILE.html) with examples, or text; - is stdout.",
    ),
]


@with_settings(MineSettings)
@record_filter("examples", writes=("audit", "report"))
def mine_negatives(
    candidates: MinedSources = None,
    output: Output = "-",
    *,
    qrels: Judged = None,
    corpus: MinedCorpus = None,
    queries: MinedQueries = None,
    query_vectors: QueryVectors = None,
    model: IndexModel = None,
    vectors: MinedVectors = None,
    audit: AuditFile = None,
    report: ReportFile = None,
    skip_corpus_check: SkipCorpusCheck = False,
    seed: Seed = 42,
    settings: MineSettings,
    job: FilterJob,
) -> None:
    """Make training examples out of what was retrieved, and judgements.

    Writes an example for each training query: its judged passages as positives, and what was retrieved besides them,
    filtered and shuffled, as negatives. Ids only; texts are looked up.
    """
    from drtk.mining.mine import mine_negatives

    inputs = MiningInputs(
        tuple(candidates or ["-"]), qrels, corpus, queries, query_vectors, vectors, model, skip_corpus_check
    )
    mine_negatives(inputs, settings, job, seed=seed, audit=audit, report=report)

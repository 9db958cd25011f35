"""drtk mine-negatives: training examples from runs, indexes or examples, and judgments."""

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
        help="TREC runs, index folders, or training examples; - is stdin.",
        show_default=False,
    ),
]
MinedCorpus = Annotated[
    str | None,
    typer.Option("--corpus", metavar="FILE", help="Corpus, for random negatives and text filters."),
]
MinedQueries = Annotated[
    str | None,
    typer.Option("--queries", metavar="FILE", help="Training queries, for indexes and text filters."),
]
QueryVectors = Annotated[
    str | None,
    typer.Option(
        "--query-vectors", metavar="DIR", help="Query embeddings for dense indexes, a folder from drtk encode."
    ),
]
MinedVectors = Annotated[
    str | None,
    typer.Option("--vectors", metavar="DIR", help="Passage embeddings, for the setting max_cosine and for --report."),
]
IndexModel = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="MODEL", help="Query encoder for dense indexes. [default: as recorded in the index]"
    ),
]
AuditFile = Annotated[
    str | None,
    typer.Option(
        "--audit", metavar="FILE", help="File for why each candidate was kept or dropped, one JSON line per query."
    ),
]
ReportFile = Annotated[
    str | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="File for mining statistics, as HTML (FILE.html) or text; - is stdout.",
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
    """Mine hard negatives from runs, indexes or training examples.

    Writes a training example per judged query: its relevant passages as positives, and other retrieved passages, filtered
    and sampled, as negatives. Examples contain ids only.

    Examples:
    drtk mine-negatives bm25.run --qrels train.tsv --corpus corpus.jsonl -o examples.jsonl
    drtk mine-negatives dense --queries queries.jsonl --qrels train.tsv --policy tevatron --margin 0.05 -o examples.jsonl
    """
    from drtk.mining.mine import mine_negatives

    inputs = MiningInputs(
        tuple(candidates or ["-"]), qrels, corpus, queries, query_vectors, vectors, model, skip_corpus_check
    )
    mine_negatives(inputs, settings, job, seed=seed, audit=audit, report=report)

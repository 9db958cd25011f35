"""drtk mine-negatives: runs, indexes or examples, and judgements, to training examples."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.jobs import record_filter
from drtk.cli.options import AnotherCorpus, Output, Seed, with_settings
from drtk.io.filtering import FilterJob
from drtk.settings.mining import MineSettings

MinedSources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=]SOURCE…",
        help="TREC runs of training queries, index folders, or examples to mine anew; - is stdin.",
        show_default=False,
    ),
]
MinedQrels = Annotated[
    str | None, typer.Option("--qrels", metavar="FILE", help="Judgements: BEIR TSV or TREC qrels.", show_default=False)
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
    str | None, typer.Option("--vectors", metavar="DIR", help="Vectors of the passages, for --max-cosine, --report.")
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
WINDOW = 100  # queries between two flushes: each may have thousands of hits in every run


@with_settings(MineSettings)
@record_filter("examples", writes=("audit", "report"))
def mine_negatives(
    candidates: MinedSources = None,
    output: Output = "-",
    *,
    qrels: MinedQrels = None,
    corpus: MinedCorpus = None,
    queries: MinedQueries = None,
    query_vectors: QueryVectors = None,
    model: IndexModel = None,
    vectors: MinedVectors = None,
    audit: AuditFile = None,
    report: ReportFile = None,
    another_corpus: AnotherCorpus = False,
    seed: Seed = 42,
    settings: MineSettings,
    job: FilterJob,
) -> None:
    """Make training examples out of what was retrieved, and judgements.

    Writes an example for each training query: its judged passages as positives, and what was retrieved besides them,
    filtered and shuffled, as negatives. Ids only; texts are looked up.
    """
    from drtk.cli.mining import Told, none_mined, side_files
    from drtk.io.progress import log, warn
    from drtk.io.textless import all_textless, warn_of_textless
    from drtk.retrieval.mining.setup import Inputs, set_up
    from drtk.retrieval.mining.texts import LOOKED_INTO

    told = side_files(audit, report, job)
    inputs = Inputs(
        candidates or ["-"],
        qrels,
        corpus,
        queries,
        query_vectors,
        vectors,
        model,
        another_corpus=another_corpus,
        looks=report is not None,
    )
    mining = set_up(inputs, settings, job, seed=seed)
    job.window = settings.batch if mining.sources.indexes else WINDOW
    job.empty = "no query came in, so nothing is mined"

    def textless() -> str | None:
        return all_textless(job.counts.get(LOOKED_INTO, {}), str(corpus))

    job.barren, job.vain = lambda: textless() or none_mined(job.counts), lambda: textless() or mining.id_mismatch()
    with Told(told, report, corpus=corpus, queries=queries) as tell:
        job.run_windows(mining.queries(), lambda windows: tell.windows(mining, windows), unit="queries")
    warn_of_textless(job.counts.get(LOOKED_INTO, {}), str(corpus))
    for problem in mining.unjudged_sources():
        warn(problem)
    passages = job.counts.get("passages", {})
    if drawn := passages.get("random"):
        negatives, floor = drawn + passages["kept"], mining.stages.miner.policy.floor
        log(f"random: {drawn:,} of the {negatives:,} negatives, to fill lists up to --floor {floor}")
    dropped = job.counts.get("dropped")
    if dropped:
        log("dropped: " + ", ".join(f"{number:,} by {name}" for name, number in dropped.items()))

"""drtk mine-negatives: runs and judgements to training examples."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.jobs import record_filter
from drtk.cli.options import Output, Qrels, Seed, with_settings
from drtk.io.filtering import FilterJob
from drtk.settings.mining import MineSettings

MinedRuns = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME=]RUN…", help="TREC runs of training queries; - is stdin.", show_default=False),
]
MinedCorpus = Annotated[
    str | None,
    typer.Option("--corpus", metavar="FILE", help="Passages: where random negatives come from; checks every id."),
]
WINDOW = 100  # queries between two flushes: each may have thousands of hits in every run


@with_settings(MineSettings)
@record_filter("examples")
def mine_negatives(
    runs: MinedRuns = None,
    output: Output = "-",
    *,
    qrels: Qrels,
    corpus: MinedCorpus = None,
    seed: Seed = 42,
    settings: MineSettings,
    job: FilterJob,
) -> None:
    """Make training examples out of runs and judgements.

    Reads TREC runs of the training queries and writes an example for each query that has judgements: its judged
    passages as positives, and what was retrieved besides them, shuffled, as negatives. Ids only; texts are looked up.
    """
    from drtk.io.corpus_ids import CorpusIds
    from drtk.io.jsonl import dump
    from drtk.io.runs import named_runs
    from drtk.retrieval.mining import Mining, policy_of

    named = named_runs(runs or ["-"], name=settings.source_name)
    policy = policy_of(settings, has_corpus=corpus is not None)
    known = None if corpus is None else CorpusIds.read(corpus, job.intake)
    mining = Mining(named, qrels, policy, settings, seed=seed, corpus=known, intake=job.intake, counts=job.counts)
    job.window = WINDOW
    job.run(mining.queries(), lambda window: map(dump, mining.examples(window)), unit="queries")

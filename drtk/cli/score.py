"""drtk score: a teacher's scores for training examples."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.jobs import record_filter
from drtk.cli.options import AnotherCorpus, Corpus, Device, Output, Queries, with_settings
from drtk.io.filtering import FilterJob
from drtk.settings.reranking import ScoreSettings
from drtk.settings.running import RunnerSettings

WINDOW = 16  # examples between two places to go on from: each may have hundreds of passages


@with_settings(ScoreSettings)
@with_settings(RunnerSettings, name="running")
@record_filter("examples", parts=True)
def score(
    corpus: Corpus,
    queries: Queries,
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="Folder or hub name of a cross-encoder with one label.")
    ],
    source: Annotated[
        str, typer.Argument(metavar="EXAMPLES", help="Training examples; - is stdin.", show_default=False)
    ] = "-",
    output: Output = "-",
    another_corpus: AnotherCorpus = False,
    device: Device = "auto",
    *,
    settings: ScoreSettings,
    running: RunnerSettings,
    job: FilterJob,
) -> None:
    """Score the positives and negatives of examples with a cross-encoder.

    Reads training examples and writes them again with "scores": {"positives": [...], "negatives": [...]}, a teacher's
    judgement for train-retriever to be distilled from.
    """
    from drtk.io.jsonl import read_examples, read_queries
    from drtk.io.lineage import check_looked_up
    from drtk.io.store import CorpusStore
    from drtk.models.hub import locate
    from drtk.models.reranker import title_of
    from drtk.retrieval.rescoring import Score, asked
    from drtk.runners.base import run_filter

    check_looked_up(source, corpus, another=another_corpus)
    title = title_of(model, settings.title, sealed=True)
    job.looked_up = (corpus, str(locate(model)))
    texts = {query.id: query.text for query in read_queries(queries, intake=job.intake)}
    found = asked(
        read_examples(source, intake=job.intake),
        source,
        queries=texts,
        corpus=CorpusStore.open(corpus),
        title=title,
        intake=job.intake,
    )
    run_filter(
        found, job, Score, model, settings, device, settings.logits, running=running, window=WINDOW, unit="examples"
    )

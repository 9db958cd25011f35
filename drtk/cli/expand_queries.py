"""drtk expand-queries: candidate expansions of questions, written by a model or taken from passages found first."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.decorators import record_filter
from drtk.cli.options import Device, Output, Seed, Source, with_settings
from drtk.errors import UsageError
from drtk.query_expansion.config import ExpansionSettings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.runners import RunnerSettings

WINDOW = 64  # questions between two places to go on from: each has fifty texts


@with_settings(ExpansionSettings)
@with_settings(RunnerSettings, name="running")
@record_filter("expansions", parts=True)
def expand_queries(
    source: Source = "-",
    output: Output = "-",
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="Generator: a folder of train-generator's, or a hub name."),
    ] = None,
    from_run: Annotated[
        str | None,
        typer.Option("--from-run", metavar="RUN", help="No generator: candidates from the passages of this run."),
    ] = None,
    corpus: Annotated[
        str | None, typer.Option("--corpus", metavar="FILE", help="With --from-run: its passages.")
    ] = None,
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: ExpansionSettings,
    running: RunnerSettings,
    job: FilterJob,
) -> None:
    """Write candidate expansions of questions.

    Reads questions and writes a record for each different candidate, for drtk rerank-queries. What is sampled depends on the
    seed and the question's id alone. Told on stderr: candidates a question, and their lengths in words.
    """
    if (model is None) == (from_run is None):
        raise UsageError("--model and --from-run: choose one")
    if (corpus is None) != (from_run is None):
        raise UsageError("--corpus and --from-run go together: a run, and the passages it names")
    settings.check(from_run=from_run is not None)
    if model is not None:
        _by_model(source, model, seed, device, settings, running, job)
    elif from_run is not None and corpus is not None:
        _by_passages(source, from_run, corpus, settings, running, job)
    from drtk.query_expansion.candidates import summary
    from drtk.runtime.progress import log

    for line in summary(job.counts.get("words", {})):
        log(line)
    _tell_without(job)


def _tell_without(job: FilterJob) -> None:
    """Warn of each kind of which questions are left without a candidate."""
    from drtk.runtime.progress import warn

    for kind, words in job.counts.get("words", {}).items():
        if number := words["without"]:
            warn(f"{number:,} of {words['questions']:,} questions are left without a candidate of kind '{kind}'")


def _by_model(
    source: str,
    model: str,
    seed: int,
    device: str,
    settings: ExpansionSettings,
    running: RunnerSettings,
    job: FilterJob,
) -> None:
    from drtk.data.jsonl import read_queries
    from drtk.models.model_folder import locate
    from drtk.query_expansion.generate import SEEN, Expand, generators_of, questions_to_expand
    from drtk.runtime.progress import warn
    from drtk.runtime.runners import run_filter

    folder = locate(model)
    found = generators_of(model, folder, holdout=settings.holdout)
    kind = settings.kind or found.kind
    if kind is None:
        raise UsageError(f"--kind: {model} does not say what it writes; name it: answer, sentence, title …")
    job.lookups, job.no_input = (str(folder),), "no question came in, so nothing is expanded"
    read = read_queries(source, intake=job.intake)
    draw = settings.outside == "draw"
    questions = questions_to_expand(read, source, seen=found.seen, draw=draw, intake=job.intake)
    run_filter(
        questions, job, Expand, found.models, kind, settings, found.length, seed, device,
        running=running, window=WINDOW, unit="questions",
    )  # fmt: skip
    if job.counts.get(SEEN):
        warn(
            f"{model} was trained with {job.counts[SEEN]:,} of these questions, and may have their answers by heart; "
            "train-generator --folds and --holdout expand them with generators that were not"
        )


def _by_passages(
    source: str, run: str, corpus: str, settings: ExpansionSettings, running: RunnerSettings, job: FilterJob
) -> None:
    from drtk.data.checks import describe_textless, warn_of_textless
    from drtk.data.corpus_store import CorpusStore
    from drtk.data.jsonl import read_queries
    from drtk.query_expansion.from_passages import FromPassages, found_passages
    from drtk.runtime.progress import warn
    from drtk.runtime.runners import run_filter
    from drtk.runtime.sharding import WHOLE

    job.lookups = (corpus,)
    queries = {query.id: query for query in read_queries(source, intake=job.intake)}
    store = CorpusStore.open(corpus)
    found = found_passages(run, queries=queries, corpus=store, depth=settings.depth, intake=job.intake)
    # Titles, where there are some, are candidates all the same; what the texts lack is told below.
    job.find_problem = lambda _: None if _candidates(job) else describe_textless(job.counts, corpus)
    run_filter(
        found, job, FromPassages, settings.kind, settings, running=running, window=WINDOW, unit="questions", gpu=False
    )
    warn_of_textless(job.counts, corpus)
    words = job.counts.get("words", {})
    missing = len(queries) - max((each["questions"] for each in words.values()), default=0)
    if job.part == WHOLE and missing:
        warn(f"{missing:,} of {len(queries):,} questions have no hits in {run}, and so no candidates")


def _candidates(job: FilterJob) -> int:
    return sum(each["candidates"] for each in job.counts.get("words", {}).values())

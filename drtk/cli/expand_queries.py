"""drtk expand-queries: generate candidate expansions of questions, or take them from retrieved passages."""

from __future__ import annotations

from typing import Annotated

from drtk.cli.decorators import filter_command
from drtk.cli.options import Device, Output, Seed, make_argument, make_option, with_settings
from drtk.config import GENERATION
from drtk.errors import UsageError
from drtk.query_expansion.config import ExpansionSettings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.runners import RunnerSettings

BATCH_SIZE = 64  # questions that are processed and saved together


@with_settings(ExpansionSettings, panel=GENERATION)
@with_settings(RunnerSettings, name="runner_settings")
@filter_command("expansions", sharded=True)
def expand_queries(
    source: Annotated[str, make_argument("INPUT", "Queries or questions to expand; - is stdin.")] = "-",
    output: Output = "-",
    model: Annotated[
        str | None,
        make_option("--model MODEL", "Generator, a folder or Hub name; a decoder-only model requires --prompt."),
    ] = None,
    from_run: Annotated[
        str | None,
        make_option("--from-run RUN", "TREC run; take candidates from its passages instead of generating them."),
    ] = None,
    corpus: Annotated[
        str | None, make_option("--corpus FILE", "Corpus with the passages of the run (required with --from-run).")
    ] = None,
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: ExpansionSettings,
    runner_settings: RunnerSettings,
    job: FilterJob,
) -> None:
    """Generate candidate expansions of questions, or take them from retrieved passages.

    Writes a record per distinct candidate, for drtk rerank-queries. Sampling depends only on the seed and the question id.

    Examples:
    drtk expand-queries questions.jsonl --model gar-answer --n 20 -o candidates.jsonl
    drtk expand-queries questions.jsonl --from-run bm25.run --corpus corpus.jsonl -o candidates.jsonl
    """
    from drtk.query_expansion.candidates import format_summary
    from drtk.runtime.progress import log, warn

    if model is None and from_run is None:
        raise UsageError("--model or --from-run is required")
    if model is not None and from_run is not None:
        raise UsageError("--model and --from-run cannot be combined; give one")
    if (corpus is None) != (from_run is None):
        raise UsageError("--corpus and --from-run must be given together")
    settings.check_options(from_run=from_run is not None)
    if model is not None:
        _generate_candidates(source, model, seed, device, settings, runner_settings, job)
    elif from_run is not None and corpus is not None:
        _extract_candidates(source, from_run, corpus, settings, runner_settings, job)
    words = job.counts.get("words", {})
    for line in format_summary(words):
        log(line)
    for kind, sums in words.items():
        if sums["without"]:
            warn(f"{sums['without']:,} of {sums['questions']:,} questions have no candidate of kind '{kind}'")


def _generate_candidates(
    source: str,
    model: str,
    seed: int,
    device: str,
    settings: ExpansionSettings,
    runner_settings: RunnerSettings,
    job: FilterJob,
) -> None:
    from drtk.data.readers import read_queries
    from drtk.models.model_folder import resolve_model_folder
    from drtk.query_expansion.generate import TRAINED_ON, QueryExpander, find_generators, iter_questions
    from drtk.runtime.progress import warn
    from drtk.runtime.runners import run_filter

    folder = resolve_model_folder(model)
    generators = find_generators(model, folder, holdout=settings.holdout)
    kind = settings.kind or generators.kind
    if kind is None:
        raise UsageError(f"--kind: {model} does not record what it generates; set --kind to answer, sentence, title …")
    job.lookups, job.no_input_warning = (str(folder),), "the input has no questions, so nothing is expanded"
    queries = read_queries(source, tracker=job.tracker)
    known = generators.training_questions
    questions = iter_questions(queries, source, training_questions=known, tracker=job.tracker)
    run_filter(
        questions, job, QueryExpander, generators.models, kind, settings, generators.length, seed, device,
        runner_settings=runner_settings, batch_size=BATCH_SIZE, unit="questions",
    )  # fmt: skip
    if job.counts.get(TRAINED_ON):
        warn(
            f"{model} was trained on {job.counts[TRAINED_ON]:,} of these questions, and may have memorized their answers; "
            "to avoid this, use train-generator --set folds, then expand-queries --holdout"
        )


def _extract_candidates(
    source: str, run: str, corpus: str, settings: ExpansionSettings, runner_settings: RunnerSettings, job: FilterJob
) -> None:
    from drtk.data.checks import describe_missing_texts, warn_if_texts_missing
    from drtk.data.corpus_store import CorpusStore
    from drtk.query_expansion.candidates import load_queries
    from drtk.query_expansion.from_passages import PassageBasedExpander, iter_question_passages
    from drtk.runtime.progress import warn
    from drtk.runtime.runners import run_filter
    from drtk.runtime.sharding import WHOLE_INPUT

    def find_problem(_: object) -> str | None:  # titles are candidates even if no passage has a text
        has_some = any(sums["candidates"] for sums in job.counts.get("words", {}).values())
        return None if has_some else describe_missing_texts(job.counts, corpus)

    job.lookups, job.find_problem = (corpus,), find_problem
    queries = load_queries(source, job.tracker)
    store = CorpusStore.open(corpus)
    passages = iter_question_passages(run, queries=queries, corpus=store, depth=settings.depth, tracker=job.tracker)
    run_filter(
        passages, job, PassageBasedExpander, settings.kind, settings,
        runner_settings=runner_settings, batch_size=BATCH_SIZE, unit="questions", gpu=False,
    )  # fmt: skip
    warn_if_texts_missing(job.counts, corpus)
    missing = len(queries) - max((sums["questions"] for sums in job.counts.get("words", {}).values()), default=0)
    if job.shard == WHOLE_INPUT and missing:
        warn(f"{missing:,} of {len(queries):,} questions have no hits in {run}, and so no candidates")

"""drtk score: add a teacher's scores to training examples."""

from __future__ import annotations

from typing import Annotated

from drtk.cli.decorators import filter_command
from drtk.cli.options import Corpus, Device, Output, Queries, SkipCorpusCheck, make_argument, make_option, with_settings
from drtk.errors import UsageError
from drtk.retrieval.config import ScoreSettings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.runners import RunnerSettings

BATCH_SIZE = 16  # examples that are scored and saved together; each may have hundreds of passages


@with_settings(ScoreSettings)
@with_settings(RunnerSettings, name="runner_settings")
@filter_command("examples", sharded=True)
def score(
    corpus: Corpus,
    queries: Queries,
    model: Annotated[str, make_option("--model MODEL", "Cross-encoder with one label, a folder or Hub name.")],
    source: Annotated[str, make_argument("EXAMPLES", "Training examples; - is stdin.")] = "-",
    output: Output = "-",
    sample: Annotated[
        int | None, make_option("--sample N", "Score only N examples, sampled at even intervals.", min=1)
    ] = None,
    skip_corpus_check: SkipCorpusCheck = False,
    device: Device = "auto",
    *,
    settings: ScoreSettings,
    runner_settings: RunnerSettings,
    job: FilterJob,
) -> None:
    """Score the passages of training examples with a cross-encoder.

    Adds "scores": {"positives": [...], "negatives": [...]} to each example, for distillation with train-retriever.

    Examples:
    drtk score examples.jsonl --model crossencoder --corpus corpus.jsonl --queries queries.jsonl -o scored.jsonl
    drtk score examples.jsonl --model crossencoder --corpus corpus.jsonl --queries queries.jsonl --sample 10000 -o scored.jsonl
    """
    from drtk.data.checks import (
        check_examples,
        check_same_corpus,
        describe_missing_texts,
        warn_if_texts_missing,
        warn_of_other_kind,
    )
    from drtk.data.corpus_store import CorpusStore
    from drtk.data.readers import read_examples, read_queries
    from drtk.models.cross_encoder import resolve_title_format
    from drtk.models.model_folder import resolve_model_folder
    from drtk.retrieval.rerank import ExampleScorer, read_example_texts
    from drtk.runtime.inputs import InputTracker
    from drtk.runtime.runners import run_filter
    from drtk.runtime.sharding import sample_evenly
    from drtk.runtime.streams import is_stream

    if sample is not None and is_stream(source):
        raise UsageError("--sample requires a file, because the examples are counted first; save the input to a file")
    check_examples(source)
    warn_of_other_kind(passages=corpus, queries=queries)
    check_same_corpus(source, corpus, skip=skip_corpus_check)
    title = resolve_title_format(model, settings.title, strict=True)
    job.lookups = (corpus, str(resolve_model_folder(model)))
    texts = {query.id: query.text for query in read_queries(queries, tracker=job.tracker)}
    examples = read_examples(source, tracker=job.tracker)
    if sample is not None:  # neighbors in a file are often similar, so the first ones are no fair sample
        count = sum(1 for _ in read_examples(source, tracker=InputTracker(skip_bad=job.tracker.skip_bad)))
        examples = sample_evenly(examples, sample, total=count)
    store = CorpusStore.open(corpus)
    records = read_example_texts(examples, source, queries=texts, corpus=store, title=title, tracker=job.tracker)
    job.find_problem = lambda _: describe_missing_texts(job.counts, corpus)
    run_filter(
        records,
        job,
        ExampleScorer,
        model,
        settings,
        device,
        settings.logits,
        runner_settings=runner_settings,
        batch_size=BATCH_SIZE,
        unit="examples",
    )
    warn_if_texts_missing(job.counts, corpus)

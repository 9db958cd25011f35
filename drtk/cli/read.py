"""drtk read: answer questions from retrieved passages."""

from __future__ import annotations

from typing import Annotated

from drtk.cli.decorators import filter_command
from drtk.cli.options import Corpus, Device, Output, Queries, make_argument, make_option, with_settings
from drtk.config import GENERATION
from drtk.query_expansion.config import ReadSettings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.runners import RunnerSettings

BATCH_SIZE = 32  # questions that are processed and saved together


@with_settings(ReadSettings, panel=GENERATION)
@with_settings(RunnerSettings, name="runner_settings")
@filter_command("predictions", sharded=True)
def read(
    model: Annotated[str, make_option("--model MODEL", "FiD reader, a folder or Hub name.")],
    corpus: Corpus,
    queries: Queries,
    source: Annotated[str, make_argument("RUN", "TREC run; - is stdin.")] = "-",
    output: Output = "-",
    tokenizer: Annotated[
        str | None,
        make_option("--tokenizer MODEL", "Tokenizer, if the model folder has none (t5-base for released FiD readers)."),
    ] = None,
    device: Device = "auto",
    *,
    settings: ReadSettings,
    runner_settings: RunnerSettings,
    job: FilterJob,
) -> None:
    """Answer questions from their retrieved passages (Fusion-in-Decoder).

    Writes a prediction per question, {"query_id", "answer", "score"}, for drtk eval --exact-match. The score is the
    log-probability of the answer.

    Examples:
    drtk read bm25.run --model reader --corpus corpus.jsonl --queries questions.jsonl -o predictions.jsonl
    drtk read dense.run --model nq_reader_base --tokenizer t5-base --depth 10 --corpus corpus.jsonl --queries questions.jsonl
    """
    from drtk.data.checks import describe_missing_texts, warn_if_texts_missing
    from drtk.data.corpus_store import CorpusStore
    from drtk.data.runs import get_query_id
    from drtk.models.model_folder import resolve_model_folder
    from drtk.query_expansion.candidates import load_queries
    from drtk.query_expansion.fid_reader import AnswerReader, iter_reader_questions
    from drtk.runtime.runners import run_filter

    job.lookups = (corpus, str(resolve_model_folder(model)))
    texts = {id: query.text for id, query in load_queries(queries, job.tracker).items()}
    questions = iter_reader_questions(
        source,
        queries=texts,
        corpus=CorpusStore.open(corpus),
        depth=settings.depth,
        order=settings.order,
        tracker=job.tracker,
    )
    job.no_input_warning = "the input has no questions, so nothing is answered"
    job.find_problem = lambda _: describe_missing_texts(job.counts, corpus)
    run_filter(
        questions, job, AnswerReader, model, tokenizer, settings, device,
        runner_settings=runner_settings, batch_size=BATCH_SIZE, unit="questions", group=get_query_id,
    )  # fmt: skip
    warn_if_texts_missing(job.counts, corpus)

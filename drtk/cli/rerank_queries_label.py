"""drtk rerank-queries label: what each expansion of a question retrieves."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.jobs import record_filter
from drtk.cli.options import Output, Queries, with_settings
from drtk.io.filtering import FilterJob
from drtk.settings.query_reranking import LabelSettings


@with_settings(LabelSettings)
@record_filter("expansions")
def rerank_queries__label(
    queries: Queries,
    index: Annotated[str, typer.Option("--index", metavar="DIR", help="Index of words (drtk index --type bm25).")],
    source: Annotated[
        str,
        typer.Argument(metavar="EXPANSIONS", help="Candidates of drtk expand-queries; - is stdin.", show_default=False),
    ] = "-",
    output: Output = "-",
    corpus: Annotated[
        str | None,
        typer.Option("--corpus", metavar="FILE", help="The index's passages. [default: where the index says]"),
    ] = None,
    *,
    settings: LabelSettings,
    job: FilterJob,
) -> None:
    """Label expansions of questions with the rank at which an answer is found.

    Searches every expanded question, and writes each candidate again with "rank", that of the first passage that contains
    an answer, and "top1", title and text of its first passage.
    """
    from drtk.io.candidates import questions_by_id, read_asked
    from drtk.io.progress import log
    from drtk.io.textless import all_textless, warn_of_textless
    from drtk.questions.labelling import AnswerCheck, Labelling
    from drtk.retrieval.found_texts import FoundTexts
    from drtk.settings.retrieval import SearchSettings

    settings.check()
    searching = SearchSettings(k1=settings.k1, b=settings.b, threads=settings.threads)
    texts = FoundTexts(index, corpus=corpus, settings=searching)
    questions = questions_by_id(queries, job.intake)
    job.intake.inputs += texts.inputs
    job.looked_up = (texts.corpus,)
    job.window = settings.batch
    job.empty = "no candidate came in, so nothing is labelled"
    labelling = Labelling(texts, settings)
    asked = read_asked(source, questions, job.intake, check=AnswerCheck(settings.match))
    job.vain = lambda: all_textless(job.counts, texts.corpus)
    job.run_windows(asked, labelling.pump, unit="candidates")
    warn_of_textless(job.counts, texts.corpus)
    if labelling.searched:
        rate = labelling.searched / labelling.seconds
        log(f"rerank-queries label: {labelling.searched:,} queries searched, {rate:,.0f} queries/s with their answers")

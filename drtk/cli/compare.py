"""drtk compare: is one system better than another, by how much, and where."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.decorators import record_filter
from drtk.cli.options import Output, with_settings
from drtk.errors import UsageError
from drtk.evaluation.config import CompareSettings
from drtk.runtime.filter_job import FilterJob

ComparedRuns = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME=]RUN…",
        help="TREC runs; those of one NAME are runs of one system, with different seeds; - is stdin.",
    ),
]
ShownCorpus = Annotated[
    str | None,
    typer.Option("--corpus", metavar="FILE", help="Passages: texts of what moved, and documents for --by source."),
]
ShownQueries = Annotated[
    str | None, typer.Option("--queries", metavar="FILE", help="Queries: texts of those that moved.")
]
ComparedBy = Annotated[str | None, typer.Option("--qrels", metavar="FILE", help="Judgements: BEIR TSV or TREC qrels.")]
Answers = Annotated[
    str | None,
    typer.Option(
        "--answers", metavar="FILE", help="Questions with answers: a passage is right where it contains one of them."
    ),
]
SNIPPET_WORDS = 30


@with_settings(CompareSettings)
@record_filter("comparison")
def compare(
    runs: ComparedRuns,
    output: Output = "-",
    *,
    qrels: ComparedBy = None,
    answers: Answers = None,
    corpus: ShownCorpus = None,
    queries: ShownQueries = None,
    settings: CompareSettings,
    job: FilterJob,
) -> None:
    """Say whether systems differ, by how much, and on which queries.

    Reads TREC runs and judgements; writes averages, paired t-tests and randomisation tests against a baseline, and the
    queries that moved most with the passages that changed place. With --answers FILE, a passage is relevant where it
    contains an answer to the question.
    """
    if qrels is not None and answers is not None:
        raise UsageError("--qrels and --answers: a passage is judged by one of them")
    from drtk.data.corpus_store import CorpusStore
    from drtk.data.jsonl import read_queries
    from drtk.evaluation.compare import compare_runs, find_changed_queries
    from drtk.evaluation.compare_report import format_comparison
    from drtk.retrieval.snippets import matched_stems, snippet
    from drtk.runtime.pages import MARK

    comparison = compare_runs(runs, qrels, corpus, settings, job.intake, answers=answers)
    texts: dict[str, str] = {}
    if queries is not None:
        compared = set(comparison.queries)
        texts = {query.id: query.text for query in read_queries(queries, intake=job.intake) if query.id in compared}
    store = None if corpus is None else CorpusStore.open(corpus)
    before, after = MARK if settings.format == "html" else ("", "")

    def show(question: str, id: str) -> tuple[str, str]:
        passage = None if store is None else store.get(id)
        if passage is None:
            return "", ""
        stems = matched_stems(question)
        return passage.title, snippet(
            passage.text, stems, words=SNIPPET_WORDS, mark=lambda word: f"{before}{word}{after}"
        )

    lines = format_comparison(comparison, find_changed_queries(comparison, texts=texts, show=show))
    job.run_report(lines, num_inputs=len(runs))

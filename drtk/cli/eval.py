"""drtk eval: score runs against judgements or answers, and predictions against answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drtk.cli.decorators import record_filter
from drtk.cli.options import Output, with_settings
from drtk.errors import UsageError
from drtk.evaluation.config import EvalSettings
from drtk.runtime.filter_job import FilterJob

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from drtk.data.runs import NamedRun
    from drtk.runtime.inputs import Intake

Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=]RUN…",
        help="TREC runs, several side by side; - is stdin. Folders of runs, where --qrels is a folder of collections.",
        show_default=False,
    ),
]
Judged = Annotated[
    str | None,
    typer.Option(
        "--qrels",
        metavar="FILE",
        help="Judgements: BEIR TSV or TREC qrels; the folder of a BEIR collection, or a folder of several.",
    ),
]
KnownCorpus = Annotated[
    str | None,
    typer.Option(
        "--corpus",
        metavar="FILE",
        help="Passages: checks judged ids, tells documents for --by source, and holds the texts for --answers.",
    ),
]
Answers = Annotated[
    str | None,
    typer.Option(
        "--answers", metavar="FILE", help="Questions with answers: a passage is right where it contains one of them."
    ),
]


@with_settings(EvalSettings)
@record_filter("evaluation")
def eval_(
    runs: Runs = None,
    output: Output = "-",
    *,
    qrels: Judged = None,
    answers: Answers = None,
    corpus: KnownCorpus = None,
    settings: EvalSettings,
    job: FilterJob,
) -> None:
    """Score runs against judgements or answers.

    Reads TREC runs and judgements (BEIR TSV or TREC qrels) and writes a table, one run a row.
    Values are those of trec_eval; judged queries that a run lacks count as 0.
    With --answers FILE, a passage is relevant where it contains an answer to the question.
    """
    from drtk.data.runs import named_runs

    named = named_runs(runs or ["-"])
    if settings.exact_match:
        if answers is None or qrels is not None or corpus is not None:
            raise UsageError("--exact-match compares predictions with --answers FILE, and reads nothing else")
        lines = _predictions(named, answers, settings, job.intake)
    elif answers is not None:
        if qrels is not None:
            raise UsageError("--qrels and --answers: a passage is judged by one of them")
        if corpus is None:
            raise UsageError("--answers needs the texts of the passages: --corpus FILE")
        lines = _answers(named, answers, corpus, settings, job.intake)
    elif qrels is None:
        raise UsageError("what is right? --qrels FILE or --answers FILE")
    elif Path(qrels, "qrels").is_dir():
        from drtk.data.beir import judgements_path

        lines = _judged(named, str(judgements_path(Path(qrels), settings.split)), corpus, settings, job.intake)
    elif Path(qrels).is_dir():
        if corpus is not None:
            raise UsageError("--corpus is for one collection; --qrels names a folder of them")
        lines = _collections(named, qrels, settings, job.intake)
    else:
        lines = _judged(named, qrels, corpus, settings, job.intake)
    job.log_summary = False
    job.run(lines, lambda window: (f"{line}\n".encode() for line in window), unit="lines")


def _judged(
    runs: Sequence[NamedRun], qrels: str, corpus: str | None, settings: EvalSettings, intake: Intake
) -> Iterator[str]:
    from drtk.data.ids import CorpusIds, source_of
    from drtk.evaluation.evaluate import Evaluator, View, tell_shallow
    from drtk.evaluation.judged_runs import judgements_from, scored
    from drtk.evaluation.measures import parse_measures
    from drtk.evaluation.tables import table_lines

    measures = parse_measures(settings.measures or "nDCG@10 RR@10 R@10 R@100 Success@10", rel=settings.rel)
    known = None if corpus is None else CorpusIds.read(corpus, intake)
    by_source = settings.by == "source"
    judgements = judgements_from(qrels, intake, known=known, by_source=by_source)
    view = View(
        order=settings.order,
        by=(known or source_of) if by_source else None,
        drop_same_id=bool(settings.drop_same_id),
        depth=settings.depth,
    )
    evaluator = Evaluator(judgements, measures)
    results = [scored(run, evaluator, view, intake, retrieved_only=settings.retrieved_only) for run in runs]
    size = None if known is None else len(known)
    tell_shallow({result.name: result.deepest for result in results}, measures, size=size)
    return table_lines(results, measures, format=settings.format, per_query=settings.per_query, digits=settings.digits)


def _collections(runs: Sequence[NamedRun], folder: str, settings: EvalSettings, intake: Intake) -> Iterator[str]:
    from drtk.evaluation.collections import collection_lines

    return collection_lines(runs, folder, settings, intake)


def _answers(
    runs: Sequence[NamedRun], questions: str, corpus: str, settings: EvalSettings, intake: Intake
) -> Iterator[str]:
    from drtk.evaluation.answers import answer_lines

    return answer_lines(runs, questions, corpus, settings, intake)


def _predictions(runs: Sequence[NamedRun], questions: str, settings: EvalSettings, intake: Intake) -> Iterator[str]:
    from drtk.evaluation.answers import prediction_lines

    return prediction_lines(runs, questions, settings, intake)

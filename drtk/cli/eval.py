"""drtk eval: score runs against judgements."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.jobs import record_filter
from drtk.cli.options import Output, Qrels, with_settings
from drtk.io.filtering import FilterJob
from drtk.settings.evaluation import EvalSettings

Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME=]RUN…", help="TREC runs, several side by side; - is stdin.", show_default=False),
]
KnownCorpus = Annotated[
    str | None,
    typer.Option("--corpus", metavar="FILE", help="Passages: checks judged ids, and tells documents for --by source."),
]


@with_settings(EvalSettings)
@record_filter("evaluation")
def eval_(
    runs: Runs = None,
    output: Output = "-",
    *,
    qrels: Qrels,
    corpus: KnownCorpus = None,
    settings: EvalSettings,
    job: FilterJob,
) -> None:
    """Score runs against judgements.

    Reads TREC runs and judgements (BEIR TSV or TREC qrels) and writes a table, one run a row.
    Values are those of trec_eval; judged queries that a run lacks count as 0.
    """
    from drtk.evaluation.evaluate import Evaluator
    from drtk.evaluation.measures import parse_measures
    from drtk.evaluation.rankings import View
    from drtk.evaluation.runs import evaluated, judgements_from
    from drtk.evaluation.tables import table_lines
    from drtk.io.corpus_ids import CorpusIds
    from drtk.io.runs import named_runs
    from drtk.io.sources import source_of

    measures = parse_measures(settings.measures, rel=settings.rel)
    named = named_runs(runs or ["-"])
    known = None if corpus is None else CorpusIds.read(corpus, job.intake)
    by_source = settings.by == "source"
    judgements = judgements_from(qrels, job.intake, known=known, by_source=by_source)
    view = View(
        order=settings.order,
        by=(known or source_of) if by_source else None,
        drop_same_id=settings.drop_same_id,
        depth=settings.depth,
    )
    evaluator = Evaluator(judgements, measures)
    results = [evaluated(run, evaluator, view, job.intake, retrieved_only=settings.retrieved_only)[0] for run in named]
    lines = table_lines(results, measures, format=settings.format, per_query=settings.per_query, digits=settings.digits)
    job.told = False
    job.run(lines, lambda window: (f"{line}\n".encode() for line in window), unit="lines")

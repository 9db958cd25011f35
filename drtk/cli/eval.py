"""drtk eval: score runs against judgments or answers, and predictions against answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from drtk.cli.decorators import filter_command
from drtk.cli.options import Answers, Output, make_argument, make_option, with_settings
from drtk.errors import UsageError
from drtk.evaluation.config import EvalSettings
from drtk.runtime.filter_job import FilterJob


@with_settings(EvalSettings)
@filter_command("evaluation")
def eval_(
    runs: Annotated[
        list[str] | None,
        make_argument(
            "[NAME=]RUN…",
            "TREC runs, folders of runs (several collections), or predictions (--exact-match); - is stdin.",
        ),
    ] = None,
    output: Output = "-",
    *,
    qrels: Annotated[
        str | None,
        make_option("--qrels FILE", "Judgments: BEIR TSV, TREC qrels, a collection, or a folder of BEIR collections."),
    ] = None,
    answers: Answers | None = None,
    corpus: Annotated[
        str | None, make_option("--corpus FILE", "Corpus with the passages of the runs (required with --answers).")
    ] = None,
    settings: EvalSettings,
    job: FilterJob,
) -> None:
    """Evaluate runs with judgments or answers, and predictions with answers.

    Writes a table with a row per run, or per collection if there are several. Values from judgments equal those of
    trec_eval; judged queries that a run lacks count as 0. With --answers, a passage is relevant if it contains an
    answer to the question.

    Examples:
    drtk eval bm25=bm25.run dense=dense.run --qrels qrels.tsv
    drtk eval dense.run --qrels qrels.tsv --measures "nDCG@10 recall@100" --per-query --format jsonl
    """
    from drtk.data.runs import parse_runs

    named = parse_runs(runs or ["-"])
    if settings.exact_match:
        if answers is None or qrels is not None or corpus is not None:
            raise UsageError("--exact-match requires --answers FILE, and cannot be combined with --qrels or --corpus")
        from drtk.evaluation.answers import evaluate_predictions

        lines = evaluate_predictions(named, answers, settings, job.tracker)
    elif answers is not None:
        if qrels is not None:
            raise UsageError("--qrels and --answers cannot be combined; give one")
        if corpus is None:
            raise UsageError("--answers requires --corpus FILE (the passage texts)")
        from drtk.evaluation.answers import evaluate_by_answers

        lines = evaluate_by_answers(named, answers, corpus, settings, job.tracker)
    elif qrels is None:
        raise UsageError("--qrels or --answers is required")
    elif Path(qrels).is_dir() and not Path(qrels, "qrels").is_dir():
        if corpus is not None:
            raise UsageError("--corpus cannot be combined with --qrels for a folder of collections; omit it")
        from drtk.evaluation.collections import evaluate_collections

        lines = evaluate_collections(named, qrels, settings, job.tracker)
    else:
        from drtk.data.beir import find_qrels
        from drtk.evaluation.judged_runs import evaluate_runs

        if Path(qrels).is_dir():
            qrels = str(find_qrels(Path(qrels), settings.split))
        lines = evaluate_runs(named, qrels, corpus, settings, job.tracker)
    job.run_report(lines, num_inputs=len(named))

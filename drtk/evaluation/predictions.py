"""Predicted answers against the right ones: exact match and F1, as SQuAD scores them (methods: section 8.6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.evaluation.answered import answers_of
from drtk.evaluation.evaluate import Evaluation, Value
from drtk.evaluation.measures import Measure
from drtk.evaluation.runs import tell_missing
from drtk.evaluation.tables import table_lines
from drtk.io.intake import Intake
from drtk.io.jsonl import read_predictions
from drtk.io.progress import detail, warn
from drtk.io.runs import NamedRun
from drtk.io.streams import name_of
from drtk.records import Prediction
from drtk.settings.evaluation import EvalSettings
from drtk.text.answers import exact_match, token_f1

MEASURES = ("EM", "F1")


def prediction_lines(runs: Sequence[NamedRun], questions: str, settings: EvalSettings, intake: Intake) -> Iterator[str]:
    """Lines of the table, a file of predictions a row. Raises UsageError for a measure that is neither EM nor F1."""
    names = settings.measures.split() or list(MEASURES)
    if unknown := [name for name in names if name not in MEASURES]:
        raise UsageError(f"--measures: {unknown[0]} is not for predictions; choose from {', '.join(MEASURES)}")
    measures = [Measure(name, "own", name) for name in dict.fromkeys(names)]
    answers = answers_of(questions, "tokens", intake)
    results = []
    for run in runs:
        chosen = best_predictions(run.source, intake)
        known = {id: prediction for id, prediction in chosen.items() if id in answers}
        if not chosen:
            warn(f"{run.name}: there are no predictions")
        elif not known:
            raise MismatchError(
                f"{name_of(run.source)}: no prediction is for a question with answers; it has '{next(iter(chosen))}', "
                f"the questions have '{next(iter(answers))}'"
            )
        if extra := len(chosen) - len(known):
            detail(f"{run.name}: {extra:,} predictions for questions without answers left out")
        tell_missing(
            run.name,
            len(known),
            len(answers),
            retrieved_only=settings.retrieved_only,
            right="answers",
            where="among the predictions",
        )
        results.append(_scored(run.name, known, answers, [m.name for m in measures], settings.retrieved_only))
    return table_lines(results, measures, format=settings.format, per_query=settings.per_query, digits=settings.digits)


def best_predictions(source: str, intake: Intake) -> dict[str, str]:
    """The predicted answer to each question: of several the one with the highest score, of equals the first.

    Raises RecordError (file:line) where a question has several and one of them has no score.
    """
    chosen: dict[str, Prediction] = {}
    for prediction in read_predictions(source, intake=intake):
        known = chosen.setdefault(prediction.query_id, prediction)
        if known is prediction:
            continue
        if known.score is None or prediction.score is None:
            place = f"{name_of(source)}:{intake.line}"
            raise RecordError(
                place, f"question '{prediction.query_id}' has several predictions, and not all have scores"
            )
        if prediction.score > known.score:
            chosen[prediction.query_id] = prediction
    return {id: prediction.answer for id, prediction in chosen.items()}


def _scored(
    name: str,
    predictions: Mapping[str, str],
    answers: Mapping[str, tuple[str, ...]],
    measures: Sequence[str],
    retrieved_only: bool,
) -> Evaluation:
    """Values per question and their means; a question without a prediction counts 0, or not at all."""
    compute = {"EM": lambda text, right: float(exact_match(text, right)), "F1": token_f1}
    per_query: dict[str, dict[str, Value]] = {}
    for id, right in answers.items():
        if id in predictions:
            per_query[id] = {measure: compute[measure](predictions[id], right) for measure in measures}
        elif not retrieved_only:
            per_query[id] = dict.fromkeys(measures, 0.0)
    if not per_query:
        raise DrtkError(f"{name}: nothing to score")
    count = len(per_query)
    overall: dict[str, Value] = {m: sum(float(v[m]) for v in per_query.values()) / count for m in measures}
    return Evaluation(name, per_query, overall)

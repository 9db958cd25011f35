"""Curves of reports and plots: recall by depth, and fields of a training log by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from drtk.data.readers import read_records
from drtk.data.rows import Row
from drtk.data.trec import Judgments
from drtk.errors import DrtkError
from drtk.evaluation.metrics import JudgedRanks, recall, success
from drtk.runtime.inputs import InputTracker
from drtk.runtime.streams import get_source_name

MIN_TREND_VALUES = 6  # values needed for a trend
DEPTHS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000)


def choose_depths(rankings: Sequence[Mapping[str, Sequence[str]]]) -> tuple[int, ...]:
    """Return the depths of a recall curve: the values of DEPTHS up to the longest ranking, and at least those up to 100."""
    longest = max((len(ranking) for run in rankings for ranking in run.values()), default=0)
    return tuple(depth for depth in DEPTHS if depth <= max(100, longest))


def compute_recall_curve(
    rankings: Mapping[str, Sequence[str]],
    judgments: Judgments,
    depths: Sequence[int],
    *,
    rel: int = 1,
    hit_rate: bool = False,
) -> list[float]:
    """Return recall@k, or success@k if `hit_rate`, for each k in `depths`; queries without relevant documents count as 0."""
    measure = success if hit_rate else recall
    judged = [
        (JudgedRanks.from_ranking(rankings.get(query, ()), grades), [*grades.values()])
        for query, grades in judgments.items()
    ]
    return [sum(measure(*pair, rel=rel, cutoff=depth) for pair in judged) / len(judged) for depth in depths]


@dataclass(frozen=True)
class Curve:
    """Values of one field of a training log, with their steps."""

    steps: list[int]
    values: list[float]


def describe_loss(loss: Curve) -> str:
    """Return a sentence that compares the means of the first and last quarter of the losses, or says that there are too few; single losses are noisy."""
    steps = f"{loss.steps[-1]:,} steps"
    if len(loss.values) < MIN_TREND_VALUES:
        return f"The training log has too few losses for a trend ({len(loss.values)} in {steps})."
    count = len(loss.values) // 4
    initial, final = fmean(loss.values[:count]), fmean(loss.values[-count:])
    verb = "fell" if final < initial else "did not fall:"
    return f"The training loss {verb} from {initial:.4g} to {final:.4g} in {steps}."


def read_curves(source: str, *, field: str | None = None, tracker: InputTracker | None = None) -> dict[str, Curve]:
    """Return {field name: curve} of the numeric fields of a training log (JSON lines with `step`), in order of appearance.

    field: name of a required field
    Raises RecordError (file:line) for a `step` that is not an integer, or a `field` (None: loss) that is not a number.
    With `field`, lines without it are skipped.
    Raises DrtkError for a log without numeric fields, or without `field`.
    """
    needed = field or "loss"

    def parse_row(row: Row) -> tuple[int, dict[str, float]]:
        step: Any = row.get("step")
        values = {name: float(value) for name, value in row.items() if name != "step" and type(value) in (int, float)}
        has_step = type(step) is int
        is_valid = has_step and (needed in values or needed not in row)
        if not is_valid and (needed in row or field is None):
            raise ValueError(f"expected an integer 'step' and a number as '{needed}'")
        return (step, values) if has_step else (0, {})

    curves: dict[str, Curve] = {}
    for step, values in read_records(source, parse_row, tracker=tracker):
        for name, value in values.items():
            curve = curves.setdefault(name, Curve([], []))
            curve.steps.append(step)
            curve.values.append(value)
    if not curves and field is None:
        raise DrtkError(
            f"{get_source_name(source)}: no numeric fields found; expected JSON lines with 'step' and 'loss'"
        )
    if field is not None and field not in curves:
        hint = f"choose from {', '.join(curves)}" if curves else f"expected JSON lines with 'step' and '{field}'"
        raise DrtkError(f"{get_source_name(source)}: no field {field}; {hint}")
    return curves

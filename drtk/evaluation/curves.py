"""Curves behind a report: recall by depth, and the loss of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from drtk.data.rows import parse_row
from drtk.data.trec import Judgements
from drtk.errors import DrtkError, RecordError
from drtk.runtime.inputs import Intake
from drtk.runtime.streams import name_of

FEWEST = 6  # entries of a log from which on its ends say something
DEPTHS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000)


def depths_for(rankings: Sequence[Mapping[str, Sequence[str]]]) -> tuple[int, ...]:
    """The depths worth a point: those up to 100, and deeper ones that some ranking reaches."""
    longest = max((len(ranking) for run in rankings for ranking in run.values()), default=0)
    return tuple(depth for depth in DEPTHS if depth <= max(100, longest))


def recall_curve(
    rankings: Mapping[str, Sequence[str]], judgements: Judgements, depths: Sequence[int], *, rel: int = 1
) -> list[float]:
    """Recall at each depth, averaged over all judged queries; a query without a relevant document has recall 0."""
    sums = [0.0] * len(depths)
    for query, grades in judgements.items():
        relevant = {id for id, grade in grades.items() if grade >= rel}
        places = [rank for rank, id in enumerate(rankings.get(query, ()), start=1) if id in relevant]
        for at, depth in enumerate(depths):
            sums[at] += sum(place <= depth for place in places) / len(relevant) if relevant else 0.0
    return [total / len(judgements) for total in sums]


def hit_curve(
    rankings: Mapping[str, Sequence[str]], judgements: Judgements, depths: Sequence[int], *, rel: int = 1
) -> list[float]:
    """The share of all judged queries that have a relevant document among the first k, at each depth k."""
    firsts = []
    for query, grades in judgements.items():
        relevant = {id for id, grade in grades.items() if grade >= rel}
        firsts.append(next((rank for rank, id in enumerate(rankings.get(query, ()), start=1) if id in relevant), None))
    return [sum(first is not None and first <= depth for first in firsts) / len(firsts) for depth in depths]


@dataclass(frozen=True)
class LossCurve:
    """Loss by step, as a training run logged it."""

    steps: list[int]
    losses: list[float]

    @property
    def first(self) -> float:
        """The loss of the first quarter of the entries (at least one), averaged: single entries are noisy."""
        part = self.losses[: max(1, len(self.losses) // 4)]
        return sum(part) / len(part)

    @property
    def last(self) -> float:
        """The loss of the last quarter of the entries (at least one), averaged."""
        part = self.losses[-max(1, len(self.losses) // 4) :]
        return sum(part) / len(part)

    @property
    def tells(self) -> bool:
        """Whether there are entries enough to speak of a trend."""
        return len(self.losses) >= FEWEST

    def text(self) -> str:
        """What became of the loss, as a sentence."""
        steps = f"{self.steps[-1]:,} steps"
        if not self.tells:
            return f"The training log holds {len(self.losses)} losses of {steps}: too few to tell a trend."
        verb = "fell" if self.last < self.first else "did not fall:"
        return f"The training loss {verb} from {self.first:.4g} to {self.last:.4g} in {steps}."


def read_loss(source: str, *, intake: Intake | None = None) -> LossCurve:
    """The loss in a log of training. Faults as in `read_log`."""
    return LossCurve(*read_log(source, "loss", intake=intake))


@dataclass(frozen=True)
class Curve:
    """A number of a training log by step."""

    steps: list[int]
    values: list[float]

    def beside(self, other: Curve) -> bool:
        """Whether it was logged along with another number, at the same steps."""
        return self.steps == other.steps


def read_curves(source: str, *, intake: Intake | None = None) -> dict[str, Curve]:
    """Every number of a log of JSON lines with `step`, by its name, in the order of their first appearance.

    Values without end are passed over. Raises RecordError (file:line) for a line that is no such row, or whose loss is no
    number, DrtkError for an empty log.
    """
    intake = intake or Intake()
    found: dict[str, Curve] = {}
    for number, line in intake.lines(source):
        if not line.strip():
            continue
        try:
            row = parse_row(line)
            step = row.get("step")
            if isinstance(step, bool) or not isinstance(step, int):
                raise ValueError("expected a whole 'step'")
            if not isinstance(row.get("loss", 0.0), int | float):
                raise ValueError("expected a whole 'step' and a number as 'loss'")
        except ValueError as error:
            intake.forgive(RecordError(f"{name_of(source)}:{number}", str(error)))
            continue
        for name, value in row.items():
            if name == "step" or isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
                continue
            curve = found.setdefault(name, Curve([], []))
            curve.steps.append(step)
            curve.values.append(float(value))
    if not found:
        raise DrtkError(f"{name_of(source)}: holds no numbers")
    return found


def read_log(source: str, field: str, *, intake: Intake | None = None) -> tuple[list[int], list[float]]:
    """(steps, values of `field`) of a log of JSON lines with `step`; rows without the field, and values without end, are passed over.

    Raises RecordError (file:line) for a line that is no such row, DrtkError naming the fields there are where none is it.
    """
    intake = intake or Intake()
    steps: list[int] = []
    values: list[float] = []
    others: dict[str, None] = {}
    for number, line in intake.lines(source):
        if not line.strip():
            continue
        try:
            row = parse_row(line)
            others |= {name: None for name, value in row.items() if isinstance(value, int | float) and name != "step"}
            if field not in row:
                continue
            step, value = row.get("step"), row[field]
            numbers = isinstance(value, int | float) and not isinstance(value, bool)
            if isinstance(step, bool) or not isinstance(step, int) or not numbers:
                raise ValueError(f"expected a whole 'step' and a number as '{field}'")
        except ValueError as error:
            intake.forgive(RecordError(f"{name_of(source)}:{number}", str(error)))
            continue
        if isfinite(value):
            steps.append(step)
            values.append(float(value))
    if not steps:
        there = f"; there are {', '.join(others)}" if others else ""
        raise DrtkError(f"{name_of(source)}: holds no {field}{there}")
    return steps, values

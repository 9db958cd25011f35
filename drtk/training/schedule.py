"""How long training lasts."""

from __future__ import annotations

from dataclasses import dataclass

from drtk.errors import DrtkError
from drtk.training.distributed import world_size


@dataclass(frozen=True)
class Plan:
    """How long training lasts: examples per device and step, steps, and steps in an epoch."""

    batch: int
    steps: int
    steps_per_epoch: int


def planned(
    count: int, *, batch: int, epochs: float, steps: int | None, what: str = "examples", source: str = "training data"
) -> Plan:
    """The plan for so many examples of `source`.

    Raises DrtkError where there are none, where they fill no batch, or devices cannot share one.
    """
    if not count:
        raise DrtkError(f"{source}: no {what} to learn from")
    devices = world_size()
    if batch % devices:
        raise DrtkError(f"--batch {batch} cannot be shared by {devices} processes")
    if count < batch:
        raise DrtkError(f"{count:,} {what} do not fill one batch of {batch:,}; --batch {count} or less would do")
    steps_per_epoch = count // batch
    return Plan(batch // devices, steps or max(1, round(epochs * steps_per_epoch)), steps_per_epoch)

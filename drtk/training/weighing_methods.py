"""The ways of weighing words that are learnt, and what their papers say of the training."""

from __future__ import annotations

from dataclasses import dataclass

from drtk.errors import UsageError


@dataclass(frozen=True)
class Defaults:
    """What a method's paper says, where the user does not; clip: largest norm of a gradient."""

    batch: int
    lr: float
    max_length: int
    clip: float


METHODS = {
    "deepct": Defaults(batch=16, lr=2e-5, max_length=128, clip=1.0),
    "deepimpact": Defaults(batch=32, lr=3e-6, max_length=300, clip=2.0),
}


def check_method(method: str) -> Defaults:
    """The defaults of a method that learns. Raises UsageError for one that does not."""
    if method not in METHODS:
        raise UsageError(f"--train: --method {method} learns nothing; {' and '.join(METHODS)} do")
    return METHODS[method]

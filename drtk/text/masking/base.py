"""What a masking strategy is given and owes (methods: section 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from drtk.text.tokenised import Text

GIVEN = ("text", "rate", "rng", "counted", "other")  # what a strategy gets from its slot; the rest are options
Masking = TypeVar("Masking", bound=Callable[..., np.ndarray])


def weighing(strategy: Masking) -> Masking:
    """Marks a strategy that needs weights, so that the corpus is asked for them."""
    strategy.needs_weights = True  # type: ignore[attr-defined]
    return strategy


def needs_weights(strategy: Any) -> bool:
    """Whether a strategy was marked by `weighing`."""
    return bool(getattr(strategy, "needs_weights", False))


class Other(NamedTuple):
    """The mask of the slot that an `extension` or `complement` refers to: hidden, (tokens,) bool, and the rate it was drawn at."""

    hidden: np.ndarray
    rate: float


class Strategy(Protocol):
    """Chooses what a model must predict; what stands there instead is the matter of drtk/text/corruption.py.

    text: with its special tokens, which are never hidden    rate: in [0, 1]
    rng: the only source of chance    counted: how many tokens the rate is a share of (with or without specials)
    other: a mask of the same text, for the strategies that refer to one
    returns: (tokens,), True where hidden. Raises ValueError where weights or `other` are missing.
    """

    def __call__(
        self, text: Text, rate: float, *, rng: np.random.Generator, counted: int, other: Other | None = None
    ) -> np.ndarray: ...


def weights_of(text: Text, strategy: str) -> np.ndarray:
    """The weights of a text, (tokens,); ValueError where it has none."""
    if text.weights is None:
        raise ValueError(
            f"masking by '{strategy}' needs weights of word pieces, and the text has none; drtk termweight adds them"
        )
    if len(text.weights) != len(text.ids):
        raise ValueError(f"masking by '{strategy}': {len(text.weights)} weights for {len(text.ids)} word pieces")
    return text.weights


def mask_of(other: Other | None, text: Text, strategy: str) -> Other:
    """The mask referred to; ValueError where there is none, or one of another text."""
    if other is None:
        raise ValueError(f"masking by '{strategy}' refers to the mask of another slot, and none was given")
    if len(other.hidden) != len(text.ids):
        raise ValueError(f"masking by '{strategy}': a mask of {len(other.hidden)} tokens for a text of {len(text.ids)}")
    return other

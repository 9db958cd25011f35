"""What a masking strategy is given and owes (methods: section 4)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from drtk.text.tokenised import Text


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

"""A tokenised text: what views hand on and maskings read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Text(NamedTuple):
    """A tokenised text; every array has the shape (tokens,).

    ids: int32; words: int32, the number of the word each piece belongs to, rising by at most 1, -1 for special tokens, which are
    never masked; weights: float32, one a piece, or None where the text has none
    types: int32, 0 in the first segment and 1 in the second, or None for a text of one segment
    """

    ids: np.ndarray
    words: np.ndarray
    weights: np.ndarray | None = None
    types: np.ndarray | None = None

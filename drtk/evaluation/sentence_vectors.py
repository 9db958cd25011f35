"""Vectors that another system made, by sentence: a file in the place of a model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from drtk.errors import DrtkError, RecordError
from drtk.io.intake import Intake
from drtk.io.jsonl import read_records
from drtk.io.rows import Row, take, text_of
from drtk.io.streams import name_of


def vectors_from(source: str, intake: Intake) -> Callable[[list[str]], np.ndarray]:
    """What looks sentences up in a file of `{"text", "vector"}`; it raises DrtkError for one that is not there.

    Raises RecordError (file:line) for a row without a vector of numbers, or of another length than the first one's.
    """
    found: dict[str, np.ndarray] = {}
    dimension = 0
    for text, vector in read_records(source, _row, intake=intake):
        dimension = dimension or len(vector)
        if len(vector) != dimension:
            place = f"{name_of(source)}:{intake.line}"
            raise RecordError(place, f"a vector of {len(vector)} numbers; those before have {dimension}")
        found[text] = vector
    if not found:
        raise DrtkError(f"{name_of(source)}: holds no vectors")

    def look_up(texts: list[str]) -> np.ndarray:
        for text in texts:
            if text not in found:
                raise DrtkError(f"{name_of(source)}: has no vector for the sentence '{text}'")
        return np.stack([found[text] for text in texts])

    return look_up


def _row(row: Row) -> tuple[str, np.ndarray]:
    text = text_of(take(row, "text"), "text")
    values = take(row, "vector")
    numbers = isinstance(values, list) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if not numbers or not values:
        raise ValueError("'vector' must be a list of numbers")
    return text, np.array(values, dtype=np.float64)

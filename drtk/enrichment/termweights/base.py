"""What a weighting method is: readings of passages in, one weight an occurrence of a word out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

from drtk.enrichment.termweights.reading import Reading
from drtk.enrichment.termweights.statistics import Statistics
from drtk.settings.weighting import WeightingSettings
from drtk.text.word_spans import WordSplit

Needs = Literal["counts", "attention"]


class TermWeights(Protocol):
    """A method's class; `drtk termweight` uses nothing else.

    needs: the kind of statistics of the collection it must have, None where the passage tells enough
    split: what a word is, where the user does not say
    with_model: whether it reads passages with a model
    """

    needs: ClassVar[Needs | None]
    split: ClassVar[WordSplit]
    with_model: ClassVar[bool]

    def __init__(
        self, settings: WeightingSettings, statistics: Statistics | None, model: str | None, device: str
    ) -> None: ...

    def __call__(self, readings: Sequence[Reading]) -> list[list[float]]:
        """For each passage one weight, 0 or more, for each of its words (`Reading.words`), in order."""

    def fields(self, reading: Reading, weights: Sequence[float]) -> dict[str, Any]:
        """What else the passage's record shall hold."""


class OfWords:
    """Base of methods for which all occurrences of a word in a passage weigh the same."""

    with_model: ClassVar[bool] = False

    def __call__(self, readings: Sequence[Reading]) -> list[list[float]]:
        """One weight an occurrence."""
        return [
            [values[word] for word in reading.words]
            for reading, values in zip(readings, self.values(readings), strict=True)
        ]

    def values(self, readings: Sequence[Reading]) -> Iterable[Mapping[str, float]]:
        """For each passage its words and what they weigh."""
        raise NotImplementedError

    def fields(self, reading: Reading, weights: Sequence[float]) -> dict[str, Any]:
        """Nothing."""
        return {}

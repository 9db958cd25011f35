"""DeepCT's weights: how likely a question about the passage has the word, as a trained model says (methods: section 3.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from drtk.enrichment.termweights.base import Needs
from drtk.enrichment.termweights.learned import weighing
from drtk.enrichment.termweights.reading import Reading
from drtk.enrichment.termweights.statistics import Statistics
from drtk.settings.weighting import WeightingSettings
from drtk.text.word_spans import WordSplit


class DeepCT:
    """What the model says of each occurrence's first piece, 0 where that is less."""

    needs: ClassVar[Needs | None] = None
    split: ClassVar[WordSplit] = "pieces"
    with_model: ClassVar[bool] = True

    def __init__(
        self, settings: WeightingSettings, statistics: Statistics | None, model: str | None, device: str
    ) -> None:
        _, self._weigh = weighing(model, "deepct", settings, device)

    def __call__(self, readings: Sequence[Reading]) -> list[list[float]]:
        """One weight an occurrence of a word; those that the model does not get to see have 0."""
        found = self._weigh([reading.ids for reading in readings])
        return [
            [max(float(values[head]), 0.0) for head in reading.heads()]
            for reading, values in zip(readings, found, strict=True)
        ]

    def fields(self, reading: Reading, weights: Sequence[float]) -> dict[str, Any]:
        """Nothing."""
        return {}

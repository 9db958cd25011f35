"""B-PROP's weights: the attention a passage gives its words, against what the collection gives them (methods: section 3.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from drtk.enrichment.termweights.base import Needs, OfWords
from drtk.enrichment.termweights.contrast import contrasted, gathered, normalised, saturated, softmax
from drtk.enrichment.termweights.reading import Reading
from drtk.enrichment.termweights.statistics import Statistics
from drtk.errors import UsageError
from drtk.models.attention import FirstTokenAttention
from drtk.models.hub import locate
from drtk.settings.weighting import WeightingSettings
from drtk.text.word_spans import WordSplit

_TEMPERATURES = {"cross-entropy": 1.0, "difference": 0.1}


class Saturations:
    """Steps A to D: for each word of a passage its saturated attention."""

    def __init__(self, settings: WeightingSettings, model: str | None, device: str) -> None:
        if model is None:
            raise UsageError("--method bprop needs --model: a BERT-like encoder that has not been fine-tuned")
        self._settings = settings
        self._attention = FirstTokenAttention(
            Path(locate(model)),
            device=device,
            dtype=settings.dtype,
            max_length=settings.max_length,
            batch_tokens=settings.batch_tokens,
        )

    def __call__(self, readings: Sequence[Reading]) -> list[dict[str, float]]:
        """The words of each passage; those that the model did not get to see have 0."""
        first = self._settings.sub2word == "first"
        hidden = [_continuations(reading) for reading in readings] if first else None
        found = self._attention([reading.ids for reading in readings], hidden)
        return [self._of_words(*each) for each in zip(readings, found, strict=True)]

    def _of_words(self, reading: Reading, attention: Iterable[float]) -> dict[str, float]:
        """Steps B to D of one passage; pieces that were hidden have no attention to add."""
        occurrences = [0.0] * len(reading.words)
        for owner, value in zip(reading.owners, attention, strict=True):
            if owner >= 0:
                occurrences[owner] += float(value)
        words = gathered(zip(reading.words, occurrences, strict=True), by=self._settings.gather)
        return {
            word: saturated(value, self._settings.saturation) if value > 0 else 0.0 for word, value in words.items()
        }


def _continuations(reading: Reading) -> list[int]:
    heads = set(reading.heads())
    return [piece for piece, owner in enumerate(reading.owners) if owner >= 0 and piece not in heads]


class Bprop(OfWords):
    """Steps E to H. Raises UsageError without a model."""

    needs: ClassVar[Needs | None] = "attention"
    split: ClassVar[WordSplit] = "treebank"
    with_model: ClassVar[bool] = True

    def __init__(
        self, settings: WeightingSettings, statistics: Statistics | None, model: str | None, device: str
    ) -> None:
        self._settings = settings
        self._saturations = Saturations(settings, model, device)
        sums = {word: values[0] for word, values in statistics.words.items()} if statistics is not None else {}
        self._collection = normalised(sums)  # step F: the number of passages cancels
        self._unseen = min((share for share in self._collection.values() if share > 0), default=1.0)

    def values(self, readings: Sequence[Reading]) -> Iterator[Mapping[str, float]]:
        """For each passage its words and what they weigh."""
        for reading, saturations in zip(readings, self._saturations(readings), strict=True):
            yield self.weights(reading.words, saturations)

    def weights(self, words: Sequence[str], saturations: Mapping[str, float]) -> dict[str, float]:
        """Of the saturated attention of a passage's words: what --emit asks for."""
        settings = self._settings
        document = normalised(saturations)
        if settings.emit == "attention":
            return document
        seen = {word for word, value in saturations.items() if value > 0 and word.isalpha()}  # by the model
        if sum(map(str.isalpha, words)) < settings.min_words:
            return {word: 1 / len(seen) if word in seen else 0.0 for word in document}
        scores = contrasted(document, self._collection, settings.contrast, unseen=self._unseen)
        if settings.emit == "score":
            return scores
        temperature = settings.softmax_temperature or _TEMPERATURES[settings.contrast]
        return dict.fromkeys(document, 0.0) | softmax(
            {word: scores[word] for word in scores if word in seen}, temperature=temperature
        )

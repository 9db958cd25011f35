"""Learned term weights: DeepCT and DeepImpact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from drtk.errors import MismatchError
from drtk.expansion.config import WeightingSettings
from drtk.expansion.term_weights.base import CollectionStatistics, Predictor, SplitPassage, TermWeightingMethod
from drtk.models.model_folder import resolve_model_folder
from drtk.models.term_weighter import TermWeightPredictor, load_term_weight_model, read_training_metadata
from drtk.records import Passage
from drtk.runtime.inputs import InputTracker
from drtk.text.expanded_text import get_added_texts
from drtk.text.word_pieces import WordPieceTokenizer, WordPositions, WordSplit, append_added_words
from drtk.text.words import load_stop_words_with_parts, normalize_word


def _load_predictor(model: str, method: str, settings: WeightingSettings, device: str) -> TermWeightPredictor:
    """Load a trained model. Raises MismatchError for a model of another method."""
    loaded = load_term_weight_model(Path(resolve_model_folder(model)), method)
    length, budget = settings.max_length, settings.batch_tokens
    return TermWeightPredictor(loaded, device=device, dtype=settings.precision, max_length=length, batch_tokens=budget)


class DeepCT(TermWeightingMethod):
    """DeepCT: the weight of a word occurrence is the model's output at its first word piece, at least 0."""

    with_model: ClassVar[bool] = True

    def __init__(self, settings: WeightingSettings, statistics: CollectionStatistics | None, model: str | None) -> None:
        pass

    @staticmethod
    def load_predictor(settings: WeightingSettings, model: str, device: str) -> Predictor:
        return _load_predictor(model, "deepct", settings, device)

    def __call__(self, split_passages: Sequence[SplitPassage], outputs: Sequence[np.ndarray] = ()) -> list[list[float]]:
        """Return the weights of the words of each passage; 0 for words beyond the maximum input length."""
        return [
            [max(float(values[head]), 0.0) for head in split_passage.find_first_pieces()]
            for split_passage, values in zip(split_passages, outputs, strict=True)
        ]


STEPS, LARGEST = 256, 255  # of the quantization; the largest value must fit into a byte


def quantize(impact: float, largest: float) -> int:
    """Quantize an impact to 8 bits: ceil(256 * impact / largest), at most 255; 0 if `impact` is not positive."""
    steps = round(impact * STEPS / largest, 6)  # rounded, so that floating-point errors do not add a step
    return min(ceil(steps), LARGEST) if impact > 0 else 0


def _get_expansion_fields(settings: WeightingSettings, metadata: Mapping[str, Any]) -> list[str]:
    return list(settings.expand or metadata.get("expand") or ())


def iter_checked_passages(
    passages: Iterable[Passage], model: str, settings: WeightingSettings, *, source: str, tracker: InputTracker
) -> Iterator[Passage]:
    """Yield the passages, and check the expansion fields that the model reads in addition to the text.

    Raises RecordError (file:line) for an invalid field, unless `tracker` skips the passage.
    """
    fields = _get_expansion_fields(settings, read_training_metadata(Path(resolve_model_folder(model)), "deepimpact"))
    for passage in passages:
        try:
            for name in fields:
                get_added_texts(passage, name)
        except ValueError as error:
            tracker.skip_line(source, tracker.line, f"passage '{passage.id}': {error}")
            continue
        yield passage


class DeepImpact(TermWeightingMethod):
    """DeepImpact: impacts of the words of a passage and of its expansions, and weights for masking (ROM).

    The weight of a word is its impact divided by the largest impact in the passage, without expansions. Stop words have
    weight 0, because they are removed from questions in training.
    """

    split: ClassVar[WordSplit] = "basic"
    with_model: ClassVar[bool] = True

    def __init__(self, settings: WeightingSettings, statistics: CollectionStatistics | None, model: str | None) -> None:
        folder = Path(resolve_model_folder(model or ""))
        metadata = read_training_metadata(folder, "deepimpact")
        self._tokenizer = WordPieceTokenizer(str(folder))
        self._expand = _get_expansion_fields(settings, metadata)
        self._largest = settings.impact_max or float(metadata.get("largest") or 0)
        if self._largest <= 0:
            raise MismatchError(f"{model}: does not record the largest impact; give `impact_max`")
        self._impacts: dict[int, dict[str, float]] = {}

    @staticmethod
    def load_predictor(settings: WeightingSettings, model: str, device: str) -> Predictor:
        return _load_predictor(model, "deepimpact", settings, device)

    def build_inputs(self, split_passages: Sequence[SplitPassage]) -> list[Any]:
        """Return the word piece ids of each passage and its expansions. Raises RecordError for invalid expansion fields."""
        return [np.array(positions.ids, dtype=np.int32) for positions in self._locate_words(split_passages)]

    def _locate_words(self, split_passages: Sequence[SplitPassage]) -> list[WordPositions]:
        positions = []
        for split_passage in split_passages:
            words = [normalize_word(word) for word in split_passage.words]
            positions.append(WordPositions(split_passage.ids, words, split_passage.find_first_pieces()))
        if self._expand:
            passages = [split_passage.passage for split_passage in split_passages]
            positions = append_added_words(positions, passages, self._tokenizer, self.split, expand=self._expand)
        return positions

    def __call__(self, split_passages: Sequence[SplitPassage], outputs: Sequence[np.ndarray] = ()) -> list[list[float]]:
        """Return the weights of the words of each passage, 0 to 1."""
        inputs = self._locate_words(split_passages)
        self._impacts = {}
        weights = []
        for split_passage, positions, values in zip(split_passages, inputs, outputs, strict=True):
            impacts = compute_impacts(positions, values)
            self._impacts[id(split_passage)] = impacts
            word_impacts = [impacts.get(normalize_word(word), 0.0) for word in split_passage.words]
            largest = max(word_impacts, default=0.0)
            weights.append([impact / largest if largest > 0 else 0.0 for impact in word_impacts])
        return weights

    def build_extra_fields(self, split_passage: SplitPassage, weights: Sequence[float]) -> dict[str, Any]:
        """Return {"impacts": {word: quantized impact above 0}} of the words of the passage and of its expansions."""
        impacts = {word: quantize(impact, self._largest) for word, impact in self._impacts[id(split_passage)].items()}
        return {"impacts": {word: impact for word, impact in impacts.items() if impact}}


def compute_impacts(positions: WordPositions, values: Sequence[float] | Any) -> dict[str, float]:
    """Return the impact of each word, the value at the first word piece of its first occurrence; stop words are skipped.

    values: outputs of the model, one per word piece
    """
    excluded = load_stop_words_with_parts()
    return {word: float(values[head]) for word, head in positions.find_first_heads().items() if word not in excluded}

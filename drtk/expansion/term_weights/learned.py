"""Learned term weights: DeepCT and DeepImpact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

from drtk.errors import MismatchError, RecordError
from drtk.expansion.config import WeightingSettings
from drtk.expansion.term_weights.base import Needs, SplitPassage, Statistics
from drtk.models.model_folder import locate
from drtk.models.term_weighter import TermWeightModel, TermWeightPredictor, load_term_weighter, read_training_facts
from drtk.records import Passage
from drtk.runtime.inputs import InputTracker
from drtk.runtime.streams import name_of
from drtk.text.expanded_text import get_added_texts
from drtk.text.word_pieces import WordPieceTokenizer, WordPositions, WordSplit, append_added_words
from drtk.text.words import load_function_words, normalize_word


def _load(
    model: str, method: str, settings: WeightingSettings, device: str
) -> tuple[TermWeightModel, TermWeightPredictor]:
    """Return the trained model of a folder, and what runs it. Raises MismatchError for a folder without such a model."""
    weigher = load_term_weighter(Path(locate(model)), method)
    length, budget = settings.max_length, settings.batch_tokens
    return weigher, TermWeightPredictor(
        weigher, device=device, dtype=settings.precision, max_length=length, batch_tokens=budget
    )


class DeepCT:
    """The model's output at the first piece of each occurrence, at least 0."""

    needs: ClassVar[Needs | None] = None
    split: ClassVar[WordSplit] = "pieces"
    with_model: ClassVar[bool] = True

    def __init__(
        self, settings: WeightingSettings, statistics: Statistics | None, model: str | None, device: str
    ) -> None:
        _, self._weigh = _load(model or "", "deepct", settings, device)

    def __call__(self, readings: Sequence[SplitPassage]) -> list[list[float]]:
        """Return a weight per occurrence of a word; 0 for words beyond the longest input."""
        outputs = self._weigh([reading.ids for reading in readings])
        return [
            [max(float(values[head]), 0.0) for head in reading.heads()]
            for reading, values in zip(readings, outputs, strict=True)
        ]

    def fields(self, reading: SplitPassage, weights: Sequence[float]) -> dict[str, Any]:
        """Return no additional fields."""
        return {}


STEPS, LARGEST = 256, 255  # of the quantization; the largest must fit a byte


def quantize(impact: float, largest: float) -> int:
    """Return ceil(256 impact / largest), at most 255; 0 for an impact of 0."""
    steps = round(impact * STEPS / largest, 6)  # 3.65 of 7.3 is 128 steps, whatever the last bit of the quotient
    return min(ceil(steps), LARGEST) if impact > 0 else 0


def _get_expansion_fields(settings: WeightingSettings, facts: Mapping[str, Any]) -> list[str]:
    return list(settings.expand or facts.get("expand") or ())


def iter_with_added_texts(
    passages: Iterable[Passage], model: str, settings: WeightingSettings, *, source: str, tracker: InputTracker
) -> Iterator[Passage]:
    """Yield the passages whose added texts can be read, for a model and its settings.

    Raises RecordError (file:line) for others, unless `tracker` skips it.
    """
    fields = _get_expansion_fields(settings, read_training_facts(Path(locate(model)), "deepimpact"))
    for passage in passages:
        try:
            for name in fields:
                get_added_texts(passage, name)
        except ValueError as error:
            place = f"{name_of(source)}:{tracker.line}" if tracker.line else name_of(source)
            tracker.skip_or_raise(RecordError(place, f"passage '{passage.id}': {error}"))
            continue
        yield passage


class DeepImpact:
    """Impacts of the words of a passage and of its added texts, and from them weights for masking (ROM).

    All occurrences of a word weigh the same: its impact over the largest impact of the passage's own words. Function words
    weigh nothing: questions never contain them after preprocessing, so training does not see their impacts.
    """

    needs: ClassVar[Needs | None] = None
    split: ClassVar[WordSplit] = "basic"
    with_model: ClassVar[bool] = True

    def __init__(
        self, settings: WeightingSettings, statistics: Statistics | None, model: str | None, device: str
    ) -> None:
        weigher, self._weigh = _load(model or "", "deepimpact", settings, device)
        self._tokenizer = WordPieceTokenizer(str(locate(model or "")))
        self._expand = _get_expansion_fields(settings, weigher.facts)
        self._largest = settings.impact_max or float(weigher.facts.get("largest") or 0)
        if self._largest <= 0:
            raise MismatchError(f"{model}: does not record its largest impact; give `impact_max`")
        self._impacts: dict[int, dict[str, float]] = {}

    def __call__(self, readings: Sequence[SplitPassage]) -> list[list[float]]:
        """Return a weight, at most 1, per occurrence of a word in title and text. Raises RecordError for bad added texts."""
        places = [
            WordPositions(reading.ids, [normalize_word(word) for word in reading.words], reading.heads())
            for reading in readings
        ]
        if self._expand:
            passages = [reading.passage for reading in readings]
            places = append_added_words(places, passages, self._tokenizer, self.split, expand=self._expand)
        outputs = self._weigh([each.ids for each in places])
        self._impacts = {}
        weights = []
        for reading, each, values in zip(readings, places, outputs, strict=True):
            impacts = compute_impacts(each, values)
            self._impacts[id(reading)] = impacts
            own = [impacts.get(normalize_word(word), 0.0) for word in reading.words]
            largest = max(own, default=0.0)
            weights.append([impact / largest if largest > 0 else 0.0 for impact in own])
        return weights

    def fields(self, reading: SplitPassage, weights: Sequence[float]) -> dict[str, Any]:
        """Return the quantized impacts of the passage's words and of added words."""
        impacts = {word: quantize(impact, self._largest) for word, impact in self._impacts[id(reading)].items()}
        return {"impacts": {word: impact for word, impact in impacts.items() if impact}}


def compute_impacts(places: WordPositions, values: Sequence[float] | Any) -> dict[str, float]:
    """Return the impact of each word, the value at the first piece of its first occurrence; none for function words.

    values: one number per piece
    """
    excluded = load_function_words()
    return {word: float(values[head]) for word, head in places.find_first_heads().items() if word not in excluded}

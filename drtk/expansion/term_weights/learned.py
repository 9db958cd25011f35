"""Learned term weights: DeepCT and DeepImpact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

from drtk.errors import MismatchError, RecordError, UsageError
from drtk.expansion.config import WeightingSettings
from drtk.expansion.term_weights.base import Needs, Reading, Statistics, check_settings
from drtk.models.model_folder import locate
from drtk.models.term_weighter import TermWeightModel, TermWeightPredictor, load_term_weighter, read_training_facts
from drtk.records import Passage
from drtk.runtime.inputs import Intake
from drtk.runtime.streams import name_of
from drtk.text.expanded_text import added_texts
from drtk.text.word_pieces import WordPieceTokenizer, WordPlaces, WordSplit, expanded
from drtk.text.words import basic_form, function_words


def weighing(
    model: str | None, method: str, settings: WeightingSettings, device: str
) -> tuple[TermWeightModel, TermWeightPredictor]:
    """The trained model of a folder, and what runs it.

    Raises UsageError without a folder, and for choices that training has made, MismatchError for a folder that holds
    no such model.
    """
    if model is None:
        raise UsageError(f"--method {method} needs --model: a folder that --train made")
    check_settings(method, settings, "weigh")
    weigher = load_term_weighter(Path(locate(model)), method)
    run = TermWeightPredictor(
        weigher,
        device=device,
        dtype=settings.dtype,
        max_length=settings.max_length,
        batch_tokens=settings.batch_tokens,
    )
    return weigher, run


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


STEPS, LARGEST = 256, 255  # of the quantisation; the largest must fit a byte


def quantised(impact: float, largest: float) -> int:
    """ceil(256 impact / largest), at most 255; 0 for an impact of 0."""
    steps = round(impact * STEPS / largest, 6)  # 3.65 of 7.3 is 128 steps, whatever the last bit says
    return min(ceil(steps), LARGEST) if impact > 0 else 0


def fields_read(settings: WeightingSettings, facts: Mapping[str, Any]) -> list[str]:
    """The fields whose texts are read after a passage: those of --expand, or those that training read."""
    return list(settings.expand or facts.get("expand") or ())


def with_added_texts(
    passages: Iterable[Passage], model: str, settings: WeightingSettings, *, source: str, intake: Intake
) -> Iterator[Passage]:
    """The passages whose added texts can be read, for a model and its settings.

    Raises RecordError (file:line) for others, unless `intake` forgives it.
    """
    fields = fields_read(settings, read_training_facts(Path(locate(model)), "deepimpact"))
    for passage in passages:
        try:
            for name in fields:
                added_texts(passage, name)
        except ValueError as error:
            place = f"{name_of(source)}:{intake.line}" if intake.line else name_of(source)
            intake.forgive(RecordError(place, f"passage '{passage.id}': {error}"))
            continue
        yield passage


class DeepImpact:
    """Impacts of a passage's words, of those in the texts added to it too, and from them weights for masking (ROM).

    All occurrences of a word weigh the same: its impact, over the largest of the passage's own words. Function words
    weigh nothing: questions never ask for them, so that training never sees their impacts.
    """

    needs: ClassVar[Needs | None] = None
    split: ClassVar[WordSplit] = "basic"
    with_model: ClassVar[bool] = True

    def __init__(
        self, settings: WeightingSettings, statistics: Statistics | None, model: str | None, device: str
    ) -> None:
        weigher, self._weigh = weighing(model, "deepimpact", settings, device)
        self._tokenizer = WordPieceTokenizer(str(locate(model or "")))
        self._expand = fields_read(settings, weigher.facts)
        self._largest = settings.impact_max or float(weigher.facts.get("largest") or 0)
        if self._largest <= 0:
            raise MismatchError(f"{model}: does not say what the largest impact is; --impact-max does")
        self._impacts: dict[int, dict[str, float]] = {}

    def __call__(self, readings: Sequence[Reading]) -> list[list[float]]:
        """One weight an occurrence of a word in title and text, at most 1.

        Raises RecordError for added texts that are none.
        """
        places = self._places(readings)
        found = self._weigh([each.ids for each in places])
        self._impacts = {}
        weights = []
        for reading, each, values in zip(readings, places, found, strict=True):
            impacts = impacts_of(each, values)
            self._impacts[id(reading)] = impacts
            own = [impacts.get(basic_form(word), 0.0) for word in reading.words]
            largest = max(own, default=0.0)
            weights.append([impact / largest if largest > 0 else 0.0 for impact in own])
        return weights

    def _places(self, readings: Sequence[Reading]) -> list[WordPlaces]:
        own = [
            WordPlaces(reading.ids, [basic_form(word) for word in reading.words], reading.heads())
            for reading in readings
        ]
        if not self._expand:
            return own
        passages = [reading.passage for reading in readings]
        return expanded(own, passages, self._tokenizer, self.split, expand=self._expand)

    def fields(self, reading: Reading, weights: Sequence[float]) -> dict[str, Any]:
        """The passage's impacts as whole numbers, those of added words too."""
        found = {word: quantised(impact, self._largest) for word, impact in self._impacts[id(reading)].items()}
        return {"impacts": {word: impact for word, impact in found.items() if impact}}


def impacts_of(places: WordPlaces, values: Sequence[float] | Any) -> dict[str, float]:
    """The impact of each word, read off the first piece of its first occurrence; none for function words.

    values: one number a piece
    """
    left_out = function_words()
    return {word: float(values[head]) for word, head in places.first().items() if word not in left_out}

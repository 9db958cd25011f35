"""The batch functions of `drtk termweight`: what a collection says of its words, and what those of a passage weigh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from drtk.enrichment.termweights import TERM_WEIGHTS
from drtk.enrichment.termweights.base import TermWeights
from drtk.enrichment.termweights.bprop import Saturations
from drtk.enrichment.termweights.counted import is_word
from drtk.enrichment.termweights.reading import Reader, Reading
from drtk.enrichment.termweights.statistics import Statistics
from drtk.enrichment.termweights.stopword_share import counted
from drtk.io.filtering import Done
from drtk.io.jsonl import dump
from drtk.records import Passage
from drtk.runners.base import BatchFunction
from drtk.settings.weighting import WeightingSettings
from drtk.text.word_pieces import WordPieceTokenizer
from drtk.text.word_spans import WordSplit


class Plan(NamedTuple):
    """What is weighed, how, and with what; travels to other processes."""

    method: str
    settings: WeightingSettings
    split: WordSplit
    tokenizer: str
    model: str | None
    device: str
    seed: int


class Collect(BatchFunction):
    """A line of statistics a window.

    made_by: the choices that decide them
    """

    def __init__(self, plan: Plan, kind: str, made_by: dict[str, Any]) -> None:
        self._kind, self._made_by = kind, made_by
        self._reader = Reader(WordPieceTokenizer(plan.tokenizer), plan.settings, plan.split)
        self._saturations = Saturations(plan.settings, plan.model, plan.device) if kind == "attention" else None

    def prepare(self, records: list[Passage]) -> list[Reading]:
        """The passages' words."""
        return self._reader(records)

    def __call__(self, prepared: list[Reading]) -> Done:
        """The window's sums."""
        sums = Statistics(self._kind, self._made_by)
        found = self._saturations(prepared) if self._saturations is not None else None
        for at, reading in enumerate(prepared):
            length = sum(map(is_word, reading.words))
            if found is not None:
                sums.add({word: [value] for word, value in found[at].items()}, length=length)
            else:
                sums.add({word: [1, count] for word, count in Counter(reading.words).items()}, length=length)
        return Done([sums.line()])


class Weigh(BatchFunction):
    """Adds `weights`, one a word piece of the text, `title_weights` where a title is read, and their tokenizer's name."""

    def __init__(self, plan: Plan, statistics: Statistics | None, bare: bool, report: bool) -> None:
        self._plan, self._bare, self._report = plan, bare, report
        self._tokenizer = WordPieceTokenizer(plan.tokenizer)
        self._reader = Reader(self._tokenizer, plan.settings, plan.split)
        self._method: TermWeights = TERM_WEIGHTS.load(plan.method)(plan.settings, statistics, plan.model, plan.device)

    def prepare(self, records: list[Passage]) -> list[Reading]:
        """The passages' words."""
        return self._reader(records)

    def __call__(self, prepared: list[Reading]) -> Done:
        """The window's passages, in order, as JSON lines."""
        lines = []
        report: Counter[str] = Counter()
        for reading, found in zip(prepared, self._method(prepared), strict=True):
            values = normalised(found, self._plan.settings.normalize)
            pieces = reading.spread(values, self._plan.settings.spread)
            assert len(pieces) == len(reading.ids)
            lines.append(self._line(reading, pieces, self._method.fields(reading, values)))
            if self._report:
                texts = self._tokenizer([reading.passage.text])[0]
                report.update(counted(reading, texts, pieces[reading.title :], self._plan.seed))
        return Done(lines, {"report": dict(report)} if self._report else {})

    def _line(self, reading: Reading, pieces: list[float], more: dict[str, Any]) -> bytes:
        fields: dict[str, Any] = {"weights": pieces[reading.title :]}
        if reading.title:
            fields["title_weights"] = pieces[: reading.title]
        fields |= more
        named = {"weights_tokenizer": self._plan.tokenizer}
        passage = reading.passage
        if self._bare:
            return dump({"_id": passage.id, **fields, "metadata": named})
        kept = {name: value for name, value in passage.extra.items() if name != "title_weights"}
        return dump(replace(passage, metadata=(passage.metadata or {}) | named, extra=kept | fields))


def normalised(weights: Sequence[float], how: str) -> list[float]:
    """Weights of a passage's words as they are, with a sum or a maximum of 1; six figures are kept of each."""
    whole = sum(weights) if how == "sum" else max(weights, default=0.0) if how == "max" else 1.0
    return [float(f"{weight / whole:.6g}") if whole > 0 else 0.0 for weight in weights]

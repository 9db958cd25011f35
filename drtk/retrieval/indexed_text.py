"""What of a passage an index of words is made of: its text, its text and what was added to it, or weights of its words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from drtk.errors import DrtkError, RecordError, UsageError
from drtk.io.intake import Intake
from drtk.io.progress import warn
from drtk.records import Passage
from drtk.retrieval.impacts import FIELD, impacts_of
from drtk.settings.retrieval import IndexSettings
from drtk.text.added_texts import added_texts


def check_text(settings: IndexSettings, kind: str) -> None:
    """Raise UsageError for --expand and --weights where an index of type `kind` cannot take them, and for what goes with
    --weights alone.
    """
    given = [flag for flag, value in (("--expand", settings.expand), ("--weights", settings.weights)) if value]
    if given and kind not in ("bm25", "bm25s"):
        raise UsageError(f"{given[0]}: only for --type bm25 and bm25s")
    if len(given) > 1:
        raise UsageError("--expand and --weights: words that are added have no weights; choose one")
    further = (
        ("--weight-scale", settings.weight_scale != IndexSettings.weight_scale),
        ("--tokenizer", settings.tokenizer),
    )
    for flag, value in further:
        if value and not settings.weights:
            raise UsageError(f"{flag}: only with --weights")


class IndexedText:
    """Passages as an engine shall see them, for `drtk index` of a type of words.

    Bad passages go to `intake`, with the line they stood on. `counts` holds how many passages lacked a field, once they
    are read; `facts` what meta.json must know.
    """

    def __init__(self, settings: IndexSettings, kind: str, source: str, intake: Intake) -> None:
        check_text(settings, kind)
        self._settings, self._kind, self._source, self._intake = settings, kind, source, intake
        self._fields = list(dict.fromkeys(name.strip() for item in settings.expand for name in item.split(",")))
        if "" in self._fields:
            raise UsageError("--expand: a field's name is empty")
        self.counts: dict[str, int] = {}
        self.facts: dict[str, Any] = {}

    def __call__(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        """The passages, made over as the settings ask. Raises DrtkError where none has a field of --expand."""
        if self._settings.weights:
            return self._weighted(passages)
        if self._fields:
            return self._expanded(passages)
        return self._with_impacts(passages) if self._kind == "impact" else iter(passages)

    def _weighted(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        from drtk.retrieval.term_frequencies import PARAMETERS, weighted_passages

        scale = self._settings.weight_scale
        self.facts["bm25"] = PARAMETERS[scale]
        untold = 0

        def located() -> Iterator[tuple[Passage, int]]:
            nonlocal untold
            for passage in passages:
                untold += bool(passage.title.strip()) and "title_weights" not in passage.extra
                yield passage, self._intake.line

        yield from weighted_passages(
            located(),
            scale,
            forgive=lambda item, problem: self._forgive(*item, problem),
            tokenizer=self._settings.tokenizer,
        )
        if untold:
            warn(f"{untold:,} passages have no 'title_weights': their titles are not indexed")
            self.counts["titles without weights"] = untold

    def _expanded(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        missing = dict.fromkeys(self._fields, 0)
        count = 0
        for count, passage in enumerate(passages, start=1):  # noqa: B007 (read after the loop)
            try:
                added = [text for name in self._fields for text in added_texts(passage, name)]
            except ValueError as error:
                self._forgive(passage, self._intake.line, str(error))
                continue
            for name in self._fields:
                missing[name] += name not in passage.extra
            yield replace(passage, text=" ".join([passage.text, *added])) if added else passage
        for name, number in missing.items():
            if number == count and count:
                raise DrtkError(f"--expand {name}: none of {count:,} passages has a field '{name}'")
            if number:
                warn(f"{number:,} of {count:,} passages have no '{name}'; they are indexed without")
                self.counts[f"without {name}"] = number

    def _with_impacts(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        for passage in passages:
            try:
                impacts = impacts_of(passage)
            except ValueError as error:
                self._forgive(passage, self._intake.line, str(error))
                continue
            yield Passage(passage.id, "", extra={FIELD: impacts})

    def _forgive(self, passage: Passage, line: int, problem: str) -> None:
        from drtk.io.streams import name_of

        place = f"{name_of(self._source)}:{line}" if line else name_of(self._source)
        self._intake.forgive(RecordError(place, f"passage '{passage.id}': {problem}"))

"""Texts written to passages by a model: the batch function behind doc2query and continue-text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import starmap
from typing import NamedTuple

from drtk.enrichment.keeping import QUERIES, SCORES
from drtk.io.filtering import Done
from drtk.io.jsonl import dump
from drtk.models.text_writer import TextWriter
from drtk.records import Passage
from drtk.runners.base import BatchFunction
from drtk.settings.generation import GenerationSettings
from drtk.text.batching import Tokens

_SPEAKS_OF = {QUERIES: SCORES}  # of the texts that were there before, when new ones come
Finish = Callable[[Passage, str], str]  # the written text, as it shall be kept


class Prepared(NamedTuple):
    """A window and its inputs."""

    passages: list[Passage]
    tokens: Tokens


class Generate(BatchFunction):
    """Adds `field`, a list of texts that a model wrote to the passage, sampled ones by (seed, id of the passage) alone.

    finish: what becomes of a written text (module:attribute would not travel; it must be a function of a module)
    Raises UsageError where prefix or output leave no room for a passage, MismatchError for a model that does not write, or
    was trained to read passages otherwise.
    """

    def __init__(
        self,
        model: str,
        settings: GenerationSettings,
        seed: int,
        device: str,
        field: str,
        finish: Finish,
        bare: bool,  # positional: it travels to other processes in a tuple
    ) -> None:
        self._field, self._finish, self._bare = field, finish, bare
        self._writer = TextWriter(model, settings, seed=seed, device=device, two_sided=field != "continuations")
        self.reading = self._writer.reading

    def prepare(self, records: list[Passage]) -> Prepared:
        """The window's inputs as tokens."""
        return Prepared(records, self._writer.tokens([self.reading.text(passage) for passage in records]))

    def __call__(self, prepared: Prepared) -> Done:
        """The window's passages, in order, as JSON lines."""
        written = self.write(prepared)
        lines = list(starmap(self._line, zip(prepared.passages, written, strict=True)))
        return Done(lines, {"texts": sum(map(len, written))})

    def write(self, prepared: Prepared) -> list[list[str]]:
        """The texts written to each of the window's passages."""
        passages, tokens = prepared
        written = self._writer.write(tokens, [passage.id for passage in passages])
        return [
            [self._finish(passage, text) for text in texts] for passage, texts in zip(passages, written, strict=True)
        ]

    def _line(self, passage: Passage, texts: list[str]) -> bytes:
        if self._bare:
            return dump({"_id": passage.id, self._field: texts})
        rest = {name: value for name, value in passage.extra.items() if name != _SPEAKS_OF.get(self._field)}
        return dump(replace(passage, extra=rest | {self._field: texts}))


def stripped(passage: Passage, text: str) -> str:
    """A query, without white space around it."""
    return " ".join(text.split())


def or_the_passage(passage: Passage, text: str) -> str:
    """A continuation; where it is empty, the passage itself (MASTER's released code; methods, section 2.4)."""
    return " ".join(text.split()) or passage.text

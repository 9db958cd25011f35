"""Texts written to passages by a model: the batch function behind doc2query and continue-text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import starmap
from typing import NamedTuple

import numpy as np
import torch

from drtk.enrichment.keeping import QUERIES, SCORES
from drtk.errors import DrtkError, MismatchError
from drtk.io.filtering import Done
from drtk.io.jsonl import dump
from drtk.models.decoding import answers
from drtk.models.device import choose_device
from drtk.models.generation_wishes import warn_of_unheard
from drtk.models.hub import locate
from drtk.models.reading import reading_of, room_for, tokens_of
from drtk.models.seq2seq import load_writer
from drtk.records import Passage
from drtk.runners.base import BatchFunction
from drtk.settings.generation import GenerationSettings
from drtk.text.batching import Tokens, batches_by_length

_CPU_TOKENS, _GPU_TOKENS = 1 << 14, 1 << 17
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
        self._settings, self._seed, self._field, self._finish, self._bare = settings, seed, field, finish, bare
        self._device = choose_device(device)
        folder = locate(model)
        wishes = {"prefix": settings.prefix, "title": settings.title, "max_length": settings.max_length}
        self.reading = reading_of(folder, wishes, sealed=True)
        self._writer = load_writer(folder)
        if self._writer.two_sided == (field == "continuations"):
            wanted = (
                "reads one text and writes another; one that goes on with a text is needed"
                if self._writer.two_sided
                else "goes on with a text; a model that reads one and writes another is needed (T5, BART)"
            )
            raise MismatchError(f"{model}: {wanted}")
        warn_of_unheard(model, self._writer.model, settings.decode)
        self._writer.model.to(self._device, _dtype(settings.dtype, self._device))
        self._budget = settings.batch_tokens or (_CPU_TOKENS if self._device.type == "cpu" else _GPU_TOKENS)
        self._room = room_for(self._writer, self.reading, written=settings.max_new_tokens)

    def prepare(self, records: list[Passage]) -> Prepared:
        """The window's inputs as tokens."""
        texts = [self.reading.text(passage) for passage in records]
        return Prepared(records, tokens_of(texts, self._writer.tokenizer, room=self._room))

    def __call__(self, prepared: Prepared) -> Done:
        """The window's passages, in order, as JSON lines."""
        written = self.write(prepared)
        lines = list(starmap(self._line, zip(prepared.passages, written, strict=True)))
        return Done(lines, {"texts": sum(map(len, written))})

    def write(self, prepared: Prepared) -> list[list[str]]:
        """The texts written to each of the window's passages."""
        passages, tokens = prepared
        written: list[list[str]] = [[] for _ in passages]
        for rows in batches_by_length(self._cost(tokens.lengths), budget=self._budget):
            for row, texts in zip(rows, self._write(passages, tokens, rows), strict=True):
                written[row] = texts
        return written

    def _cost(self, lengths: np.ndarray) -> np.ndarray:
        """Tokens in memory for each passage: its own, and its texts', once a text."""
        return self._settings.n * (lengths + self._settings.max_new_tokens)

    def _write(self, passages: Sequence[Passage], tokens: Tokens, rows: np.ndarray) -> list[list[str]]:
        writer = self._writer
        batch = tokens.padded(rows, pad=writer.pad, left=not writer.two_sided)
        ids, mask = (torch.from_numpy(batch[name]).to(self._device) for name in ("input_ids", "attention_mask"))
        keys = [passages[row].id for row in rows]
        try:
            found = answers(writer, ids, mask, keys, self._settings, seed=self._seed)
        except torch.OutOfMemoryError as error:
            raise DrtkError(f"{self._device}: out of memory at {ids.numel():,} tokens; lower --batch-tokens") from error
        flat = writer.tokenizer.batch_decode([answer for each in found for answer in each], skip_special_tokens=True)
        texts, at = [], 0
        for row, each in zip(rows, found, strict=True):
            texts.append([self._finish(passages[row], text) for text in flat[at : at + len(each)]])
            at += len(each)
        return texts

    def _line(self, passage: Passage, texts: list[str]) -> bytes:
        if self._bare:
            return dump({"_id": passage.id, self._field: texts})
        rest = {name: value for name, value in passage.extra.items() if name != _SPEAKS_OF.get(self._field)}
        return dump(replace(passage, extra=rest | {self._field: texts}))


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    found: torch.dtype = getattr(torch, name)
    return found


def stripped(passage: Passage, text: str) -> str:
    """A query, without white space around it."""
    return " ".join(text.split())


def or_the_passage(passage: Passage, text: str) -> str:
    """A continuation; where it is empty, the passage itself (MASTER's released code; methods, section 2.4)."""
    return " ".join(text.split()) or passage.text

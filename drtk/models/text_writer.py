"""A model that writes, with how it reads and decodes: texts in, texts out, batches of like length in between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from drtk.errors import DrtkError, MismatchError
from drtk.models.decoding import answers
from drtk.models.device import choose_device
from drtk.models.generation_wishes import warn_of_unheard
from drtk.models.hub import locate
from drtk.models.reading import reading_of, room_for, tokens_of
from drtk.models.seq2seq import load_writer
from drtk.settings.generation import GenerationSettings
from drtk.text.batching import Tokens, batches_by_length

_CPU_TOKENS, _GPU_TOKENS = 1 << 14, 1 << 17


class TextWriter:
    """Writes texts to texts; sampled ones depend on (seed, key of the text, number) alone.

    reading: how it was trained to read, as far as the settings do not say otherwise
    """

    def __init__(
        self, model: str, settings: GenerationSettings, *, seed: int, device: str, two_sided: bool | None = None
    ) -> None:
        """two_sided: whether it has to read one text and write another (T5), or to go on with one (GPT-2); None: either

        Raises UsageError where prefix or output leave no room for a text, MismatchError for a model that does not write, or
        was trained to read otherwise.
        """
        self._settings, self._seed = settings, seed
        self._device = choose_device(device)
        folder = locate(model)
        wishes = {"prefix": settings.prefix, "title": settings.title, "max_length": settings.max_length}
        self.reading = reading_of(folder, wishes, sealed=True)
        self._writer = load_writer(folder)
        if two_sided is not None and self._writer.two_sided != two_sided:
            wanted = (
                "reads one text and writes another; one that goes on with a text is needed"
                if self._writer.two_sided
                else "goes on with a text; a model that reads one and writes another is needed (T5, BART)"
            )
            raise MismatchError(f"{model}: {wanted}")
        warn_of_unheard(model, self._writer.model, settings.decode)
        self._writer.model.to(self._device, _dtype(settings.dtype, self._device))
        self._budget = settings.batch_tokens or (_CPU_TOKENS if self._device.type == "cpu" else _GPU_TOKENS)
        self.room = room_for(self._writer, self.reading, written=settings.max_new_tokens)

    @property
    def two_sided(self) -> bool:
        """Whether it reads one text and writes another, rather than going on with one."""
        return self._writer.two_sided

    def length(self, text: str) -> int:
        """Tokens of a text, special ones included, uncut."""
        return len(self._writer.tokenizer(text)["input_ids"])

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """The texts as they are read, cut to what there is room for."""
        return tokens_of(texts, self._writer.tokenizer, room=self.room)

    def write(self, tokens: Tokens, keys: Sequence[str]) -> list[list[str]]:
        """What is written to each text, special tokens left out.

        keys: one a text. Raises DrtkError where memory is too small.
        """
        written: list[list[str]] = [[] for _ in keys]
        cost = self._settings.n * (
            tokens.lengths + self._settings.max_new_tokens
        )  # tokens in memory, once a text written
        for rows in batches_by_length(cost, budget=self._budget):
            for row, texts in zip(rows, self._write(tokens, keys, rows), strict=True):
                written[row] = texts
        return written

    def _write(self, tokens: Tokens, keys: Sequence[str], rows: np.ndarray) -> list[list[str]]:
        writer = self._writer
        batch = tokens.padded(rows, pad=writer.pad, left=not writer.two_sided)
        ids, mask = (torch.from_numpy(batch[name]).to(self._device) for name in ("input_ids", "attention_mask"))
        try:
            found = answers(writer, ids, mask, [keys[row] for row in rows], self._settings, seed=self._seed)
        except torch.OutOfMemoryError as error:
            raise DrtkError(f"{self._device}: out of memory at {ids.numel():,} tokens; lower --batch-tokens") from error
        flat = writer.tokenizer.batch_decode([answer for each in found for answer in each], skip_special_tokens=True)
        texts, at = [], 0
        for each in found:
            texts.append(flat[at : at + len(each)])
            at += len(each)
        return texts


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    found: torch.dtype = getattr(torch, name)
    return found

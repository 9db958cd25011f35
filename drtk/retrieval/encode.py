"""Records to vectors: length-sorted batches, tokenised ahead of the forward pass, written as shards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from drtk.errors import DrtkError, UsageError
from drtk.io.ahead import read_ahead
from drtk.io.progress import Progress
from drtk.io.shards import ShardWriter, records_digest
from drtk.models.checkpoint import load_encoder, weights_digest
from drtk.models.device import choose_device, choose_dtype
from drtk.models.hub import locate, tower
from drtk.records import Passage, Query
from drtk.settings.encoding import EncodeSettings
from drtk.text.batching import Tokens, batches_by_length

Text = TypeVar("Text", Passage, Query, str)
WINDOW = 16384  # texts tokenised together by `Embedder.__call__`
_CPU_TOKENS, _GPU_TOKENS = 2048, 65536


class Embedder:
    """Texts to vectors with one model, for one role.

    dimension:  width of the vectors
    similarity: "cosine" or "dot": how the model's vectors are to be compared. Vectors come as the model gives them; where
                it is "cosine" and `normalized` is False, an index that takes inner products must bring them to length 1
    identity:   what `meta.json` of embeddings and indexes stores under "encoder"; equal digests mean comparable vectors
    Raises MismatchError where `settings` contradict a model folder of drtk's own.
    """

    def __init__(
        self,
        model: str,
        *,
        role: Literal["query", "passage"],
        settings: EncodeSettings | None = None,
        device: str = "auto",
    ) -> None:
        settings = settings or EncodeSettings()
        self.model, self.role, self.settings = model, role, settings
        self.device = choose_device(device)
        self.folder = locate(model)
        self._inner = tower(self.folder, role)
        loaded = load_encoder(self._inner, wishes=_wishes(settings, role))
        self.recipe = loaded.recipe
        self._tokenizing = loaded.tokenizing(role)
        self._prompt_length = loaded.prompt_length(role)
        self._encoder = loaded.encoder
        self.dtype = choose_dtype(settings.dtype, self.device, kind=self._encoder.backbone.config.model_type)
        self._encoder.backbone.to(self.dtype)
        self._encoder.to(self.device)
        default = _CPU_TOKENS if self.device.type == "cpu" else _GPU_TOKENS
        self._budget = settings.batch_tokens or default
        self.dimension = self._encoder.dimension
        self.normalized = self.recipe.normalize
        self.similarity = self.recipe.similarity or "dot"

    @property
    def identity(self) -> dict[str, Any]:
        """{"model", "digest", "dimension", "similarity", "normalized"}; both roles of a model give the same digest."""
        towers = sorted({tower(self.folder, role) for role in ("query", "passage")})
        digests = [weights_digest(path) for path in towers]
        chosen = {"pooling": list(self.recipe.pooling), "normalized": self.normalized}
        return {
            # A folder is found again from any other; a hub name is one everywhere.
            "model": os.path.abspath(self.model) if os.path.isdir(self.model) else self.model,
            "digest": records_digest([digests, chosen]),
            "dimension": self.dimension,
            "similarity": self.similarity,
            **chosen,
        }

    def __call__(self, items: Sequence[Passage] | Sequence[Query] | Sequence[str]) -> np.ndarray:
        """The vectors of the items in their order, (len(items), dimension), float32."""
        windows = (items[start : start + WINDOW] for start in range(0, len(items), WINDOW))
        found = [vectors for _, vectors in self.windows(windows)]
        return np.concatenate(found) if found else np.empty((0, self.dimension), dtype=np.float32)

    def windows(
        self, windows: Iterable[Sequence[Any]], *, progress: Progress | None = None
    ) -> Iterator[tuple[Sequence[Any], np.ndarray]]:
        """(window, vectors) for each window; the next one is read and tokenised while this one is computed."""
        ahead = read_ahead((window, self._tokenizing(window)) for window in windows)
        for window, tokens in ahead:
            yield window, self._forward(tokens, progress)

    @torch.inference_mode()
    def _forward(self, tokens: Tokens, progress: Progress | None) -> np.ndarray:
        """tokens of n texts; returns: (n, dimension), float32"""
        out = torch.empty((len(tokens), self.dimension), dtype=torch.float32, device=self.device)
        for rows in batches_by_length(tokens.lengths, budget=self._budget):
            batch = tokens.padded(rows, pad=self._tokenizing.pad, left=self._tokenizing.left)
            inputs = {name: torch.from_numpy(array).to(self.device) for name, array in batch.items()}
            try:
                vectors = self._encoder(**inputs, prompt_length=self._prompt_length)
            except torch.OutOfMemoryError as error:
                raise DrtkError(
                    f"{self.device}: out of memory at {batch['input_ids'].size:,} tokens; lower --batch-tokens"
                ) from error
            out[torch.from_numpy(rows).to(self.device)] = vectors
            if progress is not None:
                progress.add(len(rows))
        return out.cpu().numpy()


def _wishes(settings: EncodeSettings, role: str) -> dict[str, Any]:
    return {
        "pooling": settings.pooling,
        "normalize": settings.normalize,
        "similarity": settings.similarity,
        f"{role}_length": settings.max_length,
        f"{role}_prompt": settings.prompt,
        "title": settings.title,
    }


def parse_part(text: str) -> tuple[int, int]:
    """ "2/4" as (2, 4): the second of four parts. Raises UsageError otherwise."""
    number, _, of = text.partition("/")
    if number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of):
        return int(number), int(of)
    raise UsageError(f"--shard: '{text}' is not N/OF, such as 1/4")


def encode_records(
    records: Iterable[Passage] | Iterable[Query],
    embedder: Embedder,
    writer: ShardWriter,
    *,
    part: tuple[int, int] = (1, 1),
    unit: str = "passages",
) -> None:
    """Write the vectors of the records as shards of `embedder.settings.shard_size`, or those of one part of several.

    Of several parts, each takes every so-manieth window of the input. Shards that `writer` holds already are not made
    again. Raises MismatchError where they were made from other records.
    """
    stream: Iterator[Any] = iter(records)
    digests: dict[int, str] = {}

    def wanted() -> Iterator[list[Any]]:
        number = mine = 0
        while window := list(islice(stream, embedder.settings.shard_size)):
            if number % part[1] == part[0] - 1:
                digest = records_digest(window)
                if not writer.finished(mine, digest):
                    digests[mine] = digest
                    yield window
                mine += 1
            number += 1

    with Progress("encode", unit=unit, initial=writer.rows) as progress:
        for window, vectors in embedder.windows(wanted(), progress=progress):
            ids = [record.id for record in window]
            writer.write(ids, vectors, digest=digests.pop(len(writer.entries)))

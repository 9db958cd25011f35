"""Encode texts and passages to vectors."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from drtk.data.checks import EmptyTexts
from drtk.data.embeddings import ShardWriter, records_digest
from drtk.errors import DrtkError
from drtk.models.checkpoint import config_digest, load_encoder, tokenizer_digest, weights_digest
from drtk.models.config import EncodeSettings
from drtk.models.device import choose_device, choose_dtype
from drtk.models.encoder import Encoder
from drtk.models.model_folder import Role, locate, read_layout, tower
from drtk.records import Passage, Query
from drtk.runtime.progress import Progress
from drtk.runtime.runners import BatchFunction, RunnerSettings, map_windows
from drtk.runtime.sharding import WHOLE, Part, select_part
from drtk.runtime.workers import read_ahead
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
    weights:    False leaves them on disk until `load`; all of the above is known before. Pickled, an embedder is its
                arguments: the process that gets it loads the weights itself
    Raises MismatchError where `settings` contradict a model folder of drtk's own.
    """

    def __init__(
        self,
        model: str,
        *,
        role: Literal["query", "passage"],
        settings: EncodeSettings | None = None,
        device: str = "auto",
        weights: bool = True,
    ) -> None:
        settings = settings or EncodeSettings()
        self.model, self.role, self.settings = model, role, settings
        self._device_name = device
        if weights:
            self.device = choose_device(device)
        self.folder = locate(model)
        self._inner = tower(self.folder, role)
        loaded = load_encoder(self._inner, wishes=_wishes(settings, role), weights=weights)
        self.recipe = loaded.recipe
        self._tokenizing = loaded.tokenizing(role)
        self._prompt_length = loaded.prompt_length(role)
        self.dimension = loaded.encoder.dimension
        self.normalized = self.recipe.normalize
        self.similarity = self.recipe.similarity or "dot"
        self._encoder: Encoder | None = None
        if weights:
            self._take_up(loaded.encoder)

    def load(self) -> Embedder:
        """Itself, its weights loaded and on its device."""
        if self._encoder is None:
            self.device = choose_device(self._device_name)
            self._take_up(load_encoder(self._inner, wishes=_wishes(self.settings, self.role)).encoder)
        return self

    def _take_up(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.dtype = choose_dtype(self.settings.dtype, self.device, kind=encoder.backbone.config.model_type)
        encoder.backbone.to(self.dtype)
        encoder.to(self.device)
        default = _CPU_TOKENS if self.device.type == "cpu" else _GPU_TOKENS
        self._budget = self.settings.batch_tokens or default

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.model, self.role, self.settings, self._device_name)

    @property
    def identity(self) -> dict[str, Any]:
        """Return what determines the vectors: model, digests of weights, configuration and tokenizer, pooling, recipe.

        Both roles of a model have the same identity, independent of a prompt or length chosen for one of them.
        """
        roles: dict[Role, Path] = {role: tower(self.folder, role) for role in ("query", "passage")}
        towers = sorted({*roles.values()})
        digests = [weights_digest(path) for path in towers]
        backbones = [read_layout(path).backbone for path in towers]
        chosen = {"pooling": list(self.recipe.pooling), "normalized": self.normalized}
        recipes = {role: read_layout(path).recipe for role, path in roles.items()}
        return {
            # A folder is found again from any other; a hub name is one everywhere.
            "model": os.path.abspath(self.model) if os.path.isdir(self.model) else self.model,
            "digest": records_digest([digests, chosen]),
            "dimension": self.dimension,
            "similarity": self.similarity,
            **chosen,
            "config": records_digest(map(config_digest, backbones)),
            "tokenizer": records_digest(map(tokenizer_digest, backbones)),
            "recipe": {
                **{f"{role}_prompt": recipe.prompt(role) for role, recipe in recipes.items()},
                **{f"{role}_length": recipe.length(role) for role, recipe in recipes.items()},
                **{
                    name: getattr(recipes["passage"], name)
                    for name in ("title", "include_prompt", "lowercase", "truncate")
                },
            },
        }

    def __call__(self, items: Sequence[Passage] | Sequence[Query] | Sequence[str]) -> np.ndarray:
        """The vectors of the items in their order, (len(items), dimension), float32."""
        windows = (self.tokens(items[start : start + WINDOW]) for start in range(0, len(items), WINDOW))
        found = [self.vectors(tokens) for tokens in read_ahead(windows)]
        return np.concatenate(found) if found else np.empty((0, self.dimension), dtype=np.float32)

    def tokens(self, items: Sequence[Any]) -> Tokens:
        """The items as the model reads them."""
        return self._tokenizing(items)

    @torch.inference_mode()
    def vectors(self, tokens: Tokens, report: Callable[[int], None] | None = None) -> np.ndarray:
        """The vectors of n tokenised texts, (n, dimension), float32; `report` hears the size of each batch done.

        Raises DrtkError where the device's memory does not suffice.
        """
        encoder = self.load()._encoder
        assert encoder is not None
        out = torch.empty((len(tokens), self.dimension), dtype=torch.float32, device=self.device)
        for rows in batches_by_length(tokens.lengths, budget=self._budget):
            batch = tokens.padded(rows, pad=self._tokenizing.pad, left=self._tokenizing.left)
            inputs = {name: torch.from_numpy(array).to(self.device) for name, array in batch.items()}
            try:
                vectors = encoder(**inputs, prompt_length=self._prompt_length)
            except torch.OutOfMemoryError as error:
                raise DrtkError(
                    f"{self.device}: out of memory at {batch['input_ids'].size:,} tokens; lower --batch-tokens"
                ) from error
            out[torch.from_numpy(rows).to(self.device)] = vectors
            if report is not None:
                report(len(rows))
        return out.cpu().numpy()


def _unpickled(model: str, role: Literal["query", "passage"], settings: EncodeSettings, device: str) -> Embedder:
    return Embedder(model, role=role, settings=settings, device=device, weights=False)


def _wishes(settings: EncodeSettings, role: str) -> dict[str, Any]:
    return {
        "pooling": settings.pooling,
        "normalize": settings.normalize,
        "similarity": settings.similarity,
        f"{role}_length": settings.max_length,
        f"{role}_prompt": settings.prompt,
        "title": settings.title,
        "truncate": settings.dimensions,
    }


class EncodeWindows(BatchFunction):
    """The vectors of a window of passages or queries, (records, dimension), float32."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder.load()

    def prepare(self, records: list[Any]) -> Tokens:
        """The records as tokens."""
        return self._embedder.tokens(records)

    def __call__(self, prepared: Tokens) -> np.ndarray:
        """The vectors."""
        return self._embedder.vectors(prepared, self.report)


def encode_records(
    records: Iterable[Passage] | Iterable[Query],
    embedder: Embedder,
    writer: ShardWriter,
    *,
    running: RunnerSettings,
    part: Part = WHOLE,
    unit: str = "passages",
    empty_texts: EmptyTexts | None = None,
) -> None:
    """Write the vectors of the records as shards of `embedder.settings.shard_size`, or those of one part of several.

    Of several parts, each takes every so-manieth shard of the input. Shards that `writer` holds already are not made
    again. Raises MismatchError where they were made from other records. empty_texts: counts the records of this part
    """
    size = embedder.settings.shard_size
    stream: Iterator[Any] = select_part(records, part, window=size)
    if empty_texts is not None:
        stream = empty_texts.count(stream)
    taken: deque[tuple[list[str], str]] = deque()  # ids and digests of the windows that are being worked on

    def wanted() -> Iterator[list[Any]]:
        number = 0
        while window := list(islice(stream, size)):
            digest = records_digest(window)
            if not writer.finished(number, digest):
                taken.append(([record.id for record in window], digest))
                yield window
            number += 1

    with (
        closing(_Counted(unit, writer.rows)) as counted,
        closing(map_windows(wanted(), EncodeWindows, embedder, running=running, report=counted.within)) as made,
    ):
        for vectors in made:
            ids, digest = taken.popleft()
            writer.write(ids, vectors, digest=digest)
            counted.window(len(ids))


class _Counted:
    """Progress by batch where the runner tells of them, and by window in any case."""

    def __init__(self, unit: str, done: int) -> None:
        self._progress = Progress("encode", unit=unit, initial=done)
        self._told = 0

    def within(self, count: int) -> None:
        self._told += count
        self._progress.add(count)

    def window(self, size: int) -> None:
        if size > self._told:
            self._progress.add(size - self._told)
        self._told = 0

    def close(self) -> None:
        self._progress.close()

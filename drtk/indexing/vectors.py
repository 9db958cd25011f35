"""The interface of dense indexes and the vectors they are made of: embeddings folders, encoders, exact rescoring."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from drtk.data.embeddings import KIND, Shard, check_finite, read_shards
from drtk.errors import DrtkError, MismatchError
from drtk.indexing.base import RankedIds, Ranking
from drtk.runtime.manifest import Manifest, read_manifest
from drtk.runtime.progress import Progress, warn
from drtk.runtime.streams import is_stream

VECTORS, SCALE, FULL = "vectors.npy", "scale.npy", "full.npy"
ROWS_AT_A_TIME = 16_384


class DenseIndex(Protocol):
    """An index over vectors; scores are inner products."""

    reads: ClassVar[Literal["vectors"]]
    dimension: int

    @classmethod
    def check(cls, vectors: Vectors, settings: Any, *, kind: str) -> None:
        """Raise UsageError if an index of type `kind` cannot be made of these vectors."""

    @classmethod
    def build(
        cls, vectors: Vectors, folder: Path, settings: Any, *, kind: str, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Write an index of type `kind` into an existing folder; return entries for its meta.json.

        Raises DrtkError for a vector with NaN or infinite numbers, MismatchError for duplicate ids.
        """

    @classmethod
    def open(cls, folder: Path, settings: Any) -> DenseIndex:
        """Open the index in `folder`."""

    def search(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        """Return up to `k` passages for each row of (queries, dimension) float32, by score, then by descending id."""

    def __len__(self) -> int:
        """Return the number of passages indexed."""


@dataclass(frozen=True)
class Vectors:
    """The rows of embeddings shards, read from disk in blocks.

    unit: scale each vector to length 1, for cosine similarity if the encoder does not
    Raises MismatchError for shards of different dimensions, DrtkError if there are no rows.
    """

    shards: Sequence[Shard]
    unit: bool = False

    def __post_init__(self) -> None:
        if not len(self):
            raise DrtkError("there are no vectors to index")
        for shard in self.shards:
            if shard.dimension != self.dimension:
                raise MismatchError(
                    f"{shard.folder}: has vectors of dimension {shard.dimension}; {self.shards[0].folder} of {self.dimension}"
                )

    def __len__(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def dimension(self) -> int:
        return self.shards[0].dimension

    @property
    def dtype(self) -> np.dtype:
        """Return the widest type that shards are stored in."""
        return np.result_type(*(shard.vectors.dtype for shard in self.shards))

    def ids(self) -> Iterator[str]:
        """Yield ids row by row; no shard's list stays in memory."""
        for shard in self.shards:
            yield from Shard(shard.folder, shard.number, shard.rows, shard.dimension).ids

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first row, vectors (rows, dimension) float32). Raises DrtkError for NaN or infinite numbers."""
        first = 0
        for shard in self.shards:
            for start in range(0, shard.rows, ROWS_AT_A_TIME):
                block = shard.vectors[start : start + ROWS_AT_A_TIME].astype(np.float32)
                check_finite(shard, block, range(start, start + len(block)))
                yield first + start, scale_to_unit_length(block) if self.unit else block
            first += shard.rows

    def sample(self, count: int, *, seed: int) -> np.ndarray:
        """Return (min(count, rows), dimension) float32: rows sampled without replacement, in their order."""
        rows = np.sort(np.random.default_rng(seed).choice(len(self), size=min(count, len(self)), replace=False))
        sample = np.empty((len(rows), self.dimension), dtype=np.float32)
        for first, block in self.blocks():
            low, high = np.searchsorted(rows, [first, first + len(block)])
            sample[low:high] = block[rows[low:high] - first]
        return sample

    def store(self, path: Path, dtype: str, *, progress: Progress | None = None) -> None:
        """Write all rows to one .npy file of `dtype`.

        int8: vector = int8 * scale; each dimension has its own scale (largest magnitude / 127, written to scale.npy),
        because encoders have a few dimensions that are many times larger than the rest.
        Raises DrtkError for a number too large for float16.
        """
        scale = None
        if dtype == "int8":
            largest = np.zeros(self.dimension, dtype=np.float32)
            for _, block in self.blocks():
                np.maximum(largest, np.abs(block).max(axis=0), out=largest)
            scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
            np.save(path.with_name(SCALE), scale)
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (len(self), self.dimension)}
        try:
            # Written, not memory-mapped: a full disk is an exception then, not a fatal signal.
            with open(path, "wb") as file:
                np.lib.format.write_array_header_1_0(file, header)
                for _, block in self.blocks():
                    file.write(np.ascontiguousarray(_convert(block, dtype, scale)).data)
                    if progress is not None:
                        progress.add(len(block))
        except OSError as error:
            raise DrtkError(f"{path}: {error.strerror}") from error


def _convert(block: np.ndarray, dtype: str, scale: np.ndarray | None) -> np.ndarray:
    if scale is not None:
        return np.rint(block / scale).astype(np.int8)
    with np.errstate(over="ignore"):
        converted = block.astype(dtype)
    if not np.isfinite(converted).all():
        raise DrtkError(f"a vector has numbers too large for {dtype}; set `vector_dtype` to float32")
    return converted


def scale_to_unit_length(vectors: np.ndarray) -> np.ndarray:
    """Divide each row of (rows, dimension) float32 by its length; rows of zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: np.ndarray = vectors / np.where(lengths > 0, lengths, 1)
    return scaled


def rescore(
    ids: RankedIds, full: np.ndarray, rows: Sequence[np.ndarray], vectors: np.ndarray, k: int, *, threads: int = 0
) -> list[Ranking]:
    """Return up to `k` passages for each query, by float32 inner products with the exact vectors.

    full: (passages, dimension), on disk · rows: for each query (candidates,) · vectors: (queries, dimension)
    Each product is summed by itself, so that equal vectors get equal scores.
    """

    def rank(item: tuple[np.ndarray, np.ndarray]) -> Ranking:
        candidates, vector = np.sort(item[0]), item[1]  # in the order on disk
        scores = (full[candidates].astype(np.float32) * vector).sum(axis=1, dtype=np.float32)
        return ids.ranking(candidates, scores, k)

    with ThreadPoolExecutor(max_workers=threads or os.cpu_count()) as pool:
        return list(pool.map(rank, zip(rows, vectors, strict=True)))


def open_embeddings(folders: Sequence[str]) -> tuple[Vectors, dict[str, Any]]:
    """Return the vectors of embeddings folders (parts of one encoding) and their entries for an index's meta.json.

    Raises MismatchError for folders that are unfinished, of another kind, of queries, or of different encoders.
    """
    manifests = [
        read_manifest(folder, kind=KIND, encoder=dict | None, encoding=dict | None, part=dict | None, settings=dict)
        for folder in folders
    ]
    for folder, manifest in zip(folders, manifests, strict=True):
        if manifest.get("role", "passage") != "passage":
            content = {"pair": "pairs"}.get(manifest["role"], "queries")
            raise MismatchError(f"{folder}: holds vectors of {content}; an index is made of passages")
        if differences := _find_passage_differences(manifest, manifests[0]):
            raise MismatchError(
                f"{folder}: was made by another encoder than {folders[0]}, or with other options (different "
                f"{', '.join(differences)}); encode both alike"
            )
    _check_parts(folders, manifests)
    encoder = manifests[0].get("encoder")
    shards = [shard for folder in folders for shard in read_shards(folder) if shard.rows]
    vectors = Vectors(shards, unit=needs_unit_length(encoder))
    sources = {manifest.get("settings", {}).get("source") for manifest in manifests}
    corpus = absolute_path(sources.pop()) if len(sources) == 1 else None
    return vectors, {"encoder": encoder, "corpus": corpus, "dimension": vectors.dimension, "metric": "inner product"}


def find_encoder_differences(one: Manifest, other: Manifest) -> list[str]:
    """Return the names of the differences between the encoders of two folders; [] if their vectors are comparable.

    Entries that only one manifest has (earlier versions recorded fewer) are not compared.
    """
    mine, theirs = one.get("encoder"), other.get("encoder")
    if not mine or not theirs:
        return []  # vectors made elsewhere: only their dimension can be checked
    if mine.get("digest", mine) != theirs.get("digest", theirs):
        return ["weights or pooling"]
    names = [name for name in ("config", "tokenizer") if mine.get(name) and theirs.get(name) not in (None, mine[name])]
    recipes = [each.get("recipe") or {} for each in (mine, theirs)]
    if not all(isinstance(recipe, dict) for recipe in recipes):
        return [*names, "recipe"]
    shared = recipes[0].keys() & recipes[1].keys()
    return names + sorted(name.replace("_", " ") for name in shared if recipes[0][name] != recipes[1][name])


def _find_passage_differences(one: Manifest, other: Manifest) -> list[str]:
    """Return how two embeddings folders of passages differ: `find_encoder_differences`, and the options of encode.

    Prompt, length and title are compared as they were used, not as the model folder recommends them.
    """
    used = [each.get("encoding") or {} for each in (one, other)]
    shared = {"passage_prompt", "passage_length", "title"} & used[0].keys() & used[1].keys()
    names = [name for name in find_encoder_differences(one, other) if name.replace(" ", "_") not in shared]
    return names + sorted(name.replace("_", " ") for name in shared if used[0][name] != used[1][name])


def needs_unit_length(encoder: dict[str, Any] | None) -> bool:
    """Return whether an encoder's vectors must be scaled to length 1 before inner products are taken (cosine)."""
    return encoder is not None and encoder.get("similarity") == "cosine" and not encoder.get("normalized", False)


def _check_parts(folders: Sequence[str], manifests: Sequence[Manifest]) -> None:
    """Raise MismatchError for a part of an encoding that is given twice; warn if a part is missing."""
    parts = [manifest.get("part") or {"number": 1, "of": 1} for manifest in manifests]
    of = max(part["of"] for part in parts)
    seen: dict[tuple[int, int], str] = {}
    for folder, part in zip(folders, parts, strict=True):
        if part["of"] > 1 and seen.setdefault((part["number"], part["of"]), folder) != folder:
            raise MismatchError(
                f"{folder}: is part {part['number']} of {part['of']}, as {seen[part['number'], part['of']]} is"
            )
    if len(folders) > 1 and len(folders) < of:
        warn(f"{len(folders)} of {of} parts of an encoding are indexed")


def absolute_path(source: str | None) -> str | None:
    """Return the absolute path of an existing file; None for stdin, pipes and missing files."""
    if not source or is_stream(source) or not Path(source).exists():
        return None
    return os.path.abspath(source)

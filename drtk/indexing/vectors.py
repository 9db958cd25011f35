"""Read folders of dense and sparse embeddings, compare encoders, and rescore hits with exact vectors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drtk.data.arrays import scale_to_unit_length
from drtk.data.embeddings import KIND, SPARSE_KIND, Shard, check_finite, read_shards
from drtk.data.readers import read_records
from drtk.errors import DrtkError, MismatchError
from drtk.indexing.base import RankedIds, Ranking
from drtk.indexing.indexed_text import IMPACTS, read_impacts
from drtk.records import Passage
from drtk.runtime.manifest import Manifest, read_manifest
from drtk.runtime.progress import Progress, warn
from drtk.runtime.streams import resolve_path

VECTORS, SCALE, FULL = "vectors.npy", "scale.npy", "full.npy"
ROWS_AT_A_TIME = 16_384


@dataclass(frozen=True)
class Vectors:
    """All vectors of several embeddings shards, read from disk in blocks.

    normalize: L2-normalize the vectors, for encoders that use cosine similarity but do not normalize
    Raises MismatchError for shards of different dimensions, DrtkError if there are no vectors.
    """

    shards: Sequence[Shard]
    normalize: bool = False

    def __post_init__(self) -> None:
        if not len(self):
            raise DrtkError("the embeddings folders contain no vectors; encode the passages first")
        for shard in self.shards:
            if shard.dimension != self.dimension:
                raise MismatchError(
                    f"{shard.folder}: has vectors of dimension {shard.dimension}, but {self.shards[0].folder} has dimension "
                    f"{self.dimension}; encode both with one model"
                )

    def __len__(self) -> int:
        return sum(shard.num_rows for shard in self.shards)

    @property
    def dimension(self) -> int:
        return self.shards[0].dimension

    @property
    def dtype(self) -> np.dtype:
        """The widest dtype of the shards."""
        return np.result_type(*(shard.vectors.dtype for shard in self.shards))

    def iter_ids(self) -> Iterator[str]:
        """Yield the ids in row order, without keeping them in memory."""
        for shard in self.shards:
            yield from shard.ids

    def iter_blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first row, vectors (rows, dimension) float32). Raises DrtkError for NaN or infinite numbers."""
        first = 0
        for shard in self.shards:
            for start in range(0, shard.num_rows, ROWS_AT_A_TIME):
                block = shard.vectors[start : start + ROWS_AT_A_TIME].astype(np.float32)
                check_finite(shard, block, range(start, start + len(block)))
                yield first + start, scale_to_unit_length(block) if self.normalize else block
            first += shard.num_rows

    def sample(self, count: int, *, seed: int) -> np.ndarray:
        """Sample vectors without replacement; return (min(count, rows), dimension) float32, in row order."""
        rows = np.sort(np.random.default_rng(seed).choice(len(self), size=min(count, len(self)), replace=False))
        sample = np.empty((len(rows), self.dimension), dtype=np.float32)
        for first, block in self.iter_blocks():
            low, high = np.searchsorted(rows, [first, first + len(block)])
            sample[low:high] = block[rows[low:high] - first]
        return sample

    def store(self, path: Path, dtype: str, *, progress: Progress | None = None) -> None:
        """Write all vectors to one .npy file of `dtype`.

        int8: vector = int8 * scale. scale.npy beside it has one scale per dimension (largest magnitude / 127), because a
        few dimensions of encoders are many times larger than the others.
        Raises DrtkError for a number too large for float16.
        """
        scale = None
        if dtype == "int8":
            largest = np.zeros(self.dimension, dtype=np.float32)
            for _, block in self.iter_blocks():
                np.maximum(largest, np.abs(block).max(axis=0), out=largest)
            scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
            np.save(path.with_name(SCALE), scale)
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (len(self), self.dimension)}
        try:
            # Not memory-mapped: on a full disk, a write raises an exception, but a memory map gets a fatal signal.
            with open(path, "wb") as file:
                np.lib.format.write_array_header_1_0(file, header)
                for _, block in self.iter_blocks():
                    file.write(np.ascontiguousarray(_convert_block(block, dtype, scale)).data)
                    if progress is not None:
                        progress.add(len(block))
        except OSError as error:
            raise DrtkError(f"{path}: {error.strerror}") from error


def _convert_block(block: np.ndarray, dtype: str, scale: np.ndarray | None) -> np.ndarray:
    if scale is not None:
        return np.rint(block / scale).astype(np.int8)
    with np.errstate(over="ignore"):
        converted = block.astype(dtype)
    if not np.isfinite(converted).all():
        raise DrtkError(f"a vector has numbers too large for {dtype}; set `vector_dtype=float32`")
    return converted


def rescore(
    ids: RankedIds, full: np.ndarray, rows: Iterable[np.ndarray], vectors: np.ndarray, k: int, *, threads: int = 0
) -> list[Ranking]:
    """Return the top `k` candidates of each query by float32 inner products with the exact vectors.

    full: exact vectors (passages, dimension), on disk
    rows: candidate rows of each query, (candidates,)
    vectors: query vectors (queries, dimension)
    Scores are computed one by one, not as a matrix product, so that equal vectors get equal scores.
    """

    def rank(item: tuple[np.ndarray, np.ndarray]) -> Ranking:
        candidates, vector = np.sort(item[0]), item[1]  # in the order on disk
        scores = (full[candidates].astype(np.float32) * vector).sum(axis=1, dtype=np.float32)
        return ids.make_ranking(candidates, scores, k)

    with ThreadPoolExecutor(max_workers=threads or os.cpu_count()) as pool:
        return list(pool.map(rank, zip(rows, vectors, strict=True)))


def open_embeddings(folders: Sequence[str]) -> tuple[Vectors, dict[str, Any]]:
    """Open folders of passage embeddings; return the vectors, and entries for the manifest of an index.

    Raises the errors of `read_passage_manifests` and `Vectors`.
    """
    manifests, entries = read_passage_manifests(folders, KIND)
    shards = [shard for folder in folders for shard in read_shards(folder) if shard.num_rows]
    vectors = Vectors(shards, normalize=needs_unit_length(manifests[0].get("encoder")))
    return vectors, {**entries, "dimension": vectors.dimension, "metric": "inner product"}


def open_sparse_embeddings(folders: Sequence[str]) -> tuple[Iterator[Passage], dict[str, Any]]:
    """Open folders of sparse embeddings of passages; return the passages, and entries for the manifest of an index.

    Raises the errors of `read_passage_manifests`; iterating raises those of `iter_impact_passages`.
    """
    entries = read_passage_manifests(folders, SPARSE_KIND)[1]
    return (passage for folder in folders for passage in iter_impact_passages(folder)), entries


def iter_impact_passages(folder: str) -> Iterator[Passage]:
    """Yield the id and impacts of each text of a folder, as a passage without text; its field `impacts` is {term: impact}.

    Raises RecordError for invalid impacts, MismatchError for a folder of another kind.
    """

    def parse(row: dict[str, Any]) -> Passage:
        return Passage(str(row.get("_id", "")), "", extra={IMPACTS: read_impacts(row)})

    for number in range(len(read_manifest(folder, kind=SPARSE_KIND, shards=list)["shards"])):
        yield from read_records(str(Path(folder) / f"{number:05d}.jsonl"), parse)


def read_passage_manifests(folders: Sequence[str], kind: str) -> tuple[list[Manifest], dict[str, Any]]:
    """Read the manifests of folders of passage embeddings; return them, and the entries "encoder" and "corpus" of an index.

    kind: kind of the folders
    Raises MismatchError for unfinished folders, folders without passage embeddings, different models or settings, and
    two folders with the same part of a corpus.
    """
    manifests = [
        read_manifest(
            folder,
            kind=kind,
            encoder=dict | None,
            encoding=dict | None,
            part=dict | None,
            settings=dict,
            corpus=str | None,
        )
        for folder in folders
    ]
    for folder, manifest in zip(folders, manifests, strict=True):
        if manifest.get("role", "passage") != "passage":
            content = "pairs" if manifest["role"] == "pair" else "queries"
            raise MismatchError(f"{folder}: contains vectors of {content}; give passage embeddings")
        if differences := _find_passage_differences(manifest, manifests[0]):
            raise MismatchError(
                f"{folder}: model or settings differ from {folders[0]} ({', '.join(differences)}); encode both with the same "
                "model and settings"
            )
    _check_corpus_parts(folders, manifests)
    sources = {manifest.get("corpus") or manifest["settings"].get("source") for manifest in manifests}
    corpus = resolve_path(sources.pop()) if len(sources) == 1 else None
    return manifests, {"encoder": manifests[0].get("encoder"), "corpus": corpus}


def find_encoder_differences(first: Manifest, second: Manifest) -> list[str]:
    """Return the names of the properties in which the encoders of two manifests differ; [] if a manifest has no encoder."""
    one, other = first.get("encoder"), second.get("encoder")
    if not one or not other:
        return []  # for vectors of another program, only the dimension can be checked
    if one.get("digest") != other.get("digest"):
        return ["weights or pooling"]
    names = [name for name in ("config", "tokenizer") if one.get(name) != other.get(name)]
    recipe, other_recipe = one.get("recipe", {}), other.get("recipe", {})
    keys = recipe.keys() | other_recipe.keys()
    return names + sorted(key.replace("_", " ") for key in keys if recipe.get(key) != other_recipe.get(key))


def _find_passage_differences(first: Manifest, second: Manifest) -> list[str]:
    """Return the names of the properties in which two folders of passage embeddings differ.

    Prompt, length and title are compared as they were set for encoding, all others as in `find_encoder_differences`.
    """
    used = [manifest.get("encoding") or {} for manifest in (first, second)]
    shared = {"passage_prompt", "passage_length", "title"} & used[0].keys() & used[1].keys()
    names = [name for name in find_encoder_differences(first, second) if name.replace(" ", "_") not in shared]
    return names + sorted(name.replace("_", " ") for name in shared if used[0][name] != used[1][name])


def needs_unit_length(encoder: dict[str, Any] | None) -> bool:
    """Return whether an encoder uses cosine similarity, but its vectors are not normalized."""
    return encoder is not None and encoder.get("similarity") == "cosine" and not encoder.get("normalized", False)


def _check_corpus_parts(folders: Sequence[str], manifests: Sequence[Manifest]) -> None:
    """Raise MismatchError if two folders contain the same part (option --shard) of a corpus.

    If several folders are given, warn if a part is missing.
    """
    parts = [manifest.get("part") or {"number": 1, "of": 1} for manifest in manifests]
    num_parts = max(part["of"] for part in parts)
    seen: dict[tuple[int, int], str] = {}
    for folder, part in zip(folders, parts, strict=True):
        if part["of"] > 1 and seen.setdefault((part["number"], part["of"]), folder) != folder:
            raise MismatchError(
                f"{folder}: is part {part['number']} of {part['of']}, like {seen[part['number'], part['of']]}; give each part "
                "once"
            )
    if 1 < len(folders) < num_parts:
        warn(f"only {len(folders)} of {num_parts} parts of the encoded corpus are indexed")

"""Read queries and search with them: texts, encoded texts, or stored vectors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from drtk.data.embeddings import KIND, Shard, check_finite, read_shards
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.indexing.base import Ranking
from drtk.indexing.config import INDEX_KIND, SearchSettings
from drtk.indexing.vectors import encoder_differences
from drtk.records import Query
from drtk.retrieval.search import Collection, RankingOptions, search
from drtk.runtime.manifest import Manifest, has_unfinished_part, read_manifest
from drtk.runtime.progress import is_quiet
from drtk.runtime.streams import STANDARD

Encode = Callable[[Sequence[str]], np.ndarray]
QUERY_HINT = "for a typed query use --query TEXT (-q is --quiet)"


def sort_paths(paths: Sequence[str]) -> tuple[list[str], str | None]:
    """Split paths into index folders and the one source of queries: a file, "-", an embeddings folder, or None.

    Raises UsageError if there is no index or more than one source, MismatchError for a folder of another kind.
    """
    folders, sources = [], []
    for path in paths:
        if path != STANDARD and not Path(path).exists():
            if has_unfinished_part(Path(path)):
                read_manifest(path)  # raises MismatchError
            hint = f"; {QUERY_HINT}" if is_quiet() or any(map(str.isspace, path)) else ""
            raise DrtkError(f"{path}: no such file or folder{hint}")
        if path == STANDARD or not Path(path).is_dir():
            sources.append(path)
        elif (kind := read_manifest(path)["kind"]) == INDEX_KIND:
            folders.append(path)
        elif kind == KIND:
            sources.append(path)
        else:
            raise MismatchError(f"{path}: is of kind '{kind}'; expected '{INDEX_KIND}' (drtk index makes it)")
    if not folders:
        raise UsageError(f"there is no index among {', '.join(paths)}; drtk index makes one")
    if len(folders) > len(set(folders)):
        raise UsageError("an index folder is named twice")
    if len(sources) > 1:
        raise UsageError(f"queries come from one place; found {' and '.join(sources)}")
    return folders, sources[0] if sources else None


class TextQueries:
    """Search a collection with texts.

    encode: returns the vectors of texts; None for an index of words
    empty: number of queries without a word so far; they find nothing
    """

    def __init__(self, collection: Collection, encode: Encode | None) -> None:
        self.collection, self._encode = collection, encode
        self.empty = 0

    def __call__(self, queries: Sequence[Query], options: RankingOptions) -> Iterator[tuple[str, Ranking]]:
        """Yield (query id, ranking) for each query, in order."""
        nonempty = [query for query in queries if query.text.strip()]
        self.empty += len(queries) - len(nonempty)
        rankings: Sequence[Ranking] = []
        if nonempty:
            texts = [query.text for query in nonempty]
            batch = texts if self._encode is None else self._encode(texts)
            rankings = search(self.collection, [query.id for query in nonempty], batch, options)
        by_id = {query.id: ranking for query, ranking in zip(nonempty, rankings, strict=True)}
        for query in queries:
            yield query.id, by_id.get(query.id, [])


@dataclass(frozen=True)
class StoredQuery:
    """A query whose vector is row `row` of shard `shard` of an embeddings folder."""

    id: str
    shard: int
    row: int


class StoredQueries:
    """Search a collection with the vectors of an embeddings folder of role query; iterate over its queries.

    Raises MismatchError for a folder of passages or of another encoder, and for an index of words.
    """

    empty = 0

    def __init__(self, collection: Collection, folder: str) -> None:
        manifest = read_manifest(folder, kind=KIND, encoder=dict | None, settings=dict | None)
        if collection.reads != "vectors":
            raise MismatchError(f"{folder}: holds vectors; {collection.folders[0]} is an index of words")
        if manifest.get("role", "query") != "query":
            raise MismatchError(f"{folder}: holds vectors of passages; make those of queries: drtk encode --role query")
        settings = manifest.get("settings") or {}
        differences = _query_differences(manifest, collection, settings.get("prompt"), settings.get("max_length"))
        if differences:
            raise MismatchError(
                f"{folder}: was made by another encoder than {collection.folders[0]} (different "
                f"{', '.join(differences)}); encode the queries with the encoder of the index"
            )
        self.collection = collection
        self._shards = read_shards(folder)

    def __iter__(self) -> Iterator[StoredQuery]:
        for number, shard in enumerate(self._shards):
            for row, id in enumerate(Shard(shard.folder, shard.number, shard.rows, shard.dimension).ids):
                yield StoredQuery(id, number, row)

    def __call__(self, queries: Sequence[StoredQuery], options: RankingOptions) -> Iterator[tuple[str, Ranking]]:
        """Yield (query id, ranking) for each query, in order."""
        vectors = np.stack([self._shards[query.shard].vectors[query.row] for query in queries]).astype(np.float32)
        if not np.isfinite(vectors).all():
            for query, vector in zip(queries, vectors, strict=True):
                check_finite(self._shards[query.shard], vector[None], [query.row])
        ids = [query.id for query in queries]
        yield from zip(ids, search(self.collection, ids, vectors, options), strict=True)


@dataclass(frozen=True)
class QueryEncoder:
    """Encode queries with the encoder of an index; the model is loaded at the first call.

    model: another place of the same model; None for the one that the index names
    Raises UsageError if no model is known, MismatchError if it is not the one the index was made with.
    """

    collection: Collection
    settings: SearchSettings
    model: str | None = None

    @property
    def place(self) -> str | None:
        """Return the folder or hub name of the model."""
        return self.model or (self.collection.encoder or {}).get("model")

    @cached_property
    def _embedder(self) -> Encode:
        from drtk.models.config import EncodeSettings
        from drtk.retrieval.encode import Embedder

        encoder, folder, place = self.collection.encoder or {}, self.collection.folders[0], self.place
        if not place:
            raise UsageError(f"{folder}: does not say which encoder made its vectors; name it: --model MODEL")
        if self.model is None and os.path.isabs(place) and not os.path.isdir(place):
            raise MismatchError(f"{folder}: its encoder {place} is not there; say where it is now: --model MODEL")
        prompt, max_length = self.settings.prompt, self.settings.max_length
        settings = EncodeSettings(
            pooling="+".join(encoder["pooling"]) if encoder.get("pooling") else None,
            normalize=encoder.get("normalized"),
            similarity=encoder.get("similarity"),
            prompt=prompt,
            max_length=max_length,
            dimensions=encoder.get("dimension"),  # vectors may have been cut when they were made
        )
        embedder = Embedder(place, role="query", settings=settings, device=self.settings.device)
        differences = _query_differences({"encoder": embedder.identity}, self.collection, prompt, max_length)
        if differences:
            can_override = {"query prompt", "query length"} >= {*differences}
            options = " (or give `prompt`, `max_length`)" if can_override else ""
            raise MismatchError(
                f"{place}: is not the model that made the vectors of {folder} ({encoder.get('model')}): different "
                f"{', '.join(differences)}; restore it{options}, or encode and index the passages again"
            )
        return embedder

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of texts, (texts, dimension) float32."""
        return self._embedder(texts)


def _query_differences(
    manifest: Manifest, collection: Collection, prompt: str | None, max_length: int | None
) -> list[str]:
    """Return how an encoder differs from that of a collection, without a query prompt or length chosen by the user."""
    chosen = {"query prompt": prompt, "query length": max_length}
    return [name for name in encoder_differences(manifest, collection.manifest) if chosen.get(name) is None]

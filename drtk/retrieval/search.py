"""Search one or several indexes with texts, encoded texts or stored vectors, for passages or documents."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from drtk.data.corpus_store import CorpusStore
from drtk.data.embeddings import KIND, Shard, check_finite, read_shards
from drtk.data.jsonl import read_queries
from drtk.data.trec import format_run_lines, load_qrels
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.indexing.base import Ranking, best_first, index_class
from drtk.indexing.config import INDEX_KIND, RUN_DEPTH, SearchSettings
from drtk.indexing.vectors import encoder_differences, unit_length, wants_unit_length
from drtk.records import Passage, Query
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.manifest import Manifest, describe_folder, read_manifest
from drtk.runtime.progress import log, warn

GROWTH = 4  # factor by which the depth grows for queries with too few documents


@dataclass(frozen=True)
class RankingOptions:
    """What a ranking contains.

    by: maps a passage id to its document id; a document's score is that of its best passage (MaxP)
    drop_same_id: exclude the document (or passage) whose id is the query's id
    """

    k: int
    by: Callable[[str], str] | None = None
    drop_same_id: bool = False

    def convert(self, query_id: str, hits: Ranking) -> Ranking:
        """Return hits grouped by document and without the query's own document, best first, not cut to `k`."""
        if self.by is not None:
            best: dict[str, float] = {}
            for id, score in hits:
                best.setdefault(self.by(id), score)
            hits = best_first(list(best), list(best.values()))
        return [hit for hit in hits if hit[0] != query_id] if self.drop_same_id else hits


def search(
    collection: Collection, query_ids: Sequence[str], batch: Sequence[str] | np.ndarray, options: RankingOptions
) -> list[Ranking]:
    """Return up to `options.k` hits for each query.

    batch: texts, or vectors (queries, dimension) float32
    k passages rarely belong to k documents: queries with too few documents are searched again, deeper, until there are
    k documents whose scores no passage further down can reach.
    Raises DrtkError for a vector with NaN or infinite numbers.
    """
    if isinstance(batch, np.ndarray) and not (finite := np.isfinite(batch).all(axis=1)).all():
        raise DrtkError(
            f"query '{query_ids[int(np.argmin(finite))]}': its vector has NaN or infinite numbers; encode it again"
        )
    results: list[Ranking] = [[] for _ in query_ids]
    pending = list(range(len(query_ids)))
    depth = options.k + options.drop_same_id
    while pending:
        part = batch[pending] if isinstance(batch, np.ndarray) else [batch[place] for place in pending]
        unfinished = []
        for place, hits in zip(pending, collection.search(part, depth), strict=True):
            results[place] = kept = options.convert(query_ids[place], hits)
            if options.by is None or len(hits) < depth or depth >= len(collection):
                continue
            if len(kept) < options.k or hits[-1][1] >= kept[options.k - 1][1]:
                unfinished.append(place)
        pending, depth = unfinished, min(depth * GROWTH, len(collection))
    return [hits[: options.k] for hits in results]


_KEYS = {"type": str, "encoder": dict | None, "dimension": int | None, "bm25": dict | None}  # of its meta.json


class Collection:
    """Open indexes of one type and one encoder.

    reads: "passages" if it is searched with texts, "vectors" if with vectors
    tunable: whether k1 and b affect its scores
    advised: k1 and b stored with an index of term weights, unless `settings` give others
    encoder: identity of the encoder of its vectors, if known
    Raises MismatchError for folders that are unfinished, no indexes, or differ in type, encoder or dimension.
    """

    def __init__(self, folders: Sequence[str], settings: SearchSettings) -> None:
        self.folders = list(folders)
        self.manifests: list[Manifest] = [read_manifest(folder, kind=INDEX_KIND, **_KEYS) for folder in folders]
        self.manifest = self.manifests[0]
        for folder, manifest in zip(self.folders[1:], self.manifests[1:], strict=True):
            self._check_alike(folder, manifest)
        engine = index_class(self.manifest["type"])
        self.reads: str = engine.reads
        self.tunable: bool = getattr(engine, "tunable", False)
        advised: dict[str, float] = self.manifest.get("bm25") or {}
        self.advised = {name: value for name, value in advised.items() if getattr(settings, name) is None}
        if self.advised:
            log(
                f"taking {', '.join(f'{name} {value:g}' for name, value in self.advised.items())}, as {folders[0]} advises"
            )
        settings = replace(settings, **self.advised)  # type: ignore[arg-type]
        self.indexes: list[Any] = [_open_index(engine, folder, settings) for folder in folders]
        self.encoder: dict[str, Any] | None = self.manifest.get("encoder")
        self._unit = self.reads == "vectors" and wants_unit_length(self.encoder)
        if self.tunable and len(folders) > 1:
            warn("each BM25 index scores by its own word statistics: scores of several are comparable only roughly")

    def _check_alike(self, folder: str, manifest: Manifest) -> None:
        first, first_folder = self.manifest, self.folders[0]
        if manifest["type"] != first["type"]:
            raise MismatchError(
                f"{folder}: is an index of type {manifest['type']}; {first_folder} of type {first['type']}"
            )
        if differences := encoder_differences(manifest, first):
            raise MismatchError(
                f"{folder}: holds vectors of another encoder than {first_folder} (different {', '.join(differences)}); "
                "search indexes of one encoder"
            )
        if manifest.get("bm25") != first.get("bm25"):
            raise MismatchError(
                f"{folder} and {first_folder}: are not of weights of one scale, or one is not of weights"
            )
        if manifest.get("dimension") != first.get("dimension"):
            raise MismatchError(f"{folder}: has dimension {manifest['dimension']}; {first_folder} {first['dimension']}")

    def __len__(self) -> int:
        return sum(len(index) for index in self.indexes)

    def search(self, batch: Sequence[str] | np.ndarray, k: int) -> list[Ranking]:
        """Return up to `k` passages of all indexes for each text, or for each row of (queries, dimension) float32.

        Raises MismatchError for vectors of another dimension, and for a passage that is in two indexes.
        """
        if isinstance(batch, np.ndarray):
            if batch.shape[1] != self.indexes[0].dimension:
                raise MismatchError(
                    f"{self.folders[0]}: has vectors of dimension {self.indexes[0].dimension}; "
                    f"those of the queries have {batch.shape[1]}"
                )
            batch = unit_length(batch) if self._unit else batch
        results = [index.search(batch, k) for index in self.indexes]
        return results[0] if len(results) == 1 else [self._merge(each, k) for each in zip(*results, strict=True)]

    def _merge(self, rankings: Sequence[Ranking], k: int) -> Ranking:
        ids = [id for ranking in rankings for id, _ in ranking]
        if len(set(ids)) < len(ids):
            twice = next(id for position, id in enumerate(ids) if id in ids[:position])
            holders = [folder for folder, hits in zip(self.folders, rankings, strict=True) if twice in dict(hits)]
            raise MismatchError(f"passage '{twice}' is in {' and in '.join(holders)}; shards must not overlap")
        return best_first(ids, [score for ranking in rankings for _, score in ranking], k)


def _open_index(engine: Any, folder: str, settings: SearchSettings) -> Any:
    """Open the index in a folder. Raises DrtkError for an exception of the engine's library."""
    try:
        return engine.open(Path(folder), settings)
    except (DrtkError, OSError):
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DrtkError(
            f"{folder}: cannot be opened: {reason}; drtk validate {folder} reports damaged files"
        ) from error


Encode = Callable[[Sequence[str]], np.ndarray]


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
            raise UsageError(f"{folder}: does not say which encoder made its vectors; name it with `model`")
        if self.model is None and os.path.isabs(place) and not os.path.isdir(place):
            raise MismatchError(f"{folder}: its encoder {place} is not there; name its place now with `model`")
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


def write_run(
    folders: Sequence[str],
    source: str,
    settings: SearchSettings,
    job: FilterJob,
    *,
    options: RankingOptions | None = None,
    model: str | None = None,
    qrels: str | None = None,
) -> None:
    """Search indexes as parts of one collection and write a TREC run.

    source: file of queries ("-" is stdin), or folder of their embeddings
    model: place of the encoder; None for the one that the index names
    qrels: judgements; only judged queries are searched
    Raises MismatchError if no query is judged, and what `Collection`, `QueryEncoder` and `StoredQueries` raise.
    """
    job.record(settings, paths=[*folders, source], model=model, qrels=qrels)
    options = options or RankingOptions(settings.depth or RUN_DEPTH)
    collection = Collection(folders, settings)
    job.tracker.inputs += [describe_folder(folder) for folder in collection.folders]
    queries: Any
    searcher: TextQueries | StoredQueries
    if Path(source).is_dir():
        queries = searcher = StoredQueries(collection, source)
        job.tracker.inputs.append(describe_folder(source))
    else:
        encoder = QueryEncoder(collection, settings, model) if collection.reads == "vectors" else None
        queries, searcher = read_queries(source, tracker=job.tracker), TextQueries(collection, encoder)
        job.lookups = (encoder.place,) if encoder is not None and encoder.place else ()
    if qrels is not None:
        judgements = load_qrels(qrels, tracker=job.tracker)
        queries = (query for query in queries if query.id in judgements)
        first = next(queries, None)
        if first is None:
            raise MismatchError(f"{source}: has none of the judged queries")
        queries = chain([first], queries)

    def write_window(window: list[Any]) -> Iterator[bytes]:
        empty = searcher.empty
        for query_id, ranking in searcher(window, options):
            yield from format_run_lines(query_id, ranking, settings.tag)
        if searcher.empty > empty:
            job.counts["without a word"] = job.counts.get("without a word", 0) + searcher.empty - empty

    job.window = settings.batch_size
    job.run(queries, write_window, unit="queries")


class PassageSearcher:
    """An index of words and the corpus it was made from.

    corpus: file of the passages; None for the one that the index names
    Raises MismatchError for an index of vectors and for an unknown or missing corpus.
    """

    def __init__(self, index: str, *, corpus: str | None = None, settings: SearchSettings | None = None) -> None:
        self.collection, self._index = Collection([index], settings or SearchSettings()), index
        if self.collection.reads != "passages":
            raise MismatchError(f"{index}: holds vectors; an index of words is needed (drtk index --type bm25)")
        self.corpus = str(corpus or self.collection.manifest.get("corpus") or "")
        if not self.corpus or not Path(self.corpus).exists():
            where = f"its corpus is not at {self.corpus}" if self.corpus else "it does not say which corpus it is of"
            raise MismatchError(f"{index}: {where}; name the file: `corpus`")
        self._store = CorpusStore.open(self.corpus)

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """Return the index as a manifest lists it among inputs."""
        return [describe_folder(self._index)]

    def search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        """Return up to `k` passages for each text, best first; equal texts are searched once."""
        unique = list(dict.fromkeys(texts))
        hits = dict(zip(unique, self.collection.search(unique, k), strict=True))
        return [hits[text] for text in texts]

    def passage(self, id: str) -> Passage:
        """Return a retrieved passage. Raises MismatchError if the corpus lacks it."""
        passage = self._store.get(id)
        if passage is None:
            raise MismatchError(
                f"{self.corpus}: has no passage '{id}', which {self._index} finds: is it the index's corpus?"
            )
        return passage

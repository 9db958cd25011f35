"""Search one or several indexes with query texts or stored query vectors, for passages or documents."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from drtk.data.arrays import scale_to_unit_length
from drtk.data.checks import warn_of_other_kind
from drtk.data.corpus_store import CorpusStore
from drtk.data.embeddings import KIND, SPARSE_KIND, read_shards
from drtk.data.readers import load_qrels, read_queries
from drtk.data.trec import format_run_lines
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.indexing.base import Ranking, get_index_class, read_index_manifest, sort_hits
from drtk.indexing.config import RUN_DEPTH, SearchSettings
from drtk.indexing.indexed_text import IMPACTS
from drtk.indexing.vectors import find_encoder_differences, iter_impact_passages, needs_unit_length
from drtk.records import Passage, Query
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.manifest import Manifest, describe_folder, read_manifest, read_manifest_if_any
from drtk.runtime.progress import log, warn
from drtk.runtime.runners import BatchFunction, RunnerSettings
from drtk.runtime.worker_groups import WorkerGroup, open_worker_group

BATCH_SIZE = 1000  # queries
MAX_HITS = 1 << 21  # about 300 MB; limits batches whose rankings are in memory at once
DEPTH_GROWTH = 4  # factor of the depth for the next search of queries with too few documents


@dataclass(frozen=True)
class RankingOptions:
    """Length and unit (passages or documents) of a ranking.

    k: maximum number of hits
    by: function from passage id to document id, to rank documents by their best passage (MaxP); None ranks passages
    drop_same_id: exclude the hit whose id equals the query id
    """

    k: int
    by: Callable[[str], str] | None = None
    drop_same_id: bool = False

    def apply(self, query_id: str, hits: Ranking) -> Ranking:
        """Aggregate passages to documents (`by`), and drop the hit with the query id (`drop_same_id`); does not cut at `k`."""
        if self.by is not None:
            best: dict[str, float] = {}
            for id, score in hits:
                best.setdefault(self.by(id), score)
            hits = sort_hits(list(best), list(best.values()))
        return [hit for hit in hits if hit[0] != query_id] if self.drop_same_id else hits


Batch = Sequence[str] | Sequence[dict[str, int]] | np.ndarray  # query texts, impacts, or vectors (queries, dimension)


def iter_rankings(
    indexes: IndexGroup, query_ids: Sequence[str], batch: Batch, options: RankingOptions
) -> Iterator[Ranking]:
    """Yield up to `options.k` hits for each query. All are in memory at once only if `options.by` is set.

    batch: query texts, impacts by term, or query vectors (queries, dimension) float32
    The top k passages may belong to fewer than k documents. Such queries are searched again at a greater depth, until no
    further passage can change the top k documents.
    Raises DrtkError for a vector with NaN or infinite numbers.
    """
    if isinstance(batch, np.ndarray) and not (finite := np.isfinite(batch).all(axis=1)).all():
        raise DrtkError(
            f"query '{query_ids[int(np.argmin(finite))]}': the vector contains NaN or infinity; encode the queries again"
        )
    depth = options.k + options.drop_same_id
    if options.by is None:
        for query_id, hits in zip(query_ids, indexes.iter_rankings(batch, depth), strict=True):
            yield options.apply(query_id, hits)[: options.k]
        return
    results: list[Ranking] = [[] for _ in query_ids]
    pending = list(range(len(query_ids)))
    while pending:
        queries: Any = batch[pending] if isinstance(batch, np.ndarray) else [batch[index] for index in pending]
        unfinished = []
        for index, hits in zip(pending, indexes.iter_rankings(queries, depth), strict=True):
            results[index] = ranking = options.apply(query_ids[index], hits)
            if len(hits) < depth or depth >= len(indexes):
                continue
            if len(ranking) < options.k or hits[-1][1] >= ranking[options.k - 1][1]:
                unfinished.append(index)
        pending, depth = unfinished, min(depth * DEPTH_GROWTH, len(indexes))
    yield from (ranking[: options.k] for ranking in results)


class PassageStore(Protocol):
    """Passages by id: a `CorpusStore`, or an index that stores them."""

    def get(self, id: str) -> Passage | None:
        """Return a passage; None if there is none with this id."""


_MANIFEST_KEYS = {"type": str, "encoder": dict | None, "dimension": int | None, "bm25": dict | None}


class IndexGroup:
    """Indexes of the same type and encoder, searched together.

    runner_settings: where the indexes are opened and searched; by default in this process
    reads: indexed data: "passages" (sparse index, searched with texts or impacts) or "vectors" (searched with vectors)
    tunable: whether k1 and b affect the scores
    recommended_bm25: k1 and b that an index of term weights recommends, except those that `settings` override
    encoder: identity of the encoder of the dense or sparse embeddings, if known
    needs_encoder: whether queries must be encoded
    Raises MismatchError for unfinished folders, folders without an index, and indexes that differ in type, encoder,
    metric, dimension or scale of term weights; DrtkError if an index cannot be opened.
    """

    def __init__(
        self, folders: Sequence[str], settings: SearchSettings, runner_settings: RunnerSettings | None = None
    ) -> None:
        self.folders = list(folders)
        self.manifests: list[Manifest] = [read_index_manifest(folder, **_MANIFEST_KEYS) for folder in folders]
        self.manifest = self.manifests[0]
        for folder, manifest in zip(self.folders[1:], self.manifests[1:], strict=True):
            self._check_manifest(folder, manifest)
        engine = get_index_class(self.manifest["type"])
        self.reads: str = engine.reads
        self.tunable: bool = getattr(engine, "tunable", False)
        recommended: dict[str, float] = self.manifest.get("bm25") or {}
        self.recommended_bm25 = {name: value for name, value in recommended.items() if getattr(settings, name) is None}
        if self.recommended_bm25:
            values = ", ".join(f"{name} {value:g}" for name, value in self.recommended_bm25.items())
            log(f"using {values} (recommended by {folders[0]})")
        settings = replace(settings, **self.recommended_bm25)  # type: ignore[arg-type]
        self._workers: WorkerGroup | None = None
        self.indexes: list[Any] = []  # those of this process
        if runner_settings is None or runner_settings.runner == "local":
            self.indexes = [_open_index(engine, folder, settings) for folder in folders]
        else:
            build = partial(IndexFunction, self.manifest["type"], settings)
            gpu = self.reads == "vectors" and settings.device == "auto"
            self._workers = open_worker_group(build, self.folders, runner_settings, gpu=gpu)
        self.encoder: dict[str, Any] | None = self.manifest.get("encoder")
        self.needs_encoder = self.reads == "vectors" or self.encoder is not None
        self._needs_unit_length = self.reads == "vectors" and needs_unit_length(self.encoder)
        if self.tunable and len(folders) > 1:
            warn("BM25 scores of different indexes are only roughly comparable, because collection statistics differ")

    def _check_manifest(self, folder: str, manifest: Manifest) -> None:
        pairs = [(name, manifest.get(name), self.manifest.get(name)) for name in ("type", "metric", "dimension")]
        differences = [f"{name} {value}, not {first}" for name, value, first in pairs if value != first]
        if manifest.get("bm25") != self.manifest.get("bm25"):
            differences.append("another scale of term weights")
        if properties := find_encoder_differences(manifest, self.manifest):
            differences.append(f"another encoder ({', '.join(properties)})")
        if differences:
            raise MismatchError(
                f"{folder}: cannot be searched together with {self.folders[0]}: it has {differences[0]}; search "
                "the indexes separately"
            )

    def _call_each(self, method: str, *arguments: Any) -> list[Any]:
        """Return the results of a method for each index."""
        if self._workers is None:
            return [getattr(index, method)(*arguments) for index in self.indexes]
        return [*chain.from_iterable(self._workers.map((method, arguments)))]

    @cached_property
    def _num_passages(self) -> int:
        return sum(self._call_each("__len__"))

    def __len__(self) -> int:
        return self._num_passages

    def close(self) -> None:
        """Stop the workers, if any."""
        if self._workers is not None:
            self._workers.close()

    @property
    def stores(self) -> dict[str, PassageStore]:
        """The indexes of this process that store the passages themselves, by folder; {} if workers hold the indexes."""
        indexes = zip(self.folders, self.indexes, strict=False)
        return {folder: index for folder, index in indexes if getattr(index, "has_passages", False)}

    def get_batch_size(self, k: int, *, as_lists: bool) -> int:
        """Return the number of queries to search at once: for `exact`, as many as one pass over its vectors can serve.

        k: depth of the search
        as_lists: whether the caller has the rankings of a batch in memory at once
        """
        if self.manifest["type"] != "exact":
            return BATCH_SIZE
        size: int = min(self._call_each("get_batch_size", k))
        return min(size, max(BATCH_SIZE, MAX_HITS // k)) if as_lists or self._workers is not None else size

    def search(self, batch: Batch, k: int) -> list[Ranking]:
        """Return the top `k` passages of all indexes for each query. For the arguments and errors see `iter_rankings`."""
        return list(self.iter_rankings(batch, k))

    def iter_rankings(self, batch: Batch, k: int) -> Iterator[Ranking]:
        """Yield the top `k` passages of all indexes for each query.

        batch: texts, impacts by term, or vectors (queries, dimension) float32
        Raises MismatchError for vectors of another dimension, and for a passage retrieved from two indexes.
        """
        if isinstance(batch, np.ndarray):
            if batch.shape[1] != self.manifest.get("dimension"):
                raise MismatchError(
                    f"{self.folders[0]}: has dimension {self.manifest.get('dimension')}, but the query vectors have dimension "
                    f"{batch.shape[1]}; encode the queries with the encoder of the index"
                )
            batch = scale_to_unit_length(batch) if self._needs_unit_length else batch
        is_lazy = self.manifest["type"] == "exact" and self._workers is None
        results = self._call_each("iter_rankings" if is_lazy else "search", batch, k)
        if len(results) == 1:
            yield from results[0]
        else:
            yield from (self._merge(rankings, k) for rankings in zip(*results, strict=True))

    def _merge(self, rankings: Sequence[Ranking], k: int) -> Ranking:
        ids = [id for ranking in rankings for id, _ in ranking]
        if len(set(ids)) < len(ids):
            duplicate = next(id for position, id in enumerate(ids) if id in ids[:position])
            folders = [folder for folder, hits in zip(self.folders, rankings, strict=True) if duplicate in dict(hits)]
            raise MismatchError(
                f"passage '{duplicate}' is in {' and in '.join(folders)}; give indexes without common passages"
            )
        return sort_hits(ids, [score for ranking in rankings for _, score in ranking], k)


def _open_index(engine: Any, folder: str, settings: SearchSettings) -> Any:
    """Open the index in a folder. Raises DrtkError for any exception of the index library except OSError."""
    try:
        return engine.open(Path(folder), settings)
    except (DrtkError, OSError):
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DrtkError(
            f"{folder}: cannot be opened: {reason}; run `drtk validate {folder}` to find damaged files"
        ) from error


class IndexFunction(BatchFunction):
    """Batch function of a worker that holds some indexes of an `IndexGroup`."""

    prepare_ahead = False

    def __init__(self, kind: str, settings: SearchSettings, folders: Sequence[str]) -> None:
        self._indexes = [_open_index(get_index_class(kind), folder, settings) for folder in folders]

    def __call__(self, batch: tuple[str, tuple[Any, ...]]) -> list[Any]:
        """Return the results of a method for each index. batch: (name of the method, arguments)"""
        method, arguments = batch
        return [getattr(index, method)(*arguments) for index in self._indexes]


Encode = Callable[[Sequence[str]], np.ndarray | list[dict[str, int]]]


class TextQuerySearcher:
    """Searcher of indexes with query texts. encode: function from texts to vectors or impacts; None if the index needs none"""

    def __init__(self, indexes: IndexGroup, encode: Encode | None) -> None:
        self.indexes, self._encode = indexes, encode

    def __call__(self, queries: Sequence[Query], options: RankingOptions) -> Iterator[tuple[str, Ranking]]:
        """Yield (query id, ranking) for each query, in order; blank queries get no hits."""
        nonempty = [query for query in queries if query.text.strip()]
        rankings: Iterator[Ranking] = iter(())
        if nonempty:
            texts = [query.text for query in nonempty]
            batch: Batch = texts if self._encode is None else self._encode(texts)
            rankings = iter_rankings(self.indexes, [query.id for query in nonempty], batch, options)
        for query in queries:
            yield query.id, next(rankings) if query.text.strip() else []


@dataclass(frozen=True)
class StoredQuery:
    """A query of an embeddings folder. value: shard index and row of its vector, or the impact of each term"""

    id: str
    value: Any


class StoredQuerySearcher:
    """Searcher of indexes with the queries of a folder of dense or sparse embeddings; iteration yields the queries.

    Raises MismatchError for passage embeddings, for embeddings of another encoder, and for an index of another type.
    """

    def __init__(self, indexes: IndexGroup, folder: str) -> None:
        self.indexes, self._folder = indexes, folder
        self._is_sparse = read_manifest_if_any(Path(folder)).get("kind") == SPARSE_KIND
        kind = indexes.manifest["type"]
        if self._is_sparse and kind != "impact":
            raise MismatchError(
                f"{folder}: contains sparse embeddings, but {indexes.folders[0]} is of type {kind}; give query texts"
            )
        if not self._is_sparse and indexes.reads != "vectors":
            raise MismatchError(
                f"{folder}: contains query vectors, but {indexes.folders[0]} is a sparse index; give query texts"
            )
        _check_stored_queries(indexes, folder, SPARSE_KIND if self._is_sparse else KIND)
        self._shards = [] if self._is_sparse else read_shards(folder)

    def __iter__(self) -> Iterator[StoredQuery]:
        if self._is_sparse:
            yield from (StoredQuery(query.id, query.extra[IMPACTS]) for query in iter_impact_passages(self._folder))
        for number, shard in enumerate(self._shards):
            yield from (StoredQuery(id, (number, row)) for row, id in enumerate(shard.ids))

    def __call__(self, queries: Sequence[StoredQuery], options: RankingOptions) -> Iterator[tuple[str, Ranking]]:
        """Yield (query id, ranking) for each query, in order."""
        ids = [query.id for query in queries]
        batch: Any = [query.value for query in queries]
        if not self._is_sparse:
            batch = np.stack([self._shards[shard].vectors[row] for shard, row in batch]).astype(np.float32)
        yield from zip(ids, iter_rankings(self.indexes, ids, batch, options), strict=True)


def _check_stored_queries(indexes: IndexGroup, folder: str, kind: str) -> None:
    """Raise MismatchError unless a folder contains query embeddings of this kind, from the encoder of the indexes."""
    manifest = read_manifest(folder, kind=kind, encoder=dict | None, settings=dict | None)
    if manifest.get("role", "query") != "query":
        raise MismatchError(f"{folder}: contains passage embeddings; encode the queries with `role=query`")
    settings = manifest.get("settings") or {}
    differences = _find_query_differences(manifest, indexes, settings.get("prompt"), settings.get("max_length"))
    if differences:
        raise MismatchError(
            f"{folder}: the encoder differs from {indexes.folders[0]} ({', '.join(differences)}); encode the queries with "
            "the encoder of the index"
        )


@dataclass(frozen=True)
class QueryEncoder:
    """Encoder of queries for an index; the model is loaded at the first call.

    model: folder or hub name of the encoder, if it has moved; None uses the encoder recorded in the index
    The first call raises UsageError if no encoder is given or recorded, MismatchError if the model did not encode the
    index or the recorded folder does not exist.
    """

    indexes: IndexGroup
    settings: SearchSettings
    model: str | None = None

    @property
    def model_name(self) -> str | None:
        """Folder or hub name of the model; None if unknown."""
        return self.model or (self.indexes.encoder or {}).get("model")

    @cached_property
    def _embedder(self) -> Any:
        from drtk.models.config import EncodeSettings
        from drtk.retrieval.encode import make_embedder

        encoder, folder, name = self.indexes.encoder or {}, self.indexes.folders[0], self.model_name
        if not name:
            raise UsageError(f"{folder}: does not record the encoder; give `model`")
        if self.model is None and os.path.isabs(name) and not os.path.isdir(name):
            raise MismatchError(f"{folder}: encoder {name} does not exist; give its new path as `model`")
        prompt, max_length = self.settings.prompt, self.settings.max_length
        settings = EncodeSettings(
            pooling="+".join(encoder["pooling"]) if encoder.get("pooling") else None,
            normalize=encoder.get("normalized"),
            similarity=encoder.get("similarity"),
            prompt=prompt,
            max_length=max_length,
            dimensions=encoder.get("dimension"),  # the vectors may be truncated
            model_file=encoder.get("model_file"),
        )
        embedder = make_embedder(name, role="query", settings=settings, device=self.settings.device)
        differences = _find_query_differences({"encoder": embedder.identity}, self.indexes, prompt, max_length)
        if differences:
            can_override = {"query prompt", "query length"} >= {*differences}
            hint = " (or give `prompt`, `max_length`)" if can_override else ""
            raise MismatchError(
                f"{name}: differs from the encoder of {folder} ({encoder.get('model')}) in {', '.join(differences)}; restore "
                f"the encoder{hint}, or encode and index the passages again"
            )
        return embedder

    def __call__(self, texts: Sequence[str]) -> np.ndarray | list[dict[str, int]]:
        """Return the vectors of texts, (texts, dimension) float32, or the impacts of each text by term."""
        embedder = self._embedder
        return embedder.compute_impacts(embedder.tokenize(texts)) if embedder.is_sparse else embedder(texts)


def make_query_encoder(indexes: IndexGroup, settings: SearchSettings, model: str | None) -> QueryEncoder | None:
    """Return the query encoder of an index; None if it needs none. Raises UsageError for a `model` without effect."""
    if indexes.needs_encoder:
        return QueryEncoder(indexes, settings, model)
    if model is not None:
        raise UsageError(f"`model` has no effect on {indexes.folders[0]}, which needs no query encoder; omit it")
    return None


def _find_query_differences(
    manifest: Manifest, indexes: IndexGroup, prompt: str | None, max_length: int | None
) -> list[str]:
    """Return the properties in which an encoder differs from the indexes, except a prompt or length set by the user."""
    overrides = {"query prompt": prompt, "query length": max_length}
    return [name for name in find_encoder_differences(manifest, indexes.manifest) if overrides.get(name) is None]


def search_indexes(
    folders: Sequence[str],
    source: str,
    settings: SearchSettings,
    job: FilterJob,
    *,
    options: RankingOptions | None = None,
    model: str | None = None,
    qrels: str | None = None,
    runner_settings: RunnerSettings | None = None,
) -> None:
    """Search one or several indexes together, and write a TREC run.

    source: file of queries ("-" is stdin), or folder of query embeddings
    options: length and unit of the rankings; by default passages, up to `settings.depth` (None: RUN_DEPTH) per query
    model: folder or hub name of the encoder; None uses the encoder recorded in the index
    qrels: file of judgments, to search judged queries only; None searches all queries
    runner_settings: where the indexes are opened and searched, by default in this process; queries are encoded here
    Raises MismatchError if no query is judged, and the errors of `IndexGroup`, `QueryEncoder` and the searchers.
    """
    job.record(settings, paths=[*folders, source], model=model, qrels=qrels)
    options = options or RankingOptions(settings.depth or RUN_DEPTH)
    with closing(IndexGroup(folders, settings, runner_settings)) as indexes:
        job.tracker.inputs += [describe_folder(folder) for folder in indexes.folders]
        queries: Any
        searcher: TextQuerySearcher | StoredQuerySearcher
        if Path(source).is_dir():
            queries = searcher = StoredQuerySearcher(indexes, source)
            job.tracker.inputs.append(describe_folder(source))
        else:
            warn_of_other_kind(queries=source)
            encoder = make_query_encoder(indexes, settings, model)
            queries, searcher = read_queries(source, tracker=job.tracker), TextQuerySearcher(indexes, encoder)
            job.lookups = (encoder.model_name,) if encoder is not None and encoder.model_name else ()
        if qrels is not None:
            judgments = load_qrels(qrels, tracker=job.tracker)
            queries = (query for query in queries if query.id in judgments)
            first = next(queries, None)
            if first is None:
                raise MismatchError(f"{source}: contains no judged query; give the queries of {qrels}")
            queries = chain([first], queries)

        def search_batch(batch: list[Any]) -> Iterator[bytes]:
            blank = sum(isinstance(query, Query) and not query.text.strip() for query in batch)
            without = 0
            for query_id, ranking in searcher(batch, options):
                yield format_run_lines(query_id, ranking, settings.tag)
                without += not ranking
            for name, count in (("without a word", blank), ("without hits", without - blank)):
                if count:
                    job.counts[name] = job.counts.get(name, 0) + count

        job.batch_size = settings.batch_size or indexes.get_batch_size(options.k, as_lists=options.by is not None)
        job.run(queries, search_batch, unit="queries")


class PassageSearcher:
    """Searcher of an index without a query encoder that also looks up the retrieved passages in the corpus.

    corpus: file of the passages; None uses the corpus recorded in the index
    Raises MismatchError for an index that requires encoded queries, and if the corpus is not recorded or missing.
    """

    def __init__(self, index: str, *, corpus: str | None = None, settings: SearchSettings | None = None) -> None:
        self.indexes, self._index = IndexGroup([index], settings or SearchSettings()), index
        if self.indexes.needs_encoder:
            raise MismatchError(
                f"{index}: requires encoded queries; give an index without a query encoder, such as bm25"
            )
        self.corpus = str(corpus or self.indexes.manifest.get("corpus") or "")
        if not self.corpus or not Path(self.corpus).exists():
            problem = f"corpus {self.corpus} does not exist" if self.corpus else "does not record the corpus"
            raise MismatchError(f"{index}: {problem}; give `corpus`")
        self._store = CorpusStore.open(self.corpus)

    def search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        """Return the top `k` passages for each text; equal texts are searched once."""
        unique = list(dict.fromkeys(texts))
        hits = dict(zip(unique, self.indexes.search(unique, k), strict=True))
        return [hits[text] for text in texts]

    def get_passage(self, id: str) -> Passage:
        """Return a passage of the corpus. Raises MismatchError if there is none with this id."""
        passage = self._store.get(id)
        if passage is None:
            raise MismatchError(
                f"{self.corpus}: has no passage '{id}' of index {self._index}; give the corpus of the index"
            )
        return passage

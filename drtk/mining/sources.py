"""Read hits from runs, indexes and training examples (the sources), and merge them query by query."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import repeat
from math import isfinite
from pathlib import Path
from typing import Any

from drtk.data import sniff
from drtk.data.corpus_store import CorpusStore
from drtk.data.examples import ParsedExample, parse_example_row, parse_query_id
from drtk.data.readers import iter_json_rows, iter_judgments, iter_valid, read_queries
from drtk.data.rows import Row
from drtk.data.runs import group_runs
from drtk.data.trec import Judgments, iter_grouped_hits
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.indexing.base import read_index_manifest
from drtk.mining.candidates import Hits, MiningQuery, merge_queries
from drtk.mining.config import MineSettings, MiningInputs
from drtk.records import Query, parse_document_id
from drtk.retrieval.search import (
    BATCH_SIZE,
    IndexGroup,
    QueryEncoder,
    RankingOptions,
    StoredQuery,
    StoredQuerySearcher,
    TextQuerySearcher,
)
from drtk.runtime.inputs import InputTracker
from drtk.runtime.manifest import describe_folder
from drtk.runtime.progress import warn
from drtk.runtime.streams import STANDARD, get_source_name

_HINTS = {  # how to pass each kind of file
    sniff.JUDGMENTS: "; give judgments as `qrels`",
    sniff.RANKED: "; give judgments as `qrels`, or convert ranked pairs and triples with `drtk convert`",
    sniff.CANDIDATES: "; convert it with `drtk convert`, then sort it with sort -s -k1,1",
    sniff.QUERIES: "; give queries as `queries`",
    sniff.PASSAGES: "; give passages as `corpus`",
    sniff.EITHER: "; give queries as `queries`, or passages as `corpus`",
}


@dataclass(frozen=True)
class MiningSources:
    """Paths of runs, files of training examples, and index folders, by source name.

    names: names of all sources, in the order of the command line
    """

    names: list[str]
    runs: dict[str, str] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    indexes: dict[str, list[str]] = field(default_factory=dict)

    @property
    def paths(self) -> list[str]:
        """All files and folders, in the order of `names`."""
        paths = {name: [path] for name, path in (self.runs | self.examples).items()} | self.indexes
        return [path for name in self.names for path in paths[name]]


def parse_sources(arguments: Sequence[str], tracker: InputTracker) -> MiningSources:
    """Parse sources `NAME=PATH` or `PATH`, and detect whether each is a run, training examples or an index.

    Index folders of the same name are searched together as one index.
    Raises UsageError if two sources that are not both indexes have the same name, MismatchError for another kind of
    file or folder.
    """
    grouped = group_runs(arguments)
    sources = MiningSources(list(grouped))
    for name, runs in grouped.items():
        paths = [run.source for run in runs]
        folders = [path for path in paths if path != STANDARD and Path(path).is_dir()]
        for folder in folders:
            read_index_manifest(folder)
            tracker.inputs.append(describe_folder(folder))
        if folders == paths:
            sources.indexes[name] = folders
        elif len(paths) > 1:
            raise UsageError(f"two sources have the name '{name}'; give each a name: NAME=FILE")
        else:
            head = tracker.peek(paths[0])
            kind = sniff.sniff_kind(head)
            if kind not in (None, sniff.RUN, sniff.EXAMPLES):
                raise MismatchError(
                    f"{get_source_name(paths[0])}: looks like {kind}; expected a TREC run, an index folder or training examples"
                    f"{_HINTS.get(kind, '')}"
                )
            is_json = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")
            (sources.examples if is_json else sources.runs)[name] = paths[0]
    return sources


def read_judgments(qrels: str, *, corpus: CorpusStore | None, by_source: bool, tracker: InputTracker) -> Judgments:
    """Return the judgments of a qrels file, {query id: {passage id (document id with `by_source`): relevance grade}}.

    corpus: None: do not check ids
    by_source: the judgments are of source documents, not of passages
    Raises RecordError for a pair judged twice and for an id that is not in the corpus, DrtkError for an empty file.
    """
    judgments: Judgments = {}
    unit = "document" if by_source else "passage"
    for qrel in iter_valid(iter_judgments(qrels, tracker), qrels, tracker):
        grades = judgments.setdefault(qrel.query_id, {})
        if qrel.doc_id in grades:
            problem = f"{unit} '{qrel.doc_id}' is judged twice for query '{qrel.query_id}'; remove one of the lines"
            tracker.skip_line(qrels, tracker.line, problem)
        elif corpus and not (corpus.has_document(qrel.doc_id) if by_source else qrel.doc_id in corpus):
            problem = f"{unit} '{qrel.doc_id}' is not in the corpus"
            if corpus.has_document(qrel.doc_id):
                problem = f"'{qrel.doc_id}' is a document of the corpus, not a passage; use `by=source`"
            tracker.skip_line(qrels, tracker.line, problem)
        else:
            grades[qrel.doc_id] = qrel.grade
    if not judgments:
        raise DrtkError(f"{get_source_name(qrels)}: contains no judgments; expected the lines of a qrels file")
    return judgments


class QueryBuffer:
    """Reader that returns the queries of a file in any order; queries before a requested query are buffered in memory.

    allowed: ids of the queries that may be requested; other queries are dropped; None: all
    """

    def __init__(self, queries: Iterable[MiningQuery], *, allowed: Container[str] | None = None) -> None:
        self._queries, self._allowed = iter(queries), allowed
        self.buffered: dict[str, deque[MiningQuery]] = {}

    def take_query(self, query_id: str) -> MiningQuery | None:
        """Return the next record with this query id; None if the rest of the file has none."""
        if query_id in self.buffered:
            records = self.buffered[query_id]
            if len(records) == 1:
                del self.buffered[query_id]
            return records.popleft()
        for record in self._queries:
            if record.query_id == query_id:
                return record
            self._buffer_record(record)
        return None

    def read_remaining(self) -> list[str]:
        """Read the rest of the file; return the ids of all queries that `take_query` has not returned."""
        for record in self._queries:
            self._buffer_record(record)
        return list(self.buffered)

    def _buffer_record(self, record: MiningQuery) -> None:
        if self._allowed is None or record.query_id in self._allowed:
            self.buffered.setdefault(record.query_id, deque()).append(record)


class IndexSearch:
    """Searcher of several indexes.

    folders: index folders by source name; folders of the same name are searched together
    depth: hits per query and source; None: all    corpus: None: do not check the ids of hits
    encodes_texts: whether query texts are encoded by a model, for an index of dense or sparse embeddings
    needs_text: whether an index is searched with query texts, encoded or not
    stored: the queries of the embeddings folder `inputs.query_vectors`, if a dense index is searched with them
    Raises UsageError if an index requires query texts and none are given, MismatchError for a hit that is not in the
    corpus, DrtkError for a score that is NaN or infinite.
    """

    def __init__(
        self,
        folders: Mapping[str, Sequence[str]],
        settings: MineSettings,
        inputs: MiningInputs,
        *,
        depth: int | None,
        corpus: CorpusStore | None = None,
    ) -> None:
        self._corpus, self._depth = corpus, depth
        self._searchers: dict[str, TextQuerySearcher | StoredQuerySearcher] = {}
        self.encodes_texts = False
        self.stored: StoredQuerySearcher | None = None
        search_settings = settings.to_search_settings()
        for name, paths in folders.items():
            indexes = IndexGroup(paths, search_settings)
            if indexes.reads == "vectors" and inputs.query_vectors is not None:
                self._searchers[name] = self.stored = StoredQuerySearcher(indexes, inputs.query_vectors)
                continue
            if inputs.queries is None:
                raise UsageError(f"{paths[0]}: `queries` is required (or `query_vectors`, for a dense index)")
            self.encodes_texts |= indexes.needs_encoder
            encoder = QueryEncoder(indexes, search_settings, inputs.model) if indexes.needs_encoder else None
            self._searchers[name] = TextQuerySearcher(indexes, encoder)
        self.needs_text = any(isinstance(searcher, TextQuerySearcher) for searcher in self._searchers.values())

    def get_batch_size(self) -> int:
        """Return the number of queries to search at once: the largest number of an index, over the number of sources."""
        indexes = [searcher.indexes for searcher in self._searchers.values()]
        sizes = [group.get_batch_size(self._depth or len(group), as_lists=True) for group in indexes]
        return max(BATCH_SIZE, max(sizes) // len(sizes))

    def search(self, batch: Sequence[MiningQuery], names: Sequence[str]) -> list[MiningQuery]:
        """Search each index for a batch of queries; return the queries with the hits added.

        names: source names, in the order of `hits` in the returned queries
        """
        hits: list[dict[str, Hits]] = [{} for _ in batch]
        for name, searcher in self._searchers.items() if batch else ():
            options = RankingOptions(self._depth or len(searcher.indexes))
            if isinstance(searcher, StoredQuerySearcher):
                rankings = searcher([StoredQuery(query.query_id, query.vector_position) for query in batch], options)
            else:
                rankings = searcher([query.query for query in batch if query.query is not None], options)
            for hits_by_name, (query_id, ranking) in zip(hits, rankings, strict=True):
                hits_by_name[name] = self._make_hits(query_id, ranking, searcher.indexes.folders[0])
        queries = []
        for query, hits_by_name in zip(batch, hits, strict=True):
            merged = hits_by_name | query.hits
            in_order = {name: merged[name] for name in names if name in merged}
            queries.append(replace(query, hits=in_order | merged))
        return queries

    def _make_hits(self, query_id: str, ranking: Sequence[tuple[str, float]], folder: str) -> Hits:
        ids, scores = [id for id, _ in ranking], [score for _, score in ranking]
        if not isfinite(sum(scores)):
            raise DrtkError(f"{folder}: query '{query_id}' has a score that is NaN or infinite; rebuild the index")
        if self._corpus is not None:
            unknown = self._corpus.find_missing(ids)
            if unknown:
                more = f", and {len(unknown) - 1:,} more of its {len(ids):,} hits" if len(unknown) > 1 else ""
                raise MismatchError(
                    f"{folder}: passage '{unknown[0]}', retrieved for query '{query_id}', is not in the corpus{more}; "
                    "give the corpus of the index"
                )
        return Hits(ids, scores)


@dataclass
class QueryStream:
    """Iterable of queries with their hits in each run and file of examples. Each iteration reads the files again.

    Queries are yielded in the order of the first source, or, if indexes are searched, of `queries` or the query
    vectors. Queries that another source contains in a different order are buffered in memory. The caller searches the
    indexes with `indexes.search`.

    counts: counters of this class and of `Miner`, updated in place
    corpus: None: do not check ids
    judgments: None if positives come from training examples or answers
    allow_unjudged: also yield queries without judgments, whose positives come from answers
    by_source: the judgments are of source documents, not of passages
    queries: file of the queries to search indexes with
    queries_by_id: query texts for filters; None if no filter reads them or if indexes are searched with `queries`
    Raises RecordError (file:line) for an id that is not in the corpus or the queries, MismatchError if no query is
    judged or a query of the embeddings folder has no text.
    """

    sources: MiningSources
    tracker: InputTracker
    counts: dict[str, Any] = field(default_factory=dict)
    corpus: CorpusStore | None = None
    judgments: Judgments | None = None
    allow_unjudged: bool = False
    by_source: bool = False
    indexes: IndexSearch | None = None
    queries: str | None = None
    queries_by_id: dict[str, Query] | None = None

    def may_have_positives(self, query_id: str) -> bool:
        """Return whether the query can have positives, from judgments, training examples or answers."""
        return self.allow_unjudged or bool(self.sources.examples) or self.is_judged(query_id)

    def is_judged(self, query_id: str) -> bool:
        """Return whether the query has judgments; True if no judgments are used."""
        return self.judgments is None or query_id in self.judgments

    def __iter__(self) -> Iterator[MiningQuery]:
        seen: set[str] = set()
        num_unjudged, first_unjudged, warned = 0, "", self.by_source
        for query in self._merge_sources():
            id = query.query_id
            if not (self.allow_unjudged or query.positives or self.is_judged(id)):
                num_unjudged += 1
                first_unjudged = first_unjudged or id
                continue
            seen.add(id)
            if not warned and self._has_judged_documents(query):
                warn(f"query '{id}': the judgments are of source documents, not of passages; use `by=source`")
                warned = True
            yield query
        if num_unjudged and not seen and self.judgments is not None:
            raise MismatchError(
                f"{get_source_name(self.sources.paths[0])}: no query has judgments (first query id: '{first_unjudged}' in the runs, "
                f"'{next(iter(self.judgments))}' in the qrels); give the qrels of these queries"
            )
        # Set at the end, since a resumed run reads all queries again.
        if num_unjudged:
            self.counts["without judgments"] = num_unjudged
        num_missing = len((self.judgments or {}).keys() - seen)
        if num_missing and self.indexes is None:  # of an index, they are not in the queries
            self.counts["not retrieved"] = num_missing

    def _has_judged_documents(self, query: MiningQuery) -> bool:
        """Return whether any hit of the query is an unjudged chunk of a judged document; it could be mined as a negative."""
        grades = (self.judgments or {}).get(query.query_id, {})
        chunks = [id for hits in query.hits.values() for id in hits.ids if "#" in id]
        return any(parse_document_id(id) in grades and id not in grades for id in chunks)

    def _merge_sources(self) -> Iterator[MiningQuery]:
        by_name = {name: self._iter_run(name, path) for name, path in self.sources.runs.items()}
        by_name |= {name: self._iter_examples(name, path) for name, path in self.sources.examples.items()}
        streams = [by_name[name] for name in self.sources.names if name in by_name]
        allowed = None if self.allow_unjudged or self.sources.examples else self.judgments
        first = streams.pop(0) if self.indexes is None else self._iter_index_queries()
        others = [QueryBuffer(stream, allowed=allowed) for stream in streams]

        def merge(records: Sequence[MiningQuery | None]) -> MiningQuery:
            merged = merge_queries([record for record in records if record is not None])
            if merged.query is None and self.queries_by_id is not None:
                return replace(merged, query=self.queries_by_id.get(merged.query_id))
            return merged

        read = set()
        for query in first:
            read.add(query.query_id)
            yield merge([query, *(other.take_query(query.query_id) for other in others)])
        remaining = dict.fromkeys(id for other in others for id in other.read_remaining())
        if self.indexes is None:
            for id in remaining:
                yield merge([other.take_query(id) for other in others])
        elif missing := remaining.keys() | ((self.judgments or {}).keys() - read):
            self.counts["not in queries"] = len(missing)

    def _iter_index_queries(self) -> Iterator[MiningQuery]:
        """Yield the queries to search the indexes with; their hits are still empty."""
        assert self.indexes is not None
        if self.indexes.stored is None:
            assert self.queries is not None
            for query in read_queries(self.queries, tracker=self.tracker):
                yield MiningQuery(query.id, query=query)
            return
        for stored in self.indexes.stored:
            if self._lacks_text(stored.id):
                raise MismatchError(
                    f"{self.queries}: has no query '{stored.id}' of the embeddings folder; give the queries that were encoded"
                )
            yield MiningQuery(stored.id, vector_position=stored.value)

    def _lacks_text(self, query_id: str) -> bool:
        return (
            self.queries_by_id is not None and query_id not in self.queries_by_id and self.may_have_positives(query_id)
        )

    def _skip_unknown(
        self, source: str, query_id: str, line: int, ids: Iterable[str], lines: Iterable[int]
    ) -> tuple[bool, set[str]]:
        """Pass errors for a missing query text and unknown passages to the tracker.

        Return whether the query text is missing, and the passage ids that are not in the corpus.
        line: line of the query in `source`    ids, lines: passage ids and the line of each
        """
        is_missing = self._lacks_text(query_id)
        if is_missing:
            self.tracker.skip_line(source, line, f"query '{query_id}' is not in the queries")
        if self.corpus is None:
            return is_missing, set()
        ids = list(ids)
        unknown = set(self.corpus.find_missing(ids))
        for id, place in zip(ids if unknown else (), lines, strict=False):
            if id in unknown:
                hint = ", but passages of it are; give a run of passages" if self.corpus.has_document(id) else ""
                self.tracker.skip_line(source, place, f"passage '{id}' is not in the corpus{hint}")
        return is_missing, unknown

    def _iter_run(self, name: str, source: str) -> Iterator[MiningQuery]:
        for hits in iter_grouped_hits(source, tracker=self.tracker):
            is_missing, unknown = self._skip_unknown(source, hits.query_id, hits.lines[0], hits.doc_ids, hits.lines)
            ranking = [hit for hit in hits.to_ranking() if hit[0] not in unknown]
            known_hits = Hits([id for id, _ in ranking], [score for _, score in ranking])
            if not is_missing:
                yield MiningQuery(hits.query_id, {name: known_hits})

    def _iter_examples(self, name: str, source: str) -> Iterator[MiningQuery]:
        """Yield a record for each query of a file of training examples, in order of first appearance.

        The file is read three times: to count the lines of each query, for the first lines, and for all later lines.
        Only lines out of this order are buffered. A stream is copied to disk.
        """
        self.tracker.copy_streams(source)
        rereading = InputTracker(copies=self.tracker.copies)  # does not record the file as a further input

        def convert_row(number: int, row: Row | ValueError) -> MiningQuery | None:
            try:
                if isinstance(row, ValueError):
                    raise row
                parsed = parse_example_row(row)
            except ValueError as error:
                self.tracker.skip_line(source, number, error)
                return None
            if parsed.has_new_ids:
                raise DrtkError(
                    f"{get_source_name(source)}: contains texts, not ids; run drtk convert three times, with "
                    "`as` examples, passages and queries"
                )
            query = _convert_example(name, parsed)
            ids = dict.fromkeys((*query.positives, *(id for hits in query.hits.values() for id in hits.ids)))
            is_missing, unknown = self._skip_unknown(source, query.query_id, number, ids, repeat(number))
            if unknown:
                hits = {
                    name: replace(source_hits, ids=[id for id in source_hits.ids if id not in unknown])
                    for name, source_hits in query.hits.items()
                }
                positives = tuple(id for id in query.positives if id not in unknown)
                query = replace(query, hits=hits, positives=positives)
            return None if is_missing else query

        num_later = Counter(id for id, _, _ in _iter_lines(source, rereading, later=True))
        later = QueryBuffer(
            convert_row(number, row) or MiningQuery(str(id))
            for id, number, row in _iter_lines(source, rereading, later=True)
        )
        for id, number, row in _iter_lines(source, self.tracker, later=False):
            records = [convert_row(number, row), *(later.take_query(str(id)) for _ in range(num_later[id]))]
            valid = [record for record in records if record is not None and (record.positives or record.hits)]
            if valid:
                yield merge_queries(valid)


def _iter_lines(
    source: str, tracker: InputTracker, *, later: bool
) -> Iterator[tuple[str | None, int, Row | ValueError]]:
    """Yield (query id, line number, row) of the first line of each query, or with `later` of all other lines.

    A line that cannot be parsed counts as a first line without query id (None).
    """
    seen: set[str] = set()
    for number, row in iter_json_rows(source, tracker):
        id = None
        if not isinstance(row, ValueError):
            with suppress(ValueError):
                id = parse_query_id(row)
        if (id in seen) == later:
            yield id, number, row
        if id is not None:
            seen.add(id)


def _convert_example(name: str, parsed: ParsedExample) -> MiningQuery:
    """Convert an example to a query whose hits are the negatives, by source.

    name: source of negatives for which the example records no source
    """
    example = parsed.example
    scores = example.scores or {}
    ce_scores = dict(zip(example.negatives, scores.get("negatives", ()), strict=False))
    ce_scores |= zip(example.positives, scores.get("positives", ()), strict=False)  # replaces the score as a negative
    ids_by_source: dict[str, list[str]] = {}
    is_ranked = parsed.systems is not None  # lists of sentence-transformers are ranked, others shuffled
    if parsed.systems is not None:
        for system, ce_score_by_id in parsed.systems.items():
            ids_by_source[system or name] = list(ce_score_by_id)
            for id, score in ce_score_by_id.items():
                if score is not None:
                    ce_scores.setdefault(id, score)
    else:
        sources = (example.sources or {}).get("negatives") or [name] * len(example.negatives)
        for id, source in zip(example.negatives, sources, strict=False):
            ids_by_source.setdefault(source, []).append(id)
    hits = {source: Hits(ids, is_ranked=is_ranked) for source, ids in ids_by_source.items()}
    return MiningQuery(example.query_id, hits, None, example.positives, ce_scores, example.extra)

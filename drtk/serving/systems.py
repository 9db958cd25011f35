"""Search several systems side by side, with the judgments and measures of a set of queries."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from drtk.data.readers import load_qrels, read_queries
from drtk.errors import MismatchError, UsageError
from drtk.evaluation.evaluate import Evaluator
from drtk.evaluation.measures import parse_measures
from drtk.indexing.base import Ranking
from drtk.indexing.config import SearchSettings
from drtk.records import Passage, Query, get_document_id, parse_document_id
from drtk.retrieval.passage_lookup import PassageLookup
from drtk.retrieval.search import IndexGroup, RankingOptions, TextQuerySearcher, make_query_encoder
from drtk.retrieval.snippets import extract_snippet, format_place, stem_query_words
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import Progress, warn

EVALUATED_DEPTH = 100
_QUERIES_AT_A_TIME = 64
_BEGIN, _END = "\0", "\1"  # around a matching word
_LOCK = Lock()  # index libraries are not thread-safe; with Lucene, not even calls to different indexes


@dataclass(frozen=True)
class ResultPassage:
    """A retrieved passage.

    place: file and page of an imported document; "" for other passages
    parts: the snippet in parts; every second part is a matching word
    grade: relevance grade of the passage, or of its document; None without a judgment
    """

    id: str
    rank: int
    score: float
    title: str = ""
    place: str = ""
    parts: list[str] = field(default_factory=list)
    grade: int | None = None


@dataclass(frozen=True)
class SystemHits:
    """Hits of a system for one query, best first. seconds: time of the search"""

    system: str
    seconds: float
    hits: list[ResultPassage]


@dataclass(frozen=True)
class ListedQuery:
    """A query of the query set. values: {system: {measure: value}}, {} without judgments"""

    id: str
    text: str
    values: dict[str, dict[str, float]]


@dataclass(frozen=True)
class FullPassage:
    """A passage with its text, and the ids of the passages before and after it in its document.

    place: file and page of an imported document; "" for other passages
    """

    id: str
    title: str
    place: str
    text: str
    previous: str | None
    next: str | None


@dataclass(frozen=True)
class SystemDescription:
    """Name, index type and number of passages of a system."""

    name: str
    type: str
    passages: int


@dataclass(frozen=True)
class SystemsOverview:
    """The systems, the names of the measures, and the number of queries."""

    systems: list[SystemDescription]
    measures: list[str]
    queries: int


class SearchSystem:
    """An index that is searched with query texts, one search at a time.

    corpus: as in `PassageLookup`
    prompt: text to put before queries that are encoded; None: the model's
    Raises MismatchError for vectors without a recorded encoder, and the errors of `IndexGroup`.
    """

    def __init__(self, name: str, folder: str, corpus: str | None = None, *, prompt: str | None = None) -> None:
        self.name, settings = name, SearchSettings(prompt=prompt)
        self.group = IndexGroup([folder], settings)
        if self.group.needs_encoder and not (self.group.encoder or {}).get("model"):
            raise MismatchError(
                f"{folder}: does not record the encoder of its vectors; give `model` to drtk convert or drtk index, or encode the passages with drtk encode"
            )
        self._search = TextQuerySearcher(self.group, make_query_encoder(self.group, settings, None))
        self.passages = PassageLookup(self.group, corpus)

    def search(self, queries: Sequence[Query], k: int) -> list[Ranking]:
        """Return the top `k` passages for each query."""
        with _LOCK:
            return [ranking for _, ranking in self._search(queries, RankingOptions(k))]


class Systems:
    """Systems with an optional set of queries and judgments. Their corpora may differ, for example in the length of passages.

    folders: index folder by name of the system
    corpus: file of the passages; None uses the corpora recorded in the indexes; a system without one uses another system's
    measures: measures that are computed for each judged query, separated by spaces or commas
    prompt: as in `SearchSystem`
    Raises UsageError for a `prompt` without effect, MismatchError if no corpus is found or no query is judged, and the
    errors of loading an encoder.
    """

    def __init__(
        self,
        folders: Mapping[str, str],
        *,
        corpus: str | None = None,
        queries: str | None = None,
        qrels: str | None = None,
        measures: str = "nDCG@10 RR@10 R@100",
        prompt: str | None = None,
    ) -> None:
        self._reported: set[str] = set()  # systems with another corpus
        self.systems = [SearchSystem(name, folder, corpus, prompt=prompt) for name, folder in folders.items()]
        if prompt is not None and not any(system.group.needs_encoder for system in self.systems):
            raise UsageError("`prompt` has no effect on indexes without a query encoder; omit it")
        for system in self.systems:  # loads the encoders, so that a missing one is reported at the start
            system.search([Query("start", "a")], 1)
        with_corpus = [system for system in self.systems if system.passages.names]
        if not with_corpus:
            raise MismatchError(
                f"{next(iter(folders.values()))}: the corpus of the index is not recorded or does not exist; give `corpus`"
            )
        for system in self.systems:
            if not system.passages.names:
                warn(f"{system.name}: its corpus was not found; showing texts of the corpus of {with_corpus[0].name}")
                system.passages = with_corpus[0].passages
        self._judgments = load_qrels(qrels, tracker=InputTracker()) if qrels else {}
        self.measures = [measure.name for measure in parse_measures(measures)] if qrels else []
        self._queries = list(read_queries(queries, tracker=InputTracker())) if queries else []
        self._ids = {query.text: query.id for query in self._queries}
        judged = [query for query in self._queries if query.id in self._judgments]
        if queries and qrels and not judged:
            raise MismatchError(f"{queries}: contains no judged query; give the queries of {qrels}")
        self._values = self._evaluate(judged, measures) if judged else {}

    def _evaluate(self, queries: Sequence[Query], measures: str) -> dict[str, dict[str, dict[str, float]]]:
        """Return {query id: {system: {measure: value}}}."""
        judgments = {query.id: self._judgments[query.id] for query in queries}
        evaluate = Evaluator(judgments, parse_measures(measures))
        values: dict[str, dict[str, dict[str, float]]] = {query.id: {} for query in queries}
        with Progress("serve", total=len(queries) * len(self.systems), unit="searches") as progress:
            for system in self.systems:
                rankings = {}
                for start in range(0, len(queries), _QUERIES_AT_A_TIME):
                    batch = queries[start : start + _QUERIES_AT_A_TIME]
                    for query, ranking in zip(batch, system.search(batch, EVALUATED_DEPTH), strict=True):
                        ids = (self._get_judged_id(id, judgments[query.id]) for id, _ in ranking)
                        rankings[query.id] = list(dict.fromkeys(ids))
                    progress.add(len(batch))
                for id, row in evaluate(system.name, rankings).per_query.items():
                    values[id][system.name] = {
                        name: float(value) for name, value in row.items() if not isinstance(value, str)
                    }
        return values

    @staticmethod
    def _get_judged_id(id: str, grades: Mapping[str, int]) -> str:
        """Return the id that judgments use for a passage: its own, or that of its document."""
        document = parse_document_id(id)
        return document if id not in grades and document in grades else id

    def search(self, text: str, k: int, query_id: str | None = None) -> Iterator[SystemHits]:
        """Yield the top `k` passages of each system for a query text.

        query_id: id of the query in the query set; by default that of the query with this text
        Raises MismatchError for an unknown `query_id`.
        """
        if query_id and all(query.id != query_id for query in self._queries):
            raise MismatchError(f"no query of the query set has the id {query_id!r}")
        grades = self._judgments.get(query_id or self._ids.get(text, ""), {})
        stems = stem_query_words(text)
        for system in self.systems:
            start = time.perf_counter()
            (ranking,) = system.search([Query(query_id or "query", text)], k)
            seconds = time.perf_counter() - start
            hits = []
            for rank, (id, score) in enumerate(ranking, start=1):
                passage = self._find_passage(id, system)
                hits.append(
                    ResultPassage(
                        id,
                        rank,
                        float(score),
                        passage.title if passage else "",
                        format_place(passage) if passage else "",
                        _extract_snippet_parts(passage.text, stems) if passage else [],
                        grades.get(self._get_judged_id(id, grades)),
                    )
                )
            if system.name not in self._reported and not all(hit.parts for hit in hits):
                self._reported.add(system.name)
                names = ", ".join(system.passages.names)
                warn(f"{names}: some retrieved passages are missing; is this the corpus of {system.name}?")
            yield SystemHits(system.name, seconds, hits)

    def list_queries(self) -> list[ListedQuery]:
        """Return all queries of the query set, with the values of the measures for judged ones."""
        return [ListedQuery(query.id, query.text, self._values.get(query.id, {})) for query in self._queries]

    def get_passage(self, id: str, system: str | None = None) -> FullPassage | None:
        """Return a passage with the ids of the passages before and after it in its document; None for an unknown id.

        system: name of the system whose corpus has the passage; by default the first one
        """
        owner = next((other for other in self.systems if system in (None, other.name)), None)
        if owner is None or (passage := self._find_passage(id, owner)) is None:
            return None
        metadata: Mapping[str, Any] = passage.metadata or {}
        names = {name: metadata.get(name) for name in ("prev", "next")}
        if not any(names.values()) and get_document_id(passage) != id and id.rpartition("#")[2].isdecimal():
            document, _, number = id.rpartition("#")
            names = {"prev": f"{document}#{int(number) - 1}", "next": f"{document}#{int(number) + 1}"}
        neighbors = [
            name if isinstance(name, str) and self._find_passage(name, owner) else None for name in names.values()
        ]
        return FullPassage(passage.id, passage.title, format_place(passage), passage.text, *neighbors)

    @staticmethod
    def _find_passage(id: str, system: SearchSystem) -> Passage | None:
        with _LOCK:
            return system.passages.get(id)


def _extract_snippet_parts(text: str, stems: frozenset[str]) -> list[str]:
    """Return the snippet of a text in parts; every second part is a matching word."""
    snippet = extract_snippet(text.replace(_BEGIN, " ").replace(_END, " "), stems, mark=f"{_BEGIN}{{}}{_END}".format)
    return snippet.replace(_BEGIN, _END).split(_END)

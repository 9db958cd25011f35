"""Runs beside the questions and the corpus they speak of: what either of them lacks is told with its line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from drtk.errors import RecordError
from drtk.io.intake import Intake
from drtk.io.progress import warn
from drtk.io.sources import source_of
from drtk.io.streams import is_stream, name_of
from drtk.io.trec import Judgements, Order, QueryHits, grouped_hits
from drtk.records import Passage

Item = TypeVar("Item")
Faulty = tuple[Item | None, list[RecordError]]  # a record, and what is wrong with its ids


class Texts(Protocol):
    """Where passages are looked up; io.store.CorpusStore is one."""

    def many(self, ids: Sequence[str]) -> list[Passage]: ...

    def missing(self, ids: Iterable[str]) -> Iterator[str]: ...


class JudgedHits:
    """Detect a run that retrieved none of the judged documents, probably one of another collection.

    Call `add` for each query. `found` counts the queries with a judged document among their hits.
    of: maps a passage id to its document id, if the judgements are of documents
    by_source: the option for judgements of documents, as the hint names it
    """

    def __init__(
        self,
        run: str,
        judgements: Judgements,
        *,
        of: Callable[[str], str] | None = None,
        by_source: str = "--by source scores documents",
    ) -> None:
        self._run, self._judgements, self._of, self._by_source = run, judgements, of, by_source
        self._example: tuple[str, str, str] | None = None
        self._names_documents = False
        self.found = 0

    def add(self, query_id: str, doc_ids: Sequence[str]) -> bool:
        """Return whether one of the ids is judged for the query."""
        judged = self._judgements.get(query_id)
        if not judged or not doc_ids:
            return False
        if any((id if self._of is None else self._of(id)) in judged for id in doc_ids):
            self.found += 1
            return True
        if self.found:
            return False
        self._example = self._example or (query_id, doc_ids[0], next(iter(judged)))
        self._names_documents |= self._of is None and any(source_of(id) in judged for id in doc_ids)
        return False

    def problem(self) -> str | None:
        """Return the problem, with an example id of each side; None if there is none."""
        if self.found or self._example is None:
            return None
        query, retrieved, judged = self._example
        hint = (
            f"the judgements are of documents: {self._by_source}"
            if self._names_documents
            else ("check that run and judgements are of the same collection")
        )
        return (
            f"{self._run}: no judged document was retrieved (query '{query}': retrieved '{retrieved}', "
            f"judged '{judged}'); {hint}"
        )

    def warn(self) -> None:
        """Warn of the problem, if there is one."""
        if (problem := self.problem()) is not None:
            warn(problem)


def known_hits(
    run: str, *, queries: Collection[str], corpus: Texts, depth: int, intake: Intake, order: Order = "score"
) -> Iterator[Faulty[QueryHits]]:
    """The queries of a run in its order, without the first `depth` hits that the corpus lacks, and what is wrong with them.

    queries: the ids there are
    """
    for hits in grouped_hits(run, intake=intake):
        if hits.query_id not in queries:
            place = f"{name_of(run)}:{hits.lines[0]}"
            yield None, [RecordError(place, f"the queries have no '{hits.query_id}'")]
            continue
        faults: list[RecordError] = []
        while absent := set(corpus.missing(hits.ranked_ids(order)[:depth])):  # again: others move up among the first
            faults += [
                RecordError(f"{name_of(run)}:{line}", f"the corpus has no '{id}'")
                for id, line in zip(hits.doc_ids, hits.lines, strict=True)
                if id in absent
            ]
            hits.keep([at for at, id in enumerate(hits.doc_ids) if id not in absent])
        yield (hits if hits.doc_ids else None), faults


def forgiven(found: Iterator[Faulty[Item]], source: str, intake: Intake) -> Iterator[Item]:
    """The records, once `intake` has forgiven their faults; the first that it does not is raised with the number of others."""
    for item, faults in found:
        for at, fault in enumerate(faults):
            try:
                intake.forgive(fault)
            except RecordError as error:
                more = len(faults) - at - 1
                with suppress(RecordError):  # a line further on that is no record
                    more += 0 if is_stream(source) else sum(len(others) for _, others in found)
                told = f"{error.problem} ({more:,} more ids are unknown)" if more else error.problem
                raise RecordError(error.place, told) from None
        if item is not None:
            yield item

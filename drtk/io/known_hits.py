"""Runs beside the questions and the corpus they speak of: what either of them lacks is told with its line."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from drtk.errors import RecordError
from drtk.io.intake import Intake
from drtk.io.streams import is_stream, name_of
from drtk.io.trec import Order, QueryHits, grouped_hits
from drtk.records import Passage

Item = TypeVar("Item")
Faulty = tuple[Item | None, list[RecordError]]  # a record, and what is wrong with its ids


class Texts(Protocol):
    """Where passages are looked up; io.store.CorpusStore is one."""

    def many(self, ids: Sequence[str]) -> list[Passage]: ...

    def missing(self, ids: Iterable[str]) -> Iterator[str]: ...


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

"""Training examples that are mined anew: all lines of a query in one, wherever in the file they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

from drtk.data.examples import FoundExample, parse_example_row, query_id_of
from drtk.data.formats import json_rows
from drtk.data.ids import CorpusIds
from drtk.data.rows import Row
from drtk.errors import DrtkError, RecordError
from drtk.mining.pool import Ranked
from drtk.mining.sources import Checked
from drtk.runtime.inputs import Intake
from drtk.runtime.streams import name_of


@dataclass(frozen=True, slots=True)
class Remined:
    """An example to be mined anew: its candidates by system, its positives, and the cross-encoder scores it holds."""

    found: dict[str, Ranked]
    positives: tuple[str, ...]
    ce: dict[str, float]
    extra: dict[str, object]


def joined(parts: Sequence[Remined]) -> Remined:
    """Several examples of a query as one, which loses no candidate, no positive, and no score of a positive.

    A passage that a system has twice counts where it stood first; of fields that differ the last counts.
    """
    if len(parts) == 1:
        return parts[0]
    found: dict[str, Ranked] = {}
    ce: dict[str, float] = {}
    extra: dict[str, object] = {}
    for part in parts:
        for system, ranked in part.found.items():
            found[system] = _appended(found[system], ranked) if system in found else ranked
        ce |= part.ce
        extra |= part.extra
    for part in parts:  # what is a negative elsewhere may have another score there
        ce |= {id: part.ce[id] for id in part.positives if id in part.ce}
    return Remined(found, tuple(dict.fromkeys(id for part in parts for id in part.positives)), ce, extra)


def _appended(first: Ranked, second: Ranked) -> Ranked:
    ids = list(dict.fromkeys((*first.ids, *second.ids)))
    return Ranked(ids, ordered=first.ordered and len(ids) == len(first.ids))  # two lists in a row are no ranking


class Later:
    """The lines after the first of queries that have several, taken in the order of the first ones.

    lines: (query, what became of a line), in file order. counts: how many each query has.
    Only what comes too early is held: nothing, where one file follows another of the same order.
    """

    def __init__(self, lines: Iterator[tuple[str, Remined | None]], counts: Mapping[str, int]) -> None:
        self._lines, self._counts = lines, counts
        self.held: dict[str, list[Remined | None]] = {}

    def take(self, query_id: str) -> list[Remined | None]:
        """All of a query, which are then gone."""
        found = self.held.pop(query_id, [])
        while len(found) < self._counts[query_id]:
            other, line = next(self._lines, (query_id, None))  # none is left of a file that was cut while it is read
            if other == query_id:
                found.append(line)
            else:
                self.held.setdefault(other, []).append(line)
        return found


def example_items(
    name: str,
    source: str,
    known: CorpusIds | None,
    intake: Intake,
    *,
    lacks: Callable[[str], bool] = lambda query_id: False,
) -> Iterator[tuple[str, Remined]]:
    """(query, example) of training data, each query once, where its first line stands.

    The file is read before for queries of several lines, and beside itself for the later ones; a stream goes to disk.
    Faults as in `run_items`; DrtkError for texts without ids.
    """
    intake.keep(source)
    counts = _later_lines(source, intake)
    checked = Checked(source, known, lacks, intake)

    def read(number: int, row: Row | ValueError) -> tuple[str, Remined] | None:
        try:
            if isinstance(row, ValueError):
                raise row
            found = parse_example_row(row)
        except ValueError as error:
            intake.forgive(RecordError(f"{name_of(source)}:{number}", str(error)))
            return None
        return _checked(name, found, checked, source, number)

    def later_lines() -> Iterator[tuple[str, Remined | None]]:
        begun: set[str] = set()
        for number, row in json_rows(source, _beside(intake)):
            query_id = _query_of(row)
            if query_id is None or query_id not in counts:
                continue
            if query_id in begun:
                one = read(number, row)
                yield query_id, None if one is None else one[1]
            begun.add(query_id)

    later = Later(later_lines(), counts)
    begun: set[str] = set()
    for number, row in json_rows(source, intake):
        query_id = _query_of(row)
        if query_id is not None and query_id in begun:
            continue
        first = read(number, row)
        if query_id is None or query_id not in counts:
            if first is not None and checked.is_good:
                yield first
            continue
        begun.add(query_id)
        parts = [None if first is None else first[1], *later.take(query_id)]
        good = [part for part in parts if part is not None]
        if good and checked.is_good:
            yield query_id, joined(good)
    checked.check()


def _later_lines(source: str, intake: Intake) -> dict[str, int]:
    """How many lines after its first each query has that has any."""
    seen: set[str] = set()
    counts: dict[str, int] = {}
    for _, row in json_rows(source, _beside(intake)):
        query_id = _query_of(row)
        if query_id is None:
            continue
        if query_id in seen:
            counts[query_id] = counts.get(query_id, 0) + 1
        seen.add(query_id)
    return counts


def _beside(intake: Intake) -> Intake:
    """For reading a source once more: it is no further input."""
    return Intake(stand_ins=intake.stand_ins)


def _query_of(row: Row | ValueError) -> str | None:
    """The query of a row; None where it cannot be told, which reading the row says too."""
    try:
        return None if isinstance(row, ValueError) else query_id_of(row)
    except ValueError:
        return None


def _checked(name: str, found: FoundExample, checked: Checked, source: str, number: int) -> tuple[str, Remined] | None:
    """The query and the example of a line, without passages that are not there; None where the query is not."""
    if found.has_new_ids:
        raise DrtkError(
            f"{name_of(source)}: holds texts, not ids; make a corpus and queries of them first: "
            f"drtk convert {source} --as examples --corpus-out FILE --queries-out FILE -o FILE"
        )
    example = _remined(name, found)
    has_query = checked.has_query(found.example.query_id, number)
    ids = dict.fromkeys((*example.positives, *(id for one in example.found.values() for id in one.ids)))
    lacking = checked.unknown(ids, repeat(number))
    if not has_query:
        return None
    return found.example.query_id, _without(example, lacking) if lacking else example


def _remined(name: str, found: FoundExample) -> Remined:
    example = found.example
    scores = example.scores or {}
    ce = dict(zip(example.negatives, scores.get("negatives", ()), strict=False))
    ce |= zip(example.positives, scores.get("positives", ()), strict=False)  # a system may have one, with another score
    systems: dict[str, list[str]] = {}
    if found.systems is not None:
        for system, items in found.systems.items():
            systems[system or name] = list(items)
            for id, score in items.items():
                if score is not None:
                    ce.setdefault(id, score)
    else:
        sources = (example.sources or {}).get("negatives") or [name] * len(example.negatives)
        for id, system in zip(example.negatives, sources, strict=False):
            systems.setdefault(system, []).append(id)
    ordered = found.systems is not None  # sentence-transformers' lists are as the systems ranked them, others shuffled
    lists = {system: Ranked(ids, ordered=ordered) for system, ids in systems.items()}
    return Remined(lists, example.positives, ce, example.extra)


def _without(example: Remined, lacking: set[str]) -> Remined:
    found = {
        system: replace(one, ids=[id for id in one.ids if id not in lacking]) for system, one in example.found.items()
    }
    return Remined(found, tuple(id for id in example.positives if id not in lacking), example.ce, example.extra)

"""The candidate expansions of a question, together: what query re-rankers choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from drtk.errors import RecordError
from drtk.io.intake import Intake
from drtk.io.jsonl import read_expansions, read_queries
from drtk.io.streams import name_of
from drtk.records import Expansion, Query

Check = Callable[[Expansion, Query], str | None]  # what is wrong with a candidate; None: nothing


@dataclass(frozen=True, slots=True)
class Asked:
    """A candidate and the question it expands."""

    query: Query
    expansion: Expansion


@dataclass(frozen=True, slots=True)
class Candidates:
    """All candidates of one kind for one question, in the order of the file."""

    query: Query
    kind: str
    expansions: tuple[Expansion, ...]


def questions_by_id(source: str, intake: Intake) -> dict[str, Query]:
    """The questions of a file by id, without fields that nobody here reads twice."""
    return {query.id: query for query in read_queries(source, intake=intake)}


def read_asked(
    source: str, questions: Mapping[str, Query], intake: Intake, *, check: Check | None = None
) -> Iterator[Asked]:
    """Candidates with their questions, in the order of the file.

    Raises RecordError (file:line) for one of an unknown question, or one that `check` says something of; `intake` may
    forgive.
    """
    for expansion in read_expansions(source, intake=intake):
        query = questions.get(expansion.query_id)
        problem = f"the queries have no '{expansion.query_id}'" if query is None else None
        if query is not None and check is not None:
            problem = check(expansion, query)
        if query is None or problem is not None:
            intake.forgive(RecordError(f"{name_of(source)}:{intake.line}", str(problem)))
            continue
        yield Asked(query, expansion)


def read_candidates(
    source: str, questions: Mapping[str, Query], intake: Intake, *, check: Check | None = None
) -> Iterator[Candidates]:
    """Candidates by question and kind; those of a question may stand in any order, but not between another's.

    Raises what `read_asked` raises, and RecordError where candidates of a question are scattered over the file.
    """
    seen: set[tuple[str, str]] = set()
    for group in _neighbours(read_asked(source, questions, intake, check=check)):
        for found in group:
            key = (found.query.id, found.kind)
            if key in seen:
                raise RecordError(
                    f"{name_of(source)}:{max(intake.line - 1, 1)}",
                    f"candidates of '{found.query.id}' for '{found.kind}' stand before, too: they must stand together",
                )
            seen.add(key)
            yield found


def _neighbours(asked: Iterable[Asked]) -> Iterator[list[Candidates]]:
    """For each run of one question's candidates: its kinds in the order in which they begin."""
    query: Query | None = None
    kinds: dict[str, list[Expansion]] = {}
    for each in asked:
        if query is not None and each.query.id != query.id:
            yield [Candidates(query, kind, tuple(found)) for kind, found in kinds.items()]
            kinds = {}
        query = each.query
        kinds.setdefault(each.expansion.kind, []).append(each.expansion)
    if query is not None:
        yield [Candidates(query, kind, tuple(found)) for kind, found in kinds.items()]

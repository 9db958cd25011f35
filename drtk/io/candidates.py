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
    """A candidate and the question it expands; line: where it stands in the file."""

    query: Query
    expansion: Expansion
    line: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """All candidates of one kind for one question, in the order of the file."""

    query: Query
    kind: str
    expansions: tuple[Expansion, ...]


def distinct(expansions: Iterable[Expansion], most: int | None = None) -> list[Expansion]:
    """The candidates of different text, white space apart: the first of each, at most so many (methods, section 7.3)."""
    found: dict[str, Expansion] = {}
    for each in expansions:
        found.setdefault(" ".join(each.text.split()), each)
    return list(found.values())[:most]


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
        yield Asked(query, expansion, intake.line)


def read_candidates(
    source: str, questions: Mapping[str, Query], intake: Intake, *, check: Check | None = None
) -> Iterator[Candidates]:
    """Candidates by question and kind; those of a question may stand in any order, but not between another's.

    Raises what `read_asked` raises, and RecordError where candidates of a question are scattered over the file.
    """
    seen: set[tuple[str, str]] = set()
    for neighbours in _neighbours(read_asked(source, questions, intake, check=check)):
        for kind, asked in neighbours.items():
            query = asked[0].query
            if (query.id, kind) in seen:
                raise RecordError(
                    f"{name_of(source)}:{asked[0].line}",
                    f"candidates of '{query.id}' for '{kind}' stand before, too: they must stand together",
                )
            seen.add((query.id, kind))
            yield Candidates(query, kind, tuple(each.expansion for each in asked))


def _neighbours(asked: Iterable[Asked]) -> Iterator[dict[str, list[Asked]]]:
    """For each run of one question's candidates: its kinds in the order in which they begin."""
    kinds: dict[str, list[Asked]] = {}
    before = ""
    for each in asked:
        if kinds and each.query.id != before:
            yield kinds
            kinds = {}
        before = each.query.id
        kinds.setdefault(each.expansion.kind, []).append(each)
    if kinds:
        yield kinds

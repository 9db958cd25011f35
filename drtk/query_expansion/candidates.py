"""The candidate expansions of a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from drtk.data.jsonl import dump, read_expansions, read_queries
from drtk.errors import RecordError
from drtk.records import Expansion, Query
from drtk.runtime.filter_job import Done
from drtk.runtime.inputs import Intake
from drtk.runtime.streams import name_of
from drtk.text.expanded_text import expanded_query, plain_query

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


class Gathered:
    """The candidates of a window of questions, as lines and counts for the manifest."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._repeated, self._blank, self._without = 0, 0, 0
        self._words: dict[str, dict[str, int]] = {}

    def add(
        self,
        query_id: str,
        question: str,
        kind: str,
        texts: Iterable[str],
        *,
        fold: int | None = None,
        greedy: bool = False,
    ) -> None:
        """One question's candidates of a kind: the different texts in their order, numbered from 01.

        greedy: the first was written greedily, and its record says so
        """
        given = [" ".join(text.split()) for text in texts]
        written = [text for text in given if text]
        kept = list(dict.fromkeys(written))
        for number, text in enumerate(kept, start=1):
            extra = {"decode": "greedy"} if greedy and text == given[0] else {}
            name = f"{query_id}#{kind}#{number:02d}"
            self._lines.append(dump(Expansion(name, query_id, kind, text, fold=fold, extra=extra)))
        self._blank += len(given) - len(written)
        self._repeated += len(written) - len(kept)
        self._without += not kept
        words = self._words.setdefault(
            kind, dict.fromkeys(("questions", "without", "candidates", "question", "expanded"), 0)
        )
        words["questions"] += 1
        words["without"] += not kept
        words["candidates"] += len(kept)
        words["question"] += _words(plain_query(question))
        words["expanded"] += sum(_words(expanded_query(question, text)) for text in kept)

    def done(self) -> Done:
        """The lines, and the counts: candidates left out, questions without any, and `words` by kind."""
        counts = {"repeated": self._repeated, "blank": self._blank, "without candidates": self._without}
        return Done(self._lines, counts | {"words": self._words})


def _words(query: str) -> int:
    """Words of a query, the question mark that is set apart not being one."""
    return len(query.split()) - 1


def summary(words: Mapping[str, Mapping[str, int]]) -> Iterable[str]:
    """A line for each kind: different candidates a question, and mean lengths in words (the thesis' table 3.9).

    words: `Gathered`'s counts, added up over windows
    """
    for kind, sums in words.items():
        questions, candidates = sums["questions"], sums["candidates"]
        if not questions or not candidates:
            continue
        each = candidates / questions
        asked, expanded = sums["question"] / questions, sums["expanded"] / candidates
        yield (
            f"{kind}: {each:.1f} different candidates a question; words: question {asked:.1f}, "
            f"question with expansion {expanded:.1f}"
        )

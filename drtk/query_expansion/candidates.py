"""Read and write the candidate expansions of queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from drtk.data.jsonl import dump, read_expansions, read_queries
from drtk.errors import RecordError
from drtk.records import Expansion, Query
from drtk.runtime.filter_job import WindowResult
from drtk.runtime.inputs import InputTracker
from drtk.runtime.streams import name_of
from drtk.text.expanded_text import expand_query, format_query

Check = Callable[[Expansion, Query], str | None]  # returns what is wrong with a candidate


@dataclass(frozen=True, slots=True)
class ExpansionLine:
    """A candidate expansion, its query, and its line in the file."""

    query: Query
    expansion: Expansion
    line: int


@dataclass(frozen=True, slots=True)
class ExpansionList:
    """The candidates of one query and kind, in the order of the file."""

    query: Query
    kind: str
    expansions: tuple[Expansion, ...]


def select_distinct(expansions: Iterable[Expansion], most: int | None = None) -> list[Expansion]:
    """Return the first expansion of each text, ignoring white space, at most `most` (docs/methods/ear.md)."""
    first: dict[str, Expansion] = {}
    for each in expansions:
        first.setdefault(" ".join(each.text.split()), each)
    return list(first.values())[:most]


def find_missing(expansion: Expansion, *, rank: bool, top1: bool) -> str | None:
    """Return which of the needed labels an expansion lacks, as an error; None if it lacks none."""
    if rank and expansion.rank is None:
        return f"'{expansion.id}' has no rank; drtk rerank-queries label adds it"
    if top1 and expansion.top1 is None:
        return f"'{expansion.id}' has no 'top1', which rd scorers read; drtk rerank-queries label adds it"
    return None


def load_queries(source: str, tracker: InputTracker) -> dict[str, Query]:
    """Return the queries of a file by id."""
    return {query.id: query for query in read_queries(source, tracker=tracker)}


def iter_expansion_lines(
    source: str, queries: Mapping[str, Query], tracker: InputTracker, *, check: Check | None = None
) -> Iterator[ExpansionLine]:
    """Yield candidates with their queries, in the order of the file.

    Raises RecordError (file:line) for one of an unknown query or with a problem that `check` returns, unless `tracker`
    skips it.
    """
    for expansion in read_expansions(source, tracker=tracker):
        query = queries.get(expansion.query_id)
        problem = f"the queries have no '{expansion.query_id}'" if query is None else None
        if query is not None and check is not None:
            problem = check(expansion, query)
        if query is None or problem is not None:
            tracker.skip_or_raise(RecordError(f"{name_of(source)}:{tracker.line}", str(problem)))
            continue
        yield ExpansionLine(query, expansion, tracker.line)


def iter_expansion_lists(
    source: str, queries: Mapping[str, Query], tracker: InputTracker, *, check: Check | None = None
) -> Iterator[ExpansionList]:
    """Yield candidates by query and kind. Those of a query are adjacent in the file, its kinds in any order.

    Raises what `iter_expansion_lines` raises, and RecordError for candidates of a query that are not adjacent.
    """
    seen: set[tuple[str, str]] = set()
    for kinds in _iter_adjacent(iter_expansion_lines(source, queries, tracker, check=check)):
        for kind, candidates in kinds.items():
            query = candidates[0].query
            if (query.id, kind) in seen:
                raise RecordError(
                    f"{name_of(source)}:{candidates[0].line}",
                    f"candidates of '{query.id}' for '{kind}' occur earlier, too: they must be adjacent",
                )
            seen.add((query.id, kind))
            yield ExpansionList(query, kind, tuple(each.expansion for each in candidates))


def _iter_adjacent(candidates: Iterable[ExpansionLine]) -> Iterator[dict[str, list[ExpansionLine]]]:
    """Yield the adjacent candidates of a query by kind."""
    kinds: dict[str, list[ExpansionLine]] = {}
    before = ""
    for each in candidates:
        if kinds and each.query.id != before:
            yield kinds
            kinds = {}
        before = each.query.id
        kinds.setdefault(each.expansion.kind, []).append(each)
    if kinds:
        yield kinds


class CandidateWriter:
    """Collect the candidates of a window of queries as lines, and counts for the manifest."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._repeated, self._blank, self._without = 0, 0, 0
        self._words: dict[str, dict[str, int]] = {}

    def add(
        self,
        query_id: str,
        query: str,
        kind: str,
        texts: Iterable[str],
        *,
        fold: int | None = None,
        greedy: bool = False,
    ) -> None:
        """Add the candidates of a query and kind: the distinct texts in their order, numbered from 01.

        greedy: whether the first text was decoded greedily, which its record says
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
        names = ("questions", "without", "candidates", "question", "expanded")
        words = self._words.setdefault(kind, dict.fromkeys(names, 0))
        words["questions"] += 1
        words["without"] += not kept
        words["candidates"] += len(kept)
        words["question"] += _count_words(format_query(query))
        words["expanded"] += sum(_count_words(expand_query(query, text)) for text in kept)

    def done(self) -> WindowResult:
        """Return the lines and counts: dropped candidates, queries without any, and `words` by kind."""
        counts = {"repeated": self._repeated, "blank": self._blank, "without candidates": self._without}
        return WindowResult(self._lines, counts | {"words": self._words})


def _count_words(query: str) -> int:
    return len(query.split()) - 1  # without the question mark


def format_summary(words: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Yield a line per kind: distinct candidates per query, and mean lengths in words (the thesis' table 3.9).

    words: the counts of `CandidateWriter`, added up over windows
    """
    for kind, sums in words.items():
        queries, candidates = sums["questions"], sums["candidates"]
        if queries and candidates:
            yield (
                f"{kind}: {candidates / queries:.1f} different candidates a question; words: question "
                f"{sums['question'] / queries:.1f}, question with expansion {sums['expanded'] / candidates:.1f}"
            )

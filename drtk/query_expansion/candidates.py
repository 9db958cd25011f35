"""Read and write candidate expansions of queries.

The kind of an expansion is its type of text: answer, sentence, title, or any other name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from drtk.data.readers import read_expansions, read_queries
from drtk.data.rows import dump
from drtk.errors import RecordError
from drtk.records import Expansion, Query
from drtk.runtime.filter_job import BatchResult
from drtk.runtime.inputs import InputTracker
from drtk.runtime.streams import get_source_name
from drtk.text.expanded_text import expand_query, normalize_question_mark

Check = Callable[[Expansion, Query], str | None]  # returns an error message for an invalid candidate, else None


@dataclass(frozen=True, slots=True)
class ExpansionLine:
    """A candidate expansion with its query and line number."""

    query: Query
    expansion: Expansion
    line: int


@dataclass(frozen=True, slots=True)
class ExpansionList:
    """The candidate expansions of one query and kind, in the order of the file."""

    query: Query
    kind: str
    expansions: tuple[Expansion, ...]


def select_distinct(expansions: Iterable[Expansion], limit: int | None = None) -> list[Expansion]:
    """Return the first `limit` expansions with distinct texts, after normalizing white space; None returns them all."""
    by_text: dict[str, Expansion] = {}
    for expansion in expansions:
        by_text.setdefault(" ".join(expansion.text.split()), expansion)
    return list(by_text.values())[:limit]


def describe_missing_label(expansion: Expansion, *, rank: bool, top1: bool) -> str | None:
    """Return an error message if a required label is missing, else None. rank, top1: the labels that are required"""
    if rank and expansion.rank is None:
        return f"'{expansion.id}' has no rank; run `drtk rerank-queries label` first"
    if top1 and expansion.top1 is None:
        return f"'{expansion.id}' has no 'top1', which `variant=rd` requires; run `drtk rerank-queries label` first"
    return None


def load_queries(source: str, tracker: InputTracker) -> dict[str, Query]:
    """Return the queries of a file by id."""
    return {query.id: query for query in read_queries(source, tracker=tracker)}


def iter_expansion_lines(
    source: str, queries: Mapping[str, Query], tracker: InputTracker, *, check: Check | None = None
) -> Iterator[ExpansionLine]:
    """Yield the candidates of a file with their queries.

    Raises RecordError (file:line) if the query of a candidate is unknown or `check` fails, unless `tracker` skips the
    candidate.
    """
    for expansion in read_expansions(source, tracker=tracker):
        query = queries.get(expansion.query_id)
        problem = f"the queries have no '{expansion.query_id}'" if query is None else None
        if query is not None and check is not None:
            problem = check(expansion, query)
        if query is None or problem is not None:
            tracker.skip_line(source, tracker.line, problem)
            continue
        yield ExpansionLine(query, expansion, tracker.line)


def iter_expansion_lists(
    source: str, queries: Mapping[str, Query], tracker: InputTracker, *, check: Check | None = None
) -> Iterator[ExpansionList]:
    """Yield the candidates of a file grouped by query and kind.

    Candidates of a query and kind must be adjacent, or separated only by candidates of other kinds of this query.
    Raises the errors of `iter_expansion_lines`, and RecordError for candidates in another order.
    """
    seen: set[tuple[str, str]] = set()
    lines = iter_expansion_lines(source, queries, tracker, check=check)
    for _, adjacent in groupby(lines, key=lambda line: line.query.id):
        kinds: dict[str, list[ExpansionLine]] = {}
        for line in adjacent:
            kinds.setdefault(line.expansion.kind, []).append(line)
        for kind, candidates in kinds.items():
            query = candidates[0].query
            if (query.id, kind) in seen:
                raise RecordError(
                    f"{get_source_name(source)}:{candidates[0].line}",
                    f"candidates of query '{query.id}', kind '{kind}', are not adjacent; sort the file by query",
                )
            seen.add((query.id, kind))
            yield ExpansionList(query, kind, tuple(candidate.expansion for candidate in candidates))


class CandidateFormatter:
    """Formatter of the candidates of a batch of queries as JSON lines; also counts the candidates."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._counts = dict.fromkeys(("repeated", "blank", "without candidates"), 0)
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
        """Add the candidates of a query and kind: distinct, nonblank texts, numbered from 01.

        greedy: whether the first text was decoded greedily; its line then has "decode": "greedy"
        """
        normalized = [" ".join(text.split()) for text in texts]
        nonblank = [text for text in normalized if text]
        distinct = list(dict.fromkeys(nonblank))
        for number, text in enumerate(distinct, start=1):
            extra = {"decode": "greedy"} if greedy and text == normalized[0] else {}
            name = f"{query_id}#{kind}#{number:02d}"
            self._lines.append(dump(Expansion(name, query_id, kind, text, fold=fold, extra=extra)))
        self._counts["repeated"] += len(nonblank) - len(distinct)
        self._counts["blank"] += len(normalized) - len(nonblank)
        self._counts["without candidates"] += not distinct
        names = ("questions", "without", "candidates", "question", "expanded")
        words = self._words.setdefault(kind, dict.fromkeys(names, 0))
        words["questions"] += 1
        words["without"] += not distinct
        words["candidates"] += len(distinct)
        words["question"] += _count_words(normalize_question_mark(query))
        words["expanded"] += sum(_count_words(expand_query(query, text)) for text in distinct)

    def build_result(self) -> BatchResult:
        """Return the lines, and counts of repeated and blank candidates, of queries without candidates, and of words."""
        return BatchResult(self._lines, self._counts | {"words": self._words})


def _count_words(query: str) -> int:
    return len(query.split()) - 1  # without the question mark, which is a separate word


def format_summary(words: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Yield a line per kind that has candidates: distinct candidates per query, and mean lengths in words.

    words: counts of `CandidateFormatter`, summed over batches
    """
    for kind, sums in words.items():
        queries, candidates = sums["questions"], sums["candidates"]
        if queries and candidates:
            yield (
                f"{kind}: {candidates / queries:.1f} distinct candidates per query; mean words: query "
                f"{sums['question'] / queries:.1f}, expanded query {sums['expanded'] / candidates:.1f}"
            )

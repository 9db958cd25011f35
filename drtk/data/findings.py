"""Collect the problems that `validate` finds in a file, in bounded memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from itertools import groupby
from operator import itemgetter
from typing import Any

from drtk.errors import DrtkError


class DuplicateFinder:
    """Finder of keys that are added more than once, such as repeated ids, in bounded memory.

    Its methods raise DrtkError if the disk with the temporary files is full.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("")  # a temporary database, of which only a cache is in memory
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("CREATE TABLE pairs (key TEXT, value TEXT)")

    def add(self, key: str, value: str) -> None:
        """Add the pair (key, value), such as an id and the line where it occurs."""
        try:
            self._database.execute("INSERT INTO pairs VALUES (?, ?)", (key, value))
        except sqlite3.OperationalError as error:
            raise _convert_error(error) from error

    def iter_duplicates(self) -> Iterator[tuple[str, list[str]]]:
        """Yield (key, values in the order they were added) for each key that was added more than once."""
        repeated = "SELECT key FROM pairs GROUP BY key HAVING count(*) > 1"
        try:
            rows = self._database.execute(f"SELECT * FROM pairs WHERE key IN ({repeated}) ORDER BY key, rowid")
            for key, pairs in groupby(rows, key=itemgetter(0)):
                yield key, [value for _, value in pairs]
        except sqlite3.OperationalError as error:
            raise _convert_error(error) from error


def _convert_error(error: sqlite3.OperationalError) -> DrtkError:
    return DrtkError(f"temporary files for repeated ids: {error}; free disk space, or set $TMPDIR to another disk")


# Name of a check -> (True for an error or False for a warning, description).
CHECKS: dict[str, tuple[bool, str]] = {
    "unreadable": (True, "lines that drtk cannot read"),
    "duplicate": (True, "repeated ids, or repeated pairs of query and document"),
    "unknown-passage": (True, "ids of documents that are not in the corpus"),
    "unknown-query": (True, "ids of queries that are not in the query file"),
    "positive-and-negative": (True, "passages that are both a positive and a negative of an example"),
    "judged-relevant": (True, "negatives that are judged relevant"),
    "rank-order": (True, "ranks that do not increase from line to line"),
    "score-order": (True, "scores above the score of the previous rank"),
    "split-query": (True, "queries whose lines are not consecutive"),
    "damaged-file": (True, "files that are missing or were changed after drtk wrote them"),
    "leak": (True, "texts that also occur in the other file"),
    "empty-text": (False, "empty texts"),
    "same-text": (False, "texts that occur again under another id"),
    "repeated-positive": (False, "positives that occur more than once in an example"),
    "repeated-negative": (False, "negatives that occur more than once in an example"),
    "repeated-query": (False, "queries with more than one example"),
    "no-negatives": (False, "examples without a negative"),
    "not-relevant": (False, "positives that are not judged relevant"),
    "negative-grade": (False, "grades below 0"),
    "no-relevant": (False, "queries without a relevant document"),
    "no-answers": (False, "empty lists of answers"),
    "no-hits": (False, "queries without hits in the run"),
    "not-judged": (False, "queries without any judgment"),
    "rank-gap": (False, "queries whose ranks are not 1, 2, 3, …"),
    "tie": (False, "scores equal to the score of the previous rank; such ties are ordered by id"),
}


_NOUNS = {"qrels": "judgments", "run": "hits"}


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun: 1 error, 2 errors."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass
class Findings:
    """The problems found in a file: for each check, their number, and the place and message of the first `show` problems.

    kind: kind of the records, such as "run"; compared: description of the comparison with another file
    """

    file: str
    kind: str
    show: int = 10
    num_records: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    compared: str = ""
    _kept: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def add(self, check: str, line: int, message: str) -> None:
        """Add a problem.

        check: the kind of problem, a key of CHECKS; line: the line of the problem, or 0 for the whole file
        """
        assert check in CHECKS
        self.counts[check] = self.counts.get(check, 0) + 1
        places = self._kept.setdefault(check, [])
        if len(places) < self.show:
            heappush(places, (-line, message))  # the first entry is the last place in the file
        elif self.show:
            heappushpop(places, (-line, message))

    @property
    def num_errors(self) -> int:
        """The number of errors."""
        return sum(count for check, count in self.counts.items() if CHECKS[check][0])

    @property
    def num_warnings(self) -> int:
        """The number of warnings."""
        return sum(self.counts.values()) - self.num_errors

    def list_problems(self, check: str) -> list[tuple[str, str]]:
        """Return (file:line, message) of the first `show` problems of a check, in file order."""
        places = sorted((-line, message) for line, message in self._kept.get(check, []))
        return [(f"{self.file}:{line}" if line else self.file, message) for line, message in places]

    def to_row(self) -> dict[str, Any]:
        """Return the findings as a JSON object."""
        checks = [
            {
                "check": check,
                "severity": "error" if fatal else "warning",
                "meaning": meaning,
                "count": self.counts[check],
                "shown": [{"place": place, "message": message} for place, message in self.list_problems(check)],
            }
            for check, (fatal, meaning) in CHECKS.items()
            if check in self.counts
        ]
        row = {"file": self.file, "kind": self.kind, "records": self.num_records}
        row |= {"errors": self.num_errors, "warnings": self.num_warnings, "checks": checks}
        return row | ({"compared": self.compared} if self.compared else {})

    def format_lines(self) -> Iterator[str]:
        """Yield the findings as lines of text."""
        yield f"{self.file}: {self.num_records:,} {_NOUNS.get(self.kind, self.kind)} read"
        if self.compared:
            yield self.compared
        for check, (fatal, meaning) in CHECKS.items():
            if check not in self.counts:
                continue
            yield ""
            yield f"{'error' if fatal else 'warning'}  {check}  {self.counts[check]:,}  ({meaning})"
            shown = self.list_problems(check)
            for place, message in shown:
                yield f"  {place}: {message}"
            if len(shown) < self.counts[check]:
                yield f"  … and {self.counts[check] - len(shown):,} more"
        yield ""
        yield (
            f"{format_count(self.num_errors, 'error')}, {format_count(self.num_warnings, 'warning')}"
            if self.counts
            else "no problems found"
        )

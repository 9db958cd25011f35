"""The findings of `validate`: problems of a file by kind, in bounded memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappushpop
from pathlib import Path
from typing import Any
from zlib import crc32

HELD = 500_000  # pairs in memory, about 250 bytes each; more are written to disk
PARTS = 512  # files on disk, of which one at a time is read


class DuplicateFinder:
    """Collect (key, value) pairs, in a temporary folder above `held` pairs, and find the keys that are repeated.

    Keys must not contain tabs or line ends, values no line ends.
    """

    def __init__(self, *, held: int = HELD, parts: int = PARTS) -> None:
        self._limit, self._parts = held, parts
        self._held: list[tuple[str, str]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def add(self, key: str, value: str) -> None:
        """Add a pair."""
        self._held.append((key, value))
        if len(self._held) >= self._limit:
            self._spill()

    def iter_duplicates(self) -> Iterator[tuple[str, list[str]]]:
        """Yield (key, values in the order they were added) for each key that was added more than once."""
        if self._folder is None:
            yield from _find_repeated(self._held)
            return
        self._spill()
        for number in range(self._parts):
            path = Path(self._folder.name) / str(number)
            if path.exists():
                with open(path, encoding="utf-8", newline="\n") as file:
                    pairs = (line[:-1].partition("\t") for line in file)
                    yield from _find_repeated((key, value) for key, _, value in pairs)

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="drtk-")
        lines: list[list[str]] = [[] for _ in range(self._parts)]
        for key, value in self._held:
            lines[crc32(key.encode()) % self._parts].append(f"{key}\t{value}\n")
        for number, some in enumerate(lines):
            if some:
                with open(Path(self._folder.name) / str(number), "a", encoding="utf-8", newline="\n") as file:
                    file.writelines(some)
        self._held.clear()


def _find_repeated(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    first: dict[str, str] = {}
    groups: dict[str, list[str]] = {}
    for key, value in pairs:
        if key in groups:
            groups[key].append(value)
        elif key in first:
            groups[key] = [first[key], value]
        else:
            first[key] = value
    yield from groups.items()


# Name of a problem: whether it is an error (otherwise a warning), and its description.
CHECKS: dict[str, tuple[bool, str]] = {
    "unreadable": (True, "lines that drtk cannot read"),
    "duplicate": (True, "ids, or pairs of query and document, that are repeated"),
    "unknown-passage": (True, "ids of documents that the corpus does not have"),
    "unknown-query": (True, "ids of queries that the queries do not have"),
    "positive-and-negative": (True, "passages that are both a positive and a negative of an example"),
    "judged-relevant": (True, "negatives that are judged relevant"),
    "rank-order": (True, "ranks that do not rise from line to line"),
    "score-order": (True, "scores above that of the rank before: ranks and scores disagree"),
    "split-query": (True, "queries that come back after another one"),
    "mixed-depth": (True, "candidates with another depth than others of their query and kind"),
    "no-score": (True, "predictions without a score, of queries with several predictions"),
    "damaged-file": (True, "files that are missing, or were changed after drtk wrote them"),
    "leak": (True, "texts that are also in the other file"),
    "empty-text": (False, "texts that are empty"),
    "same-text": (False, "texts that are repeated under another id"),
    "repeated-positive": (False, "positives that are repeated within an example"),
    "repeated-negative": (False, "negatives that are repeated within an example"),
    "repeated-query": (False, "queries with more than one example"),
    "repeated-prediction": (False, "questions with more than one prediction, of which the highest score counts"),
    "no-negatives": (False, "examples without a negative"),
    "not-relevant": (False, "positives that are not judged relevant"),
    "negative-grade": (False, "grades below 0"),
    "no-relevant": (False, "queries without a relevant document"),
    "no-answers": (False, "empty lists of answers"),
    "no-hits": (False, "queries that the run lacks"),
    "no-candidates": (False, "queries without a candidate expansion"),
    "no-prediction": (False, "queries without a prediction"),
    "not-judged": (False, "queries without any judgement"),
    "rank-gap": (False, "queries whose ranks do not count 1, 2, 3, …"),
    "not-compared": (False, "folders whose meta.json has no sizes and digests of files"),
    "tie": (False, "scores equal to that of the rank before: their order is decided by id"),
}


_NOUNS = {"qrels": "judgements", "run": "hits"}


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun: 1 error, 2 errors."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass
class Findings:
    """The problems of one file, with the places of the first `show` of each kind.

    compared: says what was compared with another file
    """

    file: str
    kind: str
    show: int = 10
    records: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    compared: str = ""
    _kept: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def add(self, check: str, line: int, message: str) -> None:
        """Add a problem of the kind `check` at `line` (0: the whole file)."""
        assert check in CHECKS
        self.counts[check] = self.counts.get(check, 0) + 1
        kept = self._kept.setdefault(check, [])
        if len(kept) < self.show:
            kept.append((-line, message))
            kept.sort()  # a heap whose root is the last place
        elif self.show:
            heappushpop(kept, (-line, message))

    @property
    def errors(self) -> int:
        """The number of errors."""
        return sum(count for check, count in self.counts.items() if CHECKS[check][0])

    @property
    def warnings(self) -> int:
        """The number of warnings."""
        return sum(self.counts.values()) - self.errors

    def list_places(self, check: str) -> list[tuple[str, str]]:
        """Return (place, message) of the first problems of a kind, in file order."""
        kept = sorted((-line, message) for line, message in self._kept.get(check, []))
        return [(f"{self.file}:{line}" if line else self.file, message) for line, message in kept]

    def to_row(self) -> dict[str, Any]:
        """Return all findings as one JSON object."""
        checks = [
            {
                "check": check,
                "severity": "error" if fatal else "warning",
                "meaning": meaning,
                "count": self.counts[check],
                "shown": [{"place": place, "message": message} for place, message in self.list_places(check)],
            }
            for check, (fatal, meaning) in CHECKS.items()
            if check in self.counts
        ]
        row = {"file": self.file, "kind": self.kind, "records": self.records}
        row |= {"errors": self.errors, "warnings": self.warnings, "checks": checks}
        return row | ({"compared": self.compared} if self.compared else {})

    def format_lines(self) -> Iterator[str]:
        """Yield all findings as lines of text."""
        yield f"{self.file}: {self.records:,} {_NOUNS.get(self.kind, self.kind)} read"
        if self.compared:
            yield self.compared
        for check, (fatal, meaning) in CHECKS.items():
            if check not in self.counts:
                continue
            yield ""
            yield f"{'error' if fatal else 'warning'}  {check}  {self.counts[check]:,}  ({meaning})"
            shown = self.list_places(check)
            for place, message in shown:
                yield f"  {place}: {message}"
            if len(shown) < self.counts[check]:
                yield f"  … and {self.counts[check] - len(shown):,} more"
        yield ""
        yield (
            f"{format_count(self.errors, 'error')}, {format_count(self.warnings, 'warning')}"
            if self.counts
            else "no problems found"
        )

"""What is wrong with a file, by kind of problem: all counted, the first ones kept with their place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappushpop
from typing import Any

from drtk.errors import DrtkError, RecordError
from drtk.io.grouping import Grouping
from drtk.io.intake import Intake

# Name -> whether it makes the file unfit (else: worth knowing), and what it means.
CHECKS: dict[str, tuple[bool, str]] = {
    "unreadable": (True, "lines that drtk's readers refuse"),
    "duplicate": (True, "ids, or pairs of query and document, that come a second time"),
    "unknown-passage": (True, "ids of documents that the corpus does not have"),
    "unknown-query": (True, "ids of queries that the queries do not have"),
    "positive-and-negative": (True, "passages that are both a positive and a negative of an example"),
    "judged-relevant": (True, "negatives that are judged relevant"),
    "rank-order": (True, "ranks that do not grow from line to line, or come twice"),
    "score-order": (True, "scores above that of the rank before: ranks and scores disagree"),
    "split-query": (True, "queries that come back after another one"),
    "mixed-depth": (True, "candidates that were looked at to another depth than others of their question and kind"),
    "no-score": (True, "predictions without a score, of questions that have several"),
    "damaged-file": (True, "files that are missing, or were changed after drtk wrote them"),
    "leak": (True, "texts that the other file holds too"),
    "empty-text": (False, "texts that are empty"),
    "same-text": (False, "texts that come again under another id"),
    "repeated-positive": (False, "positives that come again within an example"),
    "repeated-negative": (False, "negatives that come again within an example"),
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
_CLEAN = "no problems found"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 error, 2 errors."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass
class Findings:
    """The problems of one file. `show` is how many of each kind keep their place, those nearest its beginning."""

    file: str
    kind: str
    show: int = 10
    records: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    compared: str = ""
    _kept: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def add(self, check: str, line: int, message: str) -> None:
        """Count a problem of the kind `check` at `line` (0: the file as a whole)."""
        assert check in CHECKS
        self.counts[check] = self.counts.get(check, 0) + 1
        kept = self._kept.setdefault(check, [])
        if len(kept) < self.show:
            kept.append((-line, message))
            kept.sort()  # a heap whose root is the place furthest down
        elif self.show:
            heappushpop(kept, (-line, message))

    def _total(self, fatal: bool) -> int:
        return sum(count for check, count in self.counts.items() if CHECKS[check][0] == fatal)

    @property
    def errors(self) -> int:
        """Problems that make the file unfit."""
        return self._total(True)

    @property
    def warnings(self) -> int:
        """Problems worth knowing."""
        return self._total(False)

    def shown(self, check: str) -> list[tuple[str, str]]:
        """(place, message) of the problems kept, in the order of the file."""
        kept = sorted((-line, message) for line, message in self._kept.get(check, []))
        return [(f"{self.file}:{line}" if line else self.file, message) for line, message in kept]

    def as_row(self) -> dict[str, Any]:
        """Everything, for machines."""
        checks = [
            {
                "check": check,
                "severity": "error" if fatal else "warning",
                "meaning": meaning,
                "count": self.counts[check],
                "shown": [{"place": place, "message": message} for place, message in self.shown(check)],
            }
            for check, (fatal, meaning) in CHECKS.items()
            if check in self.counts
        ]
        row = {"file": self.file, "kind": self.kind, "records": self.records}
        row |= {"errors": self.errors, "warnings": self.warnings, "checks": checks}
        return row | ({"compared": self.compared} if self.compared else {})

    def lines(self) -> Iterator[str]:
        """Everything, for people."""
        yield f"{self.file}: {self.records:,} {_NOUNS.get(self.kind, self.kind)} read"
        if self.compared:
            yield self.compared
        for check, (fatal, meaning) in CHECKS.items():
            if check not in self.counts:
                continue
            yield ""
            yield f"{'error' if fatal else 'warning'}  {check}  {self.counts[check]:,}  ({meaning})"
            shown = self.shown(check)
            for place, message in shown:
                yield f"  {place}: {message}"
            if len(shown) < self.counts[check]:
                yield f"  … and {self.counts[check] - len(shown):,} more"
        yield ""
        yield f"{counted(self.errors, 'error')}, {counted(self.warnings, 'warning')}" if self.counts else _CLEAN


def note_repeated(ids: Grouping, texts: Grouping, findings: Findings) -> None:
    """Note second uses of an id, and texts that come again under another; the values are lines."""
    for id, lines in ids.repeated():
        for line in lines[1:]:
            findings.add("duplicate", int(line), f"id '{id}' is taken by line {lines[0]}")
    for _, lines in texts.repeated():
        for line in lines[1:]:
            findings.add("same-text", int(line), f"is the same text as line {lines[0]}")


@dataclass
class Inspection(Intake):
    """An intake that forgives every bad record and notes it among the findings."""

    findings: Findings | None = None

    def forgive(self, error: DrtkError) -> None:
        """Note a bad record; what is wrong with no single record is raised."""
        assert self.findings is not None
        if not isinstance(error, RecordError):
            raise error
        line = error.place.rpartition(":")[2]
        check = "duplicate" if "a second time" in error.problem else "unreadable"
        self.findings.add(check, int(line) if line.isdecimal() else 0, error.problem)

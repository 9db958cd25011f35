"""Collect the problems of a file by kind, in bounded memory."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappushpop
from pathlib import Path
from typing import Any
from zlib import crc32

from drtk.data import formats
from drtk.data.examples import FoundExample, is_example
from drtk.errors import DrtkError, RecordError, UsageError
from drtk.records import Passage, Query
from drtk.runtime.inputs import Intake
from drtk.runtime.streams import STANDARD

HELD = 500_000  # pairs in memory, about 250 bytes each, before they go to disk
PARTS = 512  # files by key; one of them at a time comes back into memory


class Grouping:
    """Collects (key, value) pairs; `repeated` gives the keys that came more than once, with all their values.

    Keys hold no tab or line end, values no line end. Beyond `held` pairs they lie in a temporary folder, which goes
    with the object.
    """

    def __init__(self, *, held: int = HELD, parts: int = PARTS) -> None:
        self._limit, self._parts = held, parts
        self._held: list[tuple[str, str]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def add(self, key: str, value: str) -> None:
        """Remember a pair."""
        self._held.append((key, value))
        if len(self._held) >= self._limit:
            self._spill()

    def repeated(self) -> Iterator[tuple[str, list[str]]]:
        """(key, its values in the order they came) for each key that came more than once."""
        if self._folder is None:
            yield from _repeated(self._held)
            return
        self._spill()
        for number in range(self._parts):
            path = Path(self._folder.name) / str(number)
            if path.exists():
                with open(path, encoding="utf-8", newline="\n") as file:
                    pairs = (line[:-1].partition("\t") for line in file)
                    yield from _repeated((key, value) for key, _, value in pairs)

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


def _repeated(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
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


def note_leaks(source: str, other: str, kind: str, findings: Findings, queries: Mapping[str, str]) -> None:
    """Note the texts of `source` that `other` holds too; `queries` has the texts of questions that are named by id.

    Compared are the texts of passages (titles aside), or those of queries, also within training data.
    Raises UsageError for stdin, DrtkError where the text of a question is nowhere to be found.
    """
    if STANDARD in (source, other):
        raise UsageError("--leak reads both files by themselves: name them")
    shared = Grouping()
    for side, name in (("here", source), ("there", other)):
        for line, id, text in _texts(name, kind, queries):
            if text := normalised(text):
                shared.add(digest(text), f"{side} {line} {id}")
    what = "texts of passages, without titles," if kind == "passages" else "texts of queries"
    findings.compared = f"{what} compared with those of {other}, case and white space aside"
    for _, places in shared.repeated():
        parts = [place.split() for place in places]
        there = next((part for part in parts if part[0] == "there"), None)
        for side, place, id in parts:
            if there is not None and side == "here":
                findings.add("leak", int(place), f"'{id}' has the text of '{there[2]}' ({other}:{there[1]})")


def _texts(source: str, kind: str, queries: Mapping[str, str]) -> Iterator[tuple[int, str, str]]:
    """(line, id, text) of what can be read of a file; of training data, the questions."""
    intake = Intake(skip_bad=2**62)
    record: Passage | Query | FoundExample | ValueError
    if kind == "passages":
        for line, record in formats.passages(source, intake):
            if isinstance(record, Passage):
                yield line, record.id, record.text
    elif not _is_training_data(source):
        for line, record in formats.queries(source, intake):
            if isinstance(record, Query):
                yield line, record.id, record.text
    else:
        for line, record in formats.examples(source, intake):
            if isinstance(record, FoundExample):
                id = record.example.query_id
                text = record.query.text if record.query is not None else queries.get(id)
                if text is None:
                    raise DrtkError(
                        f"{source}:{line}: only the id of query '{id}' is known: --queries FILE gives its text"
                    )
                yield line, id, text


def _is_training_data(source: str) -> bool:
    first = next((row for _, row in formats.json_rows(source, Intake()) if not isinstance(row, ValueError)), None)
    return first is not None and is_example(first)


def normalised(text: str) -> str:
    """A text as leaks are looked for: case and white space make no difference, anything else does."""
    return " ".join(text.casefold().split())


def digest(text: str) -> str:
    """A key for a text of any length."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

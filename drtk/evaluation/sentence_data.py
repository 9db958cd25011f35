"""Read sentence tasks and vectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drtk.data.jsonl import read_records
from drtk.data.rows import Row, parse_text, take
from drtk.errors import DrtkError, RecordError, UsageError
from drtk.runtime.inputs import InputTracker
from drtk.runtime.streams import name_of

STS_YEARS = ("STS12", "STS13", "STS14", "STS15", "STS16")
STS = (*STS_YEARS, "STS-B", "SICK-R")
GEOMETRY = ("alignment", "uniformity", "retrieval")  # of the sentences of STS-B
TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
TASKS = (*STS, *GEOMETRY, *TRANSFER)
SUFFIXES = (".tsv", ".tsv.gz", ".tsv.zst")
_OTHER_NAMES = {"stsbenchmark": "stsb", "sickrelatedness": "sickr", "sick": "sickr", "sst": "sst2"}


class RatedPair(NamedTuple):
    """Two sentences and their human rating."""

    first: str
    second: str
    score: float


@dataclass
class RatedPairs:
    """The rated pairs of a file, and the number of pairs without a rating."""

    name: str
    pairs: list[RatedPair]
    unrated: int = 0

    @property
    def scores(self) -> list[float]:
        """The ratings in order."""
        return [pair.score for pair in self.pairs]


class LabeledText(NamedTuple):
    """A text, or two of them, and their class."""

    texts: tuple[str, ...]
    label: str


def read_pairs(source: str, tracker: InputTracker) -> RatedPairs:
    """Read a table whose header names sentence1, sentence2 and score; pairs with an empty score are counted, not kept.

    Raises RecordError (file:line) for a row of another width, or a score that is not a number.
    """
    found = RatedPairs(Path(source).name.split(".")[0], [])
    for number, row in _iter_rows(source, ("sentence1", "sentence2", "score"), tracker):
        first, second, score = row
        if not score.strip():
            found.unrated += 1
            continue
        try:
            value = float(score.replace("_", "?"))
        except ValueError:
            value = float("nan")
        if not isfinite(value):
            tracker.skip_or_raise(RecordError(f"{name_of(source)}:{number}", f"score '{score}' is not a number"))
            continue
        found.pairs.append(RatedPair(first, second, value))
    if not found.pairs:
        raise DrtkError(f"{name_of(source)}: holds no rated pair")
    return found


def read_labeled_texts(source: str, tracker: InputTracker, *, pairs: bool = False) -> list[LabeledText]:
    """Read a table whose header names text and label, or with `pairs` sentence1, sentence2 and label.

    Raises RecordError (file:line) for a row of another width or without a label, DrtkError for a table without rows.
    """
    columns = ("sentence1", "sentence2", "label") if pairs else ("text", "label")
    found = []
    for number, (*texts, label) in _iter_rows(source, columns, tracker):
        if not label.strip():
            tracker.skip_or_raise(RecordError(f"{name_of(source)}:{number}", "has no label"))
            continue
        found.append(LabeledText(tuple(texts), label.strip()))
    if not found:
        raise DrtkError(f"{name_of(source)}: holds no labelled text")
    return found


def _iter_rows(source: str, columns: Sequence[str], tracker: InputTracker) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, values of `columns`) of a tab-separated table with a header and without quoting."""
    places: list[int] = []
    width = 0
    for number, line in tracker.iter_lines(source):
        if not line.strip():
            continue
        place = f"{name_of(source)}:{number}"
        try:
            fields = line.decode().split("\t")
        except UnicodeDecodeError as error:
            tracker.skip_or_raise(RecordError(place, f"not UTF-8 at byte {error.start + 1}"))
            continue
        if not places:
            names = [name.strip().lower() for name in fields]
            if missing := [name for name in columns if name not in names]:
                raise RecordError(place, f"the header lacks '{missing[0]}'; expected {', '.join(columns)}")
            places, width = [names.index(name) for name in columns], len(names)
            continue
        if len(fields) != width or b"\0" in line:
            problem = "contains a NUL byte" if b"\0" in line else f"expected {width} columns, found {len(fields)}"
            tracker.skip_or_raise(RecordError(place, problem))
            continue
        yield number, [fields[at] for at in places]


@dataclass(frozen=True)
class Task:
    """A task and its files: the subsets of an STS year, one split, or all splits of a transfer task."""

    name: str
    files: dict[str, Path]


def find_tasks(folder: Path, wanted: Sequence[str], *, split: str) -> list[Task]:
    """Return the tasks of a folder in the order of TASKS: those `wanted`, or all.

    Folders are DIR/TASK; case and punctuation are ignored (stsb is STS-B).
    Raises UsageError for an unknown task, DrtkError for a task that is missing, or a folder without tasks.
    """
    if not folder.is_dir():
        raise DrtkError(
            f"{folder}: {'is a file; expected a folder' if folder.exists() else 'No such file or directory'}"
        )
    known = {_normalize_name(name): name for name in TASKS}
    chosen = []
    for name in wanted:
        if _normalize_name(name) not in known:
            raise UsageError(f"`tasks`: '{name}' is not a task; choose from {', '.join(TASKS)}")
        chosen.append(known[_normalize_name(name)])
    there: dict[str, Path] = {}
    for path in sorted(item for item in folder.iterdir() if item.is_dir()):
        if (plain := _normalize_name(path.name)) in known and plain not in map(_normalize_name, GEOMETRY):
            there.setdefault(known[plain], path)
    if not there:
        raise DrtkError(f"{folder}: holds no task: expected a folder such as STS-B/{split}.tsv")
    found = []
    for name in TASKS:
        place = there.get("STS-B" if name in GEOMETRY else name)
        if place is not None and (not chosen or name in chosen):
            found.append(Task(name, _find_files(name, place, split)))
        elif name in chosen:
            raise DrtkError(f"{folder}: has no folder for {name}")
    return found


def _normalize_name(name: str) -> str:
    plain = re.sub(r"[\W_]+", "", name).lower()
    return _OTHER_NAMES.get(plain, plain)


def _find_files(task: str, place: Path, split: str) -> dict[str, Path]:
    tables = {path.name.split(".")[0]: path for path in sorted(place.iterdir()) if path.name.endswith(SUFFIXES)}
    if task in STS_YEARS:
        if not tables:
            raise DrtkError(f"{place}: holds no .tsv; each file is a subset")
        return tables
    if task not in TRANSFER:
        return {split: _find_split(tables, split, place)}
    if task in ("MR", "CR", "SUBJ", "MPQA"):
        return {"all": _find_split(tables, "all", place)}
    splits = ("train", "dev", "test") if task == "SST2" else ("train", "test")
    return {name: _find_split(tables, name, place) for name in splits}


def _find_split(tables: dict[str, Path], name: str, place: Path) -> Path:
    if name not in tables:
        raise DrtkError(f"{place / name}.tsv: No such file; there are {', '.join(tables) or 'none'}")
    return tables[name]


def load_vectors(source: str, tracker: InputTracker) -> Callable[[list[str]], np.ndarray]:
    """Return a function that looks sentences up in a file of {"text", "vector"}; it raises DrtkError for a missing one.

    Raises RecordError (file:line) for a row without a vector of numbers, or of another length than the first.
    """
    found: dict[str, np.ndarray] = {}
    dimension = 0
    for text, vector in read_records(source, _parse_vector, tracker=tracker):
        dimension = dimension or len(vector)
        if len(vector) != dimension:
            place = f"{name_of(source)}:{tracker.line}"
            raise RecordError(place, f"a vector of {len(vector)} numbers; those before have {dimension}")
        found[text] = vector
    if not found:
        raise DrtkError(f"{name_of(source)}: holds no vectors")

    def look_up(texts: list[str]) -> np.ndarray:
        for text in texts:
            if text not in found:
                raise DrtkError(f"{name_of(source)}: has no vector for the sentence '{text}'")
        return np.stack([found[text] for text in texts])

    return look_up


def _parse_vector(row: Row) -> tuple[str, np.ndarray]:
    text = parse_text(take(row, "text"), "text")
    values = take(row, "vector")
    numbers = isinstance(values, list) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if not numbers or not values:
        raise ValueError("'vector' must be a list of numbers")
    return text, np.array(values, dtype=np.float64)

"""Read the data of sentence evaluation tasks, and precomputed sentence vectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drtk.data.readers import read_records
from drtk.data.rows import Row, parse_text, take_field
from drtk.errors import DrtkError, RecordError, UsageError
from drtk.runtime.inputs import InputTracker
from drtk.runtime.streams import get_source_name

STS_YEARS = ("STS12", "STS13", "STS14", "STS15", "STS16")
STS = (*STS_YEARS, "STS-B", "SICK-R")
STSB_TASKS = ("alignment", "uniformity", "retrieval")  # of the sentences of STS-B
TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
TASKS = (*STS, *STSB_TASKS, *TRANSFER)
SPLITS = {"SST2": ("train", "dev", "test"), **dict.fromkeys(("TREC", "MRPC"), ("train", "test")),
          **dict.fromkeys(("MR", "CR", "SUBJ", "MPQA"), ("all",))}  # fmt: skip
SUFFIXES = (".tsv", ".tsv.gz", ".tsv.zst")
_ALIASES = {"stsbenchmark": "stsb", "sickrelatedness": "sickr", "sick": "sickr", "sst": "sst2"}


class RatedPair(NamedTuple):
    """Two sentences and their human rating."""

    first: str
    second: str
    score: float


@dataclass
class RatedPairs:
    """The rated pairs of a file, and the number of pairs without a rating."""

    pairs: list[RatedPair]
    unrated: int = 0

    @property
    def scores(self) -> list[float]:
        """Human ratings, in the order of `pairs`."""
        return [pair.score for pair in self.pairs]


class LabeledText(NamedTuple):
    """A text or a pair of texts with its class label."""

    texts: tuple[str, ...]
    label: str


def read_pairs(source: str, tracker: InputTracker) -> RatedPairs:
    """Read a TSV table with the columns sentence1, sentence2 and score; skip and count pairs with an empty score.

    Raises RecordError (file:line) for a missing column and, unless `tracker` skips it, for a row with a wrong number of
    columns, or a score that is not a finite number; DrtkError for a table without rated pairs.
    """
    rated = RatedPairs([])
    for number, row in _iter_rows(source, ("sentence1", "sentence2", "score"), tracker):
        first, second, score = row
        if not score.strip():
            rated.unrated += 1
            continue
        try:
            value = float(score.replace("_", "?"))  # float accepts 1_000
        except ValueError:
            value = float("nan")
        if not isfinite(value):
            tracker.skip_line(source, number, f"score '{score}' is not a number")
            continue
        rated.pairs.append(RatedPair(first, second, value))
    if not rated.pairs:
        raise DrtkError(f"{get_source_name(source)}: no rated pair found; expected sentence1, sentence2 and score")
    return rated


def read_labeled_texts(source: str, tracker: InputTracker, *, pairs: bool) -> list[LabeledText]:
    """Read a TSV table with the columns text and label, or, if `pairs`, sentence1, sentence2 and label.

    Raises RecordError (file:line) for a missing column and, unless `tracker` skips it, for a row with a wrong number of
    columns or without a label; DrtkError for a table without rows.
    """
    columns = ("sentence1", "sentence2", "label") if pairs else ("text", "label")
    examples = []
    for number, (*texts, label) in _iter_rows(source, columns, tracker):
        if not label.strip():
            tracker.skip_line(source, number, "the label is empty")
            continue
        examples.append(LabeledText(tuple(texts), label.strip()))
    if not examples:
        raise DrtkError(f"{get_source_name(source)}: has no valid rows; add rows with the columns {', '.join(columns)}")
    return examples


def _iter_rows(source: str, columns: Sequence[str], tracker: InputTracker) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, values of `columns`) of a tab-separated table with a header and without quoting."""
    indices: list[int] = []
    width = 0
    for number, line in tracker.iter_lines(source):
        if not line.strip():
            continue
        try:
            fields = line.decode().split("\t")
        except UnicodeDecodeError as error:
            tracker.skip_line(source, number, f"not UTF-8 at byte {error.start + 1}")
            continue
        if not indices:
            names = [name.strip().lower() for name in fields]
            if missing := [name for name in columns if name not in names]:
                problem = f"the header lacks '{missing[0]}'; expected {', '.join(columns)}"
                raise RecordError(f"{get_source_name(source)}:{number}", problem)
            indices, width = [names.index(name) for name in columns], len(names)
            continue
        if len(fields) != width or b"\0" in line:
            problem = "contains a NUL byte" if b"\0" in line else f"expected {width} columns, got {len(fields)}"
            tracker.skip_line(source, number, problem)
            continue
        yield number, [fields[at] for at in indices]


@dataclass
class Task:
    """A sentence task, and its files by subset (STS12 to STS16) or by split.

    rated: rated pairs by subset or split; labeled: labeled texts by split of a transfer task
    """

    name: str
    files: dict[str, Path]
    rated: dict[str, RatedPairs] = field(default_factory=dict)
    labeled: dict[str, list[LabeledText]] = field(default_factory=dict)

    @property
    def pairs(self) -> list[RatedPair]:
        """Rated pairs of all subsets."""
        return [pair for subset in self.rated.values() for pair in subset.pairs]

    def iter_texts(self) -> Iterator[str]:
        """Yield every sentence of the task."""
        for pair in self.pairs:
            yield from (pair.first, pair.second)
        for split in self.labeled.values():
            for item in split:
                yield from item.texts


def find_tasks(folder: Path, names: Sequence[str], *, split: str) -> list[Task]:
    """Return the tasks `names` of a folder (all tasks if `names` is empty), in the order of TASKS.

    A task is a subfolder of `folder`; case and punctuation of its name are ignored (stsb is STS-B). Alignment, uniformity and
    retrieval read the subfolder STS-B.
    split: split of STS-B and SICK-R
    Raises UsageError for an unknown task name, DrtkError for a task without a subfolder or without the files of its
    splits, or a folder without tasks.
    """
    if not folder.is_dir():
        problem = "is a file; expected a folder" if folder.exists() else "No such file or directory"
        raise DrtkError(f"{folder}: {problem}")
    known = {_normalize_name(name): name for name in TASKS}
    selected = []
    for name in names:
        if _normalize_name(name) not in known:
            raise UsageError(f"`tasks`: '{name}' is not a task; choose from {', '.join(TASKS)}")
        selected.append(known[_normalize_name(name)])
    folders: dict[str, Path] = {}
    for path in sorted(item for item in folder.iterdir() if item.is_dir()):
        task = known.get(_normalize_name(path.name))
        if task is not None and task not in STSB_TASKS:
            folders.setdefault(task, path)
    if not folders:
        raise DrtkError(f"{folder}: contains no task; expected a file such as STS-B/{split}.tsv")
    tasks = []
    for name in TASKS:
        path_of_task = folders.get("STS-B" if name in STSB_TASKS else name)
        if path_of_task is not None and (not selected or name in selected):
            tasks.append(Task(name, _find_files(name, path_of_task, split)))
        elif name in selected:
            raise DrtkError(f"{folder}: has no folder for the task {name}; add it, or omit the task")
    return tasks


def _normalize_name(name: str) -> str:
    plain = re.sub(r"[\W_]+", "", name).lower()
    return _ALIASES.get(plain, plain)


def _find_files(task: str, folder: Path, split: str) -> dict[str, Path]:
    tables = {path.name.split(".")[0]: path for path in sorted(folder.iterdir()) if path.name.endswith(SUFFIXES)}
    if task in STS_YEARS:
        if not tables:
            raise DrtkError(f"{folder}: contains no .tsv file; expected one per subset")
        return tables
    splits = SPLITS.get(task, (split,))
    if missing := [name for name in splits if name not in tables]:
        raise DrtkError(
            f"{folder / missing[0]}.tsv: No such file or directory; available splits: {', '.join(tables) or 'none'}"
        )
    return {name: tables[name] for name in splits}


def load_vectors(source: str, tracker: InputTracker) -> Callable[[list[str]], np.ndarray]:
    """Load JSON lines {"text", "vector"} and return a function that looks up the vectors of sentences.

    The function raises DrtkError for a sentence without a vector. Raises RecordError (file:line) for a row without a numeric
    vector, or with a vector of another dimension than the first, DrtkError for a file without vectors.
    """
    vectors: dict[str, np.ndarray] = {}
    dimension = 0
    for text, vector in read_records(source, _parse_vector, tracker=tracker):
        dimension = dimension or len(vector)
        if len(vector) != dimension:
            problem = f"expected a vector of {dimension} numbers, got {len(vector)}"
            raise RecordError(f"{get_source_name(source)}:{tracker.line}", problem)
        vectors[text] = vector
    if not vectors:
        raise DrtkError(f'{get_source_name(source)}: no vectors found; expected {{"text": …, "vector": […]}}')

    def look_up_vectors(texts: list[str]) -> np.ndarray:
        if missing := [text for text in texts if text not in vectors]:
            raise DrtkError(f"{get_source_name(source)}: has no vector for the sentence '{missing[0]}'; add it")
        return np.stack([vectors[text] for text in texts])

    return look_up_vectors


def _parse_vector(row: Row) -> tuple[str, np.ndarray]:
    text = parse_text(take_field(row, "text"), "text")
    values = take_field(row, "vector")
    if not isinstance(values, list) or not values or any(type(value) not in (int, float) for value in values):
        raise ValueError("'vector' must be a list of numbers")
    return text, np.array(values, dtype=np.float64)

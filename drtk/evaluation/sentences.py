"""Evaluate sentence vectors: STS, alignment, uniformity, retrieval and transfer tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson

from drtk.data.runs import parse_runs
from drtk.errors import DrtkError
from drtk.evaluation import transfer
from drtk.evaluation.config import SentenceSettings
from drtk.evaluation.sentence_data import (
    STS,
    TRANSFER,
    LabeledText,
    RatedPair,
    RatedPairs,
    Task,
    find_tasks,
    load_vectors,
    read_labeled_texts,
    read_pairs,
)
from drtk.runtime.inputs import InputTracker
from drtk.runtime.manifest import describe_folder
from drtk.runtime.progress import Progress, log
from drtk.runtime.streams import is_stream
from drtk.runtime.tables import Cell, Row, format_table

_BLOCK = 1024  # sentences compared with all others at once


def normalize_vectors(vectors: np.ndarray) -> np.ndarray:
    """Return the vectors normalized to length 1 in float64; zeros stay zeros. (n, d) -> (n, d)"""
    wide = np.asarray(vectors, dtype=np.float64)
    _, exponents = np.frexp(np.abs(wide).max(axis=1, keepdims=True, initial=0))
    wide = np.ldexp(wide, -exponents)  # exact, so that squares of tiny numbers keep their digits
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0)


def compute_pair_cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the cosine of each pair. (n, d), (n, d) -> (n,)"""
    return np.einsum("nd,nd->n", normalize_vectors(first), normalize_vectors(second))


def compute_spearman(cosines: Sequence[float] | np.ndarray, ratings: Sequence[float] | np.ndarray) -> float:
    """Return Spearman's rank correlation of n cosines and n ratings; equal values share the mean of their ranks.

    Raises DrtkError for fewer than two pairs, or if all cosines or all ratings are equal.
    """
    return _compute_correlation(cosines, ratings, "spearmanr")


def _compute_correlation(
    cosines: Sequence[float] | np.ndarray, ratings: Sequence[float] | np.ndarray, kind: Literal["pearsonr", "spearmanr"]
) -> float:
    from scipy import stats

    if len(cosines) < 2:
        raise DrtkError(f"a correlation requires at least two pairs, got {len(cosines)}; add rated pairs")
    for name, values in (("cosines", cosines), ("ratings", ratings)):
        if np.ptp(np.asarray(values, dtype=np.float64)) == 0:
            raise DrtkError(f"the correlation is undefined: all {name} are equal; check the data")
    return float(getattr(stats, kind)(cosines, ratings).statistic)


def compute_alignment(first: np.ndarray, second: np.ndarray) -> float:
    """Return the mean squared distance of positive pairs on the unit sphere (Wang and Isola 2020, alpha 2).

    Low values mean that positive pairs are close. first, second: (n, d). Raises DrtkError without a pair.
    """
    if len(first) == 0:
        raise DrtkError("alignment requires a positive pair, got none; lower `positive`")
    return float(np.mean(2 - 2 * compute_pair_cosines(first, second)))


def compute_uniformity(vectors: np.ndarray) -> float:
    """Return the log of the mean of exp(-2 squared distance) over all pairs of rows (Wang and Isola 2020, t 2).

    The rows are normalized first. Low values mean evenly spread vectors.
    vectors: (n, d). Raises DrtkError for fewer than two vectors.
    """
    points = normalize_vectors(vectors)
    count = len(points)
    if count < 2:
        raise DrtkError(f"uniformity requires at least two sentences, got {count}; add data")
    total = 0.0
    for start in range(0, count, _BLOCK):
        block = points[start : start + _BLOCK]
        near = np.exp(-4 + 4 * (block @ points[start:].T))  # (block, n - start): squared distance is 2 - 2 cosine
        total += float(np.triu(near, k=1).sum())
    return float(np.log(total / (count * (count - 1) / 2)))


def compute_partner_ranks(
    vectors: np.ndarray, texts: Sequence[int], queries: Sequence[int], partners: Sequence[int]
) -> np.ndarray:
    """Return the rank (from 1) of each query's partner among all sentences by cosine: (queries,). The partner wins ties.

    The partner is the other sentence of the query's pair. The query and its duplicates are excluded from the ranking.
    vectors: (sentences, d); texts: (sentences,), text indices, equal for duplicate sentences
    queries, partners: (queries,), row indices of `vectors`
    """
    points, text = normalize_vectors(vectors), np.asarray(texts)
    ranks = np.empty(len(queries), dtype=np.int64)
    for start in range(0, len(queries), _BLOCK):
        rows = np.asarray(queries[start : start + _BLOCK])
        targets = np.asarray(partners[start : start + _BLOCK])
        cosines = points[rows] @ points.T  # (block, sentences)
        target_cosines = cosines[np.arange(len(rows)), targets][:, None]
        nearer = (cosines > target_cosines + 1e-12) & (text[None, :] != text[rows][:, None])
        ranks[start : start + len(rows)] = 1 + nearer.sum(axis=1)
    return ranks


Encode = Callable[[list[str]], np.ndarray]  # texts -> (n, d), float32 from a model, float64 from a file of vectors
RECALL_AT = (1, 5, 10)


@dataclass(frozen=True)
class TaskResult:
    """Result of a task: `values` are columns of the table, `details` are written to JSON lines only."""

    task: str
    values: dict[str, float]
    details: dict[str, Any]


def load_tasks(tasks: Iterable[Task], tracker: InputTracker) -> None:
    """Read the files of tasks into `rated` and `labeled`; a file shared by several tasks is read once."""
    rated: dict[str, RatedPairs] = {}
    for task in tasks:
        files = {name: str(path) for name, path in task.files.items()}
        if task.name in TRANSFER:
            has_pairs = task.name == "MRPC"
            task.labeled = {name: read_labeled_texts(path, tracker, pairs=has_pairs) for name, path in files.items()}
        else:
            rated |= {path: read_pairs(path, tracker) for path in files.values() if path not in rated}
            task.rated = {name: rated[path] for name, path in files.items()}


class SentenceVectors:
    """Vectors of sentences; each distinct sentence is encoded once."""

    def __init__(self, encode: Encode, texts: Iterable[str]) -> None:
        self._rows = {text: at for at, text in enumerate(dict.fromkeys(texts))}
        self._vectors = encode(list(self._rows))  # (distinct, d)

    def __call__(self, texts: Iterable[str]) -> np.ndarray:
        """Look up the vectors of texts: (n, d)."""
        return self._vectors[self.find_rows(texts)]

    def find_rows(self, texts: Iterable[str]) -> list[int]:
        """Return the row index of each text; duplicate texts share a row."""
        return [self._rows[text] for text in texts]

    def compute_cosines(self, pairs: Sequence[RatedPair]) -> np.ndarray:
        """Return the cosine of each pair: (pairs,)."""
        return compute_pair_cosines(self(pair.first for pair in pairs), self(pair.second for pair in pairs))


def open_encoder(source: str, device: str, tracker: InputTracker) -> Encode:
    """Return the encoder of a model, or a lookup of vectors in a file of {"text", "vector"}."""
    if is_stream(source) or Path(source).is_file():
        return load_vectors(source, tracker)
    from drtk.models.model_folder import resolve_model_folder
    from drtk.retrieval.encode import Embedder

    tracker.inputs.append(describe_folder(resolve_model_folder(source)))  # before it is loaded
    return Embedder(source, role="query", device=device)


def evaluate_sentences(
    systems: Sequence[str],
    data: str,
    settings: SentenceSettings,
    tracker: InputTracker | None = None,
    *,
    write_pair: Callable[[bytes], object] | None = None,
    device: str = "auto",
) -> Iterator[str]:
    """Evaluate systems on the tasks of a folder; return the lines of a table.

    systems: [NAME=]MODEL, or [NAME=]FILE with vectors of sentences (see `load_vectors`)
    write_pair: function that writes one JSON line, a rated pair with its cosine
    """
    tracker = tracker or InputTracker()
    tasks = find_tasks(Path(data), settings.tasks.split(), split=settings.split)
    log(f"eval-sentences: {', '.join(task.name for task in tasks)}")
    load_tasks(tasks, tracker)
    results: dict[str, list[TaskResult]] = {}
    for system in parse_runs(systems):
        encode = open_encoder(system.source, device, tracker)
        vectors = SentenceVectors(encode, (text for task in tasks for text in task.iter_texts()))
        results[system.name] = [evaluate_task(task, vectors, settings) for task in tasks]
        if write_pair is not None:
            for line in format_pairs(system.name, tasks, vectors):
                write_pair(line)
    return format_sentence_results(results, settings.format, digits=settings.digits)


def evaluate_task(task: Task, vectors: SentenceVectors, settings: SentenceSettings) -> TaskResult:
    """Evaluate a system's vectors on a task. Raises DrtkError that names the task and its files."""
    evaluate = _evaluate_transfer if task.name in TRANSFER else _GEOMETRY.get(task.name, _evaluate_sts)
    try:
        return TaskResult(task.name, *evaluate(task, vectors, settings))
    except DrtkError as error:
        raise DrtkError(f"{task.name} ({', '.join(map(str, task.files.values()))}): {error}") from error


Values = dict[str, float]
Details = dict[str, Any]


def _evaluate_sts(task: Task, vectors: SentenceVectors, settings: SentenceSettings) -> tuple[Values, Details]:
    cosines = {name: vectors.compute_cosines(subset.pairs) for name, subset in task.rated.items()}
    all_cosines = np.concatenate(list(cosines.values()))
    ratings = [pair.score for pair in task.pairs]
    value = compute_spearman(all_cosines, ratings)
    details: Details = {
        "spearman": value,
        "pearson": _compute_correlation(all_cosines, ratings, "pearsonr"),
        "pairs": len(ratings),
        "unrated": sum(subset.unrated for subset in task.rated.values()),
    }
    if len(cosines) > 1:
        subsets = {name: compute_spearman(values, task.rated[name].scores) for name, values in cosines.items()}
        mean = float(np.mean(list(subsets.values())))
        details |= {"mean of subsets": mean, "subsets": subsets}
        value = mean if settings.aggregation == "mean" else value
    return {task.name: value}, details


def _evaluate_alignment(task: Task, vectors: SentenceVectors, settings: SentenceSettings) -> tuple[Values, Details]:
    pairs = [pair for pair in task.pairs if pair.score > settings.positive]
    value = compute_alignment(vectors(pair.first for pair in pairs), vectors(pair.second for pair in pairs))
    return {"alignment": value}, {"pairs": len(pairs), "rated above": settings.positive}


def _evaluate_uniformity(task: Task, vectors: SentenceVectors, _: SentenceSettings) -> tuple[Values, Details]:
    texts = list(task.iter_texts())
    return {"uniformity": compute_uniformity(vectors(texts))}, {"sentences": len(texts)}


def _evaluate_retrieval(task: Task, vectors: SentenceVectors, settings: SentenceSettings) -> tuple[Values, Details]:
    texts = list(task.iter_texts())  # sentence 2 i and 2 i + 1 are a pair
    first = [2 * at for at, pair in enumerate(task.pairs) if pair.score == settings.same]
    second = [row + 1 for row in first]
    if not first:
        raise DrtkError(
            f"{task.name}: no pair is rated {settings.same:g}, as retrieval requires; set `same` to a rating that occurs"
        )
    ranks = compute_partner_ranks(vectors(texts), vectors.find_rows(texts), first + second, second + first)

    def compute_recall(query_ranks: np.ndarray) -> Values:
        return {f"R@{k}": float((query_ranks <= k).mean()) for k in RECALL_AT}

    return compute_recall(ranks), {
        "sentences": len(texts),
        "queries": len(ranks),
        "first to second": compute_recall(ranks[: len(first)]),
        "second to first": compute_recall(ranks[len(first) :]),
    }


_GEOMETRY = {"alignment": _evaluate_alignment, "uniformity": _evaluate_uniformity, "retrieval": _evaluate_retrieval}


def _evaluate_transfer(task: Task, vectors: SentenceVectors, settings: SentenceSettings) -> tuple[Values, Details]:
    name, splits = task.name, task.labeled
    classes = transfer.encode_labels([[example.label for example in split] for split in splits.values()])
    parts = {
        split: transfer.LabeledVectors(_make_features(examples, vectors), numbers)
        for (split, examples), numbers in zip(splits.items(), classes, strict=True)
    }
    if "all" in parts:
        with Progress(f"eval-sentences: {name}", unit="folds", total=transfer.FOLDS) as progress:
            scores = transfer.cross_validate(parts["all"], seed=settings.seed, on_fold=progress.add)
    elif "dev" in parts:
        scores = transfer.evaluate_with_dev(parts["train"], parts["dev"], parts["test"], seed=settings.seed)
    else:
        scores = transfer.evaluate_with_folds(parts["train"], parts["test"], seed=settings.seed)
    details: Details = {"dev": scores.dev_accuracy, "examples": {split: len(part) for split, part in parts.items()}}
    if name == "MRPC" and scores.f1 is not None:
        details["f1"] = scores.f1
    return {name: scores.accuracy}, details


def _make_features(examples: Sequence[LabeledText], vectors: SentenceVectors) -> np.ndarray:
    sides = [vectors(example.texts[at] for example in examples) for at in range(len(examples[0].texts))]
    features = sides[0] if len(sides) == 1 else transfer.make_pair_features(*sides)
    return np.ascontiguousarray(features, dtype=np.float32)


LOWER_IS_BETTER = ("alignment", "uniformity")


def format_sentence_results(results: Mapping[str, Sequence[TaskResult]], format: str, *, digits: int) -> Iterator[str]:
    """Yield the lines of a table with one row per system, or a JSON line per system and task or average."""
    averages = {system: _compute_averages(tasks) for system, tasks in results.items()}
    if format == "jsonl":
        for system, tasks in results.items():
            for result in tasks:
                row = {"system": system, "task": result.task, "values": result.values} | result.details
                yield orjson.dumps(row).decode()
            for name, (_, value) in averages[system].items():
                yield orjson.dumps({"system": system, "task": name, "values": {name: value}}).decode()
        return
    rows: dict[str, dict[str, float]] = {}
    for system, tasks in results.items():
        row = rows[system] = {}
        for name, value in ((name, value) for result in tasks for name, value in result.values.items()):
            row[name] = value
            row |= {average: mean for average, (last_task, mean) in averages[system].items() if last_task == name}
    header = list(next(iter(rows.values())))
    best = {name: (min if name in LOWER_IS_BETTER else max)(row[name] for row in rows.values()) for name in header}
    cells: list[Row] = [
        [Cell(system), *(Cell(value, len(rows) > 1 and value == best[name]) for name, value in row.items())]
        for system, row in rows.items()
    ]
    yield from format_table(["system", *header], cells, format, digits=digits)


def _compute_averages(results: Sequence[TaskResult]) -> dict[str, tuple[str, float]]:
    """Return {name: (last task, mean)} of the averages over seven tasks. In a table, an average follows its last task.

    Averages with missing tasks are omitted.
    """
    values = {name: value for result in results for name, value in result.values.items()}
    dev = {result.task: float(result.details["dev"]) for result in results if "dev" in result.details}
    # SentEval selects the penalty by dev accuracies (Chuang's thesis, tables 2.3 to 2.6).
    kinds = (
        ("STS average", STS, values),
        ("transfer average", TRANSFER, values),
        ("transfer dev average", TRANSFER, dev),
    )
    return {
        name: (tasks[-1], sum(scores[task] for task in tasks) / len(tasks))
        for name, tasks, scores in kinds
        if all(task in scores for task in tasks)
    }


def format_pairs(system: str, tasks: Sequence[Task], vectors: SentenceVectors) -> Iterator[bytes]:
    """Yield every rated pair with its cosine as a JSON line, once if tasks share its file."""
    files = set()
    for task in tasks:
        for subset, rated in task.rated.items():
            if task.files[subset] in files:
                continue
            files.add(task.files[subset])
            for pair, cosine in zip(rated.pairs, vectors.compute_cosines(rated.pairs).tolist(), strict=True):
                row: dict[str, object] = {"system": system, "task": task.name, "subset": subset}
                row |= {"sentence1": pair.first, "sentence2": pair.second, "score": pair.score, "cosine": cosine}
                yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)

"""Evaluate sentence vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from drtk.errors import DrtkError
from drtk.evaluation import transfer
from drtk.evaluation.config import SentenceSettings
from drtk.evaluation.sentence_data import GEOMETRY, STS, TRANSFER, Labelled, Pairs, Task, read_labelled, read_pairs
from drtk.runtime.inputs import Intake
from drtk.runtime.progress import Progress
from drtk.runtime.tables import Cell, Row, format_table

_BLOCK = 1024  # sentences compared with all others at once


def unit(vectors: np.ndarray) -> np.ndarray:
    """The vectors brought to length 1, float64; a vector of zeros stays one. (n, d) -> (n, d)"""
    wide = np.asarray(vectors, dtype=np.float64)
    _, exponents = np.frexp(np.abs(wide).max(axis=1, keepdims=True, initial=0))
    wide = np.ldexp(wide, -exponents)  # by a power of two, so exactly: squares of tiny numbers would lose their digits
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0)


def pair_cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The cosine of each pair. (n, d), (n, d) -> (n,)"""
    return np.einsum("nd,nd->n", unit(first), unit(second))


def spearman(predicted: Sequence[float] | np.ndarray, rated: Sequence[float] | np.ndarray) -> float:
    """Spearman's rank correlation, equal values sharing the mean of their ranks.

    Raises DrtkError where it is not defined: fewer than two pairs, or one side all the same.
    """
    return _correlation(predicted, rated, "spearmanr")


def pearson(predicted: Sequence[float] | np.ndarray, rated: Sequence[float] | np.ndarray) -> float:
    """Pearson's correlation. Raises DrtkError as `spearman` does."""
    return _correlation(predicted, rated, "pearsonr")


def _correlation(predicted: Sequence[float] | np.ndarray, rated: Sequence[float] | np.ndarray, kind: str) -> float:
    from scipy import stats

    if len(predicted) < 2:
        raise DrtkError(f"a correlation needs two pairs; there are {len(predicted)}")
    for what, values in (("cosines", predicted), ("ratings", rated)):
        if np.ptp(np.asarray(values, dtype=np.float64)) == 0:
            raise DrtkError(f"a correlation needs differences; all {what} are the same")
    return float(getattr(stats, kind)(predicted, rated).statistic)


def alignment(first: np.ndarray, second: np.ndarray) -> float:
    """The mean squared distance of positive pairs on the unit sphere (Wang and Isola 2020, alpha 2): low is near.

    (n, d), (n, d); raises DrtkError where there is no pair
    """
    if len(first) == 0:
        raise DrtkError("alignment needs positive pairs; there is none")
    return float(np.mean(2 - 2 * pair_cosines(first, second)))


def uniformity(vectors: np.ndarray) -> float:
    """log of the mean of exp(-2 squared distance) over pairs of different rows, each once (Wang and Isola 2020, t 2).

    Low is evenly spread. (n, d); raises DrtkError for fewer than two vectors
    """
    points = unit(vectors)
    count = len(points)
    if count < 2:
        raise DrtkError(f"uniformity needs two sentences; there are {count}")
    total = 0.0
    for start in range(0, count, _BLOCK):
        block = points[start : start + _BLOCK]
        near = np.exp(-4 + 4 * (block @ points[start:].T))  # (block, rest): squared distance is 2 - 2 cosine
        total += float(np.triu(near, k=1).sum())
    return float(np.log(total / (count * (count - 1) / 2)))


def partner_ranks(
    vectors: np.ndarray, texts: Sequence[int], queries: Sequence[int], partners: Sequence[int]
) -> np.ndarray:
    """The rank of each query's partner among all sentences, by cosine; of sentences just as near, the partner comes first.

    The query itself is left out, and so is every other copy of its text, unless the partner is one.
    vectors: (sentences, d); texts: a number a sentence, the same for the same text
    queries, partners: (queries,), places of sentences; returns: (queries,), from 1
    """
    points, text = unit(vectors), np.asarray(texts)
    ranks = np.empty(len(queries), dtype=np.int64)
    for start in range(0, len(queries), _BLOCK):
        asked = np.asarray(queries[start : start + _BLOCK])
        wanted = np.asarray(partners[start : start + _BLOCK])
        cosines = points[asked] @ points.T  # (block, sentences)
        own = cosines[np.arange(len(asked)), wanted][:, None]
        nearer = (cosines > own + 1e-12) & (text[None, :] != text[asked][:, None])
        ranks[start : start + len(asked)] = 1 + nearer.sum(axis=1)
    return ranks


Encode = Callable[[list[str]], np.ndarray]  # texts -> (n, d) float32
RECALL_AT = (1, 5, 10)
_OF_PAIRS = ("MRPC",)


@dataclass(frozen=True)
class Loaded:
    """A task and what its files hold: rated pairs by subset, or labelled texts by split."""

    task: Task
    rated: dict[str, Pairs] = field(default_factory=dict)
    labelled: dict[str, list[Labelled]] = field(default_factory=dict)

    def texts(self) -> Iterator[str]:
        """Every sentence of the task."""
        for subset in self.rated.values():
            for pair in subset.pairs:
                yield from (pair.first, pair.second)
        for split in self.labelled.values():
            for item in split:
                yield from item.texts


@dataclass(frozen=True)
class Result:
    """A task's numbers: `values` go into a table by column, `details` into JSON besides."""

    task: str
    values: dict[str, float]
    details: dict[str, Any]


def load_tasks(tasks: Iterable[Task], intake: Intake) -> list[Loaded]:
    """The tasks with their data; a file that several of them use is read once."""
    rated: dict[str, Pairs] = {}

    def pairs(path: str) -> Pairs:
        if path not in rated:
            rated[path] = read_pairs(path, intake)
        return rated[path]

    found = []
    for task in tasks:
        if task.name in TRANSFER:
            of_pairs = task.name in _OF_PAIRS
            splits = {name: read_labelled(str(path), intake, pairs=of_pairs) for name, path in task.files.items()}
            found.append(Loaded(task, labelled=splits))
        else:
            found.append(Loaded(task, rated={name: pairs(str(path)) for name, path in task.files.items()}))
    return found


class SentenceVectors:
    """Vectors by text; each distinct sentence is encoded once, whatever the number of tasks it is in."""

    def __init__(self, encode: Encode, texts: Iterable[str]) -> None:
        self._place = {text: at for at, text in enumerate(dict.fromkeys(texts))}
        self._vectors = encode(list(self._place))  # (distinct, d)

    def __call__(self, texts: Iterable[str]) -> np.ndarray:
        """(n, d), in their order."""
        return self._vectors[self.places(texts)]

    def places(self, texts: Iterable[str]) -> list[int]:
        """A number a text, the same for the same text."""
        return [self._place[text] for text in texts]


def results(loaded: Sequence[Loaded], vectors: SentenceVectors, settings: SentenceSettings) -> list[Result]:
    """What a system scores on each task. Faults name the task they arose in."""
    found = []
    for item in loaded:
        name = item.task.name
        try:
            if name in TRANSFER:
                found.append(_transferred(item, vectors, settings))
            elif name in GEOMETRY:
                found.append(_GEOMETRIES[name](item, vectors, settings))
            else:
                found.append(_rated(item, vectors, settings))
        except DrtkError as error:
            files = ", ".join(str(path) for path in item.task.files.values())
            raise DrtkError(f"{name} ({files}): {error}") from error
    return found


def subset_cosines(item: Loaded, vectors: SentenceVectors) -> dict[str, np.ndarray]:
    """The cosines of the rated pairs of each subset."""
    return {
        name: pair_cosines(vectors(pair.first for pair in part.pairs), vectors(pair.second for pair in part.pairs))
        for name, part in item.rated.items()
    }


def _rated(item: Loaded, vectors: SentenceVectors, settings: SentenceSettings) -> Result:
    cosines = subset_cosines(item, vectors)
    everything = np.concatenate(list(cosines.values()))
    ratings = [score for part in item.rated.values() for score in part.scores]
    together = spearman(everything, ratings)
    details: dict[str, Any] = {
        "spearman": together,
        "pearson": pearson(everything, ratings),
        "pairs": len(ratings),
        "unrated": sum(part.unrated for part in item.rated.values()),
    }
    value = together
    if len(cosines) > 1:
        subsets = {name: spearman(found, item.rated[name].scores) for name, found in cosines.items()}
        mean = float(np.mean(list(subsets.values())))
        details |= {"mean of subsets": mean, "subsets": subsets}
        value = mean if settings.setting == "mean" else together
    return Result(item.task.name, {item.task.name: value}, details)


def _alignment(item: Loaded, vectors: SentenceVectors, settings: SentenceSettings) -> Result:
    pairs = [pair for part in item.rated.values() for pair in part.pairs if pair.score > settings.positive]
    value = alignment(vectors(pair.first for pair in pairs), vectors(pair.second for pair in pairs))
    return Result("alignment", {"alignment": value}, {"pairs": len(pairs), "rated above": settings.positive})


def _uniformity(item: Loaded, vectors: SentenceVectors, settings: SentenceSettings) -> Result:
    texts = _both_columns(item)
    return Result("uniformity", {"uniformity": uniformity(vectors(texts))}, {"sentences": len(texts)})


def _retrieval(item: Loaded, vectors: SentenceVectors, settings: SentenceSettings) -> Result:
    texts = _both_columns(item)
    pairs = [pair for part in item.rated.values() for pair in part.pairs]
    half = len(pairs)
    chosen = [at for at, pair in enumerate(pairs) if pair.score == settings.same]
    if not chosen:
        raise DrtkError(f"retrieval needs pairs rated {settings.same:g}; there is none")
    queries, partners = chosen + [at + half for at in chosen], [at + half for at in chosen] + chosen
    ranks = partner_ranks(vectors(texts), vectors.places(texts), queries, partners)

    def recall(part: np.ndarray) -> dict[str, float]:
        return {f"R@{k}": float((part <= k).mean()) for k in RECALL_AT}

    details = {
        "sentences": len(texts),
        "queries": len(queries),
        "first to second": recall(ranks[: len(chosen)]),
        "second to first": recall(ranks[len(chosen) :]),
    }
    return Result("retrieval", recall(ranks), details)


_GEOMETRIES = {"alignment": _alignment, "uniformity": _uniformity, "retrieval": _retrieval}


def _both_columns(item: Loaded) -> list[str]:
    """All first sentences, then all second ones."""
    pairs = [pair for part in item.rated.values() for pair in part.pairs]
    return [pair.first for pair in pairs] + [pair.second for pair in pairs]


def _transferred(item: Loaded, vectors: SentenceVectors, settings: SentenceSettings) -> Result:
    name, splits = item.task.name, item.labelled
    classes = transfer.numbered([[example.label for example in split] for split in splits.values()])
    parts = {
        split: transfer.Examples(_features(examples, vectors), numbers)
        for (split, examples), numbers in zip(splits.items(), classes, strict=True)
    }
    if "all" in parts:
        with Progress(f"eval-sentences: {name}", unit="folds", total=transfer.FOLDS) as progress:
            outcome = transfer.nested(parts["all"], seed=settings.seed, told=progress.add)
    elif "dev" in parts:
        outcome = transfer.chosen_by_split(parts["train"], parts["dev"], parts["test"], seed=settings.seed)
    else:
        outcome = transfer.chosen_by_folds(parts["train"], parts["test"], seed=settings.seed)
    details: dict[str, Any] = {"dev": outcome.dev, "examples": {split: len(part) for split, part in parts.items()}}
    if name in _OF_PAIRS and outcome.f1 is not None:
        details["f1"] = outcome.f1
    return Result(name, {name: outcome.accuracy}, details)


def _features(examples: Sequence[Labelled], vectors: SentenceVectors) -> np.ndarray:
    sides = [vectors(example.texts[at] for example in examples) for at in range(len(examples[0].texts))]
    found = sides[0] if len(sides) == 1 else transfer.pair_features(*sides)
    return np.ascontiguousarray(found, dtype=np.float32)


LOW_IS_GOOD = ("alignment", "uniformity")
_DEV = "transfer dev average"  # SentEval selects the penalty by them (Chuang's thesis, tables 2.3 to 2.6)


def sentence_lines(found: Mapping[str, Sequence[Result]], format: str, *, digits: int) -> Iterator[str]:
    """Lines, without their ends; JSON lines hold a system and task each."""
    if format == "jsonl":
        for system, results in found.items():
            for result in results:
                row = {"system": system, "task": result.task, "values": result.values} | result.details
                yield orjson.dumps(row).decode()
            for name, (_, value) in _averages(results).items():
                yield orjson.dumps({"system": system, "task": name, "values": {name: value}}).decode()
        return
    rows = {system: _with_averages(results) for system, results in found.items()}
    header = list(next(iter(rows.values())))
    best = {name: _best(name, [row[name] for row in rows.values()]) for name in header}
    several = len(rows) > 1
    grid: list[Row] = [
        [Cell(system), *(Cell(value, several and value == best[name]) for name, value in row.items())]
        for system, row in rows.items()
    ]
    yield from format_table(["system", *header], grid, format, digits=digits)


def _columns(results: Sequence[Result]) -> dict[str, float]:
    return {name: value for result in results for name, value in result.values.items()}


def _averages(results: Sequence[Result]) -> dict[str, tuple[str, float]]:
    """Return {average: (task it is shown after, value)} for averages whose seven tasks were all evaluated."""
    values = _columns(results)
    dev = {result.task: float(result.details["dev"]) for result in results if "dev" in result.details}
    kinds = (("STS average", STS, values), ("transfer average", TRANSFER, values), (_DEV, TRANSFER, dev))
    return {
        name: (members[-1], sum(found[member] for member in members) / len(members))
        for name, members, found in kinds
        if all(member in found for member in members)
    }


def _with_averages(results: Sequence[Result]) -> dict[str, float]:
    """The values, each average after the last of its members."""
    found: dict[str, float] = {}
    averages = _averages(results)
    for name, value in _columns(results).items():
        found[name] = value
        found |= {average: mean for average, (last, mean) in averages.items() if last == name}
    return found


def _best(name: str, values: Sequence[float]) -> float:
    return min(values) if name in LOW_IS_GOOD else max(values)


def pair_lines(system: str, loaded: Sequence[Loaded], vectors: SentenceVectors) -> Iterator[bytes]:
    """Every rated pair with its cosine, as a JSON line."""
    for item in loaded:
        for subset, cosines in subset_cosines(item, vectors).items():
            for pair, cosine in zip(item.rated[subset].pairs, cosines.tolist(), strict=True):
                row = {
                    "system": system,
                    "task": item.task.name,
                    "subset": subset,
                    "sentence1": pair.first,
                    "sentence2": pair.second,
                    "score": pair.score,
                    "cosine": cosine,
                }
                yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)

"""Sentence tasks run on vectors: what each comes to, with everything behind the number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drtk.errors import DrtkError
from drtk.evaluation import transfer
from drtk.evaluation.sentence_data import GEOMETRY, TRANSFER, Labelled, Pairs, Task, read_labelled, read_pairs
from drtk.evaluation.sentences import alignment, pair_cosines, partner_ranks, pearson, spearman, uniformity
from drtk.io.intake import Intake
from drtk.io.progress import Progress
from drtk.settings.sentences import SentenceSettings

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

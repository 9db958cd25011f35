"""Transfer tasks: a logistic regression on frozen vectors, by the protocol of SentEval (Conneau and Kiela 2018).

Its full mode: Adam, batches of 64, an evaluation every 4 epochs, stopped when 5 more evaluations bring nothing, and the
penalty of the weights chosen among 1e-5 … 1e-2 by accuracy on held-out data.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drtk.errors import DrtkError

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
FOLDS, BATCH, TENACITY, EPOCHS_AT_ONCE, MOST_EPOCHS = 10, 64, 5, 4, 200
HELD_OUT = 0.05  # of the training data, to stop the last fit by
SEED = 1111  # SentEval's own


@dataclass(frozen=True)
class Examples:
    """Vectors and classes. vectors: (n, d) float32; classes: (n,) int64"""

    vectors: np.ndarray
    classes: np.ndarray

    def __len__(self) -> int:
        return len(self.classes)

    def at(self, rows: np.ndarray) -> Examples:
        """Those of some rows."""
        return Examples(self.vectors[rows], self.classes[rows])


@dataclass(frozen=True)
class Outcome:
    """Accuracy on test data, F1 of class 1 where there are two classes, and accuracy on what the penalty was chosen by."""

    accuracy: float
    f1: float | None
    dev: float


def pair_features(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """What is known of two sentences: the absolute difference of their vectors beside the product. (n, d) -> (n, 2 d)"""
    return np.concatenate([np.abs(first - second), first * second], axis=1)


def nested(examples: Examples, *, seed: int = SEED, told: Callable[[], None] = lambda: None) -> Outcome:
    """MR, CR, SUBJ, MPQA: ten folds to test on, and within each the penalty chosen over ten folds of the rest."""
    tests, devs = [], []
    for train, test in folds(examples.classes, FOLDS, seed):
        outcome = chosen_by_folds(examples.at(train), examples.at(test), seed=seed)
        tests.append(outcome.accuracy)
        devs.append(outcome.dev)
        told()
    return Outcome(float(np.mean(tests)), None, float(np.mean(devs)))


def chosen_by_folds(train: Examples, test: Examples, *, seed: int = SEED) -> Outcome:
    """TREC, MRPC: the penalty chosen over ten folds of the training data, then all of it fitted."""
    splits = list(folds(train.classes, FOLDS, seed))

    def held_out(penalty: float) -> float:
        fits = [
            fit(train.at(a), train.at(b), penalty=penalty, classes=_count(train, test), seed=seed) for a, b in splits
        ]
        return float(np.mean([best for _, best in fits]))

    penalty, dev = _best(held_out)
    order = np.random.default_rng(seed).permutation(len(train))
    held = max(1, int(HELD_OUT * len(train)))
    model, _ = fit(
        train.at(order[held:]), train.at(order[:held]), penalty=penalty, classes=_count(train, test), seed=seed
    )
    return _tested(model, test, dev)


def chosen_by_split(train: Examples, dev: Examples, test: Examples, *, seed: int = SEED) -> Outcome:
    """SST2: the penalty chosen on the development data, which also stops the fit."""
    count = _count(train, test)
    penalty, score = _best(lambda value: fit(train, dev, penalty=value, classes=count, seed=seed)[1])
    return _tested(fit(train, dev, penalty=penalty, classes=count, seed=seed)[0], test, score)


def _best(score: Callable[[float], float]) -> tuple[float, float]:
    scores = [score(penalty) for penalty in PENALTIES]
    at = int(np.argmax(scores))
    return PENALTIES[at], scores[at]


def _count(*parts: Examples) -> int:
    return 1 + max(int(part.classes.max()) for part in parts)


def folds(classes: np.ndarray, count: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(train, test) rows of each fold: every class spread evenly over the folds, in an order drawn from `seed`.

    Raises DrtkError where a class has fewer examples than there are folds.
    """
    rng = np.random.default_rng(seed)
    place = np.empty(len(classes), dtype=np.int64)
    dealt = 0
    for label in np.unique(classes):
        rows = np.flatnonzero(classes == label)
        if len(rows) < count:
            raise DrtkError(f"{count} folds need {count} examples of each class; one has {len(rows)}")
        place[rng.permutation(rows)] = (dealt + np.arange(len(rows))) % count
        dealt += len(rows)  # go on where the class before ended, so that folds are of one size
    for number in range(count):
        yield np.flatnonzero(place != number), np.flatnonzero(place == number)


def fit(train: Examples, dev: Examples, *, penalty: float, classes: int, seed: int) -> tuple[Any, float]:
    """A linear classifier and its accuracy on `dev`, by which the best of its epochs is kept."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rng = np.random.default_rng(seed)
        vectors, labels = torch.from_numpy(train.vectors), torch.from_numpy(train.classes)
        model = torch.nn.Linear(train.vectors.shape[1], classes)
        optimizer = torch.optim.Adam(model.parameters(), weight_decay=penalty)
        kept, best, since, epochs = model, -1.0, 0, 0
        while since <= TENACITY and epochs <= MOST_EPOCHS:
            for _ in range(EPOCHS_AT_ONCE):
                order = torch.from_numpy(rng.permutation(len(labels)))
                for rows in order.split(BATCH):
                    loss = torch.nn.functional.cross_entropy(model(vectors[rows]), labels[rows])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            epochs += EPOCHS_AT_ONCE
            accuracy = float((predicted(model, dev.vectors) == dev.classes).mean())
            if accuracy > best:
                kept, best = copy.deepcopy(model), accuracy
            else:
                since += 1
    return kept, best


def predicted(model: Any, vectors: np.ndarray) -> np.ndarray:
    """The most likely class of each. (n, d) -> (n,)"""
    import torch

    with torch.inference_mode():
        found: np.ndarray = model(torch.from_numpy(vectors)).argmax(dim=1).numpy()
    return found


def _tested(model: Any, test: Examples, dev: float) -> Outcome:
    guesses = predicted(model, test.vectors)
    accuracy = float((guesses == test.classes).mean())
    return Outcome(accuracy, f1(guesses, test.classes) if set(np.unique(test.classes)) <= {0, 1} else None, dev)


def f1(guesses: np.ndarray, classes: np.ndarray) -> float:
    """F1 of class 1: (n,), (n,)."""
    right = int(((guesses == 1) & (classes == 1)).sum())
    named = int((guesses == 1).sum()) + int((classes == 1).sum())
    return 2 * right / named if named else 0.0


def numbered(labels: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Classes as numbers, the same ones in all splits: names in their order, numbers by size. Raises DrtkError for one class."""
    names = sorted({label for split in labels for label in split}, key=_in_order)
    if len(names) < 2:
        raise DrtkError("a classification needs two classes; there is one")
    number = {name: at for at, name in enumerate(names)}
    return [np.array([number[label] for label in split], dtype=np.int64) for split in labels]


def _in_order(label: str) -> tuple[int, float, str]:
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label

"""Transfer tasks: logistic regression on frozen vectors by the protocol of SentEval (Conneau and Kiela 2018).

Training uses Adam, batches of 64 and an evaluation every 4 epochs. It stops early at the sixth evaluation without improvement;
these evaluations need not be consecutive.
The L2 penalty is selected from 1e-5 … 1e-2 by accuracy on held-out data.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drtk.errors import DrtkError

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
FOLDS, BATCH, PATIENCE, EPOCHS_PER_EVALUATION, MAX_EPOCHS = 10, 64, 5, 4, 200
HELD_OUT = 0.05  # share of the training data for early stopping of the last fit


@dataclass(frozen=True)
class LabeledVectors:
    """Vectors with class indices. vectors: (n, d) float32; classes: (n,) int64"""

    vectors: np.ndarray
    classes: np.ndarray

    def __len__(self) -> int:
        return len(self.classes)

    def select(self, rows: np.ndarray) -> LabeledVectors:
        """Return the examples at `rows`."""
        return LabeledVectors(self.vectors[rows], self.classes[rows])


@dataclass(frozen=True)
class TransferScores:
    """Test accuracy, F1 of class 1, and dev accuracy of the selected L2 penalty.

    f1: None if there are more than two classes, and after cross-validation
    """

    accuracy: float
    f1: float | None
    dev_accuracy: float


def make_pair_features(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the absolute difference and the product of the vectors of pairs. (n, d), (n, d) -> (n, 2 d)"""
    return np.concatenate([np.abs(first - second), first * second], axis=1)


def cross_validate(
    examples: LabeledVectors, *, seed: int, on_fold: Callable[[], None] = lambda: None
) -> TransferScores:
    """Evaluate MR, CR, SUBJ or MPQA by ten-fold cross-validation; each fold selects its L2 penalty by inner cross-validation."""
    tests, devs = [], []
    for train, test in split_folds(examples.classes, FOLDS, seed):
        outcome = evaluate_with_folds(examples.select(train), examples.select(test), seed=seed)
        tests.append(outcome.accuracy)
        devs.append(outcome.dev_accuracy)
        on_fold()
    return TransferScores(float(np.mean(tests)), None, float(np.mean(devs)))


def evaluate_with_folds(train: LabeledVectors, test: LabeledVectors, *, seed: int) -> TransferScores:
    """Evaluate TREC (question classification), MRPC, or a fold of `cross_validate`; return test and dev scores.

    The L2 penalty is selected by ten-fold cross-validation on `train`. Then the classifier is fitted on `train`, 5% of
    which is held out for early stopping.
    """
    splits = list(split_folds(train.classes, FOLDS, seed))
    count = _count_classes(train, test)

    def compute_dev_accuracy(penalty: float) -> float:
        fits = [
            fit_classifier(train.select(a), train.select(b), penalty=penalty, num_classes=count, seed=seed)
            for a, b in splits
        ]
        return float(np.mean([best for _, best in fits]))

    penalty, dev = _choose_penalty(compute_dev_accuracy)
    order = np.random.default_rng(seed).permutation(len(train))
    num_held_out = max(1, int(HELD_OUT * len(train)))
    parts = train.select(order[num_held_out:]), train.select(order[:num_held_out])
    return _score_on_test_set(fit_classifier(*parts, penalty=penalty, num_classes=count, seed=seed)[0], test, dev)


def evaluate_with_dev(train: LabeledVectors, dev: LabeledVectors, test: LabeledVectors, *, seed: int) -> TransferScores:
    """Evaluate SST2: use the development set to select the L2 penalty and to stop training."""
    count = _count_classes(train, test)
    penalty, score = _choose_penalty(
        lambda value: fit_classifier(train, dev, penalty=value, num_classes=count, seed=seed)[1]
    )
    return _score_on_test_set(fit_classifier(train, dev, penalty=penalty, num_classes=count, seed=seed)[0], test, score)


def _choose_penalty(score: Callable[[float], float]) -> tuple[float, float]:
    scores = [score(penalty) for penalty in PENALTIES]
    at = int(np.argmax(scores))
    return PENALTIES[at], scores[at]


def _count_classes(*parts: LabeledVectors) -> int:
    return 1 + max(int(part.classes.max()) for part in parts)


def split_folds(classes: np.ndarray, count: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (train, test) rows of each fold; every class is spread evenly over the folds in random order.

    Raises DrtkError if a class has fewer examples than there are folds.
    """
    rng = np.random.default_rng(seed)
    folds = np.empty(len(classes), dtype=np.int64)
    assigned = 0
    for label in np.unique(classes):
        rows = np.flatnonzero(classes == label)
        if len(rows) < count:
            raise DrtkError(
                f"{count} folds require at least {count} examples of each class, got {len(rows)}; add examples"
            )
        folds[rng.permutation(rows)] = (assigned + np.arange(len(rows))) % count
        assigned += len(rows)  # the next class continues here, so that folds have the same size
    for number in range(count):
        yield np.flatnonzero(folds != number), np.flatnonzero(folds == number)


def fit_classifier(
    train: LabeledVectors, dev: LabeledVectors, *, penalty: float, num_classes: int, seed: int
) -> tuple[Any, float]:
    """Fit a linear classifier; return the checkpoint with the highest accuracy on `dev`, and this accuracy."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rng = np.random.default_rng(seed)
        vectors, labels = torch.from_numpy(train.vectors), torch.from_numpy(train.classes)
        model = torch.nn.Linear(train.vectors.shape[1], num_classes)
        optimizer = torch.optim.Adam(model.parameters(), weight_decay=penalty)
        best_model, best, without_gain, epochs = model, -1.0, 0, 0
        while without_gain <= PATIENCE and epochs <= MAX_EPOCHS:
            for _ in range(EPOCHS_PER_EVALUATION):
                order = torch.from_numpy(rng.permutation(len(labels)))
                for rows in order.split(BATCH):
                    loss = torch.nn.functional.cross_entropy(model(vectors[rows]), labels[rows])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            epochs += EPOCHS_PER_EVALUATION
            accuracy = float((predict_classes(model, dev.vectors) == dev.classes).mean())
            if accuracy > best:
                best_model, best = copy.deepcopy(model), accuracy
            else:
                without_gain += 1
    return best_model, best


def predict_classes(model: Any, vectors: np.ndarray) -> np.ndarray:
    """Return the most likely classes. (n, d) -> (n,)"""
    import torch

    with torch.inference_mode():
        classes: np.ndarray = model(torch.from_numpy(vectors)).argmax(dim=1).numpy()
    return classes


def _score_on_test_set(model: Any, test: LabeledVectors, dev_accuracy: float) -> TransferScores:
    predicted = predict_classes(model, test.vectors)
    accuracy = float((predicted == test.classes).mean())
    return TransferScores(
        accuracy, compute_f1(predicted, test.classes) if set(np.unique(test.classes)) <= {0, 1} else None, dev_accuracy
    )


def compute_f1(predicted: np.ndarray, classes: np.ndarray) -> float:
    """Return F1 of class 1. predicted, classes: (n,)"""
    true_positives = int(((predicted == 1) & (classes == 1)).sum())
    total = int((predicted == 1).sum()) + int((classes == 1).sum())
    return 2 * true_positives / total if total else 0.0


def encode_labels(labels: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Return the labels of each split as class indices, (labels,) int64. Raises DrtkError for a single class."""
    names = sorted({label for split in labels for label in split})
    if len(names) < 2:
        raise DrtkError("classification requires at least two classes, got one; check the labels")
    number = {name: at for at, name in enumerate(names)}
    return [np.array([number[label] for label in split], dtype=np.int64) for split in labels]

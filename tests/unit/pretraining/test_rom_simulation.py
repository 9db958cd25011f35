"""Stop words among the tokens that ROM hides: the simulation of docs/methods/rom.md.

300 passages of 128 words from a Zipfian vocabulary; its 45 most frequent words, 40% of the text, stand for stop words and
punctuation. The specification does not say what attention it assumed: here it is log-normal with sigma .5, and half as large
for stop words, which reproduces its figures to within four points.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from drtk.expansion.term_weights.bprop import compute_contrasts, gather_occurrences, normalize, saturate, softmax
from drtk.pretraining.masking import MaskInput, Scale, group_words, mask_rom
from drtk.text.rng import create_generator
from drtk.text.token_dataset import TokenizedText

PASSAGES, LENGTH, VOCABULARY, STOP = 300, 128, 30_000, 45
MARKS = dict(zip((1, 2, 12, 13, 14, 20), ",.-():", strict=True))  # ranks of punctuation among the stop words
Weighing = Callable[[dict[str, float]], dict[str, float]]


class World(NamedTuple):
    ranks: np.ndarray  # (passages, length)
    scores: list[dict[str, float]]  # step G of each passage


def word(rank: int) -> str:
    return MARKS.get(rank) or "".join(chr(97 + int(digit)) for digit in str(rank))


@cache
def sample_world() -> World:
    rng = create_generator("zipf")
    shares = 1 / np.arange(1, VOCABULARY + 1)
    ranks = rng.choice(VOCABULARY, size=(PASSAGES, LENGTH), p=shares / shares.sum())
    attention = rng.lognormal(0, 0.5, ranks.shape) * np.where(ranks < STOP, 0.5, 1)
    attention /= attention.sum(axis=1, keepdims=True)
    passages = [
        {
            name: saturate(value, "ratio")
            for name, value in gather_occurrences(zip(map(word, row), values, strict=True)).items()
        }
        for row, values in zip(ranks.tolist(), attention.tolist(), strict=True)
    ]
    sums: dict[str, float] = {}
    for passage in passages:
        for name, value in passage.items():
            sums[name] = sums.get(name, 0.0) + value
    collection = normalize(sums)
    unseen = min(collection.values())
    return World(
        ranks,
        [compute_contrasts(normalize(passage), collection, "cross-entropy", unseen=unseen) for passage in passages],
    )


def compute_share(weighing: Weighing, scale: Scale) -> float:
    """Return the percentage of stop words and punctuation among masked tokens at mask ratio 15%."""
    ranks, scores = sample_world()
    rng = create_generator("rom")
    stop = []
    for row, score in zip(ranks, scores, strict=True):
        weights = weighing(score)
        text = TokenizedText(
            row.astype(np.int32), np.arange(LENGTH, dtype=np.int32), np.array([weights[word(r)] for r in row.tolist()])
        )
        stop += (
            row[mask_rom(MaskInput(text, group_words(text.words), 0.15, rng, LENGTH), scale=scale)] < STOP
        ).tolist()
    return 100 * float(np.mean(stop))


def nothing(score: dict[str, float]) -> dict[str, float]:
    return dict.fromkeys(score, 0.0)


def make_softmax(temperature: float) -> Weighing:
    return lambda score: softmax(score, temperature=temperature)


@pytest.mark.parametrize(
    ("weighing", "scale", "specified"),
    [
        (nothing, "max", 40.1),
        (make_softmax(1), "sum", 40.0),
        (dict, "sum", 39.4),
        (make_softmax(1), "max", 28.0),
        (make_softmax(0.1), "max", 15.4),
        (make_softmax(0.01), "max", 33.0),
        (dict, "max", 10.4),
        (dict, "minmax", 9.3),
    ],
)
def test_share_of_masked_stop_words_matches_the_table(weighing: Weighing, scale: Scale, specified: float) -> None:
    assert compute_share(weighing, scale) == pytest.approx(specified, abs=4)

"""Stop words among the tokens that ROM hides: the simulation of docs/methods/rom.md.

300 passages of 128 words from a Zipfian vocabulary, whose 45 most frequent words, 40% of the text, are the stop words and
punctuation. The attention is log-normal with sigma .5, and half as large for stop words.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest

from drtk.expansion.term_weights.bprop import compute_contrasts, gather_occurrences, normalize, saturate, softmax
from drtk.pretraining.masking import MaskInput, Scale, group_words, mask_rom
from drtk.text.rng import create_generator
from drtk.text.token_dataset import TokenizedText

PASSAGES, LENGTH, VOCABULARY, STOP = 300, 128, 30_000, 45
MARKS = dict(zip((1, 2, 12, 13, 14, 20), ",.-():", strict=True))  # ranks of punctuation among the stop words
Weighing = Callable[[dict[str, float]], dict[str, float]]


def word(rank: int) -> str:
    return MARKS.get(rank) or "".join(chr(97 + int(digit)) for digit in str(rank))


@cache
def sample_passages() -> tuple[np.ndarray, list[dict[str, float]]]:
    """Return the ranks of the words, (passages, length), and the contrasts of each passage by word."""
    rng = create_generator("zipf")
    shares = 1 / np.arange(1, VOCABULARY + 1)
    ranks = rng.choice(VOCABULARY, size=(PASSAGES, LENGTH), p=shares / shares.sum())
    attention = rng.lognormal(0, 0.5, ranks.shape) * np.where(ranks < STOP, 0.5, 1)
    attention /= attention.sum(axis=1, keepdims=True)
    passages, sums = [], defaultdict[str, float](float)
    for row, values in zip(ranks.tolist(), attention.tolist(), strict=True):
        occurrences = gather_occurrences(zip(map(word, row), values, strict=True))
        passages.append({name: saturate(value, "ratio") for name, value in occurrences.items()})
        for name, value in passages[-1].items():
            sums[name] += value
    collection = normalize(sums)
    unseen = min(collection.values())
    return ranks, [compute_contrasts(normalize(each), collection, "cross-entropy", unseen=unseen) for each in passages]


def compute_share(weighing: Weighing, scale: Scale) -> float:
    """Return the percentage of stop words and punctuation among masked tokens at mask ratio 15%."""
    rng, words, is_stop = create_generator("rom"), np.arange(LENGTH, dtype=np.int32), []
    for row, contrasts in zip(*sample_passages(), strict=True):
        weights = weighing(contrasts)
        text = TokenizedText(row.astype(np.int32), words, np.array([weights[word(rank)] for rank in row.tolist()]))
        masked = mask_rom(MaskInput(text, group_words(words), 0.15, rng, LENGTH), scale=scale)
        is_stop += (row[masked] < STOP).tolist()
    return 100 * float(np.mean(is_stop))


@pytest.mark.parametrize(
    ("weighing", "scale", "specified"),
    [
        (lambda contrasts: dict.fromkeys(contrasts, 0.0), "max", 40.1),
        (partial(softmax, temperature=1), "sum", 40.0),
        (dict, "sum", 39.4),
        (partial(softmax, temperature=1), "max", 28.0),
        (partial(softmax, temperature=0.1), "max", 15.4),
        (partial(softmax, temperature=0.01), "max", 33.0),
        (dict, "max", 10.4),
        (dict, "minmax", 9.3),
    ],
)
def test_share_of_masked_stop_words_matches_the_table(weighing: Weighing, scale: Scale, specified: float) -> None:
    assert compute_share(weighing, scale) == pytest.approx(specified, abs=4)

"""What sentence vectors are worth: agreement with human ratings, alignment, uniformity, retrieval (methods: section 8.8)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drtk.errors import DrtkError

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

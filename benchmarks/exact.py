"""Time of each stage of exact search, compared with faiss on the same vectors.

python benchmarks/exact.py [--passages N] [--queries N] [--dimension N] [-k N] [--rounds N] [--out FILE]

Writes JSON with the processor seconds of one thread, each from the fastest round: matrix products alone (in new memory, in a reused
buffer, and by numpy), selection of candidates from computed products, conversion to lists of ids and scores, the lines of the run, and the
whole search of drtk and of faiss, without lines. Vectors are random, float32, normalized.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before the libraries that read it

import faiss
import numpy as np
import torch

from drtk.data.trec import format_run_lines
from drtk.indexing.base import RankedIds
from drtk.indexing.config import DenseSearchSettings
from drtk.indexing.exact import ExactIndex, TopKeys
from drtk.indexing.vectors import VECTORS

BLOCK = DenseSearchSettings().block


def time_best_of(work: Callable[[], object], rounds: int) -> float:
    """Return the processor seconds of the fastest round."""
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def time_parts(passages: np.ndarray, queries: np.ndarray, k: int, rounds: int) -> dict[str, float]:
    """Return the processor seconds of each stage."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    query_vectors, vectors = torch.from_numpy(queries), torch.from_numpy(passages)
    blocks = [vectors[start : start + BLOCK] for start in range(0, len(vectors), BLOCK)]
    ranks = torch.arange(len(vectors))
    buffer, plain = torch.empty(len(query_vectors), BLOCK), np.empty((len(queries), BLOCK), dtype=np.float32)

    def multiply_fresh() -> None:
        for block in blocks:
            query_vectors @ block.T

    def multiply_buffered() -> None:
        for block in blocks:
            torch.mm(query_vectors, block.T, out=buffer[:, : len(block)] if len(block) == BLOCK else None)

    def multiply_numpy() -> None:
        for block in blocks:
            np.matmul(queries, block.numpy().T, out=plain if len(block) == BLOCK else None)

    scored = [query_vectors @ block.T for block in blocks]

    def find_candidates() -> torch.Tensor:
        top = TopKeys(len(query_vectors), k, torch.device("cpu"))
        for at, scores in enumerate(scored):
            top.add_scores(scores, ranks[at * BLOCK : at * BLOCK + scores.shape[1]])
        return top.get_keys()

    seconds = {
        "products, fresh memory": time_best_of(multiply_fresh, rounds),
        "products, one buffer": time_best_of(multiply_buffered, rounds),
        "products, numpy": time_best_of(multiply_numpy, rounds),
        "candidates": time_best_of(find_candidates, rounds),
    }
    flat = faiss.IndexFlatIP(passages.shape[1])
    flat.add(passages)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        RankedIds.write((f"p{at}" for at in range(len(passages))), folder)
        np.save(folder / VECTORS, passages)
        index = ExactIndex.open(folder, DenseSearchSettings(threads=1))
        seconds["exact, all of it"] = time_best_of(lambda: index.search(queries, k), rounds)
        keys = index._find_top_keys(queries, k)
        index._find_top_keys = lambda *_: keys.clone()  # type: ignore[method-assign]
        seconds["lists of ids and scores"] = time_best_of(lambda: index.search(queries, k), rounds)
        rankings = index.search(queries, k)
        seconds["lines of the run"] = time_best_of(
            lambda: [format_run_lines("1", ranking) for ranking in rankings], rounds
        )
    seconds["faiss, all of it"] = time_best_of(lambda: flat.search(queries, k), rounds)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=1024)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("-k", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", default="-", help="- is stdout")
    given = parser.parse_args()
    draw = np.random.default_rng(0)
    drawn = [
        draw.standard_normal((rows, given.dimension), dtype=np.float32) for rows in (given.passages, given.queries)
    ]
    passages, queries = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in drawn)
    report = {
        "benchmark": "exact",
        "seconds": time_parts(passages, queries, given.k, given.rounds),
        "settings": {name: value for name, value in vars(given).items() if name != "out"},
        "processor": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in ("torch", "faiss-cpu", "numpy")},
    }
    text = json.dumps(report, indent=2) + "\n"
    sys.stdout.write(text) if given.out == "-" else Path(given.out).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

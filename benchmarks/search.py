"""Exact search on the same vectors: torch in blocks, faiss flat, and a full numpy sort.

python benchmarks/search.py [--passages N] [--queries N] [--dimension N] [-k N] [--systems NAME ...] [--out FILE]

Writes JSON: for each method the seconds to open and to search, queries per second, and the overlap of its top k passages with those of
the first method. `scoring_s` is the part of the search that grows with the passages: all but the lists of ids and scores. Vectors are random and normalized; the environment sets the number of threads. The fastest of three searches counts.
Processor seconds (of all threads) vary less on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drtk.data.arrays import scale_to_unit_length
from drtk.data.embeddings import ShardWriter, read_shards
from drtk.indexing import INDEXES
from drtk.indexing.base import Ranking, sort_hits
from drtk.indexing.config import DenseIndexSettings, DenseSearchSettings
from drtk.indexing.vectors import Vectors
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.manifest import list_versions
from drtk.runtime.progress import set_verbosity

ROWS = 50_000  # passages of a shard
ENGINES = {
    "torch exact float32": ("exact", None),
    "torch exact float16": ("exact", "float16"),
    "torch exact int8": ("exact", "int8"),
    "faiss flat float32": ("flat", None),
    "faiss flat int8": ("flat", "int8"),
}


def make_embeddings(folder: Path, count: int, dimension: int, random: np.random.Generator) -> Vectors:
    """Write random normalized vectors as an embeddings folder."""
    job = FolderJob("encode", "embeddings", str(folder))
    writer = ShardWriter(job.begin(), dimension=dimension, dtype="float32")
    for first in range(0, count, ROWS):
        rows = min(ROWS, count - first)
        vectors = scale_to_unit_length(random.standard_normal((rows, dimension), dtype=np.float32))
        writer.write([f"p{first + row}" for row in range(rows)], vectors, digest=str(first))
    job.finish(encoder=None, dimension=dimension, dtype="float32", role="passage", shards=writer.entries)
    return Vectors(read_shards(folder))


def time_index(
    folder: Path, vectors: Vectors, queries: np.ndarray, k: int, name: str, dtype: str | None
) -> dict[str, Any]:
    """Build, open and search an index; return the seconds of each and the hits."""
    folder.mkdir()
    engine = INDEXES.load(name)
    start = time.perf_counter()
    engine.build(vectors, folder, DenseIndexSettings(vector_dtype=dtype), kind=name)  # type: ignore[arg-type]
    built = time.perf_counter()
    index = engine.open(folder, DenseSearchSettings())
    opened = time.perf_counter()
    index.search(queries[:1], k)  # the first search reads the vectors from disk
    warm = time.perf_counter()
    seconds, processor, found = time_best_of(lambda: index.search(queries, k))
    if name == "exact":
        scoring = time_best_of(lambda: index._find_top_keys(queries, index._get_depth(k)))
    else:
        scoring = time_best_of(lambda: index._search_faiss(queries, k))
    size = sum(path.stat().st_size for path in folder.iterdir())
    return {
        "build_s": built - start,
        "open_s": opened - built,
        "first_query_s": warm - opened,
        "search_s": seconds,
        "scoring_s": scoring[0],
        "processor_s": processor,
        "bytes": size,
        "found": found,
    }


def search_by_full_sort(vectors: Vectors, queries: np.ndarray, k: int) -> dict[str, Any]:
    """Search by sorting all scores; ties are broken by descending id."""
    matrix = np.concatenate([block for _, block in vectors.iter_blocks()])
    ids = np.array(list(vectors.iter_ids()))

    def search() -> list[Ranking]:
        found: list[Ranking] = []
        for first in range(0, len(queries), 32):  # all scores of more queries would not fit
            for scores in queries[first : first + 32] @ matrix.T:
                best = np.argsort(-scores)[:k]
                found.append(sort_hits(ids[best].tolist(), scores[best].tolist(), k))
        return found

    seconds, processor, found = time_best_of(search)
    return {"search_s": seconds, "processor_s": processor, "bytes": matrix.nbytes, "found": found}


def search_by_top_k(vectors: Vectors, queries: np.ndarray, k: int) -> dict[str, Any]:
    """Search by one matrix product and torch.topk, with all vectors on the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    matrix = torch.from_numpy(np.concatenate([block for _, block in vectors.iter_blocks()])).to(device)
    ids = np.array(list(vectors.iter_ids()))

    def score() -> list[list[np.ndarray]]:
        groups = torch.from_numpy(queries).to(device).split(256)  # all scores of more queries may not fit
        return [[each.cpu().numpy() for each in (rows @ matrix.T).topk(k)] for rows in groups]

    def search() -> list[Ranking]:
        return [
            sort_hits(ids[b].tolist(), s.tolist(), k)
            for scores, best in score()
            for b, s in zip(best, scores, strict=True)
        ]

    seconds, processor, found = time_best_of(search)
    scoring, *_ = time_best_of(score)
    return {"search_s": seconds, "scoring_s": scoring, "processor_s": processor, "bytes": matrix.nbytes, "found": found}


PLAIN = {"numpy argsort float32": search_by_full_sort, "torch topk float32": search_by_top_k}


def time_best_of(search: Callable[[], Any], *, repeats: int = 3) -> tuple[float, float, Any]:
    """Return seconds, processor seconds and result of the fastest of `repeats` calls."""
    times = []
    for _ in range(repeats):
        start, processor = time.perf_counter(), time.process_time()
        found = search()
        times.append((time.perf_counter() - start, time.process_time() - processor))
    return *min(times), found


def compute_agreement(hits: list[Ranking], expected: list[Ranking]) -> float:
    """Return the mean fraction of the top k passages that are also in `expected`."""
    shares = [
        len(dict(one).keys() & dict(other).keys()) / len(other) for one, other in zip(hits, expected, strict=True)
    ]
    return sum(shares) / len(shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("-k", type=int, default=100)
    parser.add_argument("--systems", nargs="+", choices=[*ENGINES, *PLAIN], default=[*ENGINES, "numpy argsort float32"])
    parser.add_argument("--out", default="-", help="- is stdout")
    given = parser.parse_args()
    set_verbosity(quiet=True, verbose=False)
    random = np.random.default_rng(0)
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        vectors = make_embeddings(Path(name, "vectors"), given.passages, given.dimension, random)
        queries = scale_to_unit_length(random.standard_normal((given.queries, given.dimension), dtype=np.float32))
        for label in given.systems:
            if label in ENGINES:
                folder = Path(name, label.replace(" ", "-"))
                results[label] = time_index(folder, vectors, queries, given.k, *ENGINES[label])
                shutil.rmtree(folder)
            else:
                results[label] = PLAIN[label](vectors, queries, given.k)
    wanted = results[given.systems[0]]["found"]
    for result in results.values():
        result["agrees"] = round(compute_agreement(result.pop("found"), wanted), 6)
        result["queries_per_s"] = round(given.queries / result["search_s"], 1)
        result |= {key: round(value, 6) for key, value in result.items() if key.endswith("_s")}
    report = {
        "benchmark": "search",
        "settings": {"passages": given.passages, "queries": given.queries, "dimension": given.dimension, "k": given.k},
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "versions": list_versions(),
        "results": results,
    }
    text = json.dumps(report, indent=2) + "\n"
    if given.out == "-":
        print(text, end="")
    else:
        Path(given.out).write_text(text)


if __name__ == "__main__":
    main()

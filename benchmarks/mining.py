"""Hard-negative mining from an index, compared with a plain loop over raw faiss.

python benchmarks/mining.py [--passages N] [--queries N] [--dimension N] [--depth N] [--batch-size N] [--rounds N] [--out FILE]

Each program runs in its own process, from vectors on disk to a file of examples; they take turns, and the fastest round of each counts.
Writes JSON: seconds, processor seconds of all threads, queries per second, peak memory (vectors included), and whether the negatives of
each query are equal. Vectors are random, float32, normalized; each query is near one passage, its positive.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from drtk.data.embeddings import ShardWriter
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.manifest import list_versions
from drtk.runtime.progress import set_verbosity

ROWS = 50_000  # passages of a shard
NOISE = 0.05


def make_embeddings(
    folder: Path, names: str, count: int, dimension: int, role: str, near: np.ndarray | None = None
) -> None:
    """Write random normalized vectors as an embeddings folder. near: vectors, (count, dimension), to which noise is added"""
    draw = np.random.default_rng(0 if near is None else 1)
    job = FolderJob("encode", "embeddings", str(folder))
    writer = ShardWriter(job.begin(), dimension=dimension, dtype="float32")
    for first in range(0, count, ROWS):
        rows = min(ROWS, count - first)
        vectors = draw.standard_normal((rows, dimension), dtype=np.float32)
        if near is not None:
            vectors = near[first : first + rows] + NOISE * vectors
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        writer.write([f"{names}{first + row}" for row in range(rows)], vectors, digest=str(first))
    job.finish(encoder=None, dimension=dimension, dtype="float32", role=role, shards=writer.entries)


def read_vectors(folder: Path) -> np.ndarray:
    """Return all vectors of an embeddings folder, (rows, dimension)."""
    return np.concatenate([np.load(path) for path in sorted(folder.glob("*.npy"))])


def mine_plain(folder: Path, output: str, depth: int, batch: int) -> None:
    """Mine with raw faiss: search, remove the positive, shuffle, write."""
    import faiss

    passages, queries = read_vectors(folder / "passages"), read_vectors(folder / "queries")
    index = faiss.IndexFlatIP(passages.shape[1])
    index.add(passages)
    del passages
    draw = random.Random(0)
    with open(output, "w") as file:
        for first in range(0, len(queries), batch):
            _, rows = index.search(queries[first : first + batch], depth)
            for at, row in enumerate(rows.tolist(), start=first):
                negatives = [f"p{passage}" for passage in row if passage != at]
                draw.shuffle(negatives)
                file.write(json.dumps({"query_id": f"q{at}", "positives": [f"p{at}"], "negatives": negatives}) + "\n")


def make_inputs(folder: Path, passages: int, queries: int, dimension: int) -> None:
    """Write the vectors of passages and queries; query i is near passage i."""
    set_verbosity(quiet=True, verbose=False)
    make_embeddings(folder / "passages", "p", passages, dimension, "passage")
    near = np.load(folder / "passages" / "00000.npy")[:queries]
    make_embeddings(folder / "queries", "q", queries, dimension, "query", near)


def measure_command(arguments: list[str]) -> dict[str, float]:
    """Run a Python process; return its seconds, processor seconds and peak memory in MiB."""
    start = time.perf_counter()
    process = os.spawnve(os.P_NOWAIT, sys.executable, [sys.executable, *arguments], os.environ)
    _, status, used = os.wait4(process, 0)
    if status:
        raise SystemExit(f"failed: {' '.join(arguments)}")
    return {
        "seconds": time.perf_counter() - start,
        "processor_s": used.ru_utime + used.ru_stime,
        "peak_mib": used.ru_maxrss / 1024,
    }


def read_negatives(path: Path) -> dict[str, frozenset[str]]:
    """Return the negatives of each query in a file of examples."""
    with open(path) as file:
        return {row["query_id"]: frozenset(row["negatives"]) for row in map(json.loads, file)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--depth", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", default="-", help="- is stdout")
    parser.add_argument("--raw", metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--make", metavar="DIR", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.queries > min(ROWS, given.passages):
        parser.error(f"--queries: at most {min(ROWS, given.passages):,}, as each lies near a passage")
    if given.make:
        make_inputs(Path(given.make), given.passages, given.queries, given.dimension)
        return
    if given.raw:
        mine_plain(Path(given.raw), given.out, given.depth, given.batch_size)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # in a separate process, since child processes inherit the peak memory of this one
        size = ["--passages", str(given.passages), "--queries", str(given.queries), "--dimension", str(given.dimension)]
        measure_command([__file__, "--make", name, *size])
        qrels = folder / "qrels.tsv"
        qrels.write_text("".join(f"q{at}\tp{at}\t1\n" for at in range(given.queries)))
        built = {}
        for kind in ("exact", "flat"):
            index = ["-m", "drtk", "index", str(folder / "passages"), "--type", kind, "-o", str(folder / kind), "-q"]
            built[kind] = measure_command(index)["seconds"]
        size = ["--depth", str(given.depth)]
        out = {way: folder / f"{way}.jsonl" for way in ("raw faiss", "flat", "exact")}
        drtk = [
            "--query-vectors",
            str(folder / "queries"),
            "--qrels",
            str(qrels),
            "--policy",
            "tevatron",
            "--set",
            f"batch_size={given.batch_size}",
            "-q",
            "--force",
        ]
        calls = {
            "raw faiss": [
                __file__,
                "--raw",
                name,
                "--batch-size",
                str(given.batch_size),
                *size,
                "--out",
                str(out["raw faiss"]),
            ]
        }
        for kind in ("flat", "exact"):
            keep = ["--negatives", str(given.depth), "-o", str(out[kind])]
            calls[kind] = ["-m", "drtk", "mine-negatives", str(folder / kind), *drtk, *size, *keep]
        rounds = [{way: measure_command(call) for way, call in calls.items()} for _ in range(given.rounds)]
        results: dict[str, dict[str, Any]] = {}
        expected = read_negatives(out["raw faiss"])
        for way in calls:
            best = min((one[way] for one in rounds), key=lambda one: one["seconds"])
            negatives = read_negatives(out[way])
            same = [len(negatives[query] & expected[query]) / len(expected[query]) for query in expected]
            results[way] = {key: round(value, 2) for key, value in best.items()} | {
                "queries_per_s": round(given.queries / best["seconds"], 1),
                "agrees": round(sum(same) / len(same), 6),
                "build_s": round(built.get(way, 0), 2),
            }
    report = {
        "benchmark": "mining",
        "settings": {key: value for key, value in vars(given).items() if key not in ("out", "raw", "make")},
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "load_1min": round(os.getloadavg()[0], 1),
            "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        },
        "versions": list_versions() | {"faiss": version("faiss-cpu")},
        "results": results,
    }
    text = json.dumps(report, indent=2) + "\n"
    if given.out == "-":
        print(text, end="")
    else:
        Path(given.out).write_text(text)


if __name__ == "__main__":
    main()

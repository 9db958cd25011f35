"""Evaluation of a large run: drtk compared with ir_measures, ranx and trec_eval.

python benchmarks/evaluation.py [--queries N] [--depth N] [--rounds N] [--trec-eval PROGRAM] [--ranx-python PYTHON] [--out FILE]

Generates a run of the size of MS MARCO's development queries, and judgments. Each program computes nDCG@10, RR@10, recall at
10 and 100 and the hit rate at 10 in a new process; they take turns, and the fastest round counts. Writes JSON: seconds, peak
memory and values of each, the same for a run of 100 lines (startup time), versions and hardware.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from drtk.runtime.manifest import list_versions

PASSAGES = 8_841_823  # of MS MARCO
NAMES = ("nDCG@10", "RR@10", "R@10", "R@100", "Success@10")
RANX = """
import sys
from ranx import Qrels, Run, evaluate
found = evaluate(Qrels.from_file(sys.argv[1], kind="trec"), Run.from_file(sys.argv[2], kind="trec"),
                 ["ndcg@10", "mrr@10", "recall@10", "recall@100", "hit_rate@10"], make_comparable=True)
print(*found.values())
"""


def make_run(folder: Path, queries: int, depth: int) -> None:
    """Write a run and judgments; the ranks of relevant documents are exponential, and some are not retrieved."""
    rng = random.Random(1)
    with open(folder / "big.run", "w") as run, open(folder / "qrels", "w") as qrels:
        for number in range(queries):
            query, score = 100_000 + 7 * number, 120.0
            docs = rng.sample(range(PASSAGES), depth)
            for rank, doc in enumerate(docs, start=1):
                score -= rng.random() * 0.05 + 1e-4
                run.write(f"{query} Q0 {doc} {rank} {score:.6f} made-up\n")
            judged = {
                docs[min(int(rng.expovariate(1 / 40)), depth - 1)] if rng.random() < 0.85 else rng.randrange(PASSAGES)
            }
            if rng.random() < 0.06:
                judged.add(rng.randrange(PASSAGES))
            qrels.writelines(f"{query} 0 {doc} 1\n" for doc in sorted(judged))
    with open(folder / "big.run") as run, open(folder / "small.run", "w") as small:
        small.writelines(line for _, line in zip(range(100), run, strict=False))


def build_commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the command of each program, with the placeholders QRELS and RUN."""
    here = Path(sys.executable).parent
    commands = {
        "drtk": [
            str(here / "drtk"),
            "eval",
            "RUN",
            "--qrels",
            "QRELS",
            "--measures",
            " ".join(NAMES),
            "--format",
            "jsonl",
        ],
        "ir_measures": [str(here / "ir_measures"), "QRELS", "RUN", *NAMES, "-p", "17"],
    }
    if options.trec_eval:
        measures = ["-m", "ndcg_cut.10", "-m", "recall.10,100", "-m", "success.10"]
        commands["trec_eval, C"] = [options.trec_eval, "-c", *measures, "QRELS", "RUN"]
    if options.ranx_python:
        commands["ranx"] = [options.ranx_python, "-c", RANX, "QRELS", "RUN"]
    return commands


def time_command(command: list[str], qrels: Path, run: Path) -> tuple[float, float, str]:
    """Return the seconds, the peak memory in MiB and the output of a command."""
    filled = [{"QRELS": str(qrels), "RUN": str(run)}.get(part, part) for part in command]
    # an intermediate process, whose only child is the program, to measure its peak memory
    watcher = (
        "import json, resource, subprocess, sys, time\n"
        "start = time.perf_counter()\n"
        "done = subprocess.run(sys.argv[1:], capture_output=True, text=True)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "print(json.dumps([time.perf_counter() - start, used / 1024, done.returncode, done.stdout, done.stderr]))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", watcher, *filled], capture_output=True, text=True, check=True
    ).stdout
    seconds, memory, status, out, err = json.loads(printed)
    if status:
        raise SystemExit(f"{filled[0]} failed: {err.strip().splitlines()[-1:]}")
    return seconds, memory, out


def parse_values(name: str, printed: str) -> dict[str, float]:
    """Parse the output of a program; return values by the names of NAMES."""
    if name == "drtk":
        row = json.loads(printed.splitlines()[-1])
        return {measure: row[measure] for measure in NAMES}
    if name == "ranx":
        return dict(zip(NAMES, map(float, printed.split()[-5:]), strict=True))
    rows = [line.split() for line in printed.splitlines()]
    if name == "ir_measures":
        return {row[0]: float(row[-1]) for row in rows}
    keys = {"ndcg_cut_10": "nDCG@10", "recall_10": "R@10", "recall_100": "R@100", "success_10": "Success@10"}
    return {keys[row[0]]: float(row[2]) for row in rows if row[0] in keys}


def measure_programs(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure all programs in turns, on the large and the small run."""
    results: dict[str, dict[str, Any]] = {name: {} for name in build_commands(options)}
    for run, rounds in (("big", options.rounds), ("small", options.rounds + 2)):
        for _ in range(rounds):
            for name, command in build_commands(options).items():
                seconds, memory, printed = time_command(command, folder / "qrels", folder / f"{run}.run")
                result = results[name].setdefault(
                    run, {"seconds": seconds, "MiB": memory, "values": parse_values(name, printed)}
                )
                result["seconds"] = min(result["seconds"], seconds)
                result["MiB"] = max(result["MiB"], memory)
                print(f"{run}: {name}: {seconds:.2f} s, {memory:.0f} MiB", file=sys.stderr)
    reference = results["drtk"]["big"]["values"]
    for item in results.values():
        item["ratio"] = item["big"]["seconds"] / results["ir_measures"]["big"]["seconds"]
        item["agrees"] = all(abs(value - reference[key]) < 1e-4 for key, value in item["big"]["values"].items())
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=6980)
    parser.add_argument("--depth", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trec-eval", default="", metavar="PROGRAM", help="trec_eval's binary, where there is one")
    parser.add_argument("--ranx-python", default="", metavar="PYTHON", help="a Python that can import ranx")
    parser.add_argument("--out", metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_run(folder, options.queries, options.depth)
        start = time.time()
        result = {
            "command": "python benchmarks/evaluation.py",
            "queries": options.queries,
            "depth": options.depth,
            "run bytes": (folder / "big.run").stat().st_size,
            "rounds": options.rounds,
            "programs": measure_programs(options, folder),
            "load": os.getloadavg()[0],
            "seconds": time.time() - start,
            "hardware": {
                "machine": platform.machine(),
                "system": platform.system(),
                "cores": len(os.sched_getaffinity(0)),
            },
            "versions": list_versions()
            | {package: importlib.metadata.version(package) for package in ("ir-measures", "pytrec-eval-terrier")},
            "peak of this process, MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
    text = json.dumps(result, indent=2) + "\n"
    Path(options.out).write_text(text) if options.out else print(text, end="")


if __name__ == "__main__":
    main()

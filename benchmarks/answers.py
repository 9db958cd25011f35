"""Top-k answer accuracy: drtk compared with a plain implementation of DPR's evaluation, on the same data.

python benchmarks/answers.py DATA [--questions N] [--depth N] [--rounds N] [--out FILE]

DATA is a folder with `squad` in BEIR layout (its paragraphs are the passages) and `openqa/nq_open_dev.jsonl` (the questions). bm25s
retrieves the passages; most contain no answer, so nearly all of them are compared. The plain implementation normalizes, tokenizes and
compares the passages of each question until one contains an answer, in one process. The results must be equal. Writes JSON: seconds of
both, their ratio, versions, hardware.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import unicodedata
from pathlib import Path

import regex

from drtk.runtime.manifest import list_versions

TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def tokenize(text: str) -> list[str]:
    return [match.group().lower() for match in TOKEN.finditer(unicodedata.normalize("NFD", text))]


def contains_answer(answers: list[list[str]], text: list[str]) -> bool:
    return any(text[at : at + len(a)] == a for a in answers for at in range(len(text) - len(a) + 1))


def measure_plain(folder: Path, depth: int) -> list[float]:
    """Return top-1, 5, 20 and 100 accuracy of a plain implementation."""
    texts = {}
    with open(folder / "corpus.jsonl", encoding="utf-8") as corpus:
        for line in corpus:
            row = json.loads(line)
            texts[row["_id"]] = row["text"]
    with open(folder / "questions.jsonl", encoding="utf-8") as questions:
        answers = {row["id"]: [tokenize(a) for a in row["answers"]] for row in map(json.loads, questions)}
    ranked: dict[str, list[str]] = {}
    with open(folder / "x.run", encoding="utf-8") as run:
        for line in run:
            query, _, doc, *_ = line.split()
            ranked.setdefault(query, []).append(doc)
    firsts = []
    for query, query_answers in answers.items():
        ranks = (
            rank
            for rank, doc in enumerate(ranked.get(query, [])[:depth], start=1)
            if contains_answer(query_answers, tokenize(texts[doc]))
        )
        firsts.append(next(ranks, depth + 1))
    return [sum(first <= k for first in firsts) / len(firsts) for k in (1, 5, 20, 100)]


def measure_drtk(*arguments: str | Path) -> str:
    command = [str(Path(sys.executable).parent / "drtk"), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA")
    parser.add_argument("--questions", type=int, default=3610)
    parser.add_argument("--depth", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with gzip.open(Path(options.data) / "squad" / "corpus.jsonl.gz") as packed:
            (folder / "corpus.jsonl").write_bytes(packed.read())
        with open(Path(options.data) / "openqa" / "nq_open_dev.jsonl", encoding="utf-8") as queries:
            chosen = list(queries)[: options.questions]
        (folder / "questions.jsonl").write_text("".join(chosen), encoding="utf-8")
        measure_drtk("index", folder / "corpus.jsonl", "--type", "bm25s", "-o", folder / "bm25s")
        measure_drtk(
            "search", folder / "bm25s", folder / "questions.jsonl", "-k", str(options.depth), "-o", folder / "x.run"
        )
        call: list[str | Path] = [
            "eval",
            folder / "x.run",
            "--answers",
            folder / "questions.jsonl",
            "--corpus",
            folder / "corpus.jsonl",
        ]
        seconds: dict[str, list[float]] = {"drtk": [], "drtk, one process": [], "the obvious way": []}
        for _ in range(options.rounds):
            for kind, more in (("drtk", []), ("drtk, one process", ["--num-workers", "1"])):
                start = time.perf_counter()
                row = json.loads(measure_drtk(*call, *more, "--format", "jsonl").splitlines()[-1])
                seconds[kind].append(time.perf_counter() - start)
            start = time.perf_counter()
            theirs = measure_plain(folder, options.depth)
            seconds["the obvious way"].append(time.perf_counter() - start)
    ours = [row[f"Answer@{k}"] for k in (1, 5, 20, 100)]
    if ours != theirs:
        raise SystemExit(f"the accuracies differ: {ours} and {theirs}")
    fastest = {kind: min(rounds) for kind, rounds in seconds.items()}
    result = {
        "command": "python benchmarks/answers.py DATA",
        "questions": len(chosen),
        "depth": options.depth,
        "accuracy": dict(zip(("top-1", "top-5", "top-20", "top-100"), ours, strict=True)),
        "seconds": fastest,
        "ratio": fastest["the obvious way"] / fastest["drtk"],
        "hardware": {"machine": platform.machine(), "system": platform.system(), "cores": len(os.sched_getaffinity(0))},
        "versions": list_versions(),
    }
    text = json.dumps(result, indent=2) + "\n"
    Path(options.out).write_text(text) if options.out else print(text, end="")


if __name__ == "__main__":
    main()

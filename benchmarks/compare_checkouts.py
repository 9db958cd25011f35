"""Speed of two checkouts of drtk in one run: encode, trainings, search, eval, mine-negatives, doc2query, termweight.

python benchmarks/compare_checkouts.py OLD NEW [--data DIR] [--rounds N] [--only NAME ...] [--folder DIR]

OLD and NEW are checkouts; both run in turns, with this Python and one thread, and must support the options of COMMANDS. Each command runs
on a small and a large input. The difference of the processor seconds is reported; it excludes startup and varies little with other
processes. Prints the medians of each command and the speed of NEW divided by that of OLD: .95 is 5% slower. The inputs are 5,000
paragraphs of SQuAD and their questions. The encoder and the T5 are small and untrained, so that most of the time is spent in drtk's own
code. OLD creates them in --folder.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

# Command, small and large {n}. Paths are relative to the folder of inputs; the output is out.NAME.
COMMANDS = {
    "encode": ("encode passages.{n}.jsonl --model model", 100, 3000),
    "pretrain": (
        "pretrain passages.5000.jsonl --preset simlm-mlm --model model --batch-size 16 --max-steps {n}",
        2,
        40,
    ),
    "train-retriever": (
        "train-retriever train.jsonl --corpus passages.5000.jsonl --queries questions.20000.jsonl --model model --preset quickstart --max-steps {n}",
        2,
        60,
    ),
    "search": ("search exact asked.{n} -k 100", 100, 10000),
    "search-bm25s": ("search bm25s questions.{n}.jsonl -k 100", 100, 20000),
    "eval": ("eval a=found.{n}.run b=found.{n}.run c=found.{n}.run --qrels qrels.tsv", 100, 10000),
    "mine-negatives": (
        "mine-negatives found.{n}.run --policy msmarco --qrels qrels.tsv --corpus passages.5000.jsonl",
        100,
        10000,
    ),
    "doc2query": ("doc2query passages.{n}.jsonl --model writer --n 2 --max-new-tokens 16", 20, 300),
    "termweight": ("termweight passages.{n}.jsonl --method bprop --model model", 100, 1000),
    "train-reranker": (
        "train-reranker train.jsonl --corpus passages.5000.jsonl --queries questions.20000.jsonl --model model --negatives 3 --batch-size 8 --max-steps {n}",
        2,
        30,
    ),
}
SIZES = {"passages": (20, 100, 300, 1000, 3000, 5000), "questions": (100, 10000, 20000)}


def run_drtk(checkout: Path, folder: Path, arguments: str) -> float:
    """Run a drtk command in `folder`; return its processor seconds."""
    settings = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    settings |= {"HF_HUB_OFFLINE": "1", "DRTK_CACHE": str(folder / "cache" / checkout.relative_to("/"))}
    command = [sys.executable, "-m", "drtk", *arguments.split(), "-q"]
    process = subprocess.Popen(command, cwd=folder, env=os.environ | settings, stderr=subprocess.PIPE)
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    _, process.returncode, used = os.wait4(process.pid, 0)
    if process.returncode:
        sys.exit(f"{checkout}: drtk {arguments}: {errors}")
    return used.ru_utime + used.ru_stime


def make_inputs(old: Path, folder: Path, data: Path) -> None:
    """Write the inputs of all commands."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = {"passages": write_first_lines(data / "corpus.jsonl.gz", 5000)}
    known = {json.loads(line)["_id"] for line in lines["passages"]}
    header, *judged = (data / "qrels" / "train.tsv").read_text().splitlines(keepends=True)
    judged = [line for line in judged if line.split("\t")[1] in known]
    query_ids = {line.split("\t")[0] for line in judged}
    lines["questions"] = [
        line for line in write_first_lines(data / "queries.jsonl.gz", 200_000) if json.loads(line)["_id"] in query_ids
    ]
    (folder / "qrels.tsv").write_text(header + "".join(judged))
    for name, sizes in SIZES.items():
        for size in sizes:
            (folder / f"{name}.{size}.jsonl").write_bytes(b"".join(lines[name][:size]))
    run_drtk(old, folder, "init-model passages.5000.jsonl --layers 3 --hidden 128 --heads 4 --vocab-size 8000 -o model")
    run_drtk(
        old,
        folder,
        "init-model passages.5000.jsonl --arch t5 --layers 2 --hidden 128 --heads 4 --vocab-size 8000 -o writer",
    )
    run_drtk(old, folder, "encode passages.5000.jsonl --model model -o vectors")
    run_drtk(old, folder, "index vectors --type exact -o exact")
    run_drtk(old, folder, "index passages.5000.jsonl --type bm25s -o bm25s")
    for size in (100, 10000):
        run_drtk(old, folder, f"encode questions.{size}.jsonl --model model --role query -o asked.{size}")
        run_drtk(old, folder, f"search exact asked.{size} -k 100 -o found.{size}.run")
    run_drtk(
        old,
        folder,
        "mine-negatives found.10000.run --policy msmarco --qrels qrels.tsv --corpus passages.5000.jsonl -o train.jsonl",
    )
    (folder / "complete").touch()


def write_first_lines(path: Path, count: int) -> list[bytes]:
    with gzip.open(path) as lines:
        return [*islice(lines, count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("DRTK_TEST_DATA", "../shared/data")))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "drtk-compare-speed"))
    given = parser.parse_args()
    sides, folder = {"old": given.old.resolve(), "new": given.new.resolve()}, given.folder.resolve()
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        make_inputs(sides["old"], folder, given.data / "squad")
    print(f"{'command':16} {'old s':>8} {'new s':>8} {'new/old':>8}", flush=True)
    for name in given.only:
        command, small, large = COMMANDS[name]
        spent: dict[str, list[float]] = {"old": [], "new": []}
        for number in range(given.rounds):
            for side in ("old", "new") if number % 2 == 0 else ("new", "old"):
                few, many = (
                    run_drtk(sides[side], folder, f"{command.format(n=size)} -o out.{name} --force")
                    for size in (small, large)
                )
                spent[side].append(many - few)
        old, new = (statistics.median(spent[side]) for side in ("old", "new"))
        print(f"{name:16} {old:8.2f} {new:8.2f} {old / new:8.3f}", flush=True)


if __name__ == "__main__":
    main()

"""Text lookup by id: drtk's CorpusStore compared with a dict and Hugging Face datasets.

    python benchmarks/store.py --passages 1000000 -o results/store.json

Writes a corpus of random words, then measures each store in a new process: seconds to open the indexed corpus, random reads per second,
and anonymous memory (without pages of mapped files, which the system can reclaim).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from drtk.runtime.manifest import list_versions

WORDS = [f"w{number}" for number in range(5000)]


def make_corpus(path: Path, passages: int) -> None:
    rng = random.Random(0)
    with open(path, "w", encoding="utf-8") as file:
        for number in range(passages):
            text = " ".join(rng.choices(WORDS, k=60))
            file.write(json.dumps({"_id": f"d{number}", "title": f"t{number}", "text": text}) + "\n")


def open_store(path: str) -> Any:
    from drtk.data.corpus_store import CorpusStore

    return CorpusStore.open(path)


def open_dict(path: str) -> Any:
    import orjson

    with open(path, "rb") as file:
        return {row["_id"]: row for row in map(orjson.loads, file)}


def open_datasets(path: str) -> Any:
    import datasets

    datasets.disable_progress_bars()
    table = datasets.load_dataset("json", data_files=path, split="train", cache_dir=os.environ["DRTK_CACHE"])
    places = {id: row for row, id in enumerate(table["_id"])}  # datasets looks up rows by number only

    class Rows:
        def __getitem__(self, id: str) -> Any:
            return table[places[id]]

    return Rows()


OPENERS = {"drtk": open_store, "dict": open_dict, "datasets": open_datasets}


def anonymous_mib() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def measure(system: str, path: str, passages: int, reads: int) -> dict[str, float]:
    rng = random.Random(1)
    wanted = [f"d{rng.randrange(passages)}" for _ in range(reads)]
    began = time.perf_counter()
    texts = OPENERS[system](path)
    texts[wanted[0]]
    opened = time.perf_counter() - began
    began = time.perf_counter()
    for id in wanted:
        texts[id]
    rate = reads / (time.perf_counter() - began)
    return {"open_s": round(opened, 4), "reads_per_s": round(rate), "anonymous_mib": round(anonymous_mib(), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--reads", type=int, default=100_000)
    parser.add_argument("-o", "--output", default="-")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        system, path = options.one
        print(json.dumps(measure(system, path, options.passages, options.reads)))
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"DRTK_CACHE": f"{folder}/cache", "HF_HUB_OFFLINE": "1"}
        systems: dict[str, dict[str, float]] = {}
        for passages in (options.passages // 10, options.passages):
            corpus = Path(folder) / f"{passages}.jsonl"
            make_corpus(corpus, passages)
            for system in OPENERS:
                command = [
                    sys.executable,
                    __file__,
                    "--passages",
                    str(passages),
                    "--reads",
                    str(options.reads),
                    "--one",
                    system,
                ]
                runs = []
                for _ in range(2):  # the first run builds the store
                    began = time.perf_counter()
                    done = subprocess.run(
                        [*command, str(corpus)], capture_output=True, text=True, env=environment, check=False
                    )
                    if done.returncode:
                        break
                    runs.append(json.loads(done.stdout) | {"process_s": round(time.perf_counter() - began, 2)})
                if len(runs) == 2:
                    systems[f"{system}, {passages:,} passages"] = runs[1] | {"first_open_s": runs[0]["open_s"]}
        result = {
            "command": " ".join(sys.argv),
            "cores": os.cpu_count(),
            "versions": list_versions(),
            "systems": systems,
        }
        text = json.dumps(result, indent=2) + "\n"
        if options.output == "-":
            print(text, end="")
        else:
            Path(options.output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

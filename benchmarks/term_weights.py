"""Learned term weights compared with plain BM25: DeepCT and DeepImpact, trained on SQuAD's train questions, evaluated on held-out questions.

python benchmarks/term_weights.py --data DIR --model DIR [--methods deepct deepimpact] [--max-steps N] [--out FILE] [--work DIR]

The folder of --data contains `squad` and `cranfield` in BEIR layout; --model is the initial encoder. All steps are drtk commands.
Evaluated collections: 1,000 paragraphs of SQuAD dev with 1,000 train paragraphs as distractors, whose questions tune k1 and b; Cranfield;
and `drtk sample` of the installed packages. No evaluated passage is used in training. Writes JSON: measures by collection and system.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from drtk.runtime.manifest import list_versions
from drtk.text.words import split_basic_words

MEASURES = "nDCG@10 RR@10 R@100"
PLAIN_GRID = "k1=0.6,0.9,1.2,2,3,5 b=0.2,0.4,0.75,0.9,1"
WEIGHTS_GRID = "k1=2,5,10,18,40 b=0.2,0.4,0.7,0.9"
SEARCHED, DISTRACTORS, QUESTIONS, CHOOSING = 1000, 1000, 2000, 500
TRAINING = {
    "deepct": ["--set", "batch_size=16", "--set", "learning_rate=1e-4", "--set", "max_length=128"],
    "deepimpact": ["--set", "batch_size=8", "--set", "learning_rate=1e-4", "--set", "max_length=128"],
}
Rows = list[dict[str, Any]]


def run_drtk(*arguments: object) -> str:
    """Run a drtk command and return its standard output."""
    print("drtk", *arguments, file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "drtk", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def read_records(path: Path) -> Rows:
    content = path.read_bytes()
    return [json.loads(line) for line in (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()]


def write_records(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_judgments(path: Path) -> list[tuple[str, str, str]]:
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [(query, passage, grade) for query, passage, grade in (line.split("\t") for line in lines)]


def write_judgments(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(row) for row in rows)]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def write_collection(folder: Path, corpus: Rows, queries: Rows, qrels: list[tuple[str, str, str]]) -> Path:
    """Write a collection folder: corpus.jsonl, queries.jsonl, qrels.tsv."""
    folder.mkdir(exist_ok=True)
    write_records(folder / "corpus.jsonl", corpus)
    asked = {query for query, _, _ in qrels}
    write_records(folder / "queries.jsonl", [row for row in queries if row["_id"] in asked])
    write_judgments(folder / "qrels.tsv", qrels)
    return folder


def prepare_collections(data: Path, work: Path) -> None:
    """Write train/ (training passages) and the collections squad/, choosing/ (same corpus, for tuning), cranfield/ and sample/."""
    rng = random.Random(1)
    squad = data / "squad"
    corpus, queries = read_records(squad / "corpus.jsonl.gz"), read_records(squad / "queries.jsonl.gz")
    train, dev = read_judgments(squad / "qrels" / "train.tsv"), read_judgments(squad / "qrels" / "dev.tsv")
    trained_passages = sorted({passage for _, passage, _ in train})
    apart = set(rng.sample(trained_passages, DISTRACTORS))
    wanted = set(rng.sample(sorted({passage for _, passage, _ in dev}), SEARCHED))
    dev = [row for row in dev if row[1] in wanted]
    chosen = wanted | apart
    write_collection(work / "train", [row for row in corpus if row["_id"] not in chosen], queries,
         [row for row in train if row[1] not in apart])  # fmt: skip
    found = [row for row in corpus if row["_id"] in chosen]
    write_collection(work / "squad", found, queries, rng.sample(dev, QUESTIONS))
    write_collection(work / "choosing", found, queries, rng.sample([row for row in train if row[1] in apart], CHOOSING))
    cranfield = data / "cranfield"
    qrels = read_judgments(cranfield / "qrels" / "test.tsv")
    write_collection(
        work / "cranfield",
        read_records(cranfield / "corpus.jsonl.gz"),
        read_records(cranfield / "queries.jsonl.gz"),
        qrels,
    )
    run_drtk("sample", work / "docs", "--limit", 1500, "--force", "--quiet")
    docs = work / "docs"
    qrels = read_judgments(docs / "qrels" / "test.tsv")
    write_collection(
        work / "sample", read_records(docs / "documents.jsonl"), read_records(docs / "queries.jsonl"), qrels
    )


def tune_bm25(index: Path, place: Path, grid: str) -> list[str]:
    """Return the best k1 and b for the questions of a collection, as options."""
    table = run_drtk("search", index, place / "queries.jsonl", "--tune", "--qrels", place / "qrels.tsv",
                 "--set", f"grid={grid}", "--set", "measure=nDCG@10", "-k", 100, "--quiet")  # fmt: skip
    k1, b, _ = table.splitlines()[1].split("\t")
    return ["--k1", k1, "--b", b]


def evaluate_run(run: Path, place: Path) -> dict[str, float]:
    found = run_drtk(
        "eval", run, "--qrels", place / "qrels.tsv", "--measures", MEASURES, "--format", "jsonl", "--quiet"
    )
    row = json.loads(found.splitlines()[0])
    return {name: row[name] for name in MEASURES.split()}


def search_and_evaluate(work: Path, name: str, index: Path, system: str, options: list[str]) -> dict[str, float]:
    place, run = work / name, work / f"{name}.{system}.run"
    run_drtk("search", index, place / "queries.jsonl", "-k", 100, *options, "-o", run, "--force", "--quiet")
    return evaluate_run(run, place)


def build_index(work: Path, source: Path, system: str, *options: object) -> Path:
    folder = work / f"{source.stem}.{system}.index"
    run_drtk("index", source, "-o", folder, "--force", "--quiet", *options)
    return folder


def train_model(work: Path, method: str, model: str, steps: int) -> tuple[Path, dict[str, Any]]:
    """Train a model; return its folder and training statistics."""
    folder, place = work / method, work / "train"
    examples = work / "train.jsonl"
    if not examples.exists():
        index = build_index(work, place / "corpus.jsonl", "train", "--type", "bm25")
        few = work / "few.jsonl"
        write_records(few, random.Random(2).sample(read_records(place / "queries.jsonl"), 12_000))
        run_drtk("search", index, few, "-k", 20, "-o", work / "train.run", "--force", "--quiet")
        run_drtk("mine-negatives", f"bm25={work / 'train.run'}", "--qrels", place / "qrels.tsv", "--policy", "tevatron",
             "-o", examples, "--force", "--quiet")  # fmt: skip
    if not (folder / "meta.json").exists():
        run_drtk("termweight", "--method", method, "--train", examples, "--corpus", place / "corpus.jsonl", "--queries",
             place / "queries.jsonl", "--model", model, "--max-steps", steps, *TRAINING[method], "-o", folder, "--force",
             "--quiet")  # fmt: skip
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return folder, {
        "options": TRAINING[method],
        "steps": steps,
        "seconds": json.loads((folder / "meta.json").read_bytes())["seconds"],
        "loss": {"first": log[0]["loss"], "last ten percent": sum(e["loss"] for e in log[-max(1, len(log) // 10) :])
                 / max(1, len(log) // 10)},
    }  # fmt: skip


def split_words(work: Path, name: str) -> Path:
    """Write a copy of the corpus with words split as by the tokenizer ("nltk.text" is two words), unlike in Lucene."""
    rows = read_records(work / name / "corpus.jsonl")
    for row in rows:
        row |= {field: " ".join(word.text for word in split_basic_words(row[field])) for field in ("title", "text")}
    return write_records(work / f"{name}.parted.jsonl", rows)


def weigh_terms(work: Path, name: str, method: str, model: Path) -> Path:
    path = work / f"{name}.{method}.jsonl"
    if not path.exists():
        run_drtk(
            "termweight",
            work / name / "corpus.jsonl",
            "--method",
            method,
            "--model",
            model,
            "-o",
            path,
            "--force",
            "--quiet",
        )
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--methods", nargs="+", default=["deepct", "deepimpact"], choices=list(TRAINING))
    parser.add_argument("--max-steps", type=int, default=120)
    parser.add_argument("--work", type=Path, default=Path("term-weights"), metavar="DIR")
    parser.add_argument("--out", metavar="FILE")
    options = parser.parse_args()
    work = options.work
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "sample").exists():
        prepare_collections(options.data, work)
    collections = ["squad", "cranfield", "sample"]
    systems: dict[str, dict[str, Any]] = {}
    training: dict[str, Any] = {}
    plain = {name: build_index(work, work / name / "corpus.jsonl", name, "--type", "bm25") for name in collections}
    alike = {name: build_index(work, split_words(work, name), "plain", "--type", "bm25") for name in collections}
    # upper bound of BM25: k1 and b tuned on the evaluated questions
    bound = {name: tune_bm25(index, work / name, PLAIN_GRID) for name, index in alike.items()}
    systems["BM25, words parted alike, k1 and b best for the judged questions"] = {
        name: search_and_evaluate(work, name, index, "bound", bound[name]) | {"parameters": bound[name]}
        for name, index in alike.items()
    }
    ways: dict[str, tuple[dict[str, Path], list[str]]] = {
        "BM25": (plain, []),
        "BM25, words parted alike": (alike, []),
        "BM25, k1 and b chosen": (plain, tune_bm25(plain["squad"], work / "choosing", PLAIN_GRID)),
    }
    for method in options.methods:
        model, training[method] = train_model(work, method, options.model, options.max_steps)
        files = {name: weigh_terms(work, name, method, model) for name in collections}
        if method == "deepimpact":
            ways["DeepImpact"] = (
                {name: build_index(work, file, "i", "--type", "impact") for name, file in files.items()},
                [],
            )
            continue
        for scale in ("linear", "sqrt"):
            more = ("--type", "bm25", "--term-weights", "--set", f"weight_scale={scale}")
            found = {name: build_index(work, file, scale, *more) for name, file in files.items()}
            ways[f"DeepCT, {scale}"] = (found, [])
            ways[f"DeepCT, {scale}, k1 and b chosen"] = (
                found,
                tune_bm25(found["squad"], work / "choosing", WEIGHTS_GRID),
            )
    for system, (indexes, parameters) in ways.items():
        tag = system.replace(" ", "-").replace(",", "")
        systems[system] = {"parameters": parameters} | {
            name: search_and_evaluate(work, name, index, tag, parameters) for name, index in indexes.items()
        }
    result = {
        "command": "python benchmarks/term_weights.py",
        "collections": {
            name: {
                "passages": len(read_records(work / name / "corpus.jsonl")),
                "questions": len({row[0] for row in read_judgments(work / name / "qrels.tsv")}),
            }
            for name in collections
        },
        "training": training,
        "systems": systems,
        "hardware": {"machine": platform.machine(), "system": platform.system(), "cores": os.cpu_count()},
        "versions": list_versions(),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        Path(options.out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Learned term weights beside plain BM25: DeepCT and DeepImpact trained on SQuAD's train questions, judged on questions held out.

python benchmarks/term_weights.py --data DIR --model DIR [--methods deepct deepimpact] [--max-steps N] [--out FILE] [--work DIR]

DIR of --data holds `squad` and `cranfield` in BEIR's layout; --model is the encoder to start from. Everything runs through the
commands. Passages that are searched were not trained on: 1,000 of SQuAD's dev paragraphs and 1,000 train paragraphs as distractors,
whose questions choose k1 and b; Cranfield; and `drtk sample` of the installed packages. Writes JSON: measures by collection and system.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import json
import os
import platform
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from drtk.text.words import split_basic_words

MEASURES = "nDCG@10 RR@10 R@100"
PLAIN_GRID = "k1=0.6,0.9,1.2,2,3,5 b=0.2,0.4,0.75,0.9,1"
WEIGHTS_GRID = "k1=2,5,10,18,40 b=0.2,0.4,0.7,0.9"
SEARCHED, DISTRACTORS, QUESTIONS, CHOOSING = 1000, 1000, 2000, 500
TRAINING = {
    "deepct": ["--set", "batch_size=16", "--learning-rate", "1e-4", "--set", "max_length=128"],
    "deepimpact": ["--set", "batch_size=8", "--learning-rate", "1e-4", "--set", "max_length=128"],
}
Rows = list[dict[str, Any]]


def drtk(*arguments: object) -> str:
    """What a command writes to stdout."""
    print("drtk", *arguments, file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "drtk", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def read(path: Path) -> Rows:
    content = path.read_bytes()
    return [json.loads(line) for line in (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()]


def write(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def judgements(path: Path) -> list[tuple[str, str, str]]:
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [(query, passage, grade) for query, passage, grade in (line.split("\t") for line in lines)]


def write_judgements(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(row) for row in rows)]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def part(folder: Path, corpus: Rows, queries: Rows, qrels: list[tuple[str, str, str]]) -> Path:
    """A collection in a folder: corpus.jsonl, queries.jsonl, qrels.tsv."""
    folder.mkdir(exist_ok=True)
    write(folder / "corpus.jsonl", corpus)
    asked = {query for query, _, _ in qrels}
    write(folder / "queries.jsonl", [row for row in queries if row["_id"] in asked])
    write_judgements(folder / "qrels.tsv", qrels)
    return folder


def prepared(data: Path, work: Path) -> None:
    """train/ (passages that are trained on), and the collections squad/, choosing/ (of one corpus), cranfield/, sample/."""
    rng = random.Random(1)
    squad = data / "squad"
    corpus, queries = read(squad / "corpus.jsonl.gz"), read(squad / "queries.jsonl.gz")
    train, dev = judgements(squad / "qrels" / "train.tsv"), judgements(squad / "qrels" / "dev.tsv")
    trained = sorted({passage for _, passage, _ in train})
    apart = set(rng.sample(trained, DISTRACTORS))
    wanted = set(rng.sample(sorted({passage for _, passage, _ in dev}), SEARCHED))
    dev = [row for row in dev if row[1] in wanted]
    searched = wanted | apart
    part(work / "train", [row for row in corpus if row["_id"] not in searched], queries,
         [row for row in train if row[1] not in apart])  # fmt: skip
    found = [row for row in corpus if row["_id"] in searched]
    part(work / "squad", found, queries, rng.sample(dev, QUESTIONS))
    part(work / "choosing", found, queries, rng.sample([row for row in train if row[1] in apart], CHOOSING))
    cranfield = data / "cranfield"
    qrels = judgements(cranfield / "qrels" / "test.tsv")
    part(work / "cranfield", read(cranfield / "corpus.jsonl.gz"), read(cranfield / "queries.jsonl.gz"), qrels)
    drtk("sample", work / "docs", "--limit", 1500, "--force", "--quiet")
    docs = work / "docs"
    qrels = judgements(docs / "qrels" / "test.tsv")
    part(work / "sample", read(docs / "documents.jsonl"), read(docs / "queries.jsonl"), qrels)


def chosen(index: Path, place: Path, grid: str) -> list[str]:
    """The k1 and b that serve the questions of a collection best, as options."""
    table = drtk("search", index, place / "queries.jsonl", "--tune", "--qrels", place / "qrels.tsv", "--set", f"grid={grid}",
                 "--set", "measure=nDCG@10", "-k", 100, "--quiet")  # fmt: skip
    k1, b, _ = table.splitlines()[1].split("\t")
    return ["--k1", k1, "--b", b]


def scores(run: Path, place: Path) -> dict[str, float]:
    found = drtk("eval", run, "--qrels", place / "qrels.tsv", "--measures", MEASURES, "--format", "jsonl", "--quiet")
    row = json.loads(found.splitlines()[0])
    return {name: row[name] for name in MEASURES.split()}


def searched(work: Path, name: str, index: Path, system: str, options: list[str]) -> dict[str, float]:
    place, run = work / name, work / f"{name}.{system}.run"
    drtk("search", index, place / "queries.jsonl", "-k", 100, *options, "-o", run, "--force", "--quiet")
    return scores(run, place)


def indexed(work: Path, source: Path, system: str, *options: object) -> Path:
    folder = work / f"{source.stem}.{system}.index"
    drtk("index", source, "-o", folder, "--force", "--quiet", *options)
    return folder


def trained(work: Path, method: str, model: str, steps: int) -> tuple[Path, dict[str, Any]]:
    """The folder of the trained model, and how long that took."""
    folder, place = work / method, work / "train"
    examples = work / "train.jsonl"
    if not examples.exists():
        index = indexed(work, place / "corpus.jsonl", "train", "--type", "bm25")
        few = work / "few.jsonl"
        write(few, random.Random(2).sample(read(place / "queries.jsonl"), 12_000))
        drtk("search", index, few, "-k", 20, "-o", work / "train.run", "--force", "--quiet")
        drtk("mine-negatives", f"bm25={work / 'train.run'}", "--qrels", place / "qrels.tsv", "--policy", "tevatron",
             "-o", examples, "--force", "--quiet")  # fmt: skip
    if not (folder / "meta.json").exists():
        drtk("termweight", "--method", method, "--train", examples, "--corpus", place / "corpus.jsonl", "--queries",
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


def parted(work: Path, name: str) -> Path:
    """The corpus with its words parted as the tokenizer parts them (nltk.text is two), which Lucene alone does not."""
    rows = read(work / name / "corpus.jsonl")
    for row in rows:
        row |= {field: " ".join(word.text for word in split_basic_words(row[field])) for field in ("title", "text")}
    return write(work / f"{name}.parted.jsonl", rows)


def weighted(work: Path, name: str, method: str, model: Path) -> Path:
    path = work / f"{name}.{method}.jsonl"
    if not path.exists():
        drtk(
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
        prepared(options.data, work)
    collections = ["squad", "cranfield", "sample"]
    systems: dict[str, dict[str, Any]] = {}
    training: dict[str, Any] = {}
    plain = {name: indexed(work, work / name / "corpus.jsonl", name, "--type", "bm25") for name in collections}
    alike = {name: indexed(work, parted(work, name), "plain", "--type", "bm25") for name in collections}
    # What BM25 could reach at most: k1 and b chosen on the very questions that are judged.
    bound = {name: chosen(index, work / name, PLAIN_GRID) for name, index in alike.items()}
    systems["BM25, words parted alike, k1 and b best for the judged questions"] = {
        name: searched(work, name, index, "bound", bound[name]) | {"parameters": bound[name]}
        for name, index in alike.items()
    }
    ways: dict[str, tuple[dict[str, Path], list[str]]] = {
        "BM25": (plain, []),
        "BM25, words parted alike": (alike, []),
        "BM25, k1 and b chosen": (plain, chosen(plain["squad"], work / "choosing", PLAIN_GRID)),
    }
    for method in options.methods:
        model, training[method] = trained(work, method, options.model, options.max_steps)
        files = {name: weighted(work, name, method, model) for name in collections}
        if method == "deepimpact":
            ways["DeepImpact"] = (
                {name: indexed(work, file, "i", "--type", "impact") for name, file in files.items()},
                [],
            )
            continue
        for scale in ("linear", "sqrt"):
            more = ("--type", "bm25", "--term-weights", "--set", f"weight_scale={scale}")
            found = {name: indexed(work, file, scale, *more) for name, file in files.items()}
            ways[f"DeepCT, {scale}"] = (found, [])
            ways[f"DeepCT, {scale}, k1 and b chosen"] = (found, chosen(found["squad"], work / "choosing", WEIGHTS_GRID))
    for system, (indexes, parameters) in ways.items():
        tag = system.replace(" ", "-").replace(",", "")
        systems[system] = {"parameters": parameters} | {
            name: searched(work, name, index, tag, parameters) for name, index in indexes.items()
        }
    result = {
        "command": "python benchmarks/term_weights.py",
        "collections": {
            name: {
                "passages": len(read(work / name / "corpus.jsonl")),
                "questions": len({row[0] for row in judgements(work / name / "qrels.tsv")}),
            }
            for name in collections
        },
        "training": training,
        "systems": systems,
        "hardware": {"machine": platform.machine(), "system": platform.system(), "cores": os.cpu_count()},
        "versions": {name: importlib.metadata.version(name) for name in ("drtk", "torch", "transformers")},
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        Path(options.out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

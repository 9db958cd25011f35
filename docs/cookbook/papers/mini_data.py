"""Make the small data of the papers' recipes from SQuAD: a collection to search, training judgments, and fields for pre-training passages.

python docs/cookbook/papers/mini_data.py SQUAD PASSAGES OUT

SQUAD is a folder with SQuAD 1.1 as in BEIR:

corpus.jsonl.gz       paragraphs, ids ARTICLE-…, those of dev last
documents.jsonl.gz    whole articles: id, title, text; the id is ARTICLE
queries.jsonl.gz      questions; metadata.answers is a list of strings
qrels/train.tsv, qrels/dev.tsv

PASSAGES are chunks of the articles. Writes to OUT:

corpus.jsonl      all paragraphs of dev and the last 3,000 of train
pool.jsonl        those 3,000 of train
qrels/test.tsv    every fifth question of dev
qrels/train.tsv   every second question about these 3,000 paragraphs of train
queries.jsonl     the questions of both
fields.jsonl      `queries` of passages of train: the questions whose answers they contain, in place of generated queries; `continuations` of
                  all passages: the one that follows, in place of a generated continuation
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def read_records(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def read_judgments(path: Path) -> list[tuple[str, str]]:
    """Return pairs of query id and paragraph id."""
    pairs = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:])
    return [(query, paragraph) for query, paragraph, _ in pairs]


def write_judgments(path: Path, pairs: Iterable[tuple[str, str]]) -> None:
    rows = "".join(f"{query}\t{paragraph}\t1\n" for query, paragraph in pairs)
    path.write_text("query-id\tcorpus-id\tscore\n" + rows, encoding="utf-8")


def write_records(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")


def main() -> None:
    squad, passages, out = map(Path, sys.argv[1:])
    (out / "qrels").mkdir(parents=True, exist_ok=True)
    corpus = read_records(squad / "corpus.jsonl.gz")
    queries = {query["_id"]: query for query in read_records(squad / "queries.jsonl.gz")}
    dev, train = read_judgments(squad / "qrels" / "dev.tsv"), read_judgments(squad / "qrels" / "train.tsv")
    of_dev = {paragraph for _, paragraph in dev}
    searched = corpus[-3000 - len(of_dev) :]  # the paragraphs of dev are the last
    pool = [paragraph for paragraph in searched if paragraph["_id"] not in of_dev]
    in_pool = {paragraph["_id"] for paragraph in pool}
    splits = {"test": dev[::5], "train": [pair for pair in train if pair[1] in in_pool][::2]}
    write_records(out / "corpus.jsonl", searched)
    write_records(out / "pool.jsonl", pool)
    write_records(out / "queries.jsonl", (queries[query] for pairs in splits.values() for query, _ in pairs))
    for name, pairs in splits.items():
        write_judgments(out / "qrels" / f"{name}.tsv", pairs)

    texts = {paragraph["_id"]: paragraph["text"] for paragraph in corpus}
    by_article = defaultdict(list)  # (paragraph, question, answer)
    for query, paragraph in train:
        question = queries[query]
        by_article[paragraph.split("-")[0]].append(
            (texts[paragraph], question["text"], question["metadata"]["answers"][0])
        )
    chunks = read_records(passages)
    following = [*chunks[1:], None]
    part = out / f"fields.{os.getpid()}.part"
    with open(part, "w", encoding="utf-8") as file:
        for chunk, after in zip(chunks, following, strict=True):
            text, article = chunk["text"], chunk["metadata"]["source_id"]
            questions = [
                question for paragraph, question, answer in by_article[article] if answer in text and text in paragraph
            ]
            is_next = after is not None and after["metadata"]["source_id"] == article
            fields = {"id": chunk["_id"], "queries": questions, "continuations": [after["text"]] if is_next else []}
            file.write(json.dumps(fields, ensure_ascii=False) + "\n")
    part.replace(out / "fields.jsonl")  # the last output: its presence marks the data as complete


if __name__ == "__main__":
    main()

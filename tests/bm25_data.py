"""Data for tests of both BM25 engines: a hand-computed example, and readers of real collections."""

import gzip
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from drtk.errors import MissingDependency
from drtk.records import Passage

# docs/commands/index.md: documents "a b b c", "a c", "b d d", "c d e e e", average length 14 / 4 = 3.5; query "b d". `a` is a stop
# word of Lucene's, so it is written `x` here.
EXAMPLE_TEXTS = {"d1": "x b b c", "d2": "x c", "d3": "b d d", "d4": "c d e e e"}


def make_passages(texts: dict[str, str]) -> list[Passage]:
    """Return passages without titles."""
    return [Passage(id=id, text=text) for id, text in texts.items()]


def skip_without_lucene() -> None:
    """Skip the test if Lucene's jar or Java is missing."""
    from drtk.indexing.lucene.jvm import find_jar, find_java

    try:
        find_jar()
        find_java()
    except MissingDependency as error:
        pytest.skip(str(error))


def run_anserini(folder: Path, rows: list[dict[str, Any]], **settings: object) -> Path:
    """Index rows with Anserini; return the index folder. settings: arguments of IndexCollection"""
    from drtk.indexing.lucene.jvm import load_class

    (folder / "rows").mkdir(exist_ok=True)
    (folder / "rows" / "r.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    arguments = load_class("io.anserini.index.IndexCollection$Args")()
    arguments.input, arguments.index = str(folder / "rows"), str(folder / "index")
    arguments.threads, arguments.quiet = 1, True
    for name, value in settings.items():
        setattr(arguments, name, value)
    load_class("io.anserini.index.IndexCollection")(arguments).run()
    return folder / "index"


def read_corpus(folder: Path) -> list[Passage]:
    """Return the passages of a BEIR folder."""
    with gzip.open(folder / "corpus.jsonl.gz") as lines:
        rows = [orjson.loads(line) for line in lines]
    return [Passage(id=row["_id"], title=row["title"], text=row["text"]) for row in rows]


def read_judgments(folder: Path, split: str) -> dict[str, dict[str, int]]:
    """Return {query id: {passage id: grade}} of a BEIR folder."""
    judgments: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels" / f"{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        query_id, passage_id, grade = line.split("\t")
        judgments.setdefault(query_id, {})[passage_id] = int(grade)
    return judgments


def read_queries(folder: Path, ids: Any) -> dict[str, str]:
    """Return {id: text} of the queries `ids` of a BEIR folder."""
    with gzip.open(folder / "queries.jsonl.gz") as lines:
        rows = [orjson.loads(line) for line in lines]
    return {row["_id"]: row["text"] for row in rows if row["_id"] in ids}

"""A synthetic collection for query reranking: questions, passages, and expansions with known labels."""

import json
from collections.abc import Iterable
from pathlib import Path

from drtk.cli.main import app
from tests.run_commands import write_text
from tests.tiny_models import make_topic_words

GOOD, MIDDLING, BAD = make_topic_words("garden")[:2], make_topic_words("river")[:2], make_topic_words("engine")[:2]
RANKS = {"good": 1, "middling": 2, "bad": 101, "nothing": 101}
KINDS = ("sentence", "answer", "title")
# Orders of the expansions of a question; the best is not always first.
ORDERS = [
    ("bad", "good", "nothing", "middling"),
    ("middling", "bad", "good", "nothing"),
    ("nothing", "middling", "bad", "good"),
    ("good", "bad", "middling", "nothing"),
]


def make_collection(count: int = 24) -> tuple[list[dict], list[dict], list[dict]]:
    """Return rows of passages, questions and expansions (four of each kind per question).

    d{n} contains the answer to q{n}. x{n} is shorter, has the same key word and no answer, so BM25 ranks it first for that
    word. An expansion with the answer retrieves d{n} at rank 1, one with the key word at rank 2; the others retrieve no
    answer. Each quality has words of its own that occur in no passage, from which a model can learn it.
    """
    passages, questions, expansions = [], [], []
    for n in range(count):
        passages.append({"_id": f"d{n}", "title": f"About{n}", "text": f"key{n} ans{n} of a long story told here"})
        passages.append({"_id": f"x{n}", "title": f"Also{n}", "text": f"key{n} told"})
        questions.append({"_id": f"q{n}", "text": f"which thing was meant{n}?", "answers": [f"Ans{n}"]})
        for place, kind in enumerate(KINDS):
            for number, quality in enumerate(ORDERS[(n + place) % len(ORDERS)]):
                row = {"_id": f"q{n}#{kind}#{number:02}", "query_id": f"q{n}", "kind": kind}
                expansions.append(row | {"text": make_expansion_text(n, quality, number), "made": quality})
    return passages, questions, expansions


def make_expansion_text(n: int, quality: str, number: int = 0) -> str:
    """Return an expansion of this quality for question `n`."""
    words = {"good": GOOD, "middling": MIDDLING, "bad": BAD, "nothing": BAD}[quality]
    found = {"good": f"ans{n}", "middling": f"key{n}", "bad": f"key{n + 1000}", "nothing": "nowhere"}[quality]
    return f"{words[number % 2]} {found} {words[0]}"


def write_rows(path: Path | str, rows: Iterable[dict]) -> Path:
    """Write rows as JSONL; return the path."""
    return write_text(Path(path), "".join(json.dumps(row) + "\n" for row in rows))


def read_rows(path: Path | str) -> list[dict]:
    """Return the rows of a JSONL file."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def write_collection(folder: Path, count: int = 24) -> Path:
    """Write corpus.jsonl, queries.jsonl, expansions.jsonl and the index bm25s; return the folder."""
    for name, rows in zip(("corpus", "queries", "expansions"), make_collection(count), strict=True):
        write_rows(folder / f"{name}.jsonl", rows)
    call = ["index", str(folder / "corpus.jsonl"), "--type", "bm25s", "-o", str(folder / "bm25s"), "-q"]
    app(call, standalone_mode=False)
    return folder


def label_expansions(folder: Path) -> Path:
    """Label the expansions of the collection with drtk rerank-queries label; return the file."""
    output = folder / "labeled.jsonl"
    if not output.exists():
        call = ["rerank-queries", "label", folder / "expansions.jsonl", "--queries", folder / "queries.jsonl"]
        app([str(each) for each in (*call, "--index", folder / "bm25s", "-o", output, "-q")], standalone_mode=False)
    return output

"""A tiny collection with everything a command may read, made when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import orjson

from tests.contract.run_drtk import run_successfully

WORDS = (
    "wing lift drag flow heat shock plate layer speed sound jet cone gust flap tail pitch yaw roll climb stall".split()
)


def sentence(number: int) -> str:
    """A sentence that depends on its number alone."""
    words = [WORDS[(number * 7 + step * (number % 5 + 1)) % len(WORDS)] for step in range(6 + number % 4)]
    return " ".join(words).capitalize() + f" {number}."


def lines(rows: Iterator[dict[str, object]]) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def documents(count: int) -> bytes:
    """Documents of some sentences, with a field no command knows."""
    return lines(
        {
            "_id": f"d{number}",
            "title": sentence(number)[:12],
            "text": " ".join(sentence(number * 10 + step) for step in range(4 + number % 5)),
            "metadata": {"year": 1950 + number % 30},
            "colour": ["red", "blue"][number % 2],
        }
        for number in range(count)
    )


def queried(count: int) -> bytes:
    """The documents with two scored queries each."""
    return lines(
        row
        | {
            "queries": [sentence(number * 10)[:-3], sentence(number + 7)[:-3]],
            "query_scores": [number % 9 / 8, number % 4 / 4],
        }
        for number, row in enumerate(map(orjson.loads, documents(count).splitlines()))
    )


def queries(count: int) -> bytes:
    return lines({"_id": f"q{number}", "text": sentence(number * 10)[:-3], "colour": "red"} for number in range(count))


def run(count: int, depth: int = 20, shift: int = 0) -> bytes:
    """A TREC run over 40 documents: query i finds the document i at rank 1 + i % 4 - `shift`."""
    return b"".join(
        b"q%d Q0 d%d %d %r drtk\n" % (query, (query - query % 4 + place + shift) % 40, place + 1, 100.0 - place)
        for query in range(count)
        for place in range(depth)
    )


def examples(count: int) -> bytes:
    return lines(
        {
            "query_id": f"q{number % 20}",
            "positives": [f"d{number % 20}"],
            "negatives": [f"d{(number + step) % 20 + 20}" for step in range(3)],
            "colour": "red",
        }
        for number in range(count)
    )


def qrels(count: int) -> bytes:
    return b"query-id\tcorpus-id\tscore\n" + b"".join(
        b"q%d\td%d\t1\n" % (number, number % 40) for number in range(count)
    )


def questions(count: int) -> bytes:
    """Questions whose answer is a word of the document they are about."""
    return lines(
        {"id": f"q{number}", "question": sentence(number * 10)[:-3], "answers": [sentence(number * 10).split()[1]]}
        for number in range(count)
    )


def expansions(count: int) -> bytes:
    """Four candidates for each question, the second of which holds its answer."""
    return lines(
        {
            "_id": f"e{number}",
            "query_id": f"q{number // 4}",
            "kind": "answer",
            "text": f"{WORDS[number % 7]} {sentence(number // 4 * 10).split()[1] if number % 4 == 1 else number}",
            "colour": ["red", "blue"][number % 2],
            "metadata": {"year": 1950},
        }
        for number in range(count)
    )


def labelled(count: int) -> bytes:
    """The candidates with a rank each, the second of a question having the best, and a first passage."""
    return lines(
        row | {"rank": [101, 1, 7, 101][number % 4], "depth": 100, "top1": {"title": "", "text": sentence(number)}}
        for number, row in enumerate(map(orjson.loads, expansions(count).splitlines()))
    )


def predictions(count: int) -> bytes:
    """Answers to the questions, every other one right."""
    return lines(
        {"query_id": f"q{number}", "answer": sentence(number * 10).split()[1 if number % 2 else 2]}
        for number in range(count)
    )


def sentence_vectors(count: int) -> bytes:
    """A vector for each of the first sentences, those of the sentence task among them."""
    return lines(
        {"text": sentence(number), "vector": [1.0, number % 7 / 7, number % 3 / 3]} for number in range(max(count, 20))
    )


def sentence_pairs(count: int) -> bytes:
    """A task: pairs of the first sentences, rated 0 to 5."""
    return b"sentence1\tsentence2\tscore\n" + b"".join(
        f"{sentence(number)}\t{sentence(number + 5)}\t{number * 7 % 6}\n".encode() for number in range(count)
    )


def training_log(count: int) -> bytes:
    """What training writes down: a loss that falls."""
    return lines(
        {"step": 10 * (number + 1), "loss": 2.0 / (number + 1), "epoch": number / 10} for number in range(count)
    )


TINY = ["--vocab-size", "300", "--layers", "1", "--hidden", "16", "--heads", "2", "--max-length", "64"]


class Collection:
    """Paths by name: files are there at once, folders are made by the commands that make such folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        contents = {
            "documents.jsonl": documents(40),
            "queried.jsonl": queried(40),
            "queries.jsonl": queries(20),
            "many.jsonl": queries(8000),
            "first.run": run(20),
            "second.run": run(20, shift=-2),
            "many.run": run(1200, depth=5),
            "qrels.tsv": qrels(20),
            "many.tsv": qrels(20_000),
            "examples.jsonl": examples(24),
            "questions.jsonl": questions(20),
            "predictions.jsonl": predictions(20),
            "asked.jsonl": questions(2000),
            "expansions.jsonl": expansions(80),
            "labeled.jsonl": labelled(80),
            "sentences.jsonl": sentence_vectors(20),
            "tasks/STS-B/test.tsv": sentence_pairs(12),
            "log.jsonl": training_log(20),
        }
        for name, content in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    def __getitem__(self, name: str) -> Path:
        """A file of the collection, or a folder made of it: model, vectors, bm25s, index."""
        made = getattr(self, f"_{name}", None)
        return self.folder / name if made is None else made

    @cached_property
    def _model(self) -> Path:
        size = "--vocab-size 300 --layers 1 --hidden 32 --heads 2 --max-length 64 --pooling mean --seed 1".split()
        return self._make("model", "init-model", str(self["documents.jsonl"]), *size)

    @cached_property
    def _writer(self) -> Path:
        """A T5-type model that writes."""
        return self._make("writer", "init-model", str(self["documents.jsonl"]), "--arch", "t5", *TINY)

    @cached_property
    def _gpt2(self) -> Path:
        """A model that goes on with a text."""
        return self._make("gpt2", "init-model", str(self["documents.jsonl"]), "--arch", "gpt2", *TINY)

    @cached_property
    def _crossencoder(self) -> Path:
        """A cross-encoder; no command makes one."""
        from tests.tiny_models import save_tiny_cross_encoder

        return save_tiny_cross_encoder(self.folder / "crossencoder")

    @cached_property
    def _query_reranker(self) -> Path:
        """A model that has seen a few steps of what expansions retrieve."""
        call = ["rerank-queries", "train", str(self["labeled.jsonl"]), "--queries", str(self["asked.jsonl"])]
        call += ["--model", str(self["model"]), "--max-length", "24", "--max-steps", "2", "--device", "cpu"]
        return self._make("query_reranker", *call)

    @cached_property
    def _weighted(self) -> Path:
        """The documents with a weight on each word piece."""
        return self._weigh("weighted")

    @cached_property
    def _counts(self) -> Path:
        """Statistics of the documents."""
        return self._weigh("counts", "--collect")

    def _weigh(self, name: str, *more: str) -> Path:
        call = ["termweight", str(self["documents.jsonl"]), "--method", "tfidf", "--tokenizer", str(self["model"])]
        return self._make(name, *call, *more)

    @cached_property
    def _vectors(self) -> Path:
        return self._make("vectors", "encode", str(self["documents.jsonl"]), "--model", str(self["model"]))

    @cached_property
    def _exact(self) -> Path:
        return self._make("exact", "index", str(self["vectors"]), "--type", "exact")

    @cached_property
    def _bm25s(self) -> Path:
        return self._make("bm25s", "index", str(self["documents.jsonl"]), "--type", "bm25s")

    def _make(self, name: str, *arguments: str) -> Path:
        folder = self.folder / name
        run_successfully(*arguments, "-o", str(folder), "-q")
        return folder

    def for_examples(self) -> dict[str, Path]:
        """The collection under the names the examples of the documentation use; the folders of models among them."""
        same = (
            "documents.jsonl queried.jsonl queries.jsonl qrels.tsv questions.jsonl predictions.jsonl expansions.jsonl "
        )
        same += "labeled.jsonl sentences.jsonl tasks log.jsonl model writer gpt2 crossencoder"
        files = {name: name for name in same.split()} | {
            "corpus.jsonl": "documents.jsonl",
            "passages.jsonl": "documents.jsonl",
            "bm25.run": "first.run",
            "dense.run": "second.run",
            "train.jsonl": "examples.jsonl",
            "weighted.jsonl": "weighted",
            "bm25": "bm25s",
        }
        return {name: self[part] for name, part in files.items()}

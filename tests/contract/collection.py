"""A tiny collection with all inputs of commands; models and indexes are built on first use."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import orjson

from tests.contract.run_drtk import run_successfully

WORDS = (
    "wing lift drag flow heat shock plate layer speed sound jet cone gust flap tail pitch yaw roll climb stall".split()
)


def make_sentence(number: int) -> str:
    """Return a sentence that depends only on `number`."""
    words = [WORDS[(number * 7 + step * (number % 5 + 1)) % len(WORDS)] for step in range(6 + number % 4)]
    return " ".join(words).capitalize() + f" {number}."


def dump_lines(rows: Iterator[dict[str, object]]) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def make_documents(count: int) -> bytes:
    """Return documents of several sentences, with an unknown field."""
    return dump_lines(
        {
            "_id": f"d{number}",
            "title": make_sentence(number)[:12],
            "text": " ".join(make_sentence(number * 10 + step) for step in range(4 + number % 5)),
            "metadata": {"year": 1950 + number % 30},
            "colour": ["red", "blue"][number % 2],
        }
        for number in range(count)
    )


def make_documents_with_queries(count: int) -> bytes:
    """Return the documents with two scored queries each."""
    return dump_lines(
        row
        | {
            "queries": [make_sentence(number * 10)[:-3], make_sentence(number + 7)[:-3]],
            "query_scores": [number % 9 / 8, number % 4 / 4],
        }
        for number, row in enumerate(map(orjson.loads, make_documents(count).splitlines()))
    )


def make_queries(count: int) -> bytes:
    return dump_lines(
        {"_id": f"q{number}", "text": make_sentence(number * 10)[:-3], "colour": "red"} for number in range(count)
    )


def make_run(count: int, depth: int = 20, shift: int = 0) -> bytes:
    """Return a TREC run over 40 documents: document i is at rank 1 + i % 4 - `shift` for query i."""
    return b"".join(
        b"q%d Q0 d%d %d %r drtk\n" % (query, (query - query % 4 + place + shift) % 40, place + 1, 100.0 - place)
        for query in range(count)
        for place in range(depth)
    )


def make_examples(count: int) -> bytes:
    return dump_lines(
        {
            "query_id": f"q{number % 20}",
            "positives": [f"d{number % 20}"],
            "negatives": [f"d{(number + step) % 20 + 20}" for step in range(3)],
            "colour": "red",
        }
        for number in range(count)
    )


def make_qrels(count: int) -> bytes:
    return b"query-id\tcorpus-id\tscore\n" + b"".join(
        b"q%d\td%d\t1\n" % (number, number % 40) for number in range(count)
    )


def make_questions(count: int) -> bytes:
    """Return questions that are answered by a word of their document."""
    return dump_lines(
        {
            "id": f"q{number}",
            "question": make_sentence(number * 10)[:-3],
            "answers": [make_sentence(number * 10).split()[1]],
        }
        for number in range(count)
    )


def make_expansions(count: int) -> bytes:
    """Return four expansions per question; the second contains the answer."""
    return dump_lines(
        {
            "_id": f"e{number}",
            "query_id": f"q{number // 4}",
            "kind": "answer",
            "text": f"{WORDS[number % 7]} {make_sentence(number // 4 * 10).split()[1] if number % 4 == 1 else number}",
            "colour": ["red", "blue"][number % 2],
            "metadata": {"year": 1950},
        }
        for number in range(count)
    )


def make_labeled_expansions(count: int) -> bytes:
    """Return the expansions with ranks (the second one is best) and a first passage."""
    return dump_lines(
        row | {"rank": [101, 1, 7, 101][number % 4], "depth": 100, "top1": {"title": "", "text": make_sentence(number)}}
        for number, row in enumerate(map(orjson.loads, make_expansions(count).splitlines()))
    )


def make_predictions(count: int) -> bytes:
    """Return predicted answers, of which every other one is correct."""
    return dump_lines(
        {"query_id": f"q{number}", "answer": make_sentence(number * 10).split()[1 if number % 2 else 2]}
        for number in range(count)
    )


def make_sentence_vectors(count: int) -> bytes:
    """Return vectors of the first sentences, including those of the sentence task."""
    return dump_lines(
        {"text": make_sentence(number), "vector": [1.0, number % 7 / 7, number % 3 / 3]}
        for number in range(max(count, 20))
    )


def make_sentence_pairs(count: int) -> bytes:
    """Return a sentence task: pairs of sentences with ratings from 0 to 5."""
    return b"sentence1\tsentence2\tscore\n" + b"".join(
        f"{make_sentence(number)}\t{make_sentence(number + 5)}\t{number * 7 % 6}\n".encode() for number in range(count)
    )


def make_training_log(count: int) -> bytes:
    """Return a training log with a falling loss."""
    return dump_lines(
        {"step": 10 * (number + 1), "loss": 2.0 / (number + 1), "epoch": number / 10} for number in range(count)
    )


TINY = ["--vocab-size", "300", "--layers", "1", "--hidden", "16", "--heads", "2", "--max-length", "64"]


class Collection:
    """Paths by name. Files are written immediately; drtk creates folders on first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        contents = {
            "documents.jsonl": make_documents(40),
            "queried.jsonl": make_documents_with_queries(40),
            "queries.jsonl": make_queries(20),
            "many.jsonl": make_queries(8000),
            "first.run": make_run(20),
            "second.run": make_run(20, shift=-2),
            "many.run": make_run(1200, depth=5),
            "qrels.tsv": make_qrels(20),
            "many.tsv": make_qrels(20_000),
            "examples.jsonl": make_examples(24),
            "questions.jsonl": make_questions(20),
            "predictions.jsonl": make_predictions(20),
            "asked.jsonl": make_questions(2000),
            "expansions.jsonl": make_expansions(80),
            "labeled.jsonl": make_labeled_expansions(80),
            "sentences.jsonl": make_sentence_vectors(20),
            "tasks/STS-B/test.tsv": make_sentence_pairs(12),
            "log.jsonl": make_training_log(20),
        }
        for name, content in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    def __getitem__(self, name: str) -> Path:
        """Return the path of a file, or of a folder such as model, vectors or bm25s."""
        made = getattr(self, f"_{name}", None)
        return self.folder / name if made is None else made

    @cached_property
    def _model(self) -> Path:
        size = "--vocab-size 300 --layers 1 --hidden 32 --heads 2 --max-length 64 --pooling mean --seed 1".split()
        return self._make("model", "init-model", str(self["documents.jsonl"]), *size)

    @cached_property
    def _writer(self) -> Path:
        """Create a T5 generator."""
        return self._make("writer", "init-model", str(self["documents.jsonl"]), "--arch", "t5", *TINY)

    @cached_property
    def _gpt2(self) -> Path:
        """Create a GPT-2 language model."""
        return self._make("gpt2", "init-model", str(self["documents.jsonl"]), "--arch", "gpt2", *TINY)

    @cached_property
    def _crossencoder(self) -> Path:
        """Create a cross-encoder, which no command does."""
        from tests.tiny_models import save_tiny_cross_encoder

        return save_tiny_cross_encoder(self.folder / "crossencoder")

    @cached_property
    def _query_reranker(self) -> Path:
        """Train a query reranker for two steps."""
        call = ["rerank-queries", "train", str(self["labeled.jsonl"]), "--queries", str(self["asked.jsonl"])]
        call += ["--model", str(self["model"]), "--max-length", "24", "--max-steps", "2", "--device", "cpu"]
        return self._make("query_reranker", *call)

    @cached_property
    def _weighted(self) -> Path:
        """Write the documents with term weights."""
        return self._weigh("weighted")

    @cached_property
    def _counts(self) -> Path:
        """Write the collection statistics for term weighting."""
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
        """Return the files and folders under the names that the examples of the documentation use."""
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

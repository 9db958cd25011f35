"""How each command is called: every registered command needs an entry, or test_commands fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
from _pytest.mark import ParameterSet

from drtk.cli.main import load_functions
from tests.contract import collection

FUNCTIONS = load_functions()


@dataclass(frozen=True)
class Call:
    """A valid call. {input} is the file under test, {output} where the result goes, {NAME} a part of the collection.

    grow: the input with so many records; None where the command reads no stream.
    torn: a line that is no record of this input.
    streams: one window of records after the other; otherwise the output is a summary of all of them.
    keeps: records of the output carry the unknown fields of the input.
    compares: which files of an output folder must not depend on how the input is compressed.
    """

    arguments: str
    input: str = ""
    grow: Callable[[int], bytes] | None = None
    torn: bytes = b'{"_id": "torn'
    streams: bool = True
    keeps: bool = False
    compares: str = "*"


CALLS = {
    "sample": Call("{output} --packages tqdm --limit 20"),
    "chunk": Call(
        "{input} -o {output} --policy words --no-sentences --max-words 10 --num-workers 1",
        "documents.jsonl",
        collection.documents,
        keeps=True,
    ),
    "doc2query": Call(
        "{input} -o {output} --model {writer} --n 1 --max-new-tokens 2",
        "documents.jsonl",
        collection.documents,
        keeps=True,
    ),
    "keep-queries": Call("{input} -o {output} --keep 0.5", "queried.jsonl", collection.queried, keeps=True),
    "continue-text": Call(
        "{input} -o {output} --model {gpt2} --max-new-tokens 2", "documents.jsonl", collection.documents, keeps=True
    ),
    "termweight": Call(
        "{input} -o {output} --method tfidf --tokenizer {model} --collection {counts}",
        "documents.jsonl",
        collection.documents,
        keeps=True,
    ),
    "init-model": Call(
        "{input} -o {output} --vocab-size 300 --layers 1 --hidden 32 --heads 2", "documents.jsonl", collection.documents
    ),
    "train-generator": Call(
        "{input} -o {output} --corpus {documents.jsonl} --queries {queries.jsonl} --model {writer} --max-steps 2 --batch-size 4 "
        "--max-length 16 --device cpu",
        "examples.jsonl",
        collection.examples,
        torn=b'{"query_id": "q1"}',
        compares="*.safetensors",
    ),
    "encode": Call("{input} -o {output} --model {model}", "documents.jsonl", collection.documents),
    "index": Call("{input} -o {output} --type bm25s", "documents.jsonl", collection.documents),
    "search": Call("{bm25s} {input} -o {output} -k 20", "queries.jsonl", collection.queries),
    "rerank": Call(
        "{input} -o {output} --corpus {documents.jsonl} --queries {many.jsonl} --model {crossencoder} --depth 2 "
        "--max-length 16",
        "first.run",
        collection.run,
        torn=b"q1 Q0 d1 one\n",
    ),
    "fuse": Call("{input} {second.run} -o {output}", "first.run", collection.run, torn=b"q1 Q0 d1 one\n"),
    "expand-queries": Call(
        "{many.jsonl} -o {output} --from-run {input} --corpus {documents.jsonl} --kind title --set candidates=3 --set depth=3",
        "first.run",
        collection.run,
        torn=b"q1 Q0 d1 one\n",
    ),
    "read": Call(
        "{input} -o {output} --corpus {documents.jsonl} --queries {many.jsonl} --model {writer} --depth 2 --max-length 16 "
        "--max-new-tokens 1",
        "first.run",
        collection.run,
        torn=b"q1 Q0 d1 one\n",
    ),
    "rerank-queries label": Call(
        "{input} -o {output} --queries {asked.jsonl} --index {bm25s} --depth 5",
        "expansions.jsonl",
        collection.expansions,
        keeps=True,
    ),
    "rerank-queries train": Call(
        "{input} -o {output} --queries {asked.jsonl} --model {model} --max-steps 2 --max-length 16 --device cpu",
        "labeled.jsonl",
        collection.labelled,
        compares="*.safetensors",
    ),
    "rerank-queries apply": Call(
        "{input} -o {output} --queries {asked.jsonl} --select oracle", "labeled.jsonl", collection.labelled
    ),
    "mine-negatives": Call(
        "run={input} -o {output} --qrels {many.tsv} --policy tevatron",
        "first.run",
        collection.run,
        torn=b"q1 Q0 d1 one\n",
    ),
    "pretrain": Call(
        "{input} -o {output} --preset mlm --model {model} --max-steps 2 --batch-size 4 --max-length 16 --device cpu",
        "documents.jsonl",
        collection.documents,
        compares="*.safetensors",
    ),
    "train-retriever": Call(
        "{input} -o {output} --corpus {documents.jsonl} --queries {queries.jsonl} --model {model} --max-steps 2 --batch-size 4 "
        "--negatives 1 --device cpu",
        "examples.jsonl",
        collection.examples,
        torn=b'{"query_id": "q1"}',
        compares="*.safetensors",
    ),
    "train-reranker": Call(
        "{input} -o {output} --corpus {documents.jsonl} --queries {queries.jsonl} --model {model} --max-steps 2 --batch-size 4 "
        "--negatives 1 --device cpu",
        "examples.jsonl",
        collection.examples,
        torn=b'{"query_id": "q1"}',
        compares="*.safetensors",
    ),
    "score": Call(
        "{input} -o {output} --corpus {documents.jsonl} --queries {queries.jsonl} --model {crossencoder} --max-length 16",
        "examples.jsonl",
        collection.examples,
        torn=b'{"query_id": "q1"}',
    ),
    "eval": Call(
        "run={input} -o {output} --qrels {qrels.tsv}",
        "first.run",
        collection.run,
        torn=b"q1 Q0 d1 one\n",
        streams=False,
    ),
    "eval-sentences": Call(
        "made={input} -o {output} --data {tasks}",
        "sentences.jsonl",
        collection.sentence_vectors,
        streams=False,
    ),
    "compare": Call(
        "a={input} b={second.run} -o {output} --qrels {many.tsv} --set permutations=100 --set missing_as_zero=true",
        "first.run",
        collection.run,
        torn=b"q1 Q0 d1 one\n",
        streams=False,
    ),
    "plot": Call(
        "recall run={input} -o {output} --qrels {many.tsv} --format json",
        "first.run",
        collection.run,
        torn=b"q1 Q0 d1 one\n",
        streams=False,
    ),
    "report": Call(
        "run={input} -o {output} --qrels {qrels.tsv}",
        "first.run",
        collection.run,
        torn=b"q1 Q0 d1 one\n",
        compares="report.json",
    ),
    "convert": Call("{input} -o {output} --as passages", "documents.jsonl", collection.documents, keeps=True),
    "validate": Call("{input} --as passages", "documents.jsonl", collection.documents, streams=False),
    "show": Call("{input}", "documents.jsonl", streams=False),
    "presets": Call("", streams=False),
    "doctor": Call("", streams=False),
}


def find_commands(*shapes: str) -> list[str]:
    """Commands of these shapes (drtk/cli/decorators.py: plain, filter, folder) that are in the table."""
    return [name for name in CALLS if name in FUNCTIONS and getattr(FUNCTIONS[name], "shape", "") in shapes]


def has_flag(name: str, flag: str) -> bool:
    """Whether a command has this common flag (`bare`, `with_files`, `resume`, `skip_bad`)."""
    return flag in getattr(FUNCTIONS[name], "common_flags", ())


# These go through all code that commands share; the others repeat it and are tested with `bin/test -m slow`.
QUICK = ("chunk", "fuse", "keep-queries", "mine-negatives", "encode", "index", "eval")


def mark_slow_commands(names: Iterable[str], *, quick: Iterable[str] = QUICK) -> list[ParameterSet]:
    """Parameters of a test that is run for each command: slow for all commands but `quick`."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]

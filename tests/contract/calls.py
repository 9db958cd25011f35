"""A valid call of each command. test_commands fails if a registered command has none."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
from _pytest.mark import ParameterSet

from drtk.cli.main import load_functions
from tests.contract import collection

FUNCTIONS = load_functions()


@dataclass(frozen=True)
class Call:
    """A valid call. {input} is the tested input file, {output} the output, and {NAME} an entry of the collection.

    streams: whether the output is written batch by batch; otherwise it is a summary
    keeps: whether output records keep the unknown fields of the input
    compares: pattern of the files in an output folder that must not depend on the compression of the input
    reads_records: whether the input is a stream of records, and not a file of any format
    """

    arguments: str
    input: str = ""
    streams: bool = True
    keeps: bool = False
    compares: str = "*"
    reads_records: bool = True

    @property
    def grow(self) -> Callable[[int], bytes] | None:
        """The function that returns an input with `n` records; None if the command reads no records."""
        return GROW.get(self.input) if self.reads_records else None

    @property
    def torn(self) -> bytes:
        """A line that is not a valid record of the input."""
        return {"first.run": b"q1 Q0 d1 one\n", "examples.jsonl": b'{"query_id": "q1"}'}.get(
            self.input, b'{"_id": "torn'
        )


GROW = {
    "documents.jsonl": collection.make_documents,
    "queried.jsonl": collection.make_documents_with_queries,
    "queries.jsonl": collection.make_queries,
    "first.run": collection.make_run,
    "examples.jsonl": collection.make_examples,
    "expansions.jsonl": collection.make_expansions,
    "labeled.jsonl": collection.make_labeled_expansions,
    "sentences.jsonl": collection.make_sentence_vectors,
}

CALLS = {
    "sample": Call("{output} --packages tqdm --limit 20"),
    "import": Call("{input} -o {output}", "documents.jsonl", streams=False, reads_records=False),
    "chunk": Call(
        "{input} -o {output} --policy words --no-sentences --max-words 10 --num-workers 1",
        "documents.jsonl",
        keeps=True,
    ),
    "doc2query": Call("{input} -o {output} --model {writer} --n 1 --max-new-tokens 2", "documents.jsonl", keeps=True),
    "keep-queries": Call("{input} -o {output} --min-score 0.5", "queried.jsonl", keeps=True),
    "continue-text": Call("{input} -o {output} --model {gpt2} --max-new-tokens 2", "documents.jsonl", keeps=True),
    "termweight": Call(
        "{input} -o {output} --method tfidf --tokenizer {model} --collection {counts}", "documents.jsonl", keeps=True
    ),
    "export": Call("{model} -o {output}"),
    "init-model": Call("{input} -o {output} --vocab-size 300 --layers 1 --hidden 32 --heads 2", "documents.jsonl"),
    "train-generator": Call(
        "{input} -o {output} --corpus {documents.jsonl} --queries {queries.jsonl} --model {writer} --max-steps 2 --batch-size 4 "
        "--max-length 16 --device cpu",
        "examples.jsonl",
        compares="*.safetensors",
    ),
    "encode": Call("{input} -o {output} --model {model}", "documents.jsonl"),
    "index": Call("{input} -o {output} --type bm25s", "documents.jsonl"),
    "search": Call("{bm25s} {input} -o {output} -k 20", "queries.jsonl"),
    "rerank": Call(
        "{input} -o {output} --corpus {documents.jsonl} --queries {many.jsonl} --model {crossencoder} --depth 2 "
        "--max-length 16",
        "first.run",
    ),
    "fuse": Call("{input} {second.run} -o {output}", "first.run"),
    "expand-queries": Call(
        "{many.jsonl} -o {output} --from-run {input} --corpus {documents.jsonl} --kind title --set candidates=3 --set depth=3",
        "first.run",
    ),
    "read": Call(
        "{input} -o {output} --corpus {documents.jsonl} --queries {many.jsonl} --model {writer} --depth 2 --max-length 16 "
        "--max-new-tokens 1",
        "first.run",
    ),
    "rerank-queries label": Call(
        "{input} -o {output} --queries {asked.jsonl} --index {bm25s} --depth 5", "expansions.jsonl", keeps=True
    ),
    "rerank-queries train": Call(
        "{input} -o {output} --queries {asked.jsonl} --model {model} --max-steps 2 --max-length 16 --device cpu",
        "labeled.jsonl",
        compares="*.safetensors",
    ),
    "rerank-queries apply": Call("{input} -o {output} --queries {asked.jsonl} --select oracle", "labeled.jsonl"),
    "mine-negatives": Call("run={input} -o {output} --qrels {many.tsv} --policy tevatron", "first.run"),
    "pretrain": Call(
        "{input} -o {output} --preset mlm --model {model} --max-steps 2 --batch-size 4 --max-length 16 --device cpu",
        "documents.jsonl",
        compares="*.safetensors",
    ),
    "train-retriever": Call(
        "{input} -o {output} --corpus {documents.jsonl} --queries {queries.jsonl} --model {model} --max-steps 2 --batch-size 4 "
        "--negatives 1 --device cpu",
        "examples.jsonl",
        compares="*.safetensors",
    ),
    "train-reranker": Call(
        "{input} -o {output} --corpus {documents.jsonl} --queries {queries.jsonl} --model {model} --max-steps 2 --batch-size 4 "
        "--negatives 1 --device cpu",
        "examples.jsonl",
        compares="*.safetensors",
    ),
    "score": Call(
        "{input} -o {output} --corpus {documents.jsonl} --queries {queries.jsonl} --model {crossencoder} --max-length 16",
        "examples.jsonl",
    ),
    "eval": Call("run={input} other={second.run} -o {output} --qrels {qrels.tsv}", "first.run", streams=False),
    "eval-sentences": Call("made={input} -o {output} --data {tasks}", "sentences.jsonl", streams=False),
    "compare": Call(
        "a={input} b={second.run} -o {output} --qrels {many.tsv} --set permutations=100 --set missing_as_zero=true",
        "first.run",
        streams=False,
    ),
    "plot": Call("recall run={input} -o {output} --qrels {many.tsv} --format json", "first.run", streams=False),
    "report": Call(
        "run={input} other={second.run} -o {output} --qrels {qrels.tsv}", "first.run", compares="report.json"
    ),
    "convert": Call("{input} -o {output} --as passages", "documents.jsonl", keeps=True),
    "validate": Call("{input} --as passages", "documents.jsonl", streams=False),
    "show": Call("{documents.jsonl}", streams=False),
    "serve": Call("{index}", streams=False),
    "presets": Call("", streams=False),
    "doctor": Call("", streams=False),
}


def find_commands(*shapes: str) -> list[str]:
    """Return the commands of these kinds: plain, filter, folder (see drtk/cli/decorators.py)."""
    return [name for name in CALLS if name in FUNCTIONS and getattr(FUNCTIONS[name], "shape", "") in shapes]


def has_flag(name: str, flag: str) -> bool:
    """Return whether a command has a common flag: bare, with_files, resume, skip_bad."""
    return flag in getattr(FUNCTIONS[name], "common_flags", ())


# These run all code that commands share. The others are tested with `bin/test -m slow`.
QUICK = ("chunk", "fuse", "keep-queries", "mine-negatives", "encode", "index", "eval")


def mark_slow_commands(names: Iterable[str], *, quick: Iterable[str] = QUICK) -> list[ParameterSet]:
    """Return test parameters for commands; all but `quick` are marked slow."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]

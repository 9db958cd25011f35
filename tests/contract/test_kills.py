"""Commands that are killed while they work and resumed write the same output as without a kill.

Each such command needs an entry in KILLED, named COMMAND or "COMMAND VARIANT".
"""

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.calls import mark_slow_commands
from tests.contract.collection import (
    Collection,
    make_documents,
    make_documents_with_queries,
    make_examples,
    make_expansions,
    make_queries,
    make_run,
)
from tests.contract.forkserver import KILL_AT
from tests.contract.test_commands import files_of
from tests.contract.test_kill_points import SIGKILLED


@dataclass(frozen=True)
class Killed:
    """A call with several batches of records. {NAME} is a part of the collection, {output} the output.

    The input is the file `in`; it is the first argument unless `arguments` contains it.

    input: returns the input with `documents` records
    journal: suffix or path after the output name of the file that exists once some work is finished
    beside: suffixes of additional output files
    """

    arguments: str
    documents: int
    journal: str = ".part.json"
    input: Callable[[int], bytes] = make_documents
    beside: tuple[str, ...] = ()


MINED = "--qrels {many.tsv} --corpus {documents.jsonl} --negatives 5 --set min_negatives=9"
TEXTS = "--corpus {documents.jsonl} --queries {many.jsonl} --model {crossencoder} --max-length 16"
KILLED = {
    "chunk": Killed("--max-words 12 --set punkt_mb=0.05 --num-workers 2", 9000),
    "doc2query": Killed("--model {writer} --n 1 --max-new-tokens 4", 2000),
    "keep-queries": Killed("--keep 0.5", 60_000, input=make_documents_with_queries),
    "continue-text": Killed("--model {gpt2} --max-new-tokens 4", 2000),
    "termweight": Killed("--method bprop --model {model} --set min_words=0", 3000),
    "mine-negatives": Killed(MINED, 8000, input=make_run),
    "mine-negatives --audit": Killed(
        f"{MINED} --audit {{output}}.rows --report {{output}}.txt", 2000, input=make_run, beside=(".rows", ".txt")
    ),
    "rerank": Killed(f"{TEXTS} --depth 2", 1500, input=make_run),
    "score": Killed(TEXTS, 1500, input=make_examples),
    "rerank-queries label": Killed(
        "--queries {asked.jsonl} --index {bm25s} --batch-size 100", 8000, input=make_expansions
    ),
    "rerank-queries apply": Killed(
        "--queries {asked.jsonl} --model {query_reranker} --n-best 2 --device cpu",
        5000,
        journal=".part/choices.jsonl.part.json",
        input=make_expansions,
    ),
    "expand-queries --from-run": Killed(
        "--from-run {many.run} --corpus {documents.jsonl} --set candidates=9", 1200, input=make_queries
    ),
    "expand-queries --model": Killed(
        "--model {writer} --kind answer --n 2 --max-new-tokens 4", 1200, input=make_queries
    ),
    "search": Killed("{bm25s} in -k 20", 6000, input=make_queries),
    "fuse": Killed("{many.run} in --method round-robin", 10_000, input=make_run),
    "read": Killed(
        "--corpus {documents.jsonl} --queries {many.jsonl} --model {writer} --depth 4 --max-length 32 --max-new-tokens 4",
        1000,
        input=make_run,
    ),
    "encode": Killed("--model {model} --set shard_size=100", 1200, journal=".part/shards.json.part"),
    "encode --runner": Killed(
        "--model {model} --set shard_size=100 --runner processes --set runner_workers=2",
        3000,
        journal=".part/shards.json.part",
    ),
}


def build_arguments(name: str, collection: Collection) -> list[str]:
    """Return the words of a call in KILLED, without `-o`; {output} is kept."""
    words = re.sub(r"\{(?!output)(.+?)\}", lambda part: str(collection[part[1]]), KILLED[name].arguments).split()
    return [*itertools.takewhile(lambda word: word[0] != "-", name.split()), *([] if "in" in words else ["in"]), *words]


def read_outputs(output: Path, beside: Iterable[str] = ()) -> dict[str, bytes]:
    """Return the files of a folder, except manifests, or a file and its additional outputs."""
    if output.is_dir():
        return files_of(output, "*")
    return {ending: Path(f"{output}{ending}").read_bytes() for ending in ("", *beside)}


@pytest.mark.parametrize("name", mark_slow_commands(KILLED, quick=("encode",)))
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(name, collection, forkserver, tmp_path):
    call, log = KILLED[name], tmp_path / "log"
    (tmp_path / "in").write_bytes(call.input(call.documents))

    def run(output: str, **variables: object) -> int | None:
        again = ["--resume", "--skip-done", "--force"]  # what recipes pass: bring it up to date
        words = [argument.replace("{output}", output) for argument in build_arguments(name, collection)]
        return forkserver.start([*words, "-o", output, *again], tmp_path, log, **variables).status()

    assert run("whole") == 0, log.read_text()
    assert run("out", **{KILL_AT: f"{tmp_path}/out{call.journal}"}) == SIGKILLED, log.read_text()
    if name == "encode":  # killed again after it was resumed
        assert run("out", **{KILL_AT: f"{tmp_path}/out.part/00005.npy"}) == SIGKILLED, log.read_text()
        assert "resuming out" in log.read_text()
    assert run("out") == 0, log.read_text()
    assert "resuming out" in log.read_text()
    assert read_outputs(tmp_path / "out", call.beside) == read_outputs(tmp_path / "whole", call.beside)
    assert not list(tmp_path.glob("out*.part*"))

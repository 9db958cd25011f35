"""Exact output of commands on a tiny collection; `just golden` updates it."""

import os
from pathlib import Path

import pytest

from tests.contract.collection import Collection
from tests.contract.run_drtk import run_in_process

HERE = Path(__file__).parent / "output"
UPDATE = bool(os.environ.get("DRTK_UPDATE_GOLDEN"))

# File name -> command line in the folder of the collection. Only output that is equal on every machine.
CALLS = {
    "chunk-words.jsonl": "chunk documents.jsonl --policy words --no-sentences --max-words 100",
    "chunk-bare.jsonl": "chunk documents.jsonl --policy words --no-sentences --max-words 40 --overlap 5 --bare",
    "convert-passages.tsv": "convert documents.jsonl --as passages --to dpr",
    "convert-qrels.txt": "convert qrels.tsv --as qrels --to trec",
    "convert-examples.jsonl": "convert examples.jsonl --as examples",
    "fuse-rrf.run": "fuse first.run second.run --top 5",
    "fuse-weighted.run": "fuse first.run second.run --method weighted --weights 0.3,0.7 --top 5",
    "mine-negatives.jsonl": "mine-negatives first.run --qrels qrels.tsv --policy tevatron --depth 10 --negatives 3",
    "eval.txt": "eval one=first.run two=second.run --qrels qrels.tsv",
    "eval-per-query.jsonl": "eval one=first.run --qrels qrels.tsv --per-query --format jsonl --measures RR@10",
    "eval.md": "eval one=first.run two=second.run --qrels qrels.tsv --format markdown --measures nDCG@10",
    "eval.tex": "eval one=first.run two=second.run --qrels qrels.tsv --format latex --measures nDCG@10",
    "validate.txt": "validate documents.jsonl --as passages",
    "validate-run.txt": "validate first.run --as run --qrels qrels.tsv --corpus documents.jsonl",
    "show.txt": "show queries.jsonl --count 2",
}


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    return Collection(tmp_path_factory.mktemp("collection"))


@pytest.mark.parametrize("name", CALLS)
def test_output_is_unchanged(name: str, collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(collection.folder)
    outcome = run_in_process(*CALLS[name].split(), "--quiet")
    assert (outcome.status, outcome.err) == (0, "")
    if UPDATE:
        (HERE / name).write_bytes(outcome.out)
    assert outcome.out.decode() == (HERE / name).read_bytes().decode()

"""What is wrong with a call of a training command is told before torch is loaded, which takes seconds at best."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.contract.running import environment
from tests.running import write

CALLS = {
    "train-retriever": "examples.jsonl --corpus corpus.jsonl --queries queries.jsonl --model model -o out",
    "train-reranker": "examples.jsonl --corpus corpus.jsonl --queries queries.jsonl --model model -o out",
    "train-reranker hlatr": "bm25.run --kind hlatr --vectors vectors --qrels qrels.tsv -o out",
    "pretrain": "corpus.jsonl --preset cotmae --model model -o out",
    "rerank-queries train": "labelled.jsonl --queries queries.jsonl --model model -o out",
    "train-generator": "examples.jsonl --corpus corpus.jsonl --queries queries.jsonl --model model -o out",
    "train-generator gar": "queries.jsonl --task gar-title --run bm25.run --corpus corpus.jsonl --model model -o out",
    "termweight": "--method deepct --train examples.jsonl --corpus corpus.jsonl --queries queries.jsonl --model model -o out",
}
OWN = {  # options that a command refuses, with what it says
    "train-retriever": {
        "--dev none": "none: no such folder; a probe is a BEIR folder",
        "--dev model": "model: has no qrels/dev.tsv or qrels/train.tsv",
        "--patience 2": "--patience goes with --dev",
        "--loss hinge": "unknown retriever loss 'hinge'",
        "--loss kl --contrastive kl": "--contrastive kl: learns from a teacher",
        "--alpha 0.5": "--alpha weighs the contrastive loss beside kl or margin-mse",
        "--aux diffcse": "--aux diffcse needs --aux-generator",
        "--aux diffcse --aux-generator ./none": "./none: no such folder",
        "--aux diffcse --aux-generator qrels.tsv": "qrels.tsv: is a file; expected a model folder",
        "--dev-pool 10": "--dev-pool goes with --dev",
        "--matryoshka 8 --matryoshka 8": "--matryoshka 8: is given twice",
        "--temperature-warmup --temperature 1": "--temperature-warmup starts at 1",
        "--epochs 1 --steps 2": "--steps and --epochs: choose one",
    },
    "train-reranker": {
        "--loss bce --r-drop": "--r-drop is for --loss listwise",
        "--negatives 7 --backward 16": "--backward 16: a query has 8 passages in a step",
        "--dev dev": "--dev and --dev-run go together",
        "--dev none --dev-run bm25.run": "none: No such file or directory",
        "--dev dev --dev-run none.run": "none.run: No such file or directory",
        "--patience 2": "--patience goes with --dev",
        "--qrels qrels.tsv": "--qrels: is not for --kind crossencoder",
        "--corpus hf:x": "hf:x: is read repeatedly, so it must be a file",
    },
    "train-reranker hlatr": {
        "--another-corpus": "--another-corpus: is not for --kind hlatr",
        "--select nDCG@10": "--select goes with --dev",
        "--heads 3": "--heads 3 does not divide --hidden 128",
        "--loss bce": "--loss is for --kind crossencoder",
        "--dev-vectors none": "none: No such file or directory",
    },
    "pretrain": {
        "--probe none": "none: no such folder; a probe is a BEIR folder",
        "--probe-sts none.tsv": "none.tsv: No such file or directory",
        "--probe dev --probe-sts qrels.tsv": "--probe and --probe-sts each choose the best encoder",
        "--with none.jsonl": "none.jsonl: No such file or directory",
        "--with hf:x": "hf:x: is read repeatedly, so it must be a file",
        "--generator model": "--generator: preset 'cotmae' has no generator",
        "--drop nothing": "nothing",
        "--set slots.nowhere.rate=1": "nowhere",
    },
    "rerank-queries train": {
        "--dev none.jsonl": "none.jsonl: No such file or directory",
        "--dev title=none.jsonl": "none.jsonl: No such file or directory",
        "--dev labelled.jsonl --dev-queries none.jsonl": "none.jsonl: No such file or directory",
        "--patience 2": "--patience: goes with --dev",
        "--depth 100 --max-rank 50": "--max-rank 50: must be above the depth of the labels, 100",
    },
    "train-generator": {
        "--dev none.jsonl": "none.jsonl: No such file or directory",
        "--run bm25.run": "--run: only with --task gar-sentence or gar-title",
        "--folds 5": "--folds only with --task",
        "--dev examples.jsonl --dev-share 0.1": "--dev and --dev-share: choose one",
    },
    "train-generator gar": {
        "--dev queries.jsonl": "--dev and --dev-run go together",
        "--queries queries.jsonl": "--queries: with --task gar-title",
        "--dev queries.jsonl --dev-run none.run": "none.run: No such file or directory",
    },
    "termweight": {
        "--method nothing": "unknown term weighting method 'nothing'",
        "--method bm25": "--train: --method bm25 is not trained",
        "--collect": "",
        "--bare": "--train makes a model; --bare and --with are for passages",
    },
}
DRIVER = """
import io, json, os, sys
from drtk.cli import main
for name, words in json.load(sys.stdin):
    reading, writing = os.pipe()
    child = os.fork()  # each call in a process of its own, which has loaded what drtk --help loads
    if not child:
        sys.argv, sys.stderr = ["drtk", *words], io.StringIO()
        try:
            main.run()
        except SystemExit as done:
            heavy = [module for module in ("torch", "transformers") if module in sys.modules]
            os.write(writing, json.dumps([name, done.code, sys.stderr.getvalue(), heavy]).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as told:
        print(told.read(), flush=True)
"""


def faults() -> list[tuple[str, str, str]]:
    """(what is called, its arguments, what is told) of every fault."""
    found = []
    for name, call in CALLS.items():
        words = call.split()
        for at, word in enumerate(words):
            if word.endswith((".jsonl", ".run", ".tsv")) or word == "vectors":
                missing = [*words[:at], "none.file", *words[at + 1 :]]
                found.append((name, " ".join(missing), "none.file: No such file or directory"))
        if "--model" in words:
            found.append((name, call.replace("--model model", "--model ./none"), "./none: no such folder"))
        found.append((name, call.replace("-o out", "-o done"), "done: exists already; --force replaces it"))
        found.append((name, f"{call} --trainer max_steps=3", "--trainer max_steps: use --steps"))
        found.append((name, f"{call} --device tpu", "--device tpu: training takes auto, cpu or cuda"))
        if name in ("train-retriever", "train-reranker"):
            wrong = "bm25.run: seems to hold hits of a TREC run; expected training examples"
            found.append((name, call.replace("examples.jsonl", "bm25.run"), wrong))
        if name != "termweight":
            preset = call.replace("--preset cotmae", "") + " --preset nothing"
            found.append((name, preset, "unknown preset 'nothing'"))
            bare = preset.replace("nothing", f"{name.split(' hlatr')[0].split(' gar')[0].replace(' ', '-')}.toml")
            said = "has no [[objective]]" if name == "pretrain" else "'batch' is not read where it stands; settings go"
            found.append((name, bare, said))
        found += [(name, f"{call} {more}", told) for more, told in OWN[name].items()]
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Exit status, stderr and heavy modules of every call, by its arguments."""
    folder = tmp_path_factory.mktemp("place")
    write(folder / "corpus.jsonl", '{"_id": "d1", "title": "", "text": "one"}\n')
    write(folder / "queries.jsonl", '{"_id": "q1", "text": "which?", "answers": ["one"]}\n')
    write(folder / "examples.jsonl", '{"query_id": "q1", "positives": ["d1"], "negatives": []}\n')
    write(folder / "labelled.jsonl", '{"_id": "e1", "query_id": "q1", "kind": "title", "text": "one", "rank": 1}\n')
    write(folder / "bm25.run", "q1 Q0 d1 1 1.0 t\n")
    write(folder / "qrels.tsv", "q1\td1\t1\n")
    for name in ("train-retriever", "train-reranker", "pretrain", "rerank-queries train", "train-generator"):
        write(folder / f"{name.replace(' ', '-')}.toml", f'command = "{name}"\nbatch = 8\n')
    for name in ("model", "vectors", "done", "dev/qrels"):
        (folder / name).mkdir(parents=True)
    write(folder / "dev" / "qrels" / "dev.tsv", "q1\td1\t1\n")
    write(folder / "done" / "meta.json", '{"kind": "model"}')
    calls = [
        (f"{name}: {call}", [*name.split(" hlatr")[0].split(" gar")[0].split(), *call.split()])
        for name, call, _ in faults()
    ]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(),
        check=True,
    )
    assert done.stderr == ""
    return {name: rest for name, *rest in map(json.loads, filter(None, done.stdout.splitlines()))}


@pytest.mark.parametrize(("name", "call", "said"), faults())
def test_a_fault_of_usage_is_told_before_torch_is_loaded(told: dict[str, Any], name: str, call: str, said: str) -> None:
    status, stderr, heavy = told[f"{name}: {call}"]
    assert said in stderr
    assert status in (1, 2)
    assert stderr.count("\n") == 1
    assert heavy == []

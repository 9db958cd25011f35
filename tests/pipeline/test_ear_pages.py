"""EAR's recipe at full scale and the grid of docs/methods/ear.md run with small files and models."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.contract.forkserver import shared_forkserver
from tests.contract.run_drtk import make_environment
from tests.expansion_collection import label_expansions, read_rows, write_collection, write_rows
from tests.pipeline.test_ear import write_articles
from tests.tiny_models import save_tiny_encoder, save_tiny_generator

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAPERS = DOCS / "cookbook" / "papers"
# Options appended to the commands of a script; of a repeated option the last one counts.
SMALLER = {
    "expand-queries": "--max-new-tokens 6",
    "train-generator": "--max-steps 40 --batch-size 4 --learning-rate 1e-2 --set schedule=constant --set dev_limit=4",  # enough for non-empty greedy texts
    "rerank-queries train": "--max-steps 4 --batch-size 4 --set warmup=2 --max-length 48 --set eval_steps=2",
    "train-reranker": "--max-steps 2 --batch-size 4 --set warmup=0 --max-length 48",
    "rerank": "--depth 5",
    "read": "--depth 5 --max-new-tokens 4",
}


def read_shell_blocks(page: str) -> list[str]:
    """Return the shell blocks of a page of docs."""
    return re.findall(r"^```sh\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty folder, with a `drtk` that appends the options of SMALLER."""
    server = shared_forkserver()
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "whole-drtk").write_text(server.client)
    cases = "".join(
        f'"{name} "*) set -- "$@" {options};;\n' for name, options in sorted(SMALLER.items(), key=len, reverse=True)
    )
    (folder / "drtk").write_text(
        f'#!/bin/sh\nif [ -n "$MORE" ]; then set -- "$@" $MORE; else case "$* " in\n{cases}esac; fi\nexec whole-drtk "$@"\n'
    )
    for program in folder.iterdir():
        program.chmod(0o755)
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def run(folder: Path, script: str, **settings: str) -> str:
    path = os.pathsep.join((str(folder.parent / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
    env = make_environment() | {"PATH": path, "CUDA_VISIBLE_DEVICES": "", "MORE": ""} | settings
    call = ["sh", "-euc", script]
    done = subprocess.run(call, cwd=folder, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{script}\n{done.stderr[-3000:]}"
    return done.stdout


def write_downloads(folder: Path) -> None:
    """Write the files that the recipe reads in their published formats, with few questions."""
    write_articles(folder / "data")
    passages, queries = read_rows(folder / "data" / "corpus.jsonl"), read_rows(folder / "data" / "queries.jsonl")
    for row in passages:  # the tokenizer of the tiny models does not know the letters of names
        row["text"] = re.sub(r" is (\w+) ", r" is markets \1 ", row["text"])
    lines = [f'{at}\t"{row["text"]}"\t{row["title"]}\n' for at, row in enumerate(passages, start=1)]
    (folder / "psgs_w100.tsv").write_text("id\ttext\ttitle\n" + "".join(lines))
    questions = [(row["text"].removesuffix("?"), [f"markets {row['metadata']['answers'][0]}"]) for row in queries]
    gold = [
        {"question": text, "answers": answers, "positive_ctxs": [{"title": row["title"], "text": row["text"], "passage_id": str(at)}],
         "negative_ctxs": [], "hard_negative_ctxs": []}
        for at, ((text, answers), row) in enumerate(zip(questions, passages, strict=True), start=1)
    ]  # fmt: skip
    (folder / "biencoder-nq-train.json").write_text(json.dumps(gold[:30]))
    for name, part in {
        "nq-dev": questions[30:36], "nq-test": questions[66:72], "webquestions-test": questions[72:75],
        "curatedtrec-test": [(text, [f"{answers[0][:-1]}.+"]) for text, answers in questions[75:78]],
    }.items():  # fmt: skip
        (folder / f"{name}.qa.csv").write_text("".join(f"{text}\t{answers}\n" for text, answers in part))
    relations = folder / "EntityQuestions" / "dataset" / "test"
    relations.mkdir(parents=True)
    rows = [{"question": text, "answers": answers} for text, answers in questions[78:84]]
    (relations / "P17.test.json").write_text(json.dumps(rows[:3]))
    write_rows(relations / "P19.test.jsonl", rows[3:])
    save_tiny_generator(folder / "nq_reader_large", "t5")


@pytest.mark.slow
def test_the_recipe_runs_at_full_scale(folder):
    (folder / "downloads").mkdir()
    write_downloads(folder / "downloads")
    shutil.copytree(PAPERS, folder / "papers")
    script = (PAPERS / "ear.sh").read_text(encoding="utf-8")
    for old, new in {"--n 50": "--n 3", "--type bm25 ": "--type bm25s ", "5 10 20 30": "2"}.items():
        script = script.replace(old, new)
    (folder / "papers" / "ear.sh").write_text(script)
    out = folder / "out"
    save_tiny_encoder(out / "dpr" / "nq" / "dpr.42.retriever")
    for name in ("facebook/bart-large", "bigscience/T0_3B", "t5-large"):
        (folder / name).parent.mkdir(exist_ok=True)
        save_tiny_generator(folder / name, "t5")
    for name in ("microsoft/deberta-v3-base", "bert-base-uncased"):
        (folder / name).parent.mkdir(exist_ok=True)
        save_tiny_encoder(folder / name)
    run(folder, "HOLDOUT=yes sh papers/ear.sh --scale full --out out")
    sections = tomllib.loads((PAPERS / "expected.toml").read_text())
    results = {path.stem: read_rows(path) for path in out.glob("ear*.jsonl") if ".values" not in path.name}
    assert {name for name in sections if name.startswith("ear.") and "trivia" not in name} == results.keys()
    for name, records in results.items():
        rows = sections[name]["rows"]
        measured = {record["system"] for record in records if record["kind"] == "system"}
        assert {row for row in rows if ".of-" not in row} <= measured, name
        assert any(record.get("measure") == sections[name]["measure"]["full"] for record in records), name
    kinds = ("sentence", "answer", "title")
    meta = json.loads((out / "ear" / "nq" / "gar.rd.queries" / "meta.json").read_text())
    assert meta["settings"]["model"] == [f"{kind}=out/ear/nq/rd/{kind}" for kind in kinds]
    assert all(len(read_rows(out / "ear" / "nq" / "gar.greedy.queries" / f"{kind}.jsonl")) == 6 for kind in kinds)
    assert len(read_rows(out / "entityquestions.jsonl")) == 6


@pytest.mark.slow
def test_the_grid_of_table_b_1_trains_eight_models_and_sorts_them_by_mean_rank(folder):
    write_collection(folder, 12)
    labels = [row for row in read_rows(label_expansions(folder)) if row["kind"] == "answer"]
    questions = read_rows(folder / "queries.jsonl")
    for part, some in {"train": questions[:9], "dev": questions[9:]}.items():
        ids = {row["_id"] for row in some}
        write_rows(folder / f"{part}.jsonl", some)
        write_rows(folder / f"answer.{part}.labels.jsonl", [row for row in labels if row["query_id"] in ids])
    (folder / "microsoft").mkdir()
    save_tiny_encoder(folder / "microsoft" / "deberta-v3-base")
    (grid,) = [block for block in read_shell_blocks("methods/ear.md") if "grid/" in block]
    output = run(folder, grid, MORE="--max-steps 1 --max-length 24 --set warmup=1 -q")
    manifests = [json.loads(path.read_text()) for path in (folder / "grid").glob("*/meta.json")]
    combinations = {
        tuple(meta["settings"][name] for name in ("max_rank", "batch_size", "max_lr")) for meta in manifests
    }
    assert combinations == {(rank, batch, lr) for rank in (101, 250) for batch in (4, 8) for lr in (2e-3, 5e-3)}
    best = [float(line.rpartition(":")[2].strip(" ,}")) for line in output.splitlines()]
    assert len(best) == 3
    assert best == sorted(meta["best"]["mean rank"] for meta in manifests)[:3]

"""docs/cookbook/ear.sh with small data and models: from questions to tables; a second run skips everything."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from drtk.text.expanded_text import expand_query
from tests.contract.forkserver import shared_forkserver
from tests.contract.run_drtk import make_environment
from tests.run_commands import write_text
from tests.tiny_models import TOPICS, make_topic_words, save_tiny_encoder, save_tiny_generator

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "cookbook" / "ear.sh"
SMALL_SETTINGS = {
    "TRAIN": "12", "DEV": "4", "TEST": "10", "CANDIDATES": "3", "SWEEP": "2", "KINDS": "sentence", "RI_EPOCHS": "1",
    "RD_EPOCHS": "1", "RD_LENGTH": "64", "RERANK_EPOCHS": "1", "RERANK_LENGTH": "64", "RERANK_DEPTH": "5", "ENGINE": "bm25s",
    "EVERY": "3", "GENERATOR_STEPS": "4", "GENERATOR_BATCH": "4", "SAMPLES": "3",
}  # fmt: skip
TABLES = ("accuracy.txt", "sweep.txt", "costs.txt")  # written by every run
SYSTEMS = ["bm25", "reranked", "passages.first", "passages.concat", "passages.oracle", "passages.ri", "passages.rd"]
SYSTEMS += ["passages.rd+reranked", "passages.rd+dense", "dense", "hnsw"]


def write_articles(folder: Path) -> Path:
    """Write articles of three passages, and questions whose answer is a name in one passage, in BEIR layout."""
    draw = random.Random(3)
    corpus, queries, qrels = [], [], {"train": ["query-id\tcorpus-id\tscore"], "dev": ["query-id\tcorpus-id\tscore"]}
    for article in range(30):
        words = make_topic_words(TOPICS[article % len(TOPICS)])
        for number in range(3):
            id, name = f"a{article:03}-p{number}", f"{'xyz'[number]}{'abcdefghij'[article % 10] * (1 + article // 10)}o"
            sentences = [" ".join(draw.sample(words, 5)).capitalize() + "." for _ in range(3)]
            sentences[draw.randrange(3)] += f" The {words[0]} is {name} {words[number + 1]}."
            corpus.append({"_id": id, "title": f"{words[0]} {article}", "text": " ".join(sentences)})
            split = "train" if article < 22 else "dev"
            question = f"what {words[0]} {words[number + 1]}?"
            queries.append({"_id": f"{split}-{id}", "text": question, "metadata": {"answers": [name]}})
            qrels[split].append(f"{split}-{id}\t{id}\t1")
    folder.mkdir()
    for file, rows in (("corpus", corpus), ("queries", queries)):
        write_text(folder / f"{file}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels").mkdir()
    for split, lines in qrels.items():
        write_text(folder / "qrels" / f"{split}.tsv", "\n".join(lines) + "\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write data, models and a `drtk` that runs in forked processes to a folder."""
    server = shared_forkserver()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "drtk").write_text(server.client)
    (tmp_path / "bin" / "drtk").chmod(0o755)
    write_articles(tmp_path / "data")
    save_tiny_encoder(tmp_path / "model")
    return tmp_path


def run_script(folder: Path, **options: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    places = {"EAR_DATA": str(folder / "data"), "PATH": path, "CUDA_VISIBLE_DEVICES": ""}
    settings = make_environment() | SMALL_SETTINGS | places | options
    call = ["sh", str(SCRIPT), "runs/ear", "model"]
    (folder / "runs").mkdir(exist_ok=True)
    return subprocess.run(call, cwd=folder, env=settings, capture_output=True, text=True, check=False)


def read_accuracy(folder: Path) -> dict[str, dict[str, float]]:
    rows = map(json.loads, (folder / "accuracy.jsonl").read_text().splitlines())
    return {row["run"]: row for row in rows}


def read_texts(path: Path) -> dict[str, str]:
    return {row["_id"]: row["text"] for row in map(json.loads, path.read_text().splitlines())}


def check_outputs(out: Path, *kinds: str) -> None:
    """Check what holds for every run of the script, for any trained model."""
    parts = {name: set(read_texts(out / f"{name}.jsonl")) for name in ("train", "dev", "test")}
    assert [len(parts[name]) for name in ("train", "dev", "test")] == [12, 4, 10]
    articles = {name: {id.split("-")[1] for id in ids} for name, ids in parts.items()}
    assert not articles["train"] & articles["dev"]
    assert articles["dev"] <= {"a009", "a019"}  # every tenth
    assert not (articles["train"] | articles["dev"]) & articles["test"]

    accuracy = read_accuracy(out)
    for system, row in accuracy.items():
        assert 0 <= row["Answer@1"] <= row["Answer@5"] <= row["Answer@20"] <= row["Answer@100"] <= 1, system
    assert accuracy["reranked"]["Answer@100"] == accuracy["bm25"]["Answer@100"]  # only the first five are reordered
    assert accuracy["passages.rd+reranked"]["Answer@100"] == accuracy["passages.rd"]["Answer@100"]

    # For each kind, no choice has an answer at a better rank than the oracle's.
    labels = [json.loads(line) for line in (out / "passages.test.labeled.jsonl").read_text().splitlines()]
    questions = read_texts(out / "test.jsonl")
    ranks = {
        (row["query_id"], row["kind"], expand_query(questions[row["query_id"]], row["text"])): row["rank"]
        for row in labels
    }
    for kind in kinds:
        best = read_texts(out / f"passages.oracle.queries/{kind}.jsonl")
        expanded = {row["query_id"] for row in labels if row["kind"] == kind}  # the others are searched unexpanded
        assert len(expanded) >= 8
        for way in ("first", "ri", "rd"):
            chosen = read_texts(out / f"passages.{way}.queries/{kind}.jsonl")
            assert chosen.keys() == best.keys() == parts["test"]
            assert {id for id, text in chosen.items() if (id, kind, text) in ranks} == expanded
            assert all(ranks[id, kind, best[id]] <= ranks[id, kind, chosen[id]] for id in expanded)


@pytest.mark.slow
def test_the_script_runs(folder):
    done = run_script(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    out = folder / "runs" / "ear"
    assert list(read_accuracy(out)) == SYSTEMS
    check_outputs(out, "sentence")
    for baseline in ("bm25", "passages.first", "passages.ri", "reranked"):
        table = (out / f"against.{baseline}.txt").read_text()
        assert all(system in table for system in SYSTEMS), baseline
    sweep = [line.split()[0] for line in (out / "sweep.txt").read_text().splitlines() if ".of-" in line]
    assert sweep == ["ri.of-2", "rd.of-2"]
    costs = (out / "costs.txt").read_text()
    assert costs.count(" s per question") == 11
    for stage in ("first passages and choose, RD", "fuse the RD runs", "passage reranker, RD", "fuse RD with dense"):
        assert f"\n{stage} " in costs, stage
    assert costs.count(" MB") == 3


@pytest.mark.slow
def test_a_second_run_with_generators_skips_everything(folder):
    save_tiny_generator(folder / "writer", "t5")
    options = {"GENERATOR": "writer", "ENGINE": "bm25", "PER_KIND": "yes", "KINDS": "sentence title"}
    modified: list[dict[Path, int]] = []
    for _ in range(2):
        done = run_script(folder, **options)
        assert done.returncode == 0, done.stderr[-3000:]
        files = (path for path in (folder / "runs").rglob("*") if path.is_file() and path.name not in TABLES)
        modified.append({path: path.stat().st_mtime_ns for path in files})
    assert len(modified[0]) > 100
    assert modified[0] == modified[1]
    check_generators(folder / "runs" / "ear")


def check_generators(out: Path) -> None:
    """Check a run with trained generators, Lucene, and a checkpoint for each kind."""
    generated = [f"gar.{way}" for way in ("first", "concat", "oracle", "ri", "rd")]
    assert list(read_accuracy(out)) == ["bm25", "rm3", *SYSTEMS[1:], *generated]
    check_outputs(out, "sentence", "title")
    costs = (out / "costs.txt").read_text()
    assert "\nBM25 + RM3 " in costs
    assert costs.count(" MB") == 4
    for kind in ("sentence", "answer", "title"):
        meta = json.loads((out / f"gar-{kind}" / "meta.json").read_text())
        assert "rouge1" in meta["best"], kind
    # Each kind of --from-run has its own checkpoint; the generator's answers use that of the first kind.
    for scorer in ("ri", "rd"):
        assert json.loads((out / scorer / "meta.json").read_text())["kinds"] == ["sentence", "title"]
        used = json.loads((out / f"gar.{scorer}.queries" / "meta.json").read_text())["settings"]["model"]
        weights = f"runs/ear/{scorer}"
        assert used == [f"{weights}/sentence", f"sentence={weights}/sentence", f"title={weights}/title"]
    kinds = [json.loads(line)["kind"] for line in (out / "gar.test.labeled.jsonl").read_text().splitlines()]
    assert kinds == sorted(kinds, key=["sentence", "answer", "title"].index)

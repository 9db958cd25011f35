"""Load the steps of inventory.toml and run them with the drtk of a checkout, without importing drtk."""

import gzip
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tests.contract.forkserver import Forkserver
from tests.shared_data import find_shared_data

INVENTORY = Path(__file__).with_suffix(".toml")
DATA = ("data", "minilm")  # folders that are not steps


@dataclass(frozen=True)
class Step:
    """A script that runs in the folder WORK/NAME; needs: steps whose folders it reads"""

    name: str
    run: str
    preset: str | None

    @property
    def needs(self) -> list[str]:
        read = dict.fromkeys(re.findall(r"\.\./([\w.-]+)", self.run))
        return [name for name in read if name not in (*DATA, self.name)]


def load_steps(inventory: Path) -> dict[str, Step]:
    """Return the steps of an inventory.toml by name, one for each preset."""
    steps = {}
    for name, entry in tomllib.loads(inventory.read_text(encoding="utf-8"))["step"].items():
        for preset in entry.get("presets", [None]):
            run = entry["run"].replace("{preset}", preset or "{preset}")
            full = f"{name}-{preset}" if preset else name
            steps[full] = Step(full, run, preset)
    return steps


ROWS: dict[str, list[str]] = tomllib.loads(INVENTORY.read_text(encoding="utf-8"))["rows"]
STEPS = load_steps(INVENTORY)


def add_requirements(names: Iterable[str], steps: dict[str, Step] = STEPS) -> list[Step]:
    """Return the named steps and all steps they need, in an order that satisfies their needs."""
    ordered: dict[str, Step] = {}

    def add(name: str) -> None:
        if name not in ordered:
            for other in steps[name].needs:
                add(other)
            ordered[name] = steps[name]

    for name in names:
        add(name)
    return [*ordered.values()]


class StepError(Exception):
    """A step ended with an exit status other than 0."""


class Checkout:
    """Runner of the drtk of a checkout, in forked processes with one thread each."""

    def __init__(self, checkout: Path, work: Path) -> None:
        self._work = work
        (work / "bin").mkdir(parents=True, exist_ok=True)
        (work / "bin" / "socket").unlink(missing_ok=True)
        settings = {"PYTHONPATH": str(checkout), "DRTK_CACHE": str(work / "cache"), "COLUMNS": "120", "NO_COLOR": "1"}
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        threads = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "MPLBACKEND": "Agg"}
        self._environment = os.environ | settings | offline | threads
        self._server = Forkserver(work / "bin", **settings, **offline, **threads)
        (work / "bin" / "drtk").write_text(self._server.client)
        (work / "bin" / "drtk").chmod(0o755)

    def run(self, step: Step) -> None:
        """Run a step in a new folder of its name; write its stdout to the file `stdout` there."""
        folder = self._work / step.name
        folder.mkdir()
        path = f"{self._work / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-euc", step.run],
            cwd=folder,
            env=self._environment | {"PATH": path},
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise StepError(f"{step.name}: {done.stderr.decode()[-2000:]}")
        (folder / "stdout").write_bytes(done.stdout)

    def stop(self) -> None:
        self._server.stop()


@contextmanager
def start_checkout(checkout: Path, work: Path) -> Iterator[Checkout]:
    """Start a `Checkout`, and stop it at the end."""
    started = Checkout(checkout, work)
    try:
        yield started
    finally:
        started.stop()


def prepare_data(work: Path, minilm: str) -> None:
    """Write small parts of the shared collections to WORK/data, and link WORK/minilm.

    200 paragraphs of SQuAD (four articles of train) with one question each; the first 120 questions are for training, the others for testing.
    """
    squad, data = find_shared_data("squad"), work / "data"
    (work / "minilm").symlink_to(minilm)
    for folder in (data, data / "dev" / "qrels", data / "sentences" / "STS-B", data / "sentences" / "MR"):
        folder.mkdir(parents=True, exist_ok=True)
    corpus = [row for number, row in enumerate(islice(_read_rows(squad / "corpus.jsonl.gz"), 800)) if number % 4 == 0]
    judged = {row["_id"]: row for row in corpus}
    gold: dict[str, str] = {}  # query -> paragraph, one query for each paragraph
    for line in (squad / "qrels" / "train.tsv").read_text().splitlines()[1:]:
        query, paragraph, _ = line.split("\t")
        if paragraph in judged and paragraph not in gold.values():
            gold[query] = paragraph
    queries = [row for row in _read_rows(squad / "queries.jsonl.gz") if row["_id"] in gold]
    train, test = queries[:120], queries[120:]
    questions = [_make_question(row, row["metadata"]["answers"]) for row in queries]
    patterns = [_make_question(row, [re.escape(row["metadata"]["answers"][0])]) for row in queries]
    _write_rows(data / "corpus.jsonl", corpus)
    _write_rows(data / "queries.jsonl", queries)
    _write_rows(data / "questions.jsonl", questions)
    _write_rows(data / "dev-questions.jsonl", questions[-20:])
    _write_rows(data / "patterns.jsonl", patterns)
    documents = [*islice(_read_rows(squad / "documents.jsonl.gz"), 20)]
    parts = ("\n\n".join(row["text"].split("\n\n")[:2]) for row in documents)
    _write_rows(data / "documents.jsonl", [row | {"text": part} for row, part in zip(documents, parts, strict=True)])
    for name, part in {"train.tsv": train, "test.tsv": test, "dev/qrels/dev.tsv": test[:20]}.items():
        _write_qrels(data / name, [(row["_id"], gold[row["_id"]]) for row in part])
    _write_rows(data / "dev" / "corpus.jsonl", corpus)
    _write_rows(data / "dev" / "queries.jsonl", queries)
    for number, name in enumerate(("one", "two")):
        (data / "beir" / name / "qrels").mkdir(parents=True)
        part = test[number::2]
        _write_rows(
            data / "beir" / name / "corpus.jsonl", corpus[number::2] + [judged[gold[row["_id"]]] for row in part]
        )
        _write_rows(data / "beir" / name / "queries.jsonl", part)
        _write_qrels(data / "beir" / name / "qrels" / "test.tsv", [(row["_id"], gold[row["_id"]]) for row in part])
    ids = [row["_id"] for row in corpus]
    _write_rows(data / "sbert.jsonl", [_score_negatives(row["_id"], gold[row["_id"]], ids) for row in train[:20]])
    sts = find_shared_data("stsb")
    for name in ("dev", "test"):
        lines = (sts / f"{name}.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
        (data / "sentences" / "STS-B" / f"{name}.tsv").write_text("".join(lines[:201]), encoding="utf-8")
    labeled = "".join(f"{row['text']}\t{int(row['text'].startswith('What'))}\n" for row in queries[:60])
    (data / "sentences" / "MR" / "all.tsv").write_text("text\tlabel\n" + labeled, encoding="utf-8")
    triples = find_shared_data("triples") / "nq_hard_negatives_sample.jsonl"
    (data / "triples.jsonl").write_bytes(triples.read_bytes())


def _make_question(row: dict[str, Any], answers: list[str]) -> dict[str, Any]:
    return {"id": row["_id"], "question": row["text"], "answers": answers}


def _score_negatives(query: str, positive: str, ids: list[str]) -> dict[str, Any]:
    """Return a line of sentence-transformers' hard negatives; every other negative is 3 below the positive."""
    others = [id for id in ids if id != positive][:12]
    negatives = [{"pid": id, "ce-score": 1.0 if number % 2 else 8.0} for number, id in enumerate(others)]
    return {
        "qid": query,
        "pos": [{"pid": positive, "ce-score": 9.0}],
        "neg": {"bm25": negatives[:6], "dense": negatives[6:]},
    }


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rb") as lines:
        yield from map(json.loads, lines)


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    distinct = {row.get("_id", number): row for number, row in enumerate(rows)}
    path.write_text("".join(json.dumps(row) + "\n" for row in distinct.values()), encoding="utf-8")


def _write_qrels(path: Path, pairs: list[tuple[str, str]]) -> None:
    path.write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{query}\t{id}\t1\n" for query, id in pairs))

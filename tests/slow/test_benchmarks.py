"""Scripts of benchmarks/ at toy size."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.enriched_corpus import write_enriched_corpus
from tests.expansion_collection import write_rows
from tests.tiny_models import make_collection, save_tiny_encoder, save_tiny_generator, write_collection

pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).parents[2] / "benchmarks"
VECTORS = "--passages 500 --queries 10 --dimension 16"
# Not in the list: on_a_gpu has a test of its own; compare_checkouts and term_weights have fixed sizes.
CALLS = {
    "answers": "data --questions 5 --depth 10 --rounds 1",
    "encode": "corpus.jsonl --model model --texts 20 --repeats 1",
    "evaluation": "--queries 10 --depth 20 --rounds 1",
    "exact": f"{VECTORS} -k 5 --rounds 1",
    "generate": "--model generator --corpus corpus.jsonl --passages 4 --n 2 --max-new-tokens 4 --rounds 1",
    "mining": f"{VECTORS} --depth 20 --batch-size 5",
    "pretrain": "corpus.jsonl --model model --folder inputs --batch-size 4 --length 32 --max-steps 3 --rounds 1",
    "query_labels": "data --questions 5 --candidates 2 --depth 10 --rounds 1",
    "rerank": "corpus.jsonl --model model --passages 20 --queries 2 --depth 5 --repeats 1 --max-length 32",
    "scale": "batches enriched.jsonl --model model --presets master,simlm --examples 256",
    "search": f"{VECTORS} -k 5",
    "serve": "--data . --type bm25s --requests 20 --clients 2 -k 3",
    "store": "--passages 500 --reads 50",
    "train": "examples.jsonl --corpus corpus.jsonl --queries queries.jsonl --model model --batch-size 4 --chunk 0 --max-steps 3 --rounds 1",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tiny collection, tiny models, and a folder `data` with the files of real collections."""
    folder = tmp_path_factory.mktemp("benchmarks")
    write_collection(folder)
    save_tiny_encoder(folder / "model", max_length=512)
    save_tiny_generator(folder / "generator", "t5")
    write_enriched_corpus(folder / "enriched.jsonl", folder / "model", documents=100)
    passages, queries, _ = make_collection()
    for query, passage in zip(queries, passages, strict=True):
        query["metadata"] = {"answers": [passage["title"]]}
    (folder / "data" / "squad").mkdir(parents=True)
    for name, rows in (("corpus", passages), ("queries", queries)):
        with gzip.open(folder / "data" / "squad" / f"{name}.jsonl.gz", "wt") as lines:
            lines.writelines(json.dumps(row) + "\n" for row in rows)
    (folder / "data" / "openqa").mkdir()
    questions = [{"id": q["_id"], "question": q["text"], "answers": q["metadata"]["answers"]} for q in queries]
    write_rows(folder / "data" / "openqa" / "nq_open_dev.jsonl", questions)
    return folder


@pytest.mark.parametrize("script", CALLS)
def test_a_benchmark_prints_its_measurements(script, inputs):
    command = [sys.executable, str(SCRIPTS / f"{script}.py"), *CALLS[script].split()]
    process = subprocess.run(command, cwd=inputs, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["versions"]

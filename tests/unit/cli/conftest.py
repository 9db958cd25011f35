"""Fixture: files and models for the tests of the training commands."""

import random
import shutil
from pathlib import Path

import pytest

from tests.tiny_models import save_tiny_cross_encoder, save_tiny_encoder, save_tiny_generator, write_collection

QUERIES = 60


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 60 queries, corpus, examples, judgments, a run of depth 10, a BEIR folder, and a model of each kind."""
    folder = tmp_path_factory.mktemp("training")
    write_collection(folder, QUERIES)
    save_tiny_encoder(folder / "encoder")
    save_tiny_cross_encoder(folder / "crossencoder")
    save_tiny_generator(folder / "t5", "t5")
    draw = random.Random(0)
    with open(folder / "run", "w") as run:
        for query in range(QUERIES):
            others = draw.sample([number for number in range(QUERIES) if number != query], 9)
            ranked = draw.sample([query, *others], 10)
            run.writelines(f"q{query} Q0 d{id} {at} {20 - at} t\n" for at, id in enumerate(ranked, start=1))
    (folder / "dev" / "qrels").mkdir(parents=True)
    judged = "".join(f"q{query}\td{query}\t1\n" for query in range(QUERIES))
    for name in ("qrels.tsv", "dev/qrels/dev.tsv"):
        (folder / name).write_text("query-id\tcorpus-id\tscore\n" + judged)
    for name in ("queries", "corpus"):
        shutil.copy(folder / f"{name}.jsonl", folder / "dev")
    return folder

"""docs/cookbook/machines.md: its shell function joins shards in the order of the input."""

import re
import subprocess
from pathlib import Path

import orjson
import pytest

from drtk.cli import doc2query
from drtk.expansion.term_weights import compute
from tests.contract.collection import make_documents
from tests.contract.run_drtk import run_successfully

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cookbook" / "machines.md").read_text(encoding="utf-8")
BATCH_SIZE = 20  # of the commands here; the page names their real batches


def join_parts() -> list[dict]:
    """Join the three parts by the function of the page, and return their rows."""
    match = re.search(r"```sh in-order\n(.*?)```", PAGE, re.DOTALL)
    assert match is not None
    script = f"{match[1]}\nin_order {BATCH_SIZE} part.1 part.2 part.3"
    joined = subprocess.run(["sh", "-eu", "-c", script], check=True, capture_output=True).stdout
    return [orjson.loads(line) for line in joined.splitlines()]


@pytest.mark.parametrize("count", [25, 86])  # 2 and 5 batches: of three parts, the last has none, or one
def test_the_function_on_the_page_restores_the_order_of_shards(count, collection, tmp_path, monkeypatch):
    assert f"in_order {doc2query.BATCH_SIZE} queries" in PAGE
    monkeypatch.setattr(doc2query, "BATCH_SIZE", BATCH_SIZE)
    monkeypatch.chdir(tmp_path)
    Path("in").write_bytes(make_documents(count))
    call = ["doc2query", "in", "--model", str(collection["writer"]), "--n", "1", "--max-new-tokens", "2", "--bare"]
    whole = run_successfully(*call).out
    for number in (1, 2, 3):
        run_successfully(*call, "-o", f"part.{number}", "--shard", f"{number}/3")
    assert join_parts() == [orjson.loads(line) for line in whole.splitlines()]
    parts = b"".join(Path(f"part.{number}").read_bytes() for number in (1, 2, 3))
    assert (parts == whole) == (count == 25)  # two batches in parts of one each are in order


def test_weighing_in_shards_equals_one_run(collection, tmp_path, monkeypatch):
    assert f"in_order {compute._PLAIN_BATCH} weighted" in PAGE
    for name in ("_COUNT_BATCH", "_MODEL_BATCH", "_PLAIN_BATCH"):
        monkeypatch.setattr(compute, name, BATCH_SIZE)
    monkeypatch.chdir(tmp_path)
    Path("in").write_bytes(make_documents(2 * BATCH_SIZE + 5))  # 3 batches: one for each part
    call = ["termweight", "--method", "tfidf", "--tokenizer", str(collection["model"])]
    whole = [orjson.loads(line) for line in run_successfully(*call, "in", "--bare").out.splitlines()]
    for number in (1, 2, 3):
        run_successfully(*call, "in", "--collect", "--shard", f"{number}/3", "-o", f"counts.{number}")
    named = [word for number in (1, 2, 3) for word in ("--collection", f"counts.{number}")]
    run_successfully(*call, "--merge", *named, "-o", "counts")
    for number in (1, 2, 3):
        run_successfully(
            *call, "in", "--bare", "--collection", "counts", "--shard", f"{number}/3", "-o", f"part.{number}"
        )
    assert join_parts() == whole

"""benchmarks/on_a_gpu.sh at toy size: every step has a result or a reason why it was skipped."""

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "on_a_gpu.sh"
REASONS = ("skipped: no CUDA device", "skipped: liger-kernel is not installed")


def run_script(folder: Path, *arguments: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Run the script at toy size; return its report, the rows of the report by name, and its stdout."""
    command = ["sh", str(SCRIPT), "--toy", "--out", str(folder / "result"), *arguments]
    environment = os.environ | {"DRTK_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "result.json").read_text())
    return report, {row["row"]: row for row in report["rows"]}, done.stdout


def test_a_step_that_fails_is_a_row_of_the_table(tmp_path):
    _, rows, table = run_script(tmp_path, "--steps", "termweight", "ceilings")  # without the inputs of `prepare`
    assert rows["termweight"]["measured"].startswith("failed: FileNotFoundError")
    assert rows["copy, GB/s"]["measured"] > 0
    assert "| termweight | failed: FileNotFoundError" in table


def test_every_step_has_a_result_or_a_reason(tmp_path):
    report, rows, table = run_script(tmp_path)
    for name, row in rows.items():
        value = row["measured"]
        if isinstance(value, str):
            # the summary of the GPU tests, where there is a GPU
            assert value in REASONS or (name == "GPU tests" and "passed" in value), f"{name}: {value}\n{row.get('log')}"
        else:
            assert value > 0 or "largest error" in name, f"{name}: {value}"
        assert f"| {name} |" in table
    assert {row["step"] for row in rows.values()} == report["seconds"].keys()
    missing = report["predicted"].keys() - rows.keys()  # a prediction without a row is misspelled
    assert missing <= {"exact search of 8.8M passages, faiss flat, queries/s"}
    assert (tmp_path / "result.md").read_text() in table
    # each step did its work
    assert 3 < rows["open files at the peak"]["measured"] < 256
    for model in ("ModernBERT", "Llama"):
        assert rows[f"RoPE {model}, smallest cosine of vectors"]["measured"] > 0.999
        assert rows[f"RoPE {model}, largest error of a position's cosine"]["measured"] == 0
    for loss in ("drtk's chunks", "plain torch"):
        assert rows[f"cross-entropy, {loss}, Mtok/s"]["errors"] == pytest.approx([0] * 4, abs=0.02)
    assert "waits for data" in rows["pretrain simlm, sequences/s"]["note"]
    for name in ("BERT-base", "MiniLM-L6"):
        systems = rows[f"encode {name}, passages/s"]["report"]["systems"].values()
        assert max(each["largest_difference"] for each in systems) < 1e-4
    assert rows["rerank BERT-base, pairs/s"]["report"]["largest_difference"] < 1e-4
    results = rows["exact search of 8.8M passages, queries/s"]["report"]["results"].values()
    assert [each["agrees"] for each in results] == [1.0] * 3
    for name in ("doc2query T5-base, passages/s", "pretrain simlm, sequences/s"):
        assert sum(each["share"] for each in rows[name]["report"]["profile"]["operations"]) > 0.3
    assert {name for name in rows if name.startswith("decoding ")} == {
        f"decoding {count:,} queries, tokens/s" for count in (370, 1280, 4096, 16_384)
    }
    for name, form in (("train-retriever", "plain"), ("train-reranker", "reranker")):
        rounds = next(row["report"] for row in rows.values() if row["row"].startswith(name))[form]["rounds"]
        assert all(math.isfinite(each["last_loss"]) for found in rounds.values() for each in found)
        assert len(rounds) == 2  # drtk and its peer


def test_all_rates_fit_into_the_time(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    script = importlib.import_module("on_a_gpu")
    assert sum(limit for limit, _ in script.RATES.values()) <= script.TOTAL
    assert [*script.STEPS][: len(script.RATES)] == [*script.RATES]  # before the checks and variants

"""benchmarks/on_a_gpu.sh at toy size: every step has a result or a reason why it was skipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "on_a_gpu.sh"
REASONS = ("skipped: no CUDA device", "skipped: liger-kernel is not installed")


def test_every_step_has_a_result_or_a_reason(tmp_path: Path) -> None:
    out = tmp_path / "result"
    command = ["sh", str(SCRIPT), "--toy", "--out", str(out)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"DRTK_PYTHON": sys.executable}
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "result.json").read_text())
    rows = {row["row"]: row for row in report["rows"]}
    for name, row in rows.items():
        value = row["measured"]
        if isinstance(value, str):
            # the summary of the GPU tests, where there is a GPU
            assert value in REASONS or (name == "GPU tests" and "passed" in value), f"{name}: {value}\n{row.get('log')}"
        else:
            assert value >= 0, f"{name}: {value}"
        assert f"| {name} |" in done.stdout
    assert {row["step"] for row in rows.values()} == report["seconds"].keys()
    assert rows["cross-entropy, drtk's chunks, Mtok/s"]["errors"] == pytest.approx([0] * 4, abs=0.02)
    missing = report["predicted"].keys() - rows.keys()  # a prediction without a row is misspelled
    assert missing <= {"exact search of 8.8M passages, faiss flat, queries/s"}
    assert (tmp_path / "result.md").read_text() in done.stdout

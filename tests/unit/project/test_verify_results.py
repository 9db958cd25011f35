"""docs/cookbook/papers: verify.py compares results with expected.toml, and every expected row is a row of its recipe."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PAPERS = Path(__file__).resolve().parents[3] / "docs" / "cookbook" / "papers"
PRESETS = PAPERS.parents[2] / "drtk" / "presets"
RECORDER = """#!/bin/sh
# Replaces drtk: records the call and creates its output, a folder where the recipes remove one.
echo "$*" >> "$CALLS"
for word in "$@"; do
  case ${before:-}.$word in -o.*vectors | -o.*index) mkdir -p "$word" ;; -o.*) : > "$word" ;; esac
  before=$word
done
"""
EXPECTED = {"measure": "RR@10", "rows": {"new": [0.4, 0.02]}, "orders": ["new > old"]}


def load_verify() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verify", PAPERS / "verify.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_result(path: Path, *, mean: float = 0.41, significant: bool = True, baseline: str = "old") -> Path:
    system = "new" if baseline == "old" else "old"
    records: list[dict[str, Any]] = [
        {"kind": "system", "system": "new", "measure": "RR@10", "mean": mean, "sd": 0.01, "runs": 3},
        {"kind": "system", "system": "new", "measure": "R@50", "mean": 0.0, "sd": 0.0, "runs": 3},
        {
            "kind": "contrast", "baseline": baseline, "system": system, "measure": "RR@10", "t_p_corrected": 0.01,
            "difference": 0.05 if baseline == "old" else -0.05, "significant": significant,
        },
    ]  # fmt: skip
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, True),
        ({"baseline": "new"}, True),
        ({"mean": 0.43}, False),
        ({"mean": 0.37}, False),
        ({"significant": False}, False),
    ],
)
def test_rows_outside_the_tolerance_and_uncertain_orders_fail(
    change: dict[str, Any], holds: bool, tmp_path: Path
) -> None:
    assert load_verify().verify(write_result(tmp_path / "a.jsonl", **change), EXPECTED) == holds


def test_a_missing_row_and_a_wrong_order_fail(tmp_path: Path) -> None:
    verify, result = load_verify().verify, write_result(tmp_path / "a.jsonl")
    assert not verify(result, EXPECTED | {"rows": {"other": [0.4, 0.02]}})
    assert not verify(result, EXPECTED | {"orders": ["old > new"]})
    assert not verify(result, EXPECTED | {"orders": ["other > old"]})


def run_recipe(paper: str, scale: str, folder: Path, *options: str) -> Path:
    """Run a recipe with RECORDER in place of drtk, which writes the file `calls`; return the output folder."""
    out = folder / "out"
    (out / "data").mkdir(parents=True)
    (out / "data" / "fields.jsonl").write_text("{}\n")
    (folder / "drtk").write_text(RECORDER)
    (folder / "drtk").chmod(0o755)
    subprocess.run(
        ["sh", PAPERS / f"{paper}.sh", "--scale", scale, "--seeds", "1 2", "--out", out, *options],
        env=os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "CALLS": str(folder / "calls")},
        check=True,
    )
    return out


@pytest.mark.parametrize("scale", ["mini", "full"])
@pytest.mark.parametrize("paper", sorted(path.stem for path in PAPERS.glob("*.sh") if path.stem != "common"))
def test_recipes_train_and_compare_each_expected_row(paper: str, scale: str, tmp_path: Path) -> None:
    run_recipe(paper, scale, tmp_path)
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    presets = [words[words.index("--preset") + 1] for words in calls if words[0] in ("pretrain", "train-retriever")]
    assert [preset for preset in presets if not (PRESETS / f"{preset}.toml").exists()] == []
    compared = {word.split("=")[0] for word in calls[-1] if word.endswith(".run")}
    assert set(tomllib.loads((PAPERS / "expected.toml").read_text())[paper][scale]["rows"]) <= compared
    assert len([words for words in calls if words[0] == "train-retriever"]) == 2 * len(compared)


def test_a_row_that_starts_from_another_is_trained_from_it(tmp_path: Path) -> None:
    work = run_recipe("rom", "full", tmp_path, "--rows", "corom") / "rom"
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    outputs = {words[words.index("-o") + 1]: words for words in calls if words[0] == "pretrain"}
    assert list(outputs) == [f"{work}/{name}.{seed}.encoder" for seed in (1, 2) for name in ("rom", "corom")]
    assert f"--model {work}/rom.2.encoder" in " ".join(outputs[f"{work}/corom.2.encoder"])

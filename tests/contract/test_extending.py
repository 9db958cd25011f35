"""The worked example of docs/extending.md, followed to the letter in a copy of the package."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


def blocks(mark: str) -> list[tuple[str, str]]:
    """(what follows the mark, content) of the code blocks that begin with it."""
    return re.findall(rf"^```{mark}(.*?)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


EXAMPLES = [  # mark of the file, mark of the line, and the registry the line goes into
    ("python file=", "python line=", 'FUSIONS = Registry(\n    "fusion method",\n    {\n'),
    ("python objective=", "python objective-line=", 'OBJECTIVES = Registry(\n    "objective",\n    {\n'),
    ("python masking=", "python masking-line=", 'MASKING = Registry(\n    "masking strategy",\n    {\n'),
]


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the page's files and lines in it."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "drtk", folder / "drtk", ignore=shutil.ignore_patterns("__pycache__"))
    for file_mark, line_mark, registry in EXAMPLES:
        ((file, content),) = blocks(file_mark)
        assert not (folder / file).exists()
        (folder / file).write_text(content, encoding="utf-8")
        ((place, line),) = blocks(line_mark)
        source = (folder / place).read_text(encoding="utf-8")
        head, opening, rest = source.partition(registry)
        assert opening, f"{place}: the registry looks different now"
        (folder / place).write_text(head + opening + line + rest, encoding="utf-8")
    (folder / "drtk-command").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m drtk "$@"\n')
    (folder / "bin").mkdir()
    (folder / "drtk-command").rename(folder / "bin" / "drtk")
    (folder / "bin" / "drtk").chmod(0o755)
    return folder


def shell(script: str, extended: Path) -> subprocess.CompletedProcess[str]:
    path = f"{extended / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(extended), "PATH": path}
    return subprocess.run(["sh", "-eu", "-c", script], cwd=extended, env=environment, capture_output=True, text=True)


def test_the_example_works_and_prints_what_the_page_says(extended: Path) -> None:
    ((_, script),) = blocks("sh extended")
    ((_, expected),) = blocks("text output")
    found = shell(script, extended)
    assert (found.returncode, found.stdout) == (0, expected), found.stderr
    ((_, failing),) = blocks("sh fails")
    found = shell(failing, extended)
    assert found.returncode == 2
    assert "unknown fusion method 'border'; choose from" in found.stderr
    assert "borda" in found.stderr


def test_a_masking_of_ones_own_is_checked_shown_and_trained(extended: Path) -> None:
    ((name, preset),) = blocks("toml masking=")
    (extended / name).write_text(preset, encoding="utf-8")
    ((_, script),) = blocks("sh masking")
    ((_, expected),) = blocks("text masking")
    found = shell(script, extended)
    assert (found.returncode, found.stdout) == (0, expected), found.stderr
    hidden = expected.splitlines()[3].split()
    assert hidden.count("[MASK]") == 4
    assert " ".join(hidden).count("[MASK] [MASK] [MASK] [MASK]") == 1
    log = (extended / "encoder" / "log.jsonl").read_text(encoding="utf-8")
    assert '"mlm"' in log
    option = preset.replace('"stretch"', '{ use = "stretch", early = true }')
    (extended / name).write_text(option, encoding="utf-8")
    found = shell(f"drtk presets {name} --check", extended)
    assert (found.returncode, found.stderr) == (
        2,
        f"drtk: {name}: [slots.passage]: masking 'stretch' has no option 'early'; choose from late\n",
    )


def test_an_objective_of_ones_own_is_checked_told_and_trained(extended: Path) -> None:
    for kind in ("masking", "objective"):
        ((name, preset),) = blocks(f"toml {kind}=")
        (extended / name).write_text(preset, encoding="utf-8")
    ((_, before),) = blocks("sh masking")
    needed = [line for line in before.splitlines() if "corpus.jsonl" in line and "mine.toml" not in line]
    ((_, script),) = blocks("sh objective")
    ((_, expected),) = blocks("text objective")
    found = shell("\n".join([*needed, script]).replace("-o model", "--force -o model"), extended)
    assert (found.returncode, found.stdout) == (0, expected), found.stderr
    log = [json.loads(line) for line in (extended / "apart" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [entry for entry in log if "loss" in entry]
    assert len(steps) == 3
    for entry in steps:  # two vectors at a distance d: log(1 + exp(-2 d^2)), at most log 2
        assert 0 < entry["uniformity"] <= math.log(2)
        assert entry["loss"] == pytest.approx(entry["mlm"] + 0.5 * entry["uniformity"], abs=1e-3)
    (extended / name).write_text(preset.replace("weight = 0.5", "sharpnes = 4"), encoding="utf-8")
    found = shell(f"drtk presets {name} --check", extended)
    told = f"drtk: {name}: objective 2: unknown key 'sharpnes'; choose from group, name, projector, sharpness, slot, weight\n"
    assert (found.returncode, found.stderr) == (2, told)


@pytest.mark.parametrize("mark", [mark for mark, _, _ in EXAMPLES])
def test_the_example_keeps_the_rules_of_the_house(mark: str, extended: Path) -> None:
    ((file, _),) = blocks(mark)
    for tool in (["ruff", "check"], ["ruff", "format", "--check"]):
        command = [sys.executable, "-m", *tool, "--config", str(ROOT / "pyproject.toml"), file]
        found = subprocess.run(command, cwd=extended, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr


def test_the_registries_the_page_lists_are_those_there_are() -> None:
    listed = dict(re.findall(r"^\| `([A-Z_]+)` \| `(drtk/[\w/]+\.py)` \|", PAGE, re.MULTILINE))
    declared = {}
    for path in (ROOT / "drtk").rglob("*.py"):
        for name in re.findall(
            r"^([A-Z_]+)(?:: [^=]+)? = (?:\{\n +\"\w+\": )?Registry\(", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            declared[name] = str(path.relative_to(ROOT))
    assert listed == declared

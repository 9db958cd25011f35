"""The worked examples of docs/extending.md, run in a copy of the package."""

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.forkserver import Forkserver
from tests.contract.run_drtk import run_shell

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


def block(mark: str) -> tuple[str, str]:
    """Return the rest of the first line, and the content, of the code block that begins with `mark`."""
    (match,) = re.findall(rf"^```{mark}(.*?)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return match


EXAMPLES = [  # mark of the file, mark of the line, and the registry the line goes into
    ("python file=", "python line=", 'FUSIONS = Registry(\n    "fusion method",\n    {\n'),
    ("python objective=", "python objective-line=", 'OBJECTIVES = Registry(\n    "objective",\n    {\n'),
    ("python masking=", "python masking-line=", 'MASKING = Registry(\n    "masking strategy",\n    {\n'),
]
Shell = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def extended_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package with the files and lines of the page added."""
    folder = tmp_path_factory.mktemp("extended") / "copy"
    shutil.copytree(ROOT / "drtk", folder / "drtk")
    for file_mark, line_mark, registry in EXAMPLES:
        file, content = block(file_mark)
        assert not (folder / file).exists()
        (folder / file).write_text(content, encoding="utf-8")
        place, line = block(line_mark)
        source = (folder / place).read_text(encoding="utf-8")
        head, opening, rest = source.partition(registry)
        assert opening, f"{place}: the registry looks different now"
        (folder / place).write_text(head + opening + line + rest, encoding="utf-8")
    for kind in ("masking", "objective"):
        name, preset = block(f"toml {kind}=")
        (folder / name).write_text(preset, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def shell(extended_copy: Path) -> Iterator[Shell]:
    """Run a script in the folder of the copy, whose `drtk` imports the copy."""
    server = Forkserver(extended_copy.parent, PYTHONPATH=str(extended_copy))
    (extended_copy.parent / "bin").mkdir()
    (extended_copy.parent / "bin" / "drtk").write_text(server.client)
    (extended_copy.parent / "bin" / "drtk").chmod(0o755)
    yield lambda script: run_shell("-eu", "-c", script, folder=extended_copy, PYTHONPATH=str(extended_copy))
    server.stop()


def test_the_fusion_method_works_and_prints_what_the_page_says(shell):
    outcome = shell(block("sh extended")[1])
    assert (outcome.returncode, outcome.stdout) == (0, block("text output")[1]), outcome.stderr
    outcome = shell(block("sh fails")[1])
    assert outcome.returncode == 2
    assert re.search("unknown fusion method 'border'; did you mean borda", outcome.stderr)


def test_the_masking_and_the_objective_are_checked_shown_and_trained(extended_copy, shell):
    outcome = shell(block("sh masking")[1])
    expected = block("text masking")[1]
    assert (outcome.returncode, outcome.stdout) == (0, expected), outcome.stderr
    assert re.findall(r"(?:\[MASK\] ?)+", expected.splitlines()[3]) == ["[MASK] [MASK] [MASK] [MASK] "]
    assert '"mlm"' in (extended_copy / "encoder" / "log.jsonl").read_text(encoding="utf-8")
    outcome = shell(block("sh objective")[1])
    assert (outcome.returncode, outcome.stdout) == (0, block("text objective")[1]), outcome.stderr
    log = [
        json.loads(line) for line in (extended_copy / "apart" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    steps = [entry for entry in log if "loss" in entry]
    assert len(steps) == 3
    for entry in steps:  # two vectors at a distance d: log(1 + exp(-2 d^2)), at most log 2
        assert 0 < entry["uniformity"] <= math.log(2)
        assert entry["loss"] == pytest.approx(entry["mlm"] + 0.5 * entry["uniformity"], abs=1e-3)


@pytest.mark.parametrize("tool", [["check"], ["format", "--check"]])
def test_the_examples_keep_the_rules_of_the_linter(tool, extended_copy):
    files = [block(mark)[0] for mark, _, _ in EXAMPLES]
    command = [sys.executable, "-m", "ruff", *tool, "--config", str(ROOT / "pyproject.toml"), *files]
    outcome = subprocess.run(command, cwd=extended_copy, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_the_page_lists_all_registries():
    listed = dict(re.findall(r"^\| `([A-Z_]+)` \| `(drtk/[\w/]+\.py)` \|", PAGE, re.MULTILINE))
    declaration = re.compile(r"^([A-Z_]+)(?:: [^=]+)? = (?:\{\n +\"\w+\": )?Registry\(", re.MULTILINE)
    declared = {
        name: str(path.relative_to(ROOT))
        for path in (ROOT / "drtk").rglob("*.py")
        for name in declaration.findall(path.read_text(encoding="utf-8"))
    }
    assert listed == declared

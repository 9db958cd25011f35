"""Every command, preset and row of the master table of methods has a step in inventory.toml, and every step runs."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from drtk.cli.main import load_functions
from tests.shared_data import DEFAULT_FOLDER
from tests.slow.inventory import ROWS, STEPS, Checkout, add_requirements, prepare_data, start_checkout
from tests.tiny_models import find_minilm

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the data, in which each step runs once."""
    folder = tmp_path_factory.mktemp("inventory")
    prepare_data(folder, find_minilm())
    return folder


@pytest.fixture(scope="module")
def checkout(work: Path) -> Iterator[Checkout]:
    with start_checkout(ROOT, work) as started:
        yield started


@pytest.mark.parametrize("name", STEPS)
def test_each_step_runs(name, work, checkout):
    for step in add_requirements([name]):
        if not (work / step.name / "stdout").exists():
            checkout.run(step)


def test_every_command_has_a_step():
    scripts = "\n".join(step.run for step in STEPS.values())
    assert [name for name in load_functions() if not re.search(rf"\bdrtk {name}(?![\w-])", scripts)] == []


def test_every_preset_has_a_step():
    files = {path.stem for path in (ROOT / "drtk").rglob("*.toml") if "presets" in path.parts}
    assert {step.preset for step in STEPS.values()} - {None} == files


def test_every_row_of_the_master_table_has_steps_that_exist():
    unknown = {name for names in ROWS.values() for name in names} - set(STEPS)
    assert not unknown
    methods = DEFAULT_FOLDER.parent / "methods.md"
    if not methods.exists():
        pytest.skip(f"no {methods}")
    table = methods.read_text(encoding="utf-8").split("\n## 9. ")[1].split("\n## ")[0]
    table = table.replace("re-ranker", "reranker")
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    assert [*ROWS] == rows[1:]

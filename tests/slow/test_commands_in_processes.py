"""Commands with --runner processes write the same bytes as in one process."""

from pathlib import Path

import pytest

from tests.contract.collection import Collection
from tests.contract.run_drtk import run_successfully
from tests.contract.test_kills import KILLED, build_arguments, read_outputs

pytestmark = pytest.mark.slow
NAMES = "chunk,doc2query,continue-text,termweight,keep-queries,rerank,score,read,encode,rerank-queries apply".split(",")


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    return Collection(tmp_path_factory.mktemp("collection"))


@pytest.mark.parametrize("name", [*NAMES, "expand-queries --model"])
def test_two_processes_write_the_output_of_one(name, collection, folder):
    Path("in").write_bytes(KILLED[name].input(KILLED[name].documents // 4))
    call = [*build_arguments(name, collection), *(["--num-workers", "0"] if name == "chunk" else [])]
    run_successfully(*call, "-o", "one", "-q")
    run_successfully(*call, "-o", "two", "-q", "--runner", "processes", "--set", "runner_workers=2")
    assert read_outputs(Path("two")) == read_outputs(Path("one"))

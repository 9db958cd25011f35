"""One tiny collection for all contract tests of a process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.contract.collection import Collection
from tests.contract.forkserver import Forkserver, shared_forkserver


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    return Collection(tmp_path_factory.mktemp("collection"))


@pytest.fixture(scope="session")
def forkserver() -> Forkserver:
    return shared_forkserver()


@pytest.fixture
def workplace(tmp_path: Path, collection: Collection, forkserver: Forkserver) -> Path:
    """A folder in which the examples run: the tiny collection under the names the pages use, and `drtk` on the path."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "drtk").write_text(forkserver.client)
    (bin_folder / "drtk").chmod(0o755)
    folder = tmp_path / "work"
    folder.mkdir()
    for name, source in collection.for_examples().items():
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy(source, folder / name)
    return folder

"""Fixtures of the contract tests: a tiny collection, a server that forks drtk, a working folder."""

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
    """Return a folder to run documentation examples in: the collection under the names of the pages, and `drtk` on the path."""
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

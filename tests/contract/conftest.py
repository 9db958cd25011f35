"""One tiny collection for all contract tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.collection import Collection
from tests.contract.forkserver import Forkserver
from tests.contract.running import environment


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    return Collection(tmp_path_factory.mktemp("collection"))


@pytest.fixture(scope="session")
def forkserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forkserver]:
    server = Forkserver(tmp_path_factory.mktemp("server"), environment())
    yield server
    server.stop()

"""Share the tiny collection of the contract tests."""

from __future__ import annotations

import pytest

from tests.contract.collection import Collection


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    return Collection(tmp_path_factory.mktemp("collection"))

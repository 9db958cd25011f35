"""The world of the tests of objectives, made once."""

from __future__ import annotations

import pytest

from tests.pretraining import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.made(tmp_path_factory.mktemp("world"))

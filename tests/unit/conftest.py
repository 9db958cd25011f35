"""The world in which compositions are tried, made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pretraining import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    from tests.pretraining import World  # it loads torch, which most tests do without

    return World.made(tmp_path_factory.mktemp("world"))

"""Fixture: the encoder, generator and corpus of pre-training tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pretraining_setup import PretrainingFiles


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> PretrainingFiles:
    from tests.pretraining_setup import PretrainingFiles  # it loads torch, which most tests do without

    return PretrainingFiles.create(tmp_path_factory.mktemp("world"))

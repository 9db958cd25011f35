"""Fixtures: the encoder, generator and corpus of pre-training tests, and tiny generators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pretraining_setup import PretrainingFiles


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> PretrainingFiles:
    from tests.pretraining_setup import PretrainingFiles  # it loads torch, which most tests do without

    return PretrainingFiles.create(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny T5 model, t5, and a tiny GPT-2 model, gpt2."""
    from tests.tiny_models import save_tiny_generator

    folder = tmp_path_factory.mktemp("generators")
    for arch in ("t5", "gpt2"):
        save_tiny_generator(folder / arch, arch)
    return folder

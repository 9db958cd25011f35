"""A working directory for the files of a test."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, which is the working directory of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path

"""Commands run within the test's process: quick, and their faults arrive as exceptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from drtk.cli.main import app


def command(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What `drtk ARGUMENTS` writes to stdout. Raises what the command raises."""
    capfd.readouterr()
    app([str(argument) for argument in arguments], standalone_mode=False)
    return capfd.readouterr().out


def write(path: Path, text: str) -> Path:
    """`path`, holding `text`."""
    path.write_text(text, encoding="utf-8")
    return path

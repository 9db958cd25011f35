"""Commands run within the test's process: quick, and their faults arrive as exceptions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest

from drtk.cli.main import app


def command(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What `drtk ARGUMENTS` writes to stdout. Raises what the command raises."""
    capfd.readouterr()
    app([str(argument) for argument in arguments], standalone_mode=False)
    return capfd.readouterr().out


@contextmanager
def piped(content: bytes) -> Iterator[str]:
    """The name of a pipe that gives `content`, as a shell's <(...) does."""
    reading, writing = os.pipe()

    def fill() -> None:
        with suppress(BrokenPipeError), open(writing, "wb") as pipe:
            pipe.write(content)

    writer = Thread(target=fill)
    writer.start()
    try:
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)
        writer.join()


def write(path: Path, text: str) -> Path:
    """`path`, holding `text`."""
    path.write_text(text, encoding="utf-8")
    return path


def torchrun(*, rank: int, processes: int) -> dict[str, str]:
    """The variables that torchrun sets in each of its processes on one machine."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    return {name: str(value) for name, value in numbers.items()} | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}

"""Run commands in the process of the test, which is fast and raises their errors."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import orjson
import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError
from drtk.runtime.model_card import CARD
from tests.contract.forkserver import KILL_AT, shared_forkserver

Capture = pytest.CaptureFixture[str]


def run_command(capfd: Capture, *arguments: str | Path) -> str:
    """Run `drtk ARGUMENTS` and return its standard output. Raises the errors of the command."""
    capfd.readouterr()
    app([str(argument) for argument in arguments], standalone_mode=False)
    return capfd.readouterr().out


def get_messages(capfd: Capture, command: str, *arguments: str | Path) -> str:
    """Run a command line, split at white space, with further arguments; return what it writes to stderr."""
    capfd.readouterr()
    app([*command.split(), *map(str, arguments)], standalone_mode=False)
    return capfd.readouterr().err


def run_rows(capfd: Capture, command: str, *arguments: str | Path) -> list[dict[str, Any]]:
    """Run a command line, split at white space, with further arguments; return the rows of its JSONL output."""
    return [orjson.loads(line) for line in run_command(capfd, *command.split(), *arguments).splitlines()]


@contextmanager
def fail_at_call(number: int, owner: Any, name: str) -> Iterator[None]:
    """Make call `number` of `owner.name` raise DrtkError inside the block; fail unless the block raises it."""
    function, calls = getattr(owner, name), count(1)

    def fail(*arguments: Any, **options: Any) -> Any:
        if next(calls) == number:
            raise DrtkError("power failure")
        return function(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(DrtkError, match="power failure"):
            yield


@contextmanager
def act_before_step(kind: Any, step: int, act: Callable[[Any], object]) -> Iterator[None]:
    """Call `act(trainer)` inside the block before training step `step`, from 1, of trainers of the class `kind`."""
    usual = kind.training_step

    def training_step(self: Any, *given: Any, **named: Any) -> Any:
        if self.state.global_step + 1 == step:
            act(self)
        return usual(self, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "training_step", training_step)
        yield


@contextmanager
def cut_off_before_step(kind: Any, step: int, *, only: str = "") -> Iterator[None]:
    """Make the block fail before a training step (see `act_before_step`). only: of trainers with this in their folder"""

    def cut_off(trainer: Any) -> None:
        if only in trainer.args.output_dir:
            raise RuntimeError("power failure")

    with act_before_step(kind, step, cut_off), pytest.raises(RuntimeError, match="power failure"):
        yield


@contextmanager
def open_pipe(content: bytes) -> Iterator[str]:
    """Yield the path of a pipe with this content, like <(...) in a shell."""
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


def write_text(path: Path, text: str) -> Path:
    """Write a text file; return its path."""
    path.write_text(text, encoding="utf-8")
    return path


def kill_at(file: Path, *arguments: object) -> None:
    """Run `drtk ARGUMENTS` in a process that is killed as soon as `file` exists, regardless of the machine's speed."""
    with tempfile.TemporaryDirectory() as folder:
        stderr = Path(folder, "stderr")
        running = shared_forkserver().start([*map(str, arguments)], Path.cwd(), stderr, **{KILL_AT: file})
        assert running.status() == 128 + signal.SIGKILL, stderr.read_text()


def make_torchrun_variables(*, rank: int, processes: int) -> dict[str, str]:
    """Return the variables that torchrun sets in a process on one machine."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    return {name: str(value) for name, value in numbers.items()} | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of the log of a training."""
    return [orjson.loads(line) for line in (folder / "log.jsonl").read_bytes().splitlines()]


VARYING = ("started", "seconds", "command", "corpus", "manifest_digest")  # entries of manifests with times and paths


def read_files(folder: Path) -> dict[str, Any]:
    """Return the content of all files in a folder by name, without model cards; of manifests, the entries that do not vary."""
    items = [item for item in sorted(folder.rglob("*")) if item.is_file() and item.name != CARD]
    return {str(item.relative_to(folder)): _read_stable(item) for item in items}


def _read_stable(file: Path) -> Any:
    if not file.name.endswith("meta.json"):
        return file.read_bytes()
    entries = {name: value for name, value in orjson.loads(file.read_bytes()).items() if name not in VARYING}
    entries.get("files", {}).pop(CARD, None)
    for written in entries.get("files", {}).values():
        del written["mtime_ns"]
    return entries

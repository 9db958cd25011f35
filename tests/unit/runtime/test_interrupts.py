"""Ctrl-C at any moment leaves no files, or a part and its journal from which the run resumes."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
import pytest

from drtk.runtime import atomic, filter_job, streams
from drtk.runtime.atomic import delay_interrupts
from drtk.runtime.filter_job import BatchResult, FilterJob
from drtk.runtime.streams import Output

FILES = {module.__file__ for module in (atomic, filter_job, streams)}
RECORDS = [{"_id": f"d{number}"} for number in range(3)]  # a batch and a half
BATCH_SIZE = 2
STEP = 3  # moments from one test to the next; every one takes three times as long


def interrupt_at(moment: int, act: Callable[[], Any]) -> bool:
    """Call `act` with a SIGINT at its `moment`-th line or call within drtk; return whether there was such a moment."""
    left = moment

    def tracer(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in FILES:
            return None
        if event in ("call", "line"):
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        act()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return left <= 0


def copy_batch(batch: list[dict[str, Any]]) -> Iterator[bytes]:
    for record in batch:
        yield orjson.dumps(record) + b"\n"


def run(output: Path, *, twice: bool = False, **given: Any) -> None:
    """Run a filter that copies its input, in one or two passes."""
    job = FilterJob("copy", "corpus", str(output), {"depth": 3}, batch_size=BATCH_SIZE, **given)
    job.check()
    revise = (lambda lines: (BatchResult([line + b"\n"]) for line in lines())) if twice else None
    job.run_batches(RECORDS, lambda batches: (BatchResult(copy_batch(batch)) for batch in batches), revise=revise)


WHOLE = b"".join(copy_batch(RECORDS))


def begin_run(output: Path) -> None:
    """Interrupt a run after its first batch."""

    def pump(batches: Iterator[list[Any]]) -> Iterator[BatchResult]:
        yield BatchResult(copy_batch(next(batches)))
        raise KeyboardInterrupt

    job = FilterJob("copy", "corpus", str(output), {"depth": 3}, batch_size=BATCH_SIZE)
    with pytest.raises(KeyboardInterrupt):
        job.run_batches(RECORDS, pump)  # type: ignore[arg-type]
    assert sorted(os.listdir(output.parent)) == ["out.part", "out.part.json"]


def interrupt_everywhere(tmp_path: Path, prepare: Callable[[Path], None], **given: Any) -> Iterator[tuple[Path, int]]:
    """Yield the folder after runs that were interrupted at the first moment, the second, and so on to the last."""
    for moment in range(1, 4000, STEP):
        folder = tmp_path / str(moment)
        folder.mkdir()
        prepare(folder / "out")
        if not interrupt_at(moment, lambda folder=folder: run(folder / "out", **given)):
            assert (folder / "out").read_bytes() == WHOLE
            assert moment > 100
            return
        yield folder, moment
        shutil.rmtree(folder)
    raise AssertionError("there is no end of it")


def pair(folder: Path) -> tuple[bool, bool]:
    return (folder / "out.part").exists(), (folder / "out.part.json").exists()


def test_an_interrupted_run_leaves_no_files_or_can_be_resumed(tmp_path: Path) -> None:
    seen = set()
    for folder, moment in interrupt_everywhere(tmp_path, lambda output: None, twice=True):
        part, journal = pair(folder)
        assert journal or not part, moment
        assert part or not journal or (folder / "out").exists(), moment
        assert not (folder / "out.part.new").exists() or part, moment
        seen.add((part, journal))
        run(folder / "out", twice=True, resume=True, force=True)
        assert (folder / "out").read_bytes() == WHOLE, moment
    assert {(False, False), (True, True)} <= seen


def test_an_interrupted_resumed_run_keeps_its_finished_records(tmp_path: Path) -> None:
    for folder, moment in interrupt_everywhere(tmp_path, begin_run, resume=True):
        if not (folder / "out").exists():
            assert pair(folder) == (True, True), moment
            assert (folder / "out.part").read_bytes().startswith(b"".join(copy_batch(RECORDS[:BATCH_SIZE]))), moment
        run(folder / "out", resume=True, force=True)
        assert (folder / "out").read_bytes() == WHOLE, moment


def test_ctrl_c_right_after_the_part_was_made_removes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The file exists already, but its descriptor was not returned yet.
    os_open = os.open

    def interrupt(path: Any, *arguments: Any, **options: Any) -> int:
        handle = os_open(path, *arguments, **options)
        assert Path(path).exists()
        signal.raise_signal(signal.SIGINT)
        return handle

    monkeypatch.setattr(os, "open", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out")
    assert os.listdir(tmp_path) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_part_of_another_run_is_not_removed(tmp_path: Path) -> None:
    target = tmp_path / "out"

    def run_and_interrupt() -> None:
        with Output(str(target)) as output:
            output.write(b"one\n")
            os.replace(tmp_path / "out.part", target)
            (tmp_path / "out.part").write_bytes(b"theirs\n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_and_interrupt()
    assert (tmp_path / "out.part").read_bytes() == b"theirs\n"


def test_an_interrupt_is_raised_at_the_end_of_the_block() -> None:
    done = []

    def act() -> None:
        with delay_interrupts():
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        act()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

"""After Ctrl-C at any moment, a run can be resumed."""

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
from drtk.runtime.filter_job import BatchResult, FilterJob

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


def run(output: Path, **given: Any) -> None:
    """Run a filter that copies its input."""
    job = FilterJob("copy", "corpus", str(output), {"depth": 3}, batch_size=BATCH_SIZE, **given)
    job.check()
    job.run_batches(RECORDS, lambda batches: (BatchResult(copy_batch(batch)) for batch in batches))


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


@pytest.mark.parametrize("prepare", [lambda output: None, begin_run])
def test_an_interrupted_run_can_be_resumed(tmp_path, prepare):
    for moment in range(1, 4000, STEP):
        folder = tmp_path / str(moment)
        folder.mkdir()
        prepare(folder / "out")
        if not interrupt_at(moment, lambda folder=folder: run(folder / "out", resume=True)):  # type: ignore[misc]
            assert moment > 100
            return
        run(folder / "out", resume=True, force=True)
        assert (folder / "out").read_bytes() == WHOLE, moment
        shutil.rmtree(folder)
    raise AssertionError("the run never ended")

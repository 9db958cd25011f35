"""Batch functions on either runner: the same lines in the same order, lost workers replaced, faults told as they are."""

from __future__ import annotations

import os
import pickle
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from drtk.errors import DrtkError, RecordError, UsageError
from drtk.runtime.filter_job import Done, FilterJob
from drtk.runtime.run_ray import _in_order
from drtk.runtime.runners import BatchFunction, RunnerSettings, map_windows, run_filter, run_local


class Squares(BatchFunction):
    """A number and its square; `deadly`: the process that meets this number for the first time is killed."""

    def __init__(self, deadly: int | None, marker: str, faulty: int | None) -> None:
        self._deadly, self._marker, self._faulty = deadly, Path(marker), faulty
        if faulty == -1:
            raise DrtkError("the model is not there")

    def prepare(self, records: list[int]) -> list[tuple[int, int]]:
        return [(number, number * number) for number in records]

    def __call__(self, prepared: list[tuple[int, int]]) -> Done:
        for number, _ in prepared:
            if number == self._faulty:
                raise RecordError("here:1", "cannot be squared")
            if number == self._deadly and not self._marker.exists():
                self._marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return Done(
            [f"{number} {square}\n".encode() for number, square in prepared],
            {"even": sum(n % 2 == 0 for n, _ in prepared)},
        )


def run(
    output: Path,
    count: int,
    *,
    runner: str = "local",
    deadly: int | None = None,
    faulty: int | None = None,
    **job: bool,
) -> FilterJob:
    made = FilterJob("squares", "numbers", str(output), {"count": "any"}, **job)
    running = RunnerSettings(runner=runner, ray_workers=2)  # type: ignore[arg-type]
    marker = str(output.with_name("marker"))
    run_filter(iter(range(count)), made, Squares, deadly, marker, faulty, running=running, window=4)
    return made


def expected(count: int) -> str:
    return "".join(f"{number} {number * number}\n" for number in range(count))


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(RecordError):
        run(tmp_path / "x", 30, faulty=17)  # windows of 4: four of them are whole
    assert not (tmp_path / "x").exists()
    job = run(tmp_path / "x", 30, resume=True)
    assert (tmp_path / "x").read_text() == expected(30)
    assert job.counts == {"even": 15}


def test_reading_ahead_does_not_change_what_a_journal_says(tmp_path: Path) -> None:
    def torn() -> Iterator[int]:
        yield from range(9)
        raise RecordError("input:10", "is torn")

    job = FilterJob("squares", "numbers", str(tmp_path / "x"), {})
    with pytest.raises(RecordError, match="input:10"):
        run_filter(torn(), job, Squares, None, "", None, running=RunnerSettings(), window=4)
    job = FilterJob("squares", "numbers", str(tmp_path / "x"), {}, resume=True)
    run_filter(iter(range(12)), job, Squares, None, "", None, running=RunnerSettings(), window=4)
    assert (tmp_path / "x").read_text() == expected(12)


def test_a_batch_function_is_closed_after_the_last_window_and_after_an_error() -> None:
    closed: list[str] = []

    class Closing(Squares):
        def close(self) -> None:
            closed.append(self._marker.name)

    assert [*run_local(iter([[2], [3]]), partial(Closing, None, "whole", None), RunnerSettings())]
    with pytest.raises(RecordError):
        [*run_local(iter([[2], [3]]), partial(Closing, None, "faulty", 3), RunnerSettings())]
    assert closed == ["whole", "faulty"]


def test_windows_that_ray_returns_early_wait_for_their_turn() -> None:
    ray = SimpleNamespace(exceptions=SimpleNamespace(RayError=RuntimeError))
    rows = ({"number": number, "made": pickle.dumps(f"window {number}")} for number in (6, 5, 7))
    assert [*_in_order(rows, 5, 3, ray)] == ["window 5", "window 6", "window 7"]


def test_an_unknown_runner_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown runner 'slurm'; choose from local, ray"):
        run(tmp_path / "x", 3, runner="slurm")


def test_an_address_at_which_nothing_answers_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as held:  # bound and not listening: a port that refuses
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        running = RunnerSettings(runner="ray", ray_address=address)
        job = FilterJob("squares", "numbers", str(tmp_path / "x"), {})
        with pytest.raises(DrtkError, match=rf"^`ray_address` {address}: no cluster answers there: "):
            run_filter(iter(range(3)), job, Squares, None, "", None, running=running)
    assert not (tmp_path / "x.part").exists()


@pytest.mark.slow
def test_on_ray_a_killed_worker_loses_and_doubles_nothing(tmp_path: Path, ray: object) -> None:
    job = run(tmp_path / "x", 120, runner="ray", deadly=61)
    assert (tmp_path / "marker").exists()  # it was killed, half-way
    assert (tmp_path / "x").read_text() == expected(120)
    assert job.counts == {"even": 60}


def test_on_ray_faults_are_told_as_they_are_and_finished_windows_stay(tmp_path: Path, ray: object) -> None:
    with pytest.raises(RecordError, match=r"^here:1: cannot be squared$"):
        run(tmp_path / "x", 30, runner="ray", faulty=17)
    run(tmp_path / "x", 30, runner="ray", resume=True)
    assert (tmp_path / "x").read_text() == expected(30)
    with pytest.raises(DrtkError, match=r"^the model is not there$"):
        run(tmp_path / "y", 3, runner="ray", faulty=-1)


class _Ray:
    class exceptions:  # noqa: N801
        RayError = RuntimeError


def test_results_of_ray_are_yielded_in_the_order_of_the_windows() -> None:
    rows = [{"number": number, "made": pickle.dumps(f"result {number}")} for number in (5, 7, 6, 4)]
    assert list(_in_order(iter(rows), 4, 4, _Ray)) == [f"result {number}" for number in (4, 5, 6, 7)]
    with pytest.raises(DrtkError, match="1 windows came back without a result"):
        list(_in_order(iter(rows[:3]), 5, 4, _Ray))


def test_the_batch_function_is_closed_after_an_error() -> None:
    class Closing(Squares):
        closed = False

        def close(self) -> None:
            Closing.closed = True

    with pytest.raises(RecordError):
        list(map_windows(iter([[1], [2]]), Closing, None, "", 2, running=RunnerSettings()))
    assert Closing.closed

"""Batch functions on all runners: order, resuming, lost workers, errors; prefetching in a thread."""

import ctypes
import multiprocessing
import os
import pickle
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from drtk.errors import DrtkError, RecordError, UsageError
from drtk.records import Passage
from drtk.runtime import runners
from drtk.runtime.filter_job import BatchResult, FilterJob
from drtk.runtime.run_ray import RayWorker, _iter_in_order, keep_fault_handlers
from drtk.runtime.runners import (
    BatchFunction,
    RunnerSettings,
    _list_gpus,
    choose_workers,
    count_workers,
    map_batches,
    read_ahead,
    run_filter,
)


class Squares(BatchFunction):
    """Return numbers and their squares.

    deadly: the process that first gets this number is killed
    """

    def __init__(self, deadly: int | None, marker: str, faulty: int | None) -> None:
        self._deadly, self._marker, self._faulty = deadly, Path(marker), faulty
        if faulty == -1:
            raise DrtkError("the model is not there")

    def prepare(self, records: list[int]) -> list[tuple[int, int]]:
        return [(number, number * number) for number in records]

    def __call__(self, prepared: list[tuple[int, int]]) -> BatchResult:
        for number, _ in prepared:
            if number == self._faulty:
                raise RecordError("here:1", "cannot be squared")
            if number == self._deadly and not self._marker.exists():
                self._marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        lines = [f"{number} {square}\n".encode() for number, square in prepared]
        return BatchResult(lines, {"even": sum(number % 2 == 0 for number, _ in prepared)})


def run(output, count, *, runner, deadly=None, faulty=None, **options):
    """Write the squares of the numbers below `count` with a runner of two workers; return the job."""
    job = FilterJob("squares", "numbers", str(output), {"count": "any"}, **options)
    settings, marker = RunnerSettings(runner=runner, runner_workers=2), str(output.with_name("marker"))
    run_filter(iter(range(count)), job, Squares, deadly, marker, faulty, runner_settings=settings, batch_size=4)
    return job


def compute_expected(count: int) -> str:
    return "".join(f"{number} {number * number}\n" for number in range(count))


def test_worker_processes_start_for_large_inputs(monkeypatch):
    monkeypatch.setattr(runners, "_MIN_PARALLEL_SIZE", 8)
    monkeypatch.setattr(runners, "count_cores", lambda: 5)
    for length, num_workers, expected in ((4, 0, 5), (3, 0, 1), (3, 2, 2)):
        documents = [Passage(id, "x" * length) for id in "ab"]
        count, stream = choose_workers(documents, num_workers)
        assert (count, [*stream]) == (expected, documents)


def test_the_journal_counts_written_batches_not_those_read_ahead(tmp_path):
    def torn() -> Iterator[int]:
        yield from range(9)
        raise RecordError("input:10", "is torn")

    job = FilterJob("squares", "numbers", str(tmp_path / "x"), {})
    with pytest.raises(RecordError, match="input:10"):
        run_filter(torn(), job, Squares, None, "", None, runner_settings=RunnerSettings(), batch_size=4)
    job = FilterJob("squares", "numbers", str(tmp_path / "x"), {}, resume=True)
    run_filter(iter(range(12)), job, Squares, None, "", None, runner_settings=RunnerSettings(), batch_size=4)
    assert (tmp_path / "x").read_text() == compute_expected(12)
    assert job.counts == {"even": 6}


def test_an_unknown_runner_is_rejected(tmp_path):
    with pytest.raises(UsageError, match="unknown runner 'slurm'; choose from local, processes, ray"):
        run(tmp_path / "x", 3, runner="slurm")


def test_an_address_without_a_cluster_is_an_error(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as held:  # bound and not listening: a port that refuses
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        runner_settings = RunnerSettings(runner="ray", ray_address=address)
        job = FilterJob("squares", "numbers", str(tmp_path / "x"), {})
        with pytest.raises(DrtkError, match=rf"^`ray_address` {address}: no cluster answers: "):
            run_filter(iter(range(3)), job, Squares, None, "", None, runner_settings=runner_settings)
    assert not (tmp_path / "x.part").exists()


def test_fault_handlers_are_restored_after_ray_starts():
    library, before, after = ctypes.CDLL(None), ctypes.create_string_buffer(256), ctypes.create_string_buffer(256)
    library.sigaction(signal.SIGFPE, None, before)
    with keep_fault_handlers():
        signal.signal(signal.SIGFPE, signal.SIG_IGN)
    library.sigaction(signal.SIGFPE, None, after)
    assert after.raw[:8] == before.raw[:8]  # the address of the handler


@pytest.mark.slow
def test_on_ray_a_killed_worker_is_replaced(tmp_path, ray):
    job = run(tmp_path / "x", 120, runner="ray", deadly=61)
    assert (tmp_path / "marker").exists()  # it was killed, half-way
    assert (tmp_path / "x").read_text() == compute_expected(120)
    assert job.counts == {"even": 60}


@pytest.mark.slow
def test_on_ray_errors_are_raised_and_finished_batches_are_kept(tmp_path, ray):
    with pytest.raises(RecordError, match=r"^here:1: cannot be squared$"):
        run(tmp_path / "x", 30, runner="ray", faulty=17)
    run(tmp_path / "x", 30, runner="ray", resume=True)
    assert (tmp_path / "x").read_text() == compute_expected(30)
    with pytest.raises(DrtkError, match=r"^the model is not there$"):
        run(tmp_path / "y", 3, runner="ray", faulty=-1)


class TwoArgumentsError(Exception):
    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")


def build_with_error(error: str) -> Squares:
    raise TwoArgumentsError("here", error) if error == "two" else ValueError(error, threading.Lock())


@pytest.mark.parametrize(
    ("error", "message"), [("two", "TwoArgumentsError: here: two"), ("lock", r"ValueError: \('lock', ")]
)
def test_in_processes_an_error_that_cannot_be_pickled_keeps_its_text(error, message):
    runner_settings = RunnerSettings(runner="processes", runner_workers=1)
    with pytest.raises(DrtkError, match=f"^a worker process raised {message}"):
        next(map_batches(iter([[1]]), build_with_error, error, runner_settings=runner_settings, gpu=False))


class Hoarder(Squares):
    """Read all batches before the first result."""

    def map(self, batches: Iterable[list[tuple[int, int]]]) -> Iterator[BatchResult]:
        gpu = os.environ["CUDA_VISIBLE_DEVICES"].encode()
        for batch in list(batches):
            yield BatchResult([line[:-1] + b" " + gpu + b"\n" for line in self(batch).lines])


def test_in_processes_errors_are_raised_and_finished_batches_are_kept(tmp_path):
    with pytest.raises(RecordError, match=r"^here:1: cannot be squared$"):
        run(tmp_path / "x", 30, runner="processes", faulty=17)
    with pytest.raises(DrtkError, match=r"^a worker process was killed, .* use fewer processes: `runner_workers`$"):
        run(tmp_path / "x", 30, runner="processes", deadly=25, resume=True)
    assert multiprocessing.active_children() == []
    job = run(tmp_path / "x", 30, runner="processes", resume=True)
    assert (tmp_path / "x").read_text() == compute_expected(30)
    assert job.counts == {"even": 15}


def test_a_process_has_one_gpu_and_may_read_ahead(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3,1")
    assert _list_gpus() == ["5", "3"]
    assert count_workers(RunnerSettings(runner="processes"), gpu=True) == (["5", "3"], 2)  # by default one per GPU
    settings = RunnerSettings(runner="processes", runner_workers=1)
    batches = [[number] for number in range(9)]
    results = list(map_batches(iter(batches), Hoarder, None, "", None, runner_settings=settings))
    assert [result.lines for result in results] == [[f"{n} {n * n} 5\n".encode()] for n in range(9)]


@pytest.mark.parametrize(
    ("used", "gpu", "expected"),
    [
        ({0}, True, ["cuda:1, cuda:2 idle; `runner` processes uses all GPUs"]),
        ({0, 1, 2}, True, []),
        ({2}, True, []),  # the user selected a GPU
        (set(), True, []),  # the user selected the CPU
        ({0}, False, []),
    ],
)
def test_the_local_runner_names_idle_gpus_once(used, gpu, expected, monkeypatch, caplog):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: device in used)
    runners._warn_once.cache_clear()
    for _ in range(2):
        settings = RunnerSettings()
        assert list(map_batches(iter([[2]]), Squares, None, "", None, runner_settings=settings, gpu=gpu))
    assert [message[: len(text)] for message, text in zip(caplog.messages, expected, strict=True)] == expected


def test_results_of_ray_are_yielded_in_the_order_of_the_batches():
    ray = SimpleNamespace(exceptions=SimpleNamespace(RayError=RuntimeError))
    rows = [{"number": number, "results": pickle.dumps(f"result {number}")} for number in (5, 7, 6, 4)]
    assert list(_iter_in_order(iter(rows), 4, 4, ray)) == [f"result {number}" for number in (4, 5, 6, 7)]
    with pytest.raises(DrtkError, match="1 batches returned no result"):
        list(_iter_in_order(iter(rows[:3]), 5, 4, ray))


class WaitingSquares(Squares):
    """Finish the first batch after the second one was prepared."""

    prepared = threading.Event()

    def prepare(self, records: list[int]) -> list[tuple[int, int]]:
        if 2 in records:
            self.prepared.set()
        return super().prepare(records)

    def __call__(self, prepared: list[tuple[int, int]]) -> BatchResult:
        assert self.prepared.wait(5)
        return super().__call__(prepared)


def test_a_ray_worker_prepares_the_next_batch_and_stops_at_an_error(tmp_path):
    build = partial(WaitingSquares, None, str(tmp_path / "marker"), 3)
    block = {"number": [4, 5, 6, 7], "batch": [pickle.dumps([number]) for number in (1, 2, 3, 4)]}
    rows = RayWorker(pickle.dumps(build), str(tmp_path))(block)
    assert rows["number"] == [4, 5, 6, 7]
    results = [*map(pickle.loads, rows["results"])]
    assert [result.lines for result in results[:2]] == [[b"1 1\n"], [b"2 4\n"]]
    assert [str(error) for error in results[2:]] == ["here:1: cannot be squared"] * 2


def test_a_batch_function_is_closed_after_the_last_batch_and_after_an_error():
    closed: list[int | None] = []

    class Closing(Squares):
        def close(self) -> None:
            closed.append(self._faulty)

    assert len(list(map_batches(iter([[1], [2]]), Closing, None, "", None, runner_settings=RunnerSettings()))) == 2
    with pytest.raises(RecordError):
        list(map_batches(iter([[1], [2]]), Closing, None, "", 2, runner_settings=RunnerSettings()))
    assert closed == [None, 2]


def test_items_are_prefetched_in_order_and_errors_follow_them_until_the_caller_stops():
    made = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        made.set()
        yield 2
        raise OSError("gone")

    stream = read_ahead(items())
    assert next(stream) == 1
    assert made.wait(5)  # the second item is read before it is requested
    assert next(stream) == 2
    with pytest.raises(OSError, match="gone"):
        next(stream)
    for given in (range(100), [], [None, None]):
        assert list(read_ahead(given)) == list(given)
    before = threading.active_count()
    stream = read_ahead(iter(range(10**9)))
    assert next(stream) == 0
    stream.close()
    assert threading.active_count() == before

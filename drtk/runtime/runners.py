"""Run a batch function over batches of consecutive records, in this process, in several, or on Ray Data.

`read_ahead` uses a thread, and `Workers` uses several processes of this machine.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, count
from multiprocessing import connection
from typing import Any, Literal, Protocol, TypeVar

from drtk.config import HARDWARE, option, setting
from drtk.errors import DrtkError
from drtk.records import Passage
from drtk.registry import Registry
from drtk.runtime.filter_job import BatchResult, FilterJob
from drtk.runtime.progress import set_verbosity, warn
from drtk.runtime.sharding import count_cores

RUNNERS = Registry(
    "runner",
    {
        "local": ("drtk.runtime.runners:run_local", "in this process; reading and writing overlap with the work"),
        "processes": (
            "drtk.runtime.runners:run_in_processes",
            "in a process for each GPU of this machine, or each core",
        ),
        "ray": ("drtk.runtime.run_ray:run_on_ray", "on Ray Data: several GPUs or machines; lost workers are replaced"),
    },
)

Item = TypeVar("Item")
Record = TypeVar("Record")
_MIN_PARALLEL_SIZE = 1_000_000  # characters; for smaller inputs, starting processes takes longer than the work
Report = Callable[[int], None]  # called with the number of further records that are finished


@dataclass(frozen=True)
class RunnerSettings:
    """Settings for where a batch function runs: in this process, in several processes, or on a Ray cluster."""

    runner: Literal["local", "processes", "ray"] = option(
        "local", "Run in this process (local), a process per GPU or core, or on Ray.", panel=HARDWARE
    )
    runner_workers: int | None = setting(None, "Worker processes. [default: one per GPU, else per core]", at_least=1)
    ray_address: str = setting("", "Ray cluster address. [default: $RAY_ADDRESS, else a local cluster]")


class BatchFunction:
    """Function that processes a batch of records. Its constructor may be expensive, for example load a model.

    The arguments are records, not a stream or a job, so that the function can run on another machine.
    report: progress callback, called with the number of newly finished records
    prepare_ahead: whether a thread calls `prepare` for up to two further batches while a batch is processed
    """

    report: Report | None = None
    prepare_ahead: bool = True

    def prepare(self, records: list[Any]) -> Any:
        """Return the argument of `__call__` for a batch, for example its tokens."""
        return records

    def __call__(self, batch: Any) -> Any:
        """Return the result, which must be picklable, for a batch from `prepare`. Filters return a `BatchResult`."""
        raise NotImplementedError

    def map(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Return an iterator over the results for prepared batches, in order. Override it to process several batches together."""
        return map(self, batches)

    def close(self) -> None:
        """Release resources, such as worker processes."""


class Runner(Protocol):
    """Function that maps a batch function over batches of records and keeps their order. RUNNERS lists all runners."""

    def __call__(
        self,
        batches: Iterator[list[Any]],
        build: Callable[[], BatchFunction],
        runner_settings: RunnerSettings,
        *,
        gpu: bool,
        report: Report | None,
    ) -> Generator[Any, None, None]: ...


def map_batches(
    batches: Iterator[list[Any]],
    build: Callable[..., BatchFunction],
    *arguments: Any,
    runner_settings: RunnerSettings,
    gpu: bool = True,
    report: Report | None = None,
) -> Generator[Any, None, None]:
    """Return a generator over the results of a batch function for each batch of records, in order.

    The caller must close the generator. The local runner builds the function at once, before any thread is started.
    No batch is read before the first result is requested.
    build, arguments: `build(*arguments)` returns the batch function
    gpu: whether the function can use a GPU
    Raises the errors of building and calling the function, and of the runner; UsageError for an unknown runner.
    """
    runner: Runner = RUNNERS.load(runner_settings.runner)
    return runner(batches, partial(build, *arguments), runner_settings, gpu=gpu, report=report)


def run_local(
    batches: Iterator[list[Any]],
    build: Callable[[], BatchFunction],
    runner_settings: RunnerSettings,
    *,
    gpu: bool = True,
    report: Report | None = None,
) -> Generator[Any, None, None]:
    """Run the batch function in this process (see `Runner`); warn about idle GPUs. `runner_settings` has no effect."""
    function = build()
    function.report = report
    if gpu:
        _warn_about_idle_gpus()

    def iter_results() -> Generator[Any, None, None]:
        try:
            yield from iter_batch_results(function, batches)
        finally:
            function.close()

    return iter_results()


def _warn_about_idle_gpus() -> None:
    """Warn once if the first GPU, the default device, has a model and others have nothing in memory."""
    torch = sys.modules.get("torch")  # a function that does not use torch need not import it
    if torch is None or not torch.cuda.memory_allocated(0):
        return
    idle = [f"cuda:{n}" for n in range(1, torch.cuda.device_count()) if not torch.cuda.memory_allocated(n)]
    if idle:
        _warn_once(f"{', '.join(idle)} idle; `runner` processes uses all GPUs, CUDA_VISIBLE_DEVICES chooses one")


@cache
def _warn_once(message: str) -> None:
    warn(message)


def iter_batch_results(function: BatchFunction, batches: Iterable[list[Any]]) -> Generator[Any, None, None]:
    """Yield the results of a batch function in order; a thread prepares up to two batches ahead, if `prepare_ahead`."""
    prepared_batches = map(function.prepare, batches)
    if not function.prepare_ahead:
        yield from function.map(prepared_batches)
        return
    with closing(read_ahead(prepared_batches)) as ready:
        yield from function.map(ready)


def run_in_processes(
    batches: Iterator[list[Any]],
    build: Callable[[], BatchFunction],
    runner_settings: RunnerSettings,
    *,
    gpu: bool = True,
    report: Report | None = None,
) -> Generator[Any, None, None]:
    """Run the batch function in new processes, each with one GPU, or a part of the cores (see `Runner`).

    More processes than GPUs share the GPUs. A process receives a batch when it asks for one. `report` has no effect.
    The first records are read before the processes start, so that a missing or damaged file is reported at once.
    Raises the errors of building and calling the function; DrtkError if a process is killed.
    """
    first = next(batches, None)
    if first is None:
        return
    batches, numbers, expected = chain([first], batches), count(), 0
    early: dict[int, Any] = {}  # results by number of the batch
    gpus, num_workers = count_workers(runner_settings, gpu=gpu)
    processes, pending = start_workers([build] * num_workers, gpus)
    try:
        while pending:
            ready: list[Any] = connection.wait([*pending])
            for worker in ready:
                match receive_message(worker):
                    case None:  # a request
                        if (batch := next(batches, None)) is not None:
                            pending[worker].append(next(numbers))
                        with suppress(OSError):  # of a process that was killed: `receive_message` reports it
                            worker.send(batch)
                    case "end":
                        del pending[worker]
                    case (result,):
                        early[pending[worker].popleft()] = result
                while expected in early:
                    yield early.pop(expected)
                    expected += 1
    finally:
        for process in processes:
            process.terminate()
            process.join()


def count_workers(runner_settings: RunnerSettings, *, gpu: bool) -> tuple[list[str], int]:
    """Return the value of CUDA_VISIBLE_DEVICES for each GPU, and the number of worker processes."""
    gpus = _list_gpus() if gpu else []
    return gpus, runner_settings.runner_workers or len(gpus) or count_cores()


def start_workers(
    builds: Sequence[Callable[[], BatchFunction]], gpus: Sequence[str]
) -> tuple[list[Any], dict[Any, deque[int]]]:
    """Start a process for each batch function; return (processes, {connection: empty queue for indices of pending batches}).

    builds: functions that return the batch functions
    gpus: values of CUDA_VISIBLE_DEVICES, which the processes use in turn
    """
    threads = str(max(1, count_cores() // len(builds)))
    context = multiprocessing.get_context("spawn")  # a forked process could not use CUDA
    processes: list[Any] = []
    pending: dict[Any, deque[int]] = {}
    for number, build in enumerate(builds):
        environment = {"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads}
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
        ours, theirs = context.Pipe()
        process = context.Process(target=_run_worker, args=(number, environment, pickle.dumps(build), theirs))
        process.start()
        theirs.close()  # so that the connection ends with the process
        processes.append(process)
        pending[ours] = deque()
    return processes, pending


def _list_gpus() -> list[str]:
    """Return, for each visible CUDA GPU, the value of CUDA_VISIBLE_DEVICES that selects it."""
    import torch

    indices = map(str, range(torch.cuda.device_count()))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [name for _, name in zip(indices, visible.split(","), strict=False)] if visible else [*indices]


def _run_worker(number: int, environment: dict[str, str], build: bytes, parent: Any) -> None:
    """Run a batch function in a worker process.

    Send None to request a batch, (result,) for each result, and "end" or an exception at the end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles it and ends the workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ |= environment  # before torch and tokenizers are imported
    if number:
        logging.disable(logging.WARNING)  # the first process prints the warnings
    set_verbosity(quiet=True, verbose=False)
    lock = threading.Lock()  # a thread may request batches

    def send(message: Any) -> None:
        with lock:
            parent.send(message)

    def iter_batches() -> Iterator[list[Any]]:
        send(None)
        while (batch := parent.recv()) is not None:
            yield batch
            send(None)

    try:
        for result in run_local(iter_batches(), pickle.loads(build), RunnerSettings()):
            send((make_picklable(result),))
        send("end")
    except Exception as error:  # noqa: BLE001 - raised in the parent process
        send(_make_error_picklable(error))


def _make_error_picklable(error: Exception) -> Exception:
    """Return an error, or a DrtkError with its type and text if it cannot be pickled and unpickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - classes of libraries may raise any error
        return DrtkError(f"a worker process raised {type(error).__name__}: {error}")
    return error


def receive_message(worker: Any) -> Any:
    """Return the next message of a worker process. Raises the error that it sent, or DrtkError if it was killed."""
    try:
        message = worker.recv()
    except (EOFError, OSError) as error:
        raise DrtkError(
            "a worker process was killed, probably because memory ran out; use fewer processes: `runner_workers`"
        ) from error
    if isinstance(message, Exception):
        raise message
    return message


def make_picklable(result: Any) -> Any:
    """Return a BatchResult with its lines, which may be an iterator, as a list; other results unchanged."""
    return BatchResult([*result.lines], result.counts) if isinstance(result, BatchResult) else result


def run_filter(
    records: Iterable[Record],
    job: FilterJob,
    build: Callable[..., BatchFunction],
    *arguments: Any,
    runner_settings: RunnerSettings,
    batch_size: int | None = None,
    unit: str = "passages",
    group: Callable[[bytes], Any] | None = None,
    gpu: bool = True,
) -> None:
    """Process records with a batch function, and write the results to the output of `job`, in input order.

    build, arguments: `build(*arguments)` returns the batch function
    batch_size: number of records per call of the batch function; by default the job's
    unit, group: as in `FilterJob.run_batches`
    gpu: whether the batch function can use a GPU
    Raises the errors of reading and of the batch function; UsageError for an unknown runner.
    """
    if batch_size is not None:
        job.batch_size = batch_size

    def map_all(batches: Iterator[list[Record]]) -> Generator[BatchResult, None, None]:
        return map_batches(batches, build, *arguments, runner_settings=runner_settings, gpu=gpu)

    job.run_batches(records, map_all, unit=unit, group=group)


def read_ahead(items: Iterable[Item]) -> Generator[Item, None, None]:
    """Yield the items in order; a thread reads up to two items in advance.

    Exceptions of the iterable are raised here. If the caller stops early, the thread ends after its current item.
    """
    iterator, end = iter(items), object()
    pool = ThreadPoolExecutor(1)
    futures: deque[Future[Any]] = deque(pool.submit(next, iterator, end) for _ in range(2))
    try:
        while (item := futures.popleft().result()) is not end:
            futures.append(pool.submit(next, iterator, end))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)


def choose_workers(passages: Iterable[Passage], num_workers: int) -> tuple[int, Iterator[Passage]]:
    """Return the number of worker processes for the passages, and an iterator over the passages.

    num_workers: number of processes; 0 means one per core, or a single one for an input below a million characters
    """
    stream = iter(passages)
    head: list[Passage] = []
    size = 0
    while not num_workers and size < _MIN_PARALLEL_SIZE and (passage := next(stream, None)) is not None:
        head.append(passage)
        size += len(passage.text)
    return num_workers or (count_cores() if size >= _MIN_PARALLEL_SIZE else 1), chain(head, stream)


class Workers:
    """Pool that maps a function over items in `count` worker processes, or in this process if `count` is 1.

    Create it before any thread is started, because worker processes are forked on Linux.
    build, arguments: `build(*arguments)` returns the function, in each process
    """

    def __init__(self, build: Callable[..., Callable[[Any], Any]], *arguments: Any, count: int) -> None:
        self._pool: ProcessPoolExecutor | None = None
        if count <= 1:
            self._task = build(*arguments)
            return
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._pool = ProcessPoolExecutor(
            count, mp_context=context, initializer=_init_worker, initargs=(build, arguments)
        )
        gc.freeze()  # forked processes share the memory of these objects, unless garbage collection marks them
        self._pool.submit(os.getpid).result()  # forks all processes now

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """Return an iterator over the results, in the order of the items.

        With several processes, all items are read and the work starts at once. Raises DrtkError if a process is killed.
        """
        if self._pool is None:
            return map(self._task, items)
        with _report_killed_worker():
            results = self._pool.map(_run_task, items)

        def iter_results() -> Iterator[Any]:
            with _report_killed_worker():
                yield from results

        return iter_results()

    def close(self) -> None:
        """Stop the processes. Items that were not started are dropped."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            gc.unfreeze()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _report_killed_worker() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise DrtkError(
            "a worker process was killed, probably because memory ran out; use fewer processes: `num_workers` 1"
        ) from error


_tasks: list[Callable[[Any], Any]] = []  # the function of this worker process


def _init_worker(build: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles it and ends the workers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes use all cores already
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _tasks.append(build(*arguments))


def _run_task(item: Any) -> Any:
    return _tasks[0](item)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)

"""Run a batch function on Ray Data, with one actor per worker. The work of lost workers is repeated."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import pickle
import signal
import socket
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from typing import Any

from drtk.errors import DrtkError, convert_import_error
from drtk.runtime.progress import log_detail
from drtk.runtime.runners import BatchFunction, Report, RunnerSettings, iter_batch_results, make_picklable

# Largest number of batches in a Ray dataset, and their size in bytes; this bounds memory for long streams.
# Actors are started again for each dataset, so a smaller number would be slower.
MAX_BATCHES, MAX_BYTES = 512, 1 << 30
# At most. A worker prepares the next batch of a call while it processes one; a lost worker's call is repeated.
BATCHES_PER_CALL = 4


class RayWorker:
    """A Ray actor that runs a batch function. Records and results are pickled, because Ray Data would convert them to columns.

    build: a pickled function that returns the batch function
    folder: the working directory, to which model paths may be relative
    """

    def __init__(self, build: bytes, folder: str) -> None:
        with contextlib.suppress(OSError):  # the folder may not exist on another machine
            os.chdir(folder)
        self._error: DrtkError | None = None
        try:
            self._function: BatchFunction = pickle.loads(build)()
        except DrtkError as error:  # if it were raised here, Ray would report its own error
            self._error = error

    def __call__(self, block: dict[str, Any]) -> dict[str, Any]:
        results = [*self._iter_results(block["batch"])]
        results += results[-1:] * (len(block["batch"]) - len(results))  # the error, for the batches after it
        return {"number": block["number"], "results": results}

    def run(self, batch: bytes) -> bytes:
        """Return the pickled result for a pickled batch, or the pickled DrtkError."""
        return next(self._iter_results([batch]))

    def _iter_results(self, batches: Iterable[bytes]) -> Generator[bytes, None, None]:
        """Yield the pickled results for pickled batches; at a DrtkError, yield the pickled error and stop."""
        try:
            if self._error is not None:
                raise self._error
            for result in iter_batch_results(self._function, map(pickle.loads, batches)):
                yield pickle.dumps(make_picklable(result), protocol=pickle.HIGHEST_PROTOCOL)
        except DrtkError as error:  # an error in the data; Ray handles other errors
            yield pickle.dumps(error)


def run_on_ray(
    batches: Iterator[list[Any]],
    build: Callable[[], BatchFunction],
    runner_settings: RunnerSettings,
    *,
    gpu: bool = True,
    report: Report | None = None,
) -> Generator[Any, None, None]:
    """Run the batch function in Ray actors (see `Runner`). `report` has no effect.

    The first records are read before Ray starts, so that a missing or damaged file is reported at once.
    Raises MissingDependency without ray, DrtkError if the cluster cannot be reached or fails, and the DrtkErrors of
    the batch function.
    """
    first = next(batches, None)
    if first is None:
        return
    batches = chain([first], batches)
    ray = connect(runner_settings.ray_address)
    gpus, workers = count_ray_workers(ray, runner_settings, gpu=gpu)
    log_detail(f"ray: {workers} workers, {'a GPU each' if gpus else 'on CPUs'}")
    done = 0
    while rows := _read_rows(batches, done):
        results = (
            ray.data.from_items(rows, override_num_blocks=len(rows))
            .map_batches(
                RayWorker,
                fn_constructor_args=[ray.cloudpickle.dumps(build), os.getcwd()],
                batch_size=max(1, min(BATCHES_PER_CALL, len(rows) // workers)),
                batch_format="numpy",
                num_gpus=1 if gpus else 0,
                compute=ray.data.ActorPoolStrategy(min_size=1, max_size=min(workers, len(rows))),
            )
            .iter_rows()
        )
        yield from _iter_in_order(results, done, len(rows), ray)
        done += len(rows)


def _read_rows(batches: Iterator[list[Any]], first: int) -> list[dict[str, Any]]:
    """Return pickled batches for the next Ray dataset, numbered from `first`; [] if no batches are left."""
    rows: list[dict[str, Any]] = []
    size = 0
    while len(rows) < MAX_BATCHES and size < MAX_BYTES and (batch := next(batches, None)):
        data = pickle.dumps(batch, protocol=pickle.HIGHEST_PROTOCOL)
        rows.append({"number": first + len(rows), "batch": data})
        size += len(data)
    return rows


def _iter_in_order(results: Iterator[dict[str, Any]], first: int, number: int, ray: Any) -> Iterator[Any]:
    """Yield the results of `number` batches, numbered from `first`, in order; raise an error that a worker returned."""
    early: dict[int, bytes] = {}
    expected = first
    try:
        for row in results:
            early[int(row["number"])] = row["results"]
            while expected in early:
                result = pickle.loads(early.pop(expected))
                if isinstance(result, DrtkError):
                    raise result
                yield result
                expected += 1
    except ray.exceptions.RayError as error:
        raise make_job_error(error) from error
    if expected != first + number:
        raise DrtkError(f"ray: {first + number - expected} batches returned no result; see the Ray logs and run again")


def make_job_error(error: Exception) -> DrtkError:
    """Return the error for a RayError: a lost machine, or an error that is not a DrtkError."""
    return DrtkError(f"ray: the job failed: {str(error).strip().splitlines()[-1]}; see the Ray logs")


def count_ray_workers(ray: Any, runner_settings: RunnerSettings, *, gpu: bool) -> tuple[int, int]:
    """Return the number of GPUs of the cluster (0 without `gpu`), and the number of workers."""
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0)) if gpu else 0
    return gpus, runner_settings.runner_workers or max(1, gpus or int(resources.get("CPU", 1)))


def connect(address: str) -> Any:
    """Connect to a Ray cluster, or start one on this machine; return the ray module.

    address: "" means $RAY_ADDRESS, or if it is not set, a new cluster
    Raises MissingDependency without ray, DrtkError if Ray cannot be reached or started.
    """
    with convert_import_error("ray", "`runner` ray", "ray[data]"):
        import ray
        import ray.data
    if not ray.is_initialized():
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # no messages of its C++ code
        chosen = address or os.environ.get("RAY_ADDRESS") or None
        if chosen is not None:
            _check_address(chosen)
        try:
            with keep_fault_handlers():
                ray.init(
                    address=chosen,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    include_dashboard=None if chosen else False,
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = "ray" if chosen is None else f"`ray_address` {chosen}"
            raise DrtkError(f"{where}: cannot connect to or start Ray: {str(error).strip().splitlines()[0]}") from error
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return ray


@contextlib.contextmanager
def keep_fault_handlers() -> Iterator[None]:
    """Restore the handlers of memory and arithmetic faults at exit.

    Ray replaces them when it starts. A Java virtual machine in the same process (Lucene) needs its own, or it crashes.
    """
    library, handlers = ctypes.CDLL(None), {}
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        handlers[number] = ctypes.create_string_buffer(256)  # larger than C's struct sigaction
        library.sigaction(number, None, handlers[number])
    try:
        yield
    finally:
        for number, handler in handlers.items():
            library.sigaction(number, handler, None)


def _check_address(address: str) -> None:
    """Raise DrtkError if `address` is HOST:PORT and nothing answers. Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if host and "://" not in host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise DrtkError(
                f"`ray_address` {address}: no cluster answers: {error}; start one, or check the address"
            ) from error

"""The batch function on Ray Data: an actor a worker, its model loaded once, lost workers replaced and their windows done again."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
from collections.abc import Callable, Generator, Iterator
from itertools import chain
from typing import Any

from drtk.errors import DrtkError, MissingDependency, pip_install
from drtk.runtime.config import RunnerSettings
from drtk.runtime.filter_job import Done
from drtk.runtime.progress import detail
from drtk.runtime.runners import BatchFunction, Recipe

# A data set is of so many windows, or of so many bytes of them: what is in flight stays bounded, whatever the length of the
# stream. Between two of them actors are made anew, which is why there are not fewer.
SEGMENT, SEGMENT_BYTES = 512, 1 << 30


class _Worker:
    """An actor: windows are pickled, for Ray Data would make columns of records; the recipe, to be read in `folder`."""

    def __init__(self, recipe: bytes, folder: str) -> None:
        with contextlib.suppress(OSError):  # names of models may be relative to it; another machine may lack it
            os.chdir(folder)
        self._fault: DrtkError | None = None
        try:
            self._function: BatchFunction = pickle.loads(recipe)()
        except DrtkError as error:  # raised here, Ray would take it for its own fault
            self._fault = error

    def __call__(self, block: dict[str, Any]) -> dict[str, Any]:
        made = [self._outcome(window) for window in block["window"]]
        return {"number": block["number"], "made": made}

    def _outcome(self, window: bytes) -> bytes:
        if self._fault is not None:
            return pickle.dumps(self._fault)
        try:
            made = self._function(self._function.prepare(pickle.loads(window)))
            if isinstance(made, Done):
                made = Done([*made.lines], made.counts)
            return pickle.dumps(made, protocol=pickle.HIGHEST_PROTOCOL)
        except DrtkError as error:  # a fault of the data stays one; anything else is for Ray to retry or to report
            return pickle.dumps(error)


def run_on_ray(
    windows: Iterator[list[Any]],
    recipe: Recipe,
    running: RunnerSettings,
    report: Callable[[int], None] | None = None,
) -> Generator[Any, None, None]:
    """What the batch function makes of each window, in order. `report` hears nothing: nobody watches a worker.

    The first window is read before Ray starts, which takes a while: a file that is not there, or faulty at once, is told at once.
    Raises MissingDependency without ray, DrtkError where the cluster cannot be reached or gives up.
    """
    first = next(windows, None)
    if first is None:
        return
    windows = chain([first], windows)
    ray = _connected(running.ray_address)
    gpus = ray.cluster_resources().get("GPU", 0) if recipe.gpu else 0
    workers = running.ray_workers or max(1, int(gpus or ray.cluster_resources().get("CPU", 1)))
    detail(f"ray: {workers} workers, {'a GPU each' if gpus else 'on CPUs'}")
    done = 0
    while rows := _segment(windows, done):
        made = (
            ray.data.from_items(rows, override_num_blocks=len(rows))
            .map_batches(
                _Worker,
                fn_constructor_args=[ray.cloudpickle.dumps(recipe), os.getcwd()],
                batch_size=1,
                batch_format="numpy",
                num_gpus=1 if gpus else 0,
                compute=ray.data.ActorPoolStrategy(min_size=1, max_size=min(workers, len(rows))),
            )
            .iter_rows()
        )
        yield from _in_order(made, done, len(rows), ray)
        done += len(rows)


def _segment(windows: Iterator[list[Any]], first: int) -> list[dict[str, Any]]:
    """The rows of the next data set, numbered from `first`; none at the end of the stream."""
    rows: list[dict[str, Any]] = []
    size = 0
    while len(rows) < SEGMENT and size < SEGMENT_BYTES and (window := next(windows, None)):
        data = pickle.dumps(window, protocol=pickle.HIGHEST_PROTOCOL)
        rows.append({"number": first + len(rows), "window": data})
        size += len(data)
    return rows


def _in_order(made: Iterator[dict[str, Any]], first: int, number: int, ray: Any) -> Iterator[Any]:
    """Outcomes by number, those that come early kept until their turn; each once."""
    early: dict[int, bytes] = {}
    wanted = first
    try:
        for row in made:
            early[int(row["number"])] = row["made"]
            while wanted in early:
                outcome = pickle.loads(early.pop(wanted))
                if isinstance(outcome, DrtkError):
                    raise outcome
                yield outcome
                wanted += 1
    except ray.exceptions.RayError as error:
        raise DrtkError(f"ray: {str(error).strip().splitlines()[-1]}") from error
    if wanted != first + number:
        raise DrtkError(f"ray: {first + number - wanted} windows came back without a result")


def _connected(address: str) -> Any:
    """Ray, connected to a cluster or with one of this machine alone."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingDependency("ray", "--runner ray", pip_install("ray[data]")) from error
    if not ray.is_initialized():
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # remarks of its C++ half on stderr
        wanted = address or os.environ.get("RAY_ADDRESS") or None
        if wanted is not None:
            _knock(wanted)
        try:
            ray.init(
                address=wanted,
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=None if wanted else False,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = "ray" if wanted is None else f"--ray-address {wanted}"
            raise DrtkError(f"{where}: {str(error).strip().splitlines()[0]}") from error
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return ray


def _knock(address: str) -> None:
    """Raises DrtkError where nothing answers at HOST:PORT: Ray itself would try again for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise DrtkError(f"--ray-address {address}: no cluster answers there: {error}") from error

"""Run a batch function over windows (fixed numbers of consecutive records), in this process or on Ray Data."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from drtk.config import HARDWARE, option, setting
from drtk.registry import Registry
from drtk.runtime.filter_job import FilterJob, SecondPass, WindowResult
from drtk.runtime.workers import read_ahead

RUNNERS = Registry(
    "runner",
    {
        "local": ("drtk.runtime.runners:run_local", "in this process; reading and writing overlap with the work"),
        "ray": ("drtk.runtime.run_ray:run_on_ray", "on Ray Data: several GPUs or machines; lost workers are replaced"),
    },
)

Record = TypeVar("Record")
Report = Callable[[int], None]  # called with the number of further records that are finished


@dataclass(frozen=True)
class RunnerSettings:
    """Settings of the runner of a batch function: this process or a Ray cluster."""

    runner: Literal["local", "ray"] = option("local", "Run in this process, or on Ray.", panel=HARDWARE)
    ray_workers: int | None = setting(None, "Ray workers. [default: one per GPU, or per core without GPUs]", at_least=1)
    ray_address: str = setting("", "Ray cluster address. [default: a local cluster]")


class BatchFunction:
    """Function that processes windows of records. Its constructor may be expensive, for example load a model.

    The arguments are records, not a stream or a job, so that the function can run on another machine.
    report: progress callback, called with the number of newly finished records
    ahead: whether to prepare a window in a thread while the window before is processed
    """

    report: Report | None = None
    ahead: bool = True

    def prepare(self, records: list[Any]) -> Any:
        """Return the argument of `__call__` for a window, for example its tokens."""
        return records

    def __call__(self, prepared: Any) -> Any:
        """Return the result of a window, which must be picklable. Filters return a `WindowResult`."""
        raise NotImplementedError

    def close(self) -> None:
        """Release resources, such as worker processes."""


class Runner(Protocol):
    """A function that maps a batch function over windows and yields the results in the order of the windows."""

    def __call__(
        self,
        windows: Iterator[list[Any]],
        build: Callable[[], BatchFunction],
        running: RunnerSettings,
        *,
        gpu: bool,
        report: Report | None,
    ) -> Generator[Any, None, None]: ...


def map_windows(
    windows: Iterator[list[Any]],
    build: Callable[..., BatchFunction],
    *arguments: Any,
    running: RunnerSettings,
    gpu: bool = True,
    report: Report | None = None,
) -> Generator[Any, None, None]:
    """Return a generator over the results of a batch function for each window, in order. The caller must close it.

    The local runner builds the function at once, before any thread is started. Windows are read from the first `next` on.
    build, arguments: `build(*arguments)` returns the batch function
    gpu: whether the function can use a GPU
    Raises the errors of building and calling the function; UsageError for an unknown runner.
    """
    runner: Runner = RUNNERS.load(running.runner)
    return runner(windows, partial(build, *arguments), running, gpu=gpu, report=report)


def run_local(
    windows: Iterator[list[Any]],
    build: Callable[[], BatchFunction],
    running: RunnerSettings,
    *,
    gpu: bool = True,
    report: Report | None = None,
) -> Generator[Any, None, None]:
    """Run the batch function in this process (see `Runner`). `running` and `gpu` have no effect."""
    function = build()
    function.report = report

    def iter_results() -> Generator[Any, None, None]:
        prepared = map(function.prepare, windows)
        try:
            if not function.ahead:
                yield from map(function, prepared)
                return
            with closing(read_ahead(prepared)) as ready:
                yield from map(function, ready)
        finally:
            function.close()

    return iter_results()


def run_filter(
    records: Iterable[Record],
    job: FilterJob,
    build: Callable[..., BatchFunction],
    *arguments: Any,
    running: RunnerSettings,
    window: int | None = None,
    unit: str = "passages",
    gpu: bool = True,
    revise: SecondPass | None = None,
) -> None:
    """Process records with a batch function, window by window, and write the results to the output of `job`, in order.

    build, arguments: `build(*arguments)` returns the batch function
    window: number of records per window, instead of the job's
    gpu: whether the batch function can use a GPU
    revise: a second pass over all output lines, in this process (see `FilterJob.run_windows`)
    Raises the errors of reading and of the batch function; UsageError for an unknown runner.
    """
    if window is not None:
        job.window = window

    def map_all(windows: Iterator[list[Record]]) -> Generator[WindowResult, None, None]:
        return map_windows(windows, build, *arguments, running=running, gpu=gpu)

    job.run_windows(records, map_all, unit=unit, revise=revise)

"""Run a batch function over windows of records: in this process, or on Ray Data."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from drtk.config import HARDWARE, option
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
Report = Callable[[int], None]


@dataclass(frozen=True)
class RunnerSettings:
    """Where a batch function runs."""

    runner: Literal["local", "ray"] = option("local", "Run in this process, or on Ray.", panel=HARDWARE)
    ray_workers: int | None = option(
        None, "Ray workers. [default: one per GPU, or per core without GPUs]", at_least=1, advanced=True
    )
    ray_address: str = option("", "Ray cluster address. [default: a local cluster]", advanced=True)


class BatchFunction:
    """The work on one window of records. Its constructor is the expensive part: it may load a model.

    It sees records only, never a stream or a job, so it can run in this process or on another machine.

    report: if set, called during the work with the number of further records that are finished
    ahead: whether to prepare each window in a thread, during the work on the window before
    """

    report: Report | None = None
    ahead: bool = True

    def prepare(self, records: list[Any]) -> Any:
        """Return the argument of `__call__` for a window, such as its tokens."""
        return records

    def __call__(self, prepared: Any) -> Any:
        """Return the result of the window, which can be pickled; a filter returns a `WindowResult`."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the constructor acquired, such as processes."""


class Runner(Protocol):
    """Map a batch function over windows; yield the results in the order of the windows."""

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
    """Return a generator of the results of `build(*arguments)` for each window, in order. The caller closes it.

    The local runner builds the function at once, before it starts a thread. Windows are read from the first `next` on.
    gpu: whether the function can use a GPU
    Raises what building and calling the function raise; UsageError for an unknown runner.
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
    """Run the batch function in this process. `running` and `gpu` have no effect."""
    function = build()
    function.report = report

    def results() -> Generator[Any, None, None]:
        prepared = map(function.prepare, windows)
        try:
            if not function.ahead:
                yield from map(function, prepared)
                return
            with closing(read_ahead(prepared)) as ready:
                for each in ready:
                    yield function(each)
        finally:
            function.close()

    return results()


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
    """Write the results of `build(*arguments)` for the records through `job`, window by window, in their order.

    window: records per window, instead of the job's number
    gpu: whether the batch function can use a GPU
    revise: a second pass over the output lines of all windows, in this process (see `FilterJob.run_windows`)
    Raises what reading and the batch function raise; UsageError for an unknown runner.
    """
    if window is not None:
        job.window = window

    def map_all(windows: Iterator[list[Record]]) -> Generator[WindowResult, None, None]:
        return map_windows(windows, build, *arguments, running=running, gpu=gpu)

    job.run_windows(records, map_all, unit=unit, revise=revise)

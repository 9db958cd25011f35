"""Run a batch function over a stream of records."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from drtk.registry import Registry
from drtk.runtime.config import RunnerSettings
from drtk.runtime.filter_job import Done, FilterJob, Revise

RUNNERS = Registry(
    "runner",
    {
        "local": ("drtk.runtime.run_local:run_local", "in this process, reading and writing beside the work"),
        "ray": ("drtk.runtime.run_ray:run_on_ray", "on Ray Data: many GPUs, many machines, lost workers replaced"),
    },
)


Record = TypeVar("Record")


class BatchFunction:
    """What becomes of the records of one window.

    Making one is the expensive part: it loads the model. It sees records, never a stream or a job, so it runs in this
    process or on another machine.

    report: called, where somebody watches, with how many more records of a window are done; before its result is there
    ahead:  whether preparing a window beside the work on the one before is worth a thread
    """

    report: Callable[[int], None] | None = None
    ahead: bool = True

    def prepare(self, records: list[Any]) -> Any:
        """What `__call__` is given for a window: tokens, say. Done while the window before is worked on."""
        return records

    def __call__(self, prepared: Any) -> Any:
        """The result of the window, which can be pickled: of a filter a `Done`, its lines and counts for the manifest."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what making it took up, such as processes."""


@dataclass(frozen=True)
class Recipe:
    """How a batch function is made, wherever that happens: `build(*arguments)`, all of which can be pickled.

    gpu: whether it has use for a GPU, where there are some
    """

    build: Callable[..., BatchFunction]
    arguments: Sequence[Any] = field(default=())
    gpu: bool = True

    def __call__(self) -> BatchFunction:
        return self.build(*self.arguments)


class Runner(Protocol):
    """Maps a batch function over windows; results come in the order of the windows."""

    def __call__(
        self,
        windows: Iterator[list[Any]],
        recipe: Recipe,
        running: RunnerSettings,
        report: Callable[[int], None] | None = None,
    ) -> Generator[Any, None, None]: ...


def mapped(
    windows: Iterator[list[Any]],
    recipe: Recipe,
    running: RunnerSettings,
    report: Callable[[int], None] | None = None,
) -> Generator[Any, None, None]:
    """What the batch function makes of each window, in order, by the runner that was chosen; to be closed.

    The batch function is made at once where it runs in this process: before any thread is, and before any output is begun.
    Windows are taken when the first result is asked for.
    Raises what making and calling the batch function raise; UsageError for an unknown runner.
    """
    runner: Runner = RUNNERS.load(running.runner)
    return runner(windows, recipe, running, report)


def run_filter(
    records: Iterable[Record],
    job: FilterJob,
    build: Callable[..., BatchFunction],
    *arguments: Any,
    running: RunnerSettings,
    window: int | None = None,
    unit: str = "passages",
    gpu: bool = True,
    revise: Revise | None = None,
) -> None:
    """Write through `job` what `build(*arguments)` makes of the records, window by window, in their order.

    window: records between two places to go on from, where the job's own number does not fit
    gpu: whether the batch function has use for one
    revise: makes the output of the lines of all windows (FilterJob.run_windows), in this process
    Raises what reading and the batch function raise; UsageError for an unknown runner.
    """
    if window is not None:
        job.window = window

    def pump(windows: Iterator[list[Record]]) -> Generator[Done, None, None]:
        return mapped(windows, Recipe(build, arguments, gpu), running)

    job.run_windows(records, pump, unit=unit, revise=revise)

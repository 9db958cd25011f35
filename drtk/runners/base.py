"""A batch function over a stream of records: what every per-record command is, whoever runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from drtk.io.filtering import Done, FilterJob, Revise
from drtk.runners import RUNNERS
from drtk.settings.running import RunnerSettings

Record = TypeVar("Record")


class BatchFunction:
    """What becomes of the records of one window.

    Making one is the expensive part: it loads the model. It sees records, never a stream or a job, so it runs in this
    process or on another machine.
    """

    def prepare(self, records: list[Any]) -> Any:
        """What `__call__` is given for a window: tokens, say. Done while the window before is worked on."""
        return records

    def __call__(self, prepared: Any) -> Done:
        """The lines of the window, and counts for the manifest."""
        raise NotImplementedError


@dataclass(frozen=True)
class Recipe:
    """How a batch function is made, wherever that happens: `build(*arguments)`, all of which can be pickled."""

    build: Callable[..., BatchFunction]
    arguments: Sequence[Any] = field(default=())

    def __call__(self) -> BatchFunction:
        return self.build(*self.arguments)


class Runner(Protocol):
    """Maps a batch function over windows; results come in the order of the windows."""

    def __call__(self, windows: Iterator[list[Any]], recipe: Recipe, running: RunnerSettings) -> Iterator[Done]: ...


def run_filter(
    records: Iterable[Record],
    job: FilterJob,
    build: Callable[..., BatchFunction],
    *arguments: Any,
    running: RunnerSettings,
    window: int | None = None,
    unit: str = "passages",
    revise: Revise | None = None,
) -> None:
    """Write through `job` what `build(*arguments)` makes of the records, window by window, in their order.

    window: records between two places to go on from, where the job's own number does not fit
    revise: makes the output of the lines of all windows (FilterJob.run_windows), in this process
    Raises what reading and the batch function raise; UsageError for an unknown runner.
    """
    runner: Runner = RUNNERS.load(running.runner)
    if window is not None:
        job.window = window
    recipe = Recipe(build, arguments)
    job.run_windows(records, lambda windows: runner(windows, recipe, running), unit=unit, revise=revise)

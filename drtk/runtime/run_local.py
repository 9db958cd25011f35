"""The default: the batch function in this process, while the next window is read and prepared."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any

from drtk.runtime.config import RunnerSettings
from drtk.runtime.runners import BatchFunction, Recipe
from drtk.runtime.workers import read_ahead


def run_local(
    windows: Iterator[list[Any]],
    recipe: Recipe,
    running: RunnerSettings,
    report: Callable[[int], None] | None = None,
) -> Generator[Any, None, None]:
    """What the batch function makes of each window; it is made at once."""
    function = recipe()
    function.report = report
    return _results(function, windows)


def _results(function: BatchFunction, windows: Iterator[list[Any]]) -> Generator[Any, None, None]:
    prepared = map(function.prepare, windows)
    try:
        if not function.ahead:
            yield from map(function, prepared)
            return
        with closing(read_ahead(prepared)) as ahead:
            for each in ahead:
                yield function(each)
    finally:
        function.close()

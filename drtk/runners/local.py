"""The default: the batch function in this process, while the next window is read and prepared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drtk.io.ahead import read_ahead
from drtk.io.filtering import Done
from drtk.runners.base import Recipe
from drtk.settings.running import RunnerSettings


def run_local(windows: Iterator[list[Any]], recipe: Recipe, running: RunnerSettings) -> Iterator[Done]:
    """What the batch function makes of each window."""
    function = recipe()
    return map(function, read_ahead(map(function.prepare, windows)))

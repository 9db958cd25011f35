"""How much of its time training spends waiting for data."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Waiting:
    """Clocks what happens within `with waiting:` against all the time since the first such wait began.

    clock: seconds that only grow
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._first: float | None = None
        self._began = self._waited = 0.0
        self._last = (0.0, 0.0)  # when, and waited by then, at the last look

    def __enter__(self) -> Waiting:
        self._began = self._clock()
        if self._first is None:
            self._first = self._began
            self._last = (self._began, 0.0)
        return self

    def __exit__(self, *_: Any) -> None:
        self._waited += self._clock() - self._began

    def share(self) -> float:
        """The share of all the time, 0 to 1; 0 where nothing was waited for."""
        return 0.0 if self._first is None else _share(self._waited, self._clock() - self._first)

    def share_since_last(self) -> float:
        """The share of the time since this was last asked."""
        now = self._clock()
        when, waited = self._last
        self._last = (now, self._waited)
        return 0.0 if self._first is None else _share(self._waited - waited, now - when)


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 0.0

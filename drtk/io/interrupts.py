"""Ctrl-C held back for a moment, where it would leave something behind that nobody knows of."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Within the block Ctrl-C does nothing; what came then takes effect at its end. Nothing in it may wait for anything.

    A mask of signals would not do: threads that do not have it take the signal, and the main one is interrupted all the same.
    Other threads than the main one are never interrupted, and have nothing to hold back.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield  # None: a handler that Python did not set, and could not set again
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)

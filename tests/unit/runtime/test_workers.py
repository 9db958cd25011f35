"""Prefetching in a thread: order, errors, and the end of the thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from drtk.runtime.workers import read_ahead


def test_items_are_prefetched_in_order_and_errors_follow_them():
    made = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        made.set()
        yield 2
        raise OSError("gone")

    stream = read_ahead(items())
    assert next(stream) == 1
    assert made.wait(5)  # the second item is read before it is requested
    assert next(stream) == 2
    with pytest.raises(OSError, match="gone"):
        next(stream)
    assert list(read_ahead(range(100))) == list(range(100))
    assert list(read_ahead([])) == []
    assert list(read_ahead([None, None])) == [None, None]


def test_the_thread_ends_when_the_caller_stops():
    before = threading.active_count()
    stream = read_ahead(iter(range(10**9)))
    assert next(stream) == 0
    stream.close()
    assert threading.active_count() == before

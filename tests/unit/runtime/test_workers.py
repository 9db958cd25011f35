"""Reading ahead keeps order, hands on faults, and ends when nobody listens."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from drtk.runtime.workers import read_ahead


def test_items_come_in_order():
    assert list(read_ahead(iter(range(100)))) == list(range(100))
    assert list(read_ahead([])) == []
    assert list(read_ahead([None, None])) == [None, None]


def test_the_next_item_is_made_while_this_one_is_used():
    made = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        made.set()
        yield 2

    stream = read_ahead(items())
    assert next(stream) == 1
    assert made.wait(5)  # without the second item being asked for
    assert list(stream) == [2]


def test_a_fault_arrives_after_the_items_before_it():
    def items() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    stream = read_ahead(items())
    assert next(stream) == 1
    with pytest.raises(OSError, match="gone"):
        next(stream)


def test_the_thread_ends_when_the_caller_stops():
    before = threading.active_count()
    stream = read_ahead(iter(range(10**9)))
    assert next(stream) == 0
    stream.close()
    assert threading.active_count() == before

"""Reading ahead: the items of an iterator, made by another thread while the caller works on the last one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import Any, TypeVar

Item = TypeVar("Item")


def read_ahead(items: Iterable[Item], *, items_ahead: int = 1) -> Generator[Item, None, None]:
    """The items in order, at most `items_ahead` of them waiting; a fault of theirs is raised here.

    Where the caller stops early, the thread ends after the item it is at.
    """
    ready: queue.Queue[tuple[bool, Any]] = queue.Queue(maxsize=items_ahead)
    stopped = threading.Event()

    def offer(entry: tuple[bool, Any]) -> bool:
        while not stopped.is_set():
            try:
                ready.put(entry, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def produce() -> None:
        try:
            for item in items:
                if not offer((True, item)):
                    return
            offer((False, None))
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            offer((False, error))

    thread = threading.Thread(target=produce, name="drtk-read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            is_item, value = ready.get()
            if is_item:
                yield value
            elif value is None:
                return
            else:
                raise value
    finally:
        stopped.set()
        thread.join()

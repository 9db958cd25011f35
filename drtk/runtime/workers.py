"""Prefetch items in a thread, and map functions over worker processes."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from types import TracebackType
from typing import Any, TypeVar

from drtk.errors import DrtkError

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


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Maps what `build(*arguments)` returns over items: on `count` processes, each with its own; in this one for 1.

    To be made before any thread is, since processes are forked where the system can do it safely.
    """

    def __init__(self, build: Callable[..., Callable[[Any], Any]], *arguments: Any, count: int) -> None:
        self._pool: ProcessPoolExecutor | None = None
        if count <= 1:
            self._task = build(*arguments)
            return
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=_set_up, initargs=(build, arguments))
        self._pool.submit(os.getpid).result()  # forks them all now

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """Results in the order of the items, all of which are taken at once; the processes begin at once, too."""
        if self._pool is None:
            return map(self._task, items)
        with _a_killed_worker_told():
            return self._results(self._pool.map(_work, items))

    def _results(self, found: Iterator[Any]) -> Iterator[Any]:
        with _a_killed_worker_told():
            yield from found

    def close(self) -> None:
        """End the processes; what they have not begun is not done."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _a_killed_worker_told() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise DrtkError("a worker process was killed, most likely for want of memory; try --workers 1") from error


_tasks: list[Callable[[Any], Any]] = []  # of a worker process: set once, when it begins


def _set_up(build: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process hears it and ends this one
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes fill the cores already
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _tasks.append(build(*arguments))


def _work(item: Any) -> Any:
    return _tasks[0](item)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)

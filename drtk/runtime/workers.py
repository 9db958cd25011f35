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


def read_ahead(items: Iterable[Item]) -> Generator[Item, None, None]:
    """Yield the items in order; a thread reads the next item in advance.

    Exceptions of the iterable are raised here. If the caller stops early, the thread ends after its current item.
    """
    ready: queue.Queue[tuple[bool, Any]] = queue.Queue(maxsize=1)
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


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Pool that maps a function over items in `count` worker processes, or in this process if `count` is 1.

    Create it before any thread is started, because worker processes are forked on Linux.
    build, arguments: `build(*arguments)` returns the function, in each process
    """

    def __init__(self, build: Callable[..., Callable[[Any], Any]], *arguments: Any, count: int) -> None:
        self._pool: ProcessPoolExecutor | None = None
        if count <= 1:
            self._task = build(*arguments)
            return
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._pool = ProcessPoolExecutor(
            count, mp_context=context, initializer=_init_worker, initargs=(build, arguments)
        )
        self._pool.submit(os.getpid).result()  # forks all processes now

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """Return an iterator over the results, in the order of the items. All items are read and the work starts at once."""
        if self._pool is None:
            return map(self._task, items)
        with _report_killed_worker():
            results = self._pool.map(_run_task, items)

        def iter_results() -> Iterator[Any]:
            with _report_killed_worker():
                yield from results

        return iter_results()

    def close(self) -> None:
        """End the processes. Items that were not started are dropped."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _report_killed_worker() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise DrtkError(
            "a worker process was killed, probably because memory ran out; use fewer processes: `num_workers` 1"
        ) from error


_tasks: list[Callable[[Any], Any]] = []  # the function of this worker process


def _init_worker(build: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles it and ends the workers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes use all cores already
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _tasks.append(build(*arguments))


def _run_task(item: Any) -> Any:
    return _tasks[0](item)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)

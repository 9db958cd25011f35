"""Workers that each hold a part of some items, such as the shards of an index, and all receive the same batches.

The workers are processes of this machine or actors of a Ray cluster. A runner (see
`runners`), in contrast, gives each batch to one worker.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

from drtk.errors import DrtkError
from drtk.runtime.run_ray import RayWorker, connect, count_ray_workers, make_job_error
from drtk.runtime.runners import BatchFunction, RunnerSettings, count_workers, receive_message, start_workers

Builder = Callable[[Sequence[Any]], BatchFunction]  # returns the batch function of a worker for its items


def open_worker_group(
    build: Builder, items: Sequence[Any], runner_settings: RunnerSettings, *, gpu: bool
) -> WorkerGroup:
    """Start workers for consecutive parts of the items: as many as for `map_batches`, but at most one per item.

    On a Ray cluster with GPUs, there is also at most one worker per GPU.
    runner_settings: `runner` is "ray" or "processes"
    gpu: whether the batch functions can use a GPU
    `map` returns the result of each worker for a batch, which must not be None, in the order of the items. It raises the
    errors of building and calling the functions, and DrtkError for a lost worker.
    Raises MissingDependency without ray, DrtkError if the Ray cluster cannot be reached.
    """
    return (_RayGroup if runner_settings.runner == "ray" else _ProcessGroup)(build, items, runner_settings, gpu=gpu)


class _ProcessGroup:
    def __init__(self, build: Builder, items: Sequence[Any], runner_settings: RunnerSettings, *, gpu: bool) -> None:
        gpus, num_workers = count_workers(runner_settings, gpu=gpu)
        builds = [partial(build, part) for part in _split_evenly(items, num_workers)]
        self._processes, connections = start_workers(builds, gpus)
        self._connections = [*connections]

    def map(self, batch: Any) -> list[Any]:
        for worker in self._connections:
            with suppress(OSError):  # of a process that has ended: `receive_message` reports its error
                worker.send(batch)
        return [_receive_result(worker) for worker in self._connections]

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join()


def _receive_result(worker: Any) -> Any:
    while (message := receive_message(worker)) is None:  # a request for a batch
        pass
    return message[0]


class _RayGroup:
    def __init__(self, build: Builder, items: Sequence[Any], runner_settings: RunnerSettings, *, gpu: bool) -> None:
        self._ray = ray = connect(runner_settings.ray_address)
        gpus, num_workers = count_ray_workers(ray, runner_settings, gpu=gpu)
        parts = _split_evenly(items, min(num_workers, gpus) if gpus else num_workers)  # more would wait for a GPU
        threads = max(1, int(ray.cluster_resources().get("CPU", 1)) // len(parts))  # Ray's default is a single thread
        actor = ray.remote(RayWorker).options(
            num_gpus=1 if gpus else 0,
            scheduling_strategy="SPREAD",
            max_restarts=3,  # elsewhere, if its machine is lost
            max_task_retries=3,
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(threads)}},
        )
        self._actors = [actor.remote(ray.cloudpickle.dumps(partial(build, part)), os.getcwd()) for part in parts]

    def map(self, batch: Any) -> list[Any]:
        data = self._ray.put(pickle.dumps(batch, protocol=pickle.HIGHEST_PROTOCOL))
        try:
            results = self._ray.get([actor.run.remote(data) for actor in self._actors])
        except self._ray.exceptions.RayError as error:
            raise make_job_error(error) from error
        messages = [pickle.loads(result) for result in results]
        for message in messages:
            if isinstance(message, DrtkError):
                raise message
        return messages

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)


WorkerGroup = _ProcessGroup | _RayGroup


def _split_evenly(items: Sequence[Any], num_parts: int) -> list[Sequence[Any]]:
    """Split items into consecutive parts of nearly equal size: at most `num_parts`, and none is empty."""
    num_parts = min(num_parts, len(items))
    bounds = [len(items) * number // num_parts for number in range(num_parts + 1)]
    return [items[start:end] for start, end in pairwise(bounds)]

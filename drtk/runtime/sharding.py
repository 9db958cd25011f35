"""Select a shard of the input; get the rank and world size under torchrun."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from drtk.errors import DrtkError, UsageError

_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_ADDRESS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")


def is_distributed() -> bool:
    """Return whether torchrun started several processes. All of torchrun's environment variables must be set."""
    is_set = all(os.environ.get(name, "").isdecimal() for name in _RANK_VARIABLES) and all(
        map(os.environ.get, _ADDRESS_VARIABLES)
    )
    return is_set and int(os.environ["WORLD_SIZE"]) > 1


def ignore_torchrun() -> None:
    """Remove torchrun's environment variables, for a command that runs in a single process."""
    for name in (*_RANK_VARIABLES, *_ADDRESS_VARIABLES):
        os.environ.pop(name, None)


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_torchrun(num_gpus: int) -> None:
    """Run this command again under torchrun, with a process per GPU, then exit. Under torchrun, return immediately.

    Raises DrtkError if there are fewer GPUs, UsageError if the command reads stdin.
    """
    if is_distributed():
        return
    import torch
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    available = torch.cuda.device_count()
    if num_gpus > available:
        raise DrtkError(f"`gpus` {num_gpus}: {available} CUDA GPUs are available; use fewer")
    if "-" in sys.argv[1:]:
        raise UsageError("`gpus`: several processes cannot share stdin; give a file")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, count_cores() // num_gpus)))  # torchrun's default is 1
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the processes report their errors
    try:
        run(parse_args(["--standalone", "--nproc-per-node", str(num_gpus), "-m", "drtk", *sys.argv[1:]]))
    except ChildFailedError as error:
        raise SystemExit(error.get_first_failure()[1].exitcode) from error
    raise SystemExit(0)


def get_world_size() -> int:
    """Return the number of torchrun's processes; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if is_distributed() else 1


def get_rank() -> int:
    """Return the rank of this process, from 0. Only rank 0 writes outputs."""
    return int(os.environ["RANK"]) if is_distributed() else 0


Record = TypeVar("Record")
InputShard = tuple[int, int]  # number of the shard, from 1, and number of shards
WHOLE_INPUT: InputShard = (1, 1)


def parse_shard(text: str) -> InputShard:
    """Parse "2/4", the second of four shards, as (2, 4). Raises UsageError for other text."""
    number, _, num_shards = text.partition("/")
    if number.isdecimal() and num_shards.isdecimal() and 1 <= int(number) <= int(num_shards):
        return int(number), int(num_shards)
    raise UsageError(f"`shard`: '{text}' is not of the form I/N with 1 <= I <= N, such as 1/4")


def sample_evenly(records: Iterable[Record], number: int, *, total: int) -> Iterator[Record]:
    """Yield `number` evenly spaced records, in order, or all if there are fewer.

    total: number of records
    """
    share = min(number, total)
    return (record for at, record in enumerate(records) if (at + 1) * share // total > at * share // total)


def select_shard(records: Iterable[Record], shard: InputShard, *, batch_size: int) -> Iterator[Record]:
    """Yield the records of a shard: of every n batches of `batch_size` records, shard i of n has the i-th.

    Batches are not split, so that a shard has the same batches, and the same rounding, as a run without shards.
    """
    number, num_shards = shard
    return (record for at, record in enumerate(records) if at // batch_size % num_shards == number - 1)

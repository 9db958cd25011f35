"""Shards of the input (--shard), and rank and number of the processes of torchrun."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TypeVar

from drtk.errors import UsageError

_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_NAMES = ("MASTER_ADDR", "MASTER_PORT")


def is_distributed() -> bool:
    """Return whether torchrun started several processes. It sets all of these variables; a stray one does not count."""
    given = all(os.environ.get(name, "").isdecimal() for name in _NUMBERS) and all(map(os.environ.get, _NAMES))
    return given and int(os.environ["WORLD_SIZE"]) > 1


def ignore_torchrun() -> None:
    """Make this process a single one, for a command that is not distributed."""
    for name in (*_NUMBERS, *_NAMES):
        os.environ.pop(name, None)


def get_world_size() -> int:
    """Return the number of processes that run this command together; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if is_distributed() else 1


def get_rank() -> int:
    """Return the number of this process, from 0. Only rank 0 writes."""
    return int(os.environ["RANK"]) if is_distributed() else 0


Record = TypeVar("Record")
Part = tuple[int, int]  # number, from 1; of how many
WHOLE: Part = (1, 1)


def parse_part(text: str) -> Part:
    """Parse "2/4", the second of four parts, as (2, 4). Raises UsageError for any other text."""
    number, _, of = text.partition("/")
    if number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of):
        return int(number), int(of)
    raise UsageError(f"`shard`: '{text}' is not N/OF, such as 1/4")


def sample_evenly(records: Iterable[Record], number: int, *, of: int) -> Iterator[Record]:
    """Yield `number` of the `of` records, evenly spaced and in order; all of them if there are no more."""
    return (record for at, record in enumerate(records) if number >= of or (at + 1) * number // of > at * number // of)


def select_part(records: Iterable[Record], part: Part, *, window: int) -> Iterator[Record]:
    """Yield the records of one part: every `of`-th window of the stream.

    Windows are not divided, so results that depend on the other records of a batch (rounding) are those of a whole run.
    """
    number, of = part
    return (record for at, record in enumerate(records) if at // window % of == number - 1)

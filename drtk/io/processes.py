"""Rank and number of the processes that torchrun starts."""

from __future__ import annotations

import os

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


def world_size() -> int:
    """Return the number of processes that run this command together; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if is_distributed() else 1


def local_world_size() -> int:
    """Return the number of these processes on this machine."""
    count = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(count) if is_distributed() and count.isdecimal() else 1


def rank() -> int:
    """Return the number of this process, from 0. Only rank 0 writes."""
    return int(os.environ["RANK"]) if is_distributed() else 0

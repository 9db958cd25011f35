"""Ids by number from a file of one id a line: a memory map and one offset an id, whatever their count."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from drtk.errors import MismatchError


class IdTable:
    """The ids of an index in the engine's own numbering, 0 to len - 1.

    Raises MismatchError where the file is missing or its last line is torn.
    """

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise MismatchError(f"{path}: missing or empty; the index is not whole") from error
        if self._text[-1:] != b"\n":
            raise MismatchError(f"{path}: its last line is torn; the index is not whole")
        text = np.frombuffer(self._text, dtype=np.uint8)
        self._ends = np.flatnonzero(text == ord("\n")).astype(np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def take(self, numbers: Iterable[int]) -> list[str]:
        """The ids of these numbers."""
        wanted = np.fromiter(numbers, dtype=np.int64)
        ends = self._ends[wanted]
        starts = np.where(wanted > 0, self._ends[wanted - 1] + 1, 0)
        text = self._text
        return [text[start:end].decode() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def write_ids(path: Path, ids: Iterable[str]) -> None:
    """Write one id a line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{id}\n" for id in ids)


def first_duplicate(ids: Iterable[str]) -> str | None:
    """An id that occurs twice, or None. Eight bytes an id, since what is kept are hashes."""
    hashes = np.fromiter((hash(id) for id in ids), dtype=np.int64)
    hashes.sort()
    doubled = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if not doubled:
        return None
    seen: set[str] = set()
    for id in ids:
        if hash(id) in doubled:
            if id in seen:
                return id
            seen.add(id)
    return None

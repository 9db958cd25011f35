"""Values brought together by key in bounded memory: what finds a second use among any number of ids."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from zlib import crc32

HELD = 500_000  # pairs in memory, about 250 bytes each, before they go to disk
PARTS = 512  # files by key; one of them at a time comes back into memory


class Grouping:
    """Collects (key, value) pairs; `repeated` gives the keys that came more than once, with all their values.

    Keys hold no tab or line end, values no line end. Beyond `held` pairs they lie in a temporary folder, which goes
    with the object.
    """

    def __init__(self, *, held: int = HELD, parts: int = PARTS) -> None:
        self._limit, self._parts = held, parts
        self._held: list[tuple[str, str]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def add(self, key: str, value: str) -> None:
        """Remember a pair."""
        self._held.append((key, value))
        if len(self._held) >= self._limit:
            self._spill()

    def repeated(self) -> Iterator[tuple[str, list[str]]]:
        """(key, its values in the order they came) for each key that came more than once."""
        if self._folder is None:
            yield from _repeated(self._held)
            return
        self._spill()
        for number in range(self._parts):
            path = Path(self._folder.name) / str(number)
            if path.exists():
                with open(path, encoding="utf-8", newline="\n") as file:
                    pairs = (line[:-1].partition("\t") for line in file)
                    yield from _repeated((key, value) for key, _, value in pairs)

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="drtk-")
        lines: list[list[str]] = [[] for _ in range(self._parts)]
        for key, value in self._held:
            lines[crc32(key.encode()) % self._parts].append(f"{key}\t{value}\n")
        for number, some in enumerate(lines):
            if some:
                with open(Path(self._folder.name) / str(number), "a", encoding="utf-8", newline="\n") as file:
                    file.writelines(some)
        self._held.clear()


def _repeated(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    first: dict[str, str] = {}
    groups: dict[str, list[str]] = {}
    for key, value in pairs:
        if key in groups:
            groups[key].append(value)
        elif key in first:
            groups[key] = [first[key], value]
        else:
            first[key] = value
    yield from groups.items()

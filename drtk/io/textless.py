"""Passages without a text: nothing can be found in them, or read, and whoever goes on does so without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from drtk.io.progress import warn
from drtk.records import Passage, Query

Record = TypeVar("Record", Passage, Query)
PASSAGES, TEXTLESS = "passages", "without a text"  # counts: of passages that were used, and of those among them


class Seen:
    """Counts records that go by, and those among them of which there is nothing to read.

    read: what is read of a record
    """

    def __init__(self, read: Callable[[Any], str]) -> None:
        self._read = read
        self._all = self._blank = 0

    def through(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records as they come."""
        for record in records:
            self._all += 1
            self._blank += not self._read(record).strip()
            yield record

    def warn(self, source: str, unit: str) -> None:
        """Warn, with numbers, where there were such."""
        if self._blank:
            warn(
                f"{source}: {self._blank:,} of {self._all:,} {unit} have nothing to read; their vectors say "
                "nothing, and are found all the same"
            )


def looked_up(passages: Iterable[Passage]) -> dict[str, int]:
    """The counts of passages that were looked up; no entry for what there is none of."""
    blank = [not passage.text.strip() for passage in passages]
    return {name: number for name, number in ((PASSAGES, len(blank)), (TEXTLESS, sum(blank))) if number}


def all_textless(counts: Mapping[str, Any], corpus: str) -> str | None:
    """What is wrong where passages were used, and none of them had a text; None where one had."""
    if not counts.get(PASSAGES) or counts.get(TEXTLESS, 0) < counts[PASSAGES]:
        return None
    return f"{corpus}: none of the {counts[PASSAGES]:,} passages looked up there has a text: is it the right file?"


def warn_of_textless(counts: Mapping[str, Any], corpus: str) -> None:
    """Warn, with numbers, where some of the passages had no text, or none had one."""
    if told := all_textless(counts, corpus):
        warn(told)
    elif counts.get(TEXTLESS):
        warn(f"{corpus}: {counts[TEXTLESS]:,} of the {counts[PASSAGES]:,} passages looked up there have no text")

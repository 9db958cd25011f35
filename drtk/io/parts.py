"""A part of a stream: what `--shard 2/4` means, for every command that has it, and so many records of all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from drtk.errors import UsageError

Record = TypeVar("Record")
Part = tuple[int, int]  # number, from 1; of how many
WHOLE: Part = (1, 1)


def parse_part(text: str) -> Part:
    """ "2/4" as (2, 4): the second of four parts. Raises UsageError otherwise."""
    number, _, of = text.partition("/")
    if number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of):
        return int(number), int(of)
    raise UsageError(f"--shard: '{text}' is not N/OF, such as 1/4")


def spread(records: Iterable[Record], number: int, *, of: int) -> Iterator[Record]:
    """`number` of the `of` records there are, evenly spread over them and in their order; all where there are no more."""
    return (record for at, record in enumerate(records) if number >= of or (at + 1) * number // of > at * number // of)


def of_part(records: Iterable[Record], part: Part, *, window: int) -> Iterator[Record]:
    """The records of one part: of the windows that the whole stream is worked on in, every so-manieth.

    Windows stay whole, so that what depends on the neighbours in a batch (rounding) is the same in a part as in the whole.
    """
    number, of = part
    return (record for at, record in enumerate(records) if at // window % of == number - 1)

"""Records to embedding shards: the batch function behind `drtk encode`, and what it leaves out because it is done."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np

from drtk.io.parts import WHOLE, Part, of_part
from drtk.io.progress import Progress
from drtk.io.shards import ShardWriter, records_digest
from drtk.io.textless import Seen
from drtk.records import Passage, Query
from drtk.retrieval.encode import Embedder
from drtk.runners.base import BatchFunction, Recipe, mapped
from drtk.settings.running import RunnerSettings
from drtk.text.batching import Tokens


class EncodeWindows(BatchFunction):
    """The vectors of a window of passages or queries, (records, dimension), float32."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder.load()

    def prepare(self, records: list[Any]) -> Tokens:
        """The records as tokens."""
        return self._embedder.tokens(records)

    def __call__(self, prepared: Tokens) -> np.ndarray:
        """The vectors."""
        return self._embedder.vectors(prepared, self.report)


def encode_records(
    records: Iterable[Passage] | Iterable[Query],
    embedder: Embedder,
    writer: ShardWriter,
    *,
    running: RunnerSettings,
    part: Part = WHOLE,
    unit: str = "passages",
    seen: Seen | None = None,
) -> None:
    """Write the vectors of the records as shards of `embedder.settings.shard_size`, or those of one part of several.

    Of several parts, each takes every so-manieth shard of the input. Shards that `writer` holds already are not made
    again. Raises MismatchError where they were made from other records. seen: is told of the records of this part
    """
    size = embedder.settings.shard_size
    stream: Iterator[Any] = of_part(records, part, window=size)
    if seen is not None:
        stream = seen.through(stream)
    taken: deque[tuple[list[str], str]] = deque()  # ids and digests of the windows that are being worked on

    def wanted() -> Iterator[list[Any]]:
        number = 0
        while window := list(islice(stream, size)):
            digest = records_digest(window)
            if not writer.finished(number, digest):
                taken.append(([record.id for record in window], digest))
                yield window
            number += 1

    with (
        closing(_Counted(unit, writer.rows)) as counted,
        closing(mapped(wanted(), Recipe(EncodeWindows, (embedder,)), running, counted.within)) as made,
    ):
        for vectors in made:
            ids, digest = taken.popleft()
            writer.write(ids, vectors, digest=digest)
            counted.window(len(ids))


class _Counted:
    """Progress by batch where the runner tells of them, and by window in any case."""

    def __init__(self, unit: str, done: int) -> None:
        self._progress = Progress("encode", unit=unit, initial=done)
        self._told = 0

    def within(self, count: int) -> None:
        self._told += count
        self._progress.add(count)

    def window(self, size: int) -> None:
        if size > self._told:
            self._progress.add(size - self._told)
        self._told = 0

    def close(self) -> None:
        self._progress.close()

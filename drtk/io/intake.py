"""What a command has taken in: its inputs with their digests, and the bad lines it was told to forgive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from drtk.errors import RecordError
from drtk.io.progress import log
from drtk.io.streams import STANDARD, name_of, open_input, read_lines


@dataclass
class Intake:
    """Opens inputs on behalf of one command; `skip_bad` is how many unreadable records it may leave out."""

    skip_bad: int = 0
    bad: int = 0
    inputs: list[dict[str, Any]] = field(default_factory=list)

    def lines(self, source: str) -> Iterator[tuple[int, bytes]]:
        """(line number, line) of a file or stdin; once read to the end, the source is among `inputs`."""
        stream, raw = open_input(source)
        before = None if source == STANDARD else os.stat(source)
        yield from read_lines(stream, name_of(source))
        while raw.read(1 << 16):  # what a decompressor left unread belongs to the digest
            pass
        entry: dict[str, Any] = {"path": source, "bytes": raw.size, "digest": raw.digest}
        if before is not None:
            entry["mtime_ns"] = before.st_mtime_ns
        self.inputs.append(entry)

    def forgive(self, error: RecordError) -> None:
        """Count a bad record and go on, or raise it where the allowance is used up."""
        if self.bad >= self.skip_bad:
            raise error
        self.bad += 1
        log(f"skipped: {error}")

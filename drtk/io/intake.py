"""What a command has taken in: its inputs with their digests, and the bad lines it was told to forgive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from drtk.errors import RecordError
from drtk.io.progress import log
from drtk.io.streams import STANDARD, DigestingReader, compressed_faults, name_of, open_input, read_lines


@dataclass
class Intake:
    """Opens inputs on behalf of one command; `skip_bad` is how many unreadable records it may leave out."""

    skip_bad: int = 0
    bad: int = 0
    inputs: list[dict[str, Any]] = field(default_factory=list)
    _opened: dict[str, tuple[BinaryIO, DigestingReader]] = field(default_factory=dict, init=False, repr=False)

    def peek(self, source: str) -> bytes:
        """The first decompressed bytes (some hundreds at least, where there are as many), still to be read after."""
        if source not in self._opened:
            self._opened[source] = open_input(source)
        stream: Any = self._opened[source][0]
        try:
            return stream.peek(1 << 12)
        except Exception:  # noqa: BLE001 - damaged data; reading the lines will say so, and where
            return b""

    def lines(self, source: str) -> Iterator[tuple[int, bytes]]:
        """(line number, line) of a file or stdin; once read to the end, the source is among `inputs`."""
        stream, raw = self._take(source)
        before = None if source == STANDARD else os.stat(source)
        yield from read_lines(stream, name_of(source))
        self._note(source, raw, before)

    def blocks(self, source: str, size: int = 1 << 20) -> Iterator[bytes]:
        """The decompressed bytes in pieces of at most `size`, for formats that are not lines; noted as `lines` does.

        Raises RecordError where compressed data ends early or is damaged.
        """
        stream, raw = self._take(source)
        before = None if source == STANDARD else os.stat(source)
        line = 1
        with compressed_faults(lambda: f"{name_of(source)}:{line}"):
            while block := stream.read(size):
                yield block
                line += block.count(b"\n")
        self._note(source, raw, before)

    def _take(self, source: str) -> tuple[BinaryIO, DigestingReader]:
        return self._opened.pop(source) if source in self._opened else open_input(source)

    def _note(self, source: str, raw: DigestingReader, before: os.stat_result | None) -> None:
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

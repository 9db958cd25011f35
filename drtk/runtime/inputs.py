"""Track the inputs of a command: digests, bad lines, copies of streams that are read twice."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO

from drtk.errors import DrtkError, UsageError
from drtk.runtime.progress import log
from drtk.runtime.streams import (
    STANDARD,
    DigestingReader,
    compressed_faults,
    is_stream,
    name_of,
    open_input,
    read_lines,
)


@dataclass
class Intake:
    """Opens inputs on behalf of one command; `skip_bad` is how many unreadable records it may leave out."""

    skip_bad: int = 0
    bad: int = 0
    line: int = 0  # of the record that was read last, where records have lines
    inputs: list[dict[str, Any]] = field(default_factory=list)
    stand_ins: dict[str, str] = field(default_factory=dict)  # source -> the file that holds a copy of it
    _kept: list[Any] = field(default_factory=list, init=False, repr=False)
    _opened: dict[str, tuple[BinaryIO, DigestingReader]] = field(default_factory=dict, init=False, repr=False)

    def peek(self, source: str) -> bytes:
        """The first decompressed bytes (some hundreds at least, where there are as many), still to be read after."""
        if source not in self._opened:
            self._opened[source] = self._open(source)
        stream: Any = self._opened[source][0]
        try:
            return stream.peek(1 << 12)
        except Exception:  # noqa: BLE001 - damaged data; reading the lines will say so, and where
            return b""

    def keep(self, source: str) -> None:
        """Put what a stream gives into a temporary file, to be read in its place as often as wanted; it goes with the intake.

        Raises RecordError where compressed data ends early or is damaged.
        """
        if source in self.stand_ins:
            return
        stream, _ = self._take(source)
        file = NamedTemporaryFile(prefix="drtk-")  # noqa: SIM115 - stays as long as the intake
        with compressed_faults(lambda: name_of(source)):
            shutil.copyfileobj(stream, file)
        file.flush()
        self.stand_ins[source] = file.name
        self._kept.append(file)

    def lines(self, source: str) -> Iterator[tuple[int, bytes]]:
        """(line number, line) of a file or stdin; the source is noted among `inputs`, its digest once read to the end."""
        stream, raw = self._take(source)
        entry = self._note(source)
        yield from read_lines(stream, name_of(source))
        _complete(entry, raw)

    def blocks(self, source: str, size: int = 1 << 20) -> Iterator[bytes]:
        """The decompressed bytes in pieces of at most `size`, for formats that are not lines; noted as `lines` does.

        Raises RecordError where compressed data ends early or is damaged.
        """
        stream, raw = self._take(source)
        entry = self._note(source)
        line = 1
        with compressed_faults(lambda: f"{name_of(source)}:{line}"):
            while block := stream.read(size):
                yield block
                line += block.count(b"\n")
        _complete(entry, raw)

    def _take(self, source: str) -> tuple[BinaryIO, DigestingReader]:
        if source in self._opened:
            return self._opened.pop(source)
        return self._open(source)

    def _open(self, source: str) -> tuple[BinaryIO, DigestingReader]:
        if source in self.stand_ins:
            return open_input(self.stand_ins[source])
        if any(entry["path"] == source for entry in self.inputs) and is_stream(source):
            raise UsageError(f"{name_of(source).strip('<>')} can be read only once; name a file for the other input")
        return open_input(source)

    def _note(self, source: str) -> dict[str, Any]:
        """The entry of a source; one that is never read to its end keeps None as digest, and size and time tell it."""
        entry: dict[str, Any] = {"path": source, "bytes": None, "digest": None}
        if not is_stream(source):
            found = os.stat(source)
            entry |= {"bytes": found.st_size, "mtime_ns": found.st_mtime_ns}
        for known in self.inputs:
            if known["path"] == source and known.get("mtime_ns") == entry.get("mtime_ns"):
                return known  # read a second time
        self.inputs.append(entry)
        return entry

    def forgive(self, error: DrtkError) -> None:
        """Count a bad record and go on, or raise its fault where the allowance is used up."""
        if self.bad >= self.skip_bad:
            raise error
        self.bad += 1
        log(f"skipped: {error}")


def _complete(entry: dict[str, Any], raw: DigestingReader) -> None:
    while raw.read(1 << 16):  # what a decompressor left unread belongs to the digest
        pass
    entry |= {"bytes": raw.size, "digest": raw.digest}


class spooled(AbstractContextManager[str]):  # noqa: N801 - used like a function
    """What comes from streams, kept in temporary files while it is read more than once; files stay as they are.

    As a context manager it gives `source`; `intake` reads the copies in place of source and side files.
    Raises UsageError where one stream is to be two inputs, DrtkError for one that cannot be read.
    """

    def __init__(self, source: str, intake: Intake, side_files: Sequence[str] = ()) -> None:
        self._source, self._intake = source, intake
        self._streams = [name for name in (source, *side_files) if is_stream(name)]
        self._files = ExitStack()

    def __enter__(self) -> str:
        for name in self._streams:
            if self._streams.count(name) > 1:
                raise UsageError(f"{_plain(name)} can be only one of the inputs")
        with self._files:  # lets go of them where a later one cannot be read
            for name in self._streams:
                log(f"{_plain(name)} is kept in a temporary file, for it is read more than once")
                self._intake.stand_ins[name] = self._copy(name)
            self._files = self._files.pop_all()
        return self._source

    def _copy(self, name: str) -> str:
        file = self._files.enter_context(NamedTemporaryFile(prefix="drtk-"))  # noqa: SIM115 - the stack closes it
        try:
            if name == STANDARD:
                if sys.stdin is None:
                    raise DrtkError("<stdin>: is closed")
                shutil.copyfileobj(sys.stdin.buffer, file)
            else:
                with open(name, "rb") as stream:
                    shutil.copyfileobj(stream, file)
            file.flush()
        except OSError as error:
            raise DrtkError(f"{name_of(name)}: {error.strerror}") from error
        return file.name

    def __exit__(self, *_: object) -> None:
        self._files.close()


def _plain(name: str) -> str:
    return "stdin" if name == STANDARD else name

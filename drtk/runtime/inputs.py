"""Open and track the inputs of a command: record their digests, count bad records, copy streams."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO

from drtk.errors import DrtkError, RecordError, UsageError
from drtk.runtime.progress import log
from drtk.runtime.streams import (
    MAX_COUNTED_BYTES,
    DigestingReader,
    convert_read_errors,
    get_source_name,
    is_stream,
    open_input,
    read_lines,
)


@dataclass
class InputTracker:
    """Tracker that opens the inputs of a command, records them for the manifest, and counts bad records.

    skip_bad: largest number of bad records to skip
    bad: number of bad records skipped so far
    line: line number of the last record that was read
    inputs: manifest entries of the sources
    copies: stream -> temporary file with its content
    """

    skip_bad: int = 0
    bad: int = 0
    line: int = 0
    inputs: list[dict[str, Any]] = field(default_factory=list)
    copies: dict[str, str] = field(default_factory=dict)
    _temporary_files: list[Any] = field(default_factory=list, init=False, repr=False)
    _peeked: dict[str, tuple[BinaryIO, DigestingReader]] = field(default_factory=dict, init=False, repr=False)
    _readers: dict[str, DigestingReader] = field(default_factory=dict, init=False, repr=False)

    def peek(self, source: str) -> bytes:
        """Return the first decompressed bytes of a source, at most 1 MiB, without consuming them; b"" for damaged data."""
        if source not in self._peeked:
            self._peeked[source] = self._open(source)
        stream: Any = self._peeked[source][0]
        try:
            return stream.peek(1 << 12)
        except Exception:  # noqa: BLE001 - damaged data; the error is raised when the lines are read
            return b""

    def copy_streams(self, *sources: str) -> None:
        """Copy the streams among `sources` to temporary files, so that they can be read again.

        Raises UsageError for a stream given twice or read before, RecordError for damaged compressed data,
        DrtkError for an I/O error.
        """
        streams = [source for source in sources if is_stream(source)]
        for source in streams:
            if streams.count(source) > 1:
                raise UsageError(
                    f"{get_source_name(source).strip('<>')} cannot be given for two inputs; use a file for one of them"
                )
            if source in self.copies:
                continue
            log(
                f"{get_source_name(source).strip('<>')} is copied to a temporary file, because it is read more than once"
            )
            is_peeked = source in self._peeked
            stream, raw = self._take_stream(source)
            copy = NamedTemporaryFile(prefix="drtk-")  # noqa: SIM115 - deleted with the tracker
            with convert_read_errors(lambda source=source: get_source_name(source)):  # type: ignore[misc]
                shutil.copyfileobj(stream if is_peeked else raw, copy)
                copy.flush()
            self.copies[source] = copy.name
            self._temporary_files.append(copy)

    def iter_lines(self, source: str) -> Iterator[tuple[int, bytes]]:
        """Yield (line number, line without line end). Add the source to `inputs`, and its digest after the last line."""
        stream, raw = self._take_stream(source)
        entry = self._add_entry(source)
        yield from read_lines(stream, get_source_name(source))
        _add_digest(entry, raw)

    def iter_blocks(self, source: str, size: int = 1 << 20) -> Iterator[bytes]:
        """Yield the decompressed bytes in blocks of at most `size`. Add the source to `inputs` as `iter_lines` does.

        Raises RecordError if compressed data ends early or is damaged.
        """
        stream, raw = self._take_stream(source)
        entry = self._add_entry(source)
        line = 1
        with convert_read_errors(lambda: f"{get_source_name(source)}:{line}"):
            while block := stream.read(size):
                yield block
                line += block.count(b"\n")
        _add_digest(entry, raw)

    def skip_or_raise(self, error: DrtkError) -> None:
        """Log and count a bad record. Raises its error if `skip_bad` records were skipped before."""
        if self.bad >= self.skip_bad:
            raise error
        self.bad += 1
        log(f"skipped: {error}")

    def skip_line(self, source: str, line: int, problem: object) -> None:
        """Log and count a bad record, or raise a RecordError (see `skip_or_raise`).

        line: line of the record; 0 if unknown    problem: message or error
        """
        name = get_source_name(source)
        self.skip_or_raise(RecordError(f"{name}:{line}" if line else name, str(problem)))

    def get_share_read(self, source: str) -> float | None:
        """Return the share of a file's (compressed) bytes that was read; None for streams, small and unopened files."""
        reader = self._readers.get(source)
        if reader is None or is_stream(source) or (size := os.path.getsize(source)) <= MAX_COUNTED_BYTES:
            return None
        return min(reader.size / size, 1.0)

    def _take_stream(self, source: str) -> tuple[BinaryIO, DigestingReader]:
        stream, raw = self._peeked.pop(source) if source in self._peeked else self._open(source)
        self._readers[source] = raw
        return stream, raw

    def _open(self, source: str) -> tuple[BinaryIO, DigestingReader]:
        if source in self.copies:
            return open_input(self.copies[source])
        if any(entry["path"] == source for entry in self.inputs) and is_stream(source):
            raise UsageError(
                f"{get_source_name(source).strip('<>')} can be read only once; use a file for the other input"
            )
        return open_input(source)

    def _add_entry(self, source: str) -> dict[str, Any]:
        """Add a source to `inputs` and return its entry. The digest is None until the source was read to the end."""
        entry: dict[str, Any] = {"path": source, "bytes": None, "digest": None}
        if not is_stream(source):
            status = os.stat(source)
            entry |= {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
        for existing in self.inputs:
            if existing["path"] == source and existing.get("mtime_ns") == entry.get("mtime_ns"):
                return existing
        self.inputs.append(entry)
        return entry


def _add_digest(entry: dict[str, Any], raw: DigestingReader) -> None:
    while raw.read(1 << 16):  # the digest includes bytes that the decompressor did not read
        pass
    entry |= {"bytes": raw.size, "digest": raw.digest}

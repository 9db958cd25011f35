"""Opening files and standard streams: compression, atomic replacement, and readers that go away."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import hashlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from drtk.errors import DrtkError, MissingDependency, OutputClosed, RecordError

STANDARD = "-"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BOM = b"\xef\xbb\xbf"


class DigestingReader(io.RawIOBase):
    """A readable stream that hashes the bytes it hands out, before decompression; `digest` is blake2b, 16 bytes."""

    def __init__(self, raw: BinaryIO, head: bytes = b"") -> None:
        self._raw, self._head = raw, head
        self._hash = hashlib.blake2b(digest_size=16)
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._head:
            data = self._head[: len(buffer)]
            self._head = self._head[len(data) :]
        else:
            data = self._raw.read(len(buffer))
        self._hash.update(data)
        self.size += len(data)
        buffer[: len(data)] = data
        return len(data)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


def name_of(source: str) -> str:
    """How complaints call a source: `<stdin>` for "-"."""
    return "<stdin>" if source == STANDARD else source


def open_input(source: str) -> tuple[BinaryIO, DigestingReader]:
    """The decompressed bytes of a file or of stdin, and the reader below that counts and hashes what is on disk.

    Compression is recognised by content, so it works on stdin too. Raises DrtkError where a file cannot be opened.
    """
    if source == STANDARD:
        raw: BinaryIO = sys.stdin.buffer
    else:
        if Path(source).is_dir():
            raise DrtkError(f"{source}: is a folder; expected a file")
        try:
            raw = open(source, "rb")  # noqa: SIM115 - handed to the caller
        except OSError as error:
            raise DrtkError(f"{source}: {error.strerror}") from error
    head = raw.read(4)
    digesting = DigestingReader(raw, head)
    buffered = io.BufferedReader(digesting, buffer_size=1 << 20)
    if head.startswith(_GZIP):
        return gzip.GzipFile(fileobj=buffered), digesting  # type: ignore[return-value]
    if head == _ZSTD:
        reader = _zstandard().ZstdDecompressor().stream_reader(buffered, read_across_frames=True)
        return io.BufferedReader(reader, buffer_size=1 << 20), digesting
    return buffered, digesting


def read_lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """(line number, line without its end) of a binary stream; a BOM and CRs before line ends are taken off.

    Raises RecordError where compressed data ends early or is damaged.
    """
    number = 0
    try:
        for number, line in enumerate(stream, start=1):
            if number == 1 and line.startswith(_BOM):
                line = line[len(_BOM) :]
            yield number, line.rstrip(b"\r\n")
    except EOFError as error:
        raise RecordError(f"{name}:{number + 1}", "compressed data ends early") from error
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise RecordError(f"{name}:{number + 1}", "damaged gzip data") from error
        raise
    except Exception as error:
        if type(error).__name__ in ("ZstdError", "error"):  # zstandard's own class, zlib's; neither is imported here
            raise RecordError(f"{name}:{number + 1}", "damaged compressed data") from error
        raise


class Output:
    """Where records go: stdout, or NAME by way of NAME.part.

    As a context manager: success renames the part to NAME, a fault removes it, unless `keep_part` was set.
    `end_frame` closes a compressed frame and flushes, after which `offset` is a place to cut and go on from.
    """

    def __init__(self, target: str, *, append_at: int | None = None) -> None:
        self.target = target
        self.keep_part = False
        self._packer: Any = None
        if target == STANDARD:
            # An own descriptor: closing it must not close the interpreter's stdout.
            self._file: IO[bytes] = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=1 << 16)
            self.part: Path | None = None
            return
        final = Path(target)
        if final.is_dir():
            raise DrtkError(f"{target}: is a folder; expected a file")
        self.part = final.with_name(final.name + ".part")
        try:
            self._file = open(self.part, "r+b" if append_at else "ab", buffering=1 << 16)  # noqa: SIM115
        except OSError as error:
            raise DrtkError(f"{target}: {error.strerror}") from error
        self._lock()
        self._file.truncate(append_at or 0)
        self._file.seek(append_at or 0)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                self._file.close()
                raise DrtkError(f"{self.part}: another run is writing it") from error
            # Some network file systems have no locks; writing goes on without one.

    def write(self, data: bytes) -> None:
        """Append bytes. Raises OutputClosed when the reader of stdout has gone, DrtkError on a full disk."""
        try:
            if self.target.endswith((".gz", ".zst")):
                if self._packer is None:
                    self._packer = _packer(self.target, self._file)
                self._packer.write(data)
            else:
                self._file.write(data)
        except OSError as error:
            raise self._fault(error) from error

    def end_frame(self) -> int:
        """Finish the current compressed frame, flush to disk; returns the offset reached, in bytes."""
        try:
            if self._packer is not None:
                self._packer.close()
                self._packer = None
            self._file.flush()
            return 0 if self.part is None else self._file.tell()
        except OSError as error:
            raise self._fault(error) from error

    def _fault(self, error: OSError) -> DrtkError:
        if error.errno == errno.EPIPE:
            return OutputClosed("the reader of the output went away")
        return DrtkError(f"{self.part or 'standard output'}: {error.strerror}")

    def commit(self) -> None:
        """Put the finished part in its final place."""
        if self.target.endswith((".gz", ".zst")) and self._packer is None and self.part and not self._file.tell():
            self.write(b"")  # an empty compressed file still needs its header
        self.end_frame()
        if self.part is not None:
            try:
                os.fsync(self._file.fileno())
                os.replace(self.part, self.target)
            except OSError as error:
                raise self._fault(error) from error
        self._close()

    def _close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            if error.errno != errno.EPIPE:  # nobody is left to tell
                raise self._fault(error) from error

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is None:
            try:
                self.commit()
            except BaseException:
                self._abandon()
                raise
        else:
            self._abandon()

    def _abandon(self) -> None:
        with contextlib.suppress(DrtkError):  # the first fault is the one to tell
            self._close()
        if self.part is not None and not self.keep_part:
            self.part.unlink(missing_ok=True)


def _packer(target: str, file: IO[bytes]) -> Any:
    if target.endswith(".gz"):
        # mtime 0: the same records give the same bytes.
        return gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=0, filename="")
    return _zstandard().ZstdCompressor(level=3).stream_writer(file, closefd=False)


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingDependency("zstandard", "reading or writing .zst", "pip install zstandard") from error
    return zstandard


def digest_file(path: str | Path) -> str:
    """blake2b (16 bytes, hexadecimal) of a file's bytes as they lie on disk."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()

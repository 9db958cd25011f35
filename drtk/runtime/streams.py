"""Open input and output files and standard streams, with compression and atomic replacement."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import IO, Any, BinaryIO

from drtk.errors import DrtkError, OutputClosed, RecordError
from drtk.runtime.atomic import commit, get_file_manifest_path, lock
from drtk.runtime.progress import log

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
SUFFIXES = (".gz", ".zst")
# Size of a file whose lines are counted for a progress bar. The total of a larger file is estimated from the share read.
MAX_COUNTED_BYTES = 16 << 20
_DAMAGE_ADVICE = "copy or download the file again"
_COMPRESSED_STEP = 1 << 10  # compressed bytes per step; zstd unpacks them to 32 MiB at most


def decompress(stream: BinaryIO, head: bytes) -> BinaryIO:
    """Return a stream of decompressed bytes; `stream` itself if it is not compressed.

    head: the first 4 bytes, which `stream` still contains
    Reading raises EOFError if compressed data ends early, and the library's own error if it is damaged.
    """
    if head.startswith(GZIP):
        return io.BufferedReader(gzip.GzipFile(fileobj=stream), buffer_size=1 << 20)  # type: ignore[arg-type]
    if head.startswith(ZSTD):
        return io.BufferedReader(_ZstdReader(stream), buffer_size=1 << 20)
    return stream


class _ZstdReader(io.RawIOBase):
    """Reader of zstd data that raises EOFError for a truncated file, unlike the stream reader of zstandard."""

    def __init__(self, stream: BinaryIO) -> None:
        import zstandard

        # Files packed with `zstd --long` need a window above the library's default, 128 MiB.
        self._library = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        self._stream = stream
        self._frame: Any = None
        self._packed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            packed = self._packed or self._stream.read(_COMPRESSED_STEP)
            if not packed:
                if self._frame is not None:
                    raise EOFError
                return 0
            if self._frame is None:
                self._frame = self._library.decompressobj()
            self._ready = memoryview(self._frame.decompress(packed))
            self._packed = b""
            if self._frame.eof:
                self._packed = self._frame.unused_data  # the beginning of the next frame
                self._frame = None
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def create_compressor(target: str) -> Any:
    """Return a gzip or zstd compressor for one frame, by the suffix of `target`. Its output has no time stamp or name."""
    if target.endswith(".gz"):
        return zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    import zstandard

    return zstandard.ZstdCompressor(level=3, write_checksum=True).compressobj()


STANDARD = "-"
MAX_LINE_BYTES = 256 << 20  # default limit for lines of decompressed input
_max_line_bytes = MAX_LINE_BYTES
_BOM = b"\xef\xbb\xbf"


class DigestingReader(io.RawIOBase):
    """A stream that computes the digest (blake2b, 16 bytes) of the bytes read, before decompression.

    head: bytes that were already read from `raw`
    """

    def __init__(self, raw: BinaryIO, head: bytes = b"") -> None:
        self._raw, self._head = raw, head
        self._hash = hashlib.blake2b(digest_size=16)
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data, self._head = self._head[: len(buffer)], self._head[len(buffer) :]
        # read1 does not wait for more data than the pipe has now.
        data += self._raw.read1(len(buffer) - len(data))  # type: ignore[attr-defined]
        self._hash.update(data)
        self.size += len(data)
        buffer[: len(data)] = data
        return len(data)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def close(self) -> None:
        """Close the file, unless it is stdin."""
        if not self.closed and self._raw is not getattr(sys.stdin, "buffer", None):
            self._raw.close()
        super().close()


def get_source_name(source: str) -> str:
    """Return the name of a source for messages: <stdin> for "-"."""
    return "<stdin>" if source == STANDARD else source


def count_lines(source: str, *, shards: int = 1, group: Callable[[bytes], Any] | None = None) -> int | None:
    """Return the number of lines of a JSONL file divided by `shards`; None for other, large and damaged files.

    group: key of the record that a line belongs to, if records have several lines; then the records are counted, in any
        file of lines
    """
    is_jsonl = source.endswith((".jsonl", *(".jsonl" + suffix for suffix in SUFFIXES)))
    if not (is_jsonl or group) or not os.path.isfile(source) or os.path.getsize(source) > MAX_COUNTED_BYTES:
        return None
    try:
        with open_input(source)[0] as file:
            if group is None:
                lines = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
            else:
                lines = len({group(line) for line in file if not line.isspace()})
    except Exception:  # noqa: BLE001 - damaged data; reading the records reports the place
        return None
    return lines // shards


def is_stream(source: str) -> bool:
    """Return whether a source can be read only once: stdin, or a named pipe, device or socket."""
    if source == STANDARD:
        return True
    try:
        mode = os.stat(source).st_mode
    except (OSError, ValueError):
        return False
    return not (S_ISREG(mode) or S_ISDIR(mode))


def resolve_path(source: str | None) -> str | None:
    """Return the absolute path of an existing file or folder; None for None, stdin, pipes and missing files."""
    if not source or is_stream(source) or not Path(source).exists():
        return None
    return os.path.abspath(source)


def open_input(source: str) -> tuple[BinaryIO, DigestingReader]:
    """Open a file or stdin; return the decompressed stream, and the reader that computes size and digest of the raw bytes.

    Compression is detected from the content. Raises DrtkError if the file cannot be opened.
    """
    try:
        if source == STANDARD:
            if sys.stdin is None:
                raise DrtkError("standard input is closed; give a file")
            if sys.stdin.isatty():
                log("reading from the terminal; Ctrl-D ends the input")
            raw: BinaryIO = sys.stdin.buffer
        else:
            if Path(source).is_dir():
                raise DrtkError(f"{source}: is a folder; expected a file")
            raw = open(source, "rb", buffering=1 << 20)  # noqa: SIM115 - handed to the caller; peek reads the buffer
        head = raw.read(4)
    except OSError as error:
        raise DrtkError(f"{get_source_name(source)}: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name
        raise DrtkError(f"{source!r}: is not a valid file name") from error
    digesting = DigestingReader(raw, head)
    return decompress(io.BufferedReader(digesting, buffer_size=1 << 20), head), digesting


@contextlib.contextmanager
def convert_read_errors(place: Callable[[], str]) -> Iterator[None]:
    """Context manager that converts errors of reading compressed data into DrtkErrors that name the place.

    place: function that returns the current file:line
    Raises RecordError if compressed data ends early or is damaged, DrtkError for an I/O error.
    """
    try:
        yield
    except EOFError as error:
        raise RecordError(place(), f"compressed data ends early; {_DAMAGE_ADVICE}") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise RecordError(place(), f"damaged gzip data; {_DAMAGE_ADVICE}") from error
    except OSError as error:
        raise DrtkError(f"{place()}: {error.strerror or error}") from error
    except Exception as error:
        if type(error).__name__ == "ZstdError":  # compared by name, as zstandard may not be imported
            raise RecordError(place(), f"damaged zstd data; {_DAMAGE_ADVICE}") from error
        raise


def set_max_line_bytes(count: int) -> None:
    """Limit the length of input lines in this process, as a protection against decompression bombs."""
    global _max_line_bytes
    _max_line_bytes = count


def get_max_line_bytes() -> int:
    """Return the limit for the length of input lines, in bytes."""
    return _max_line_bytes


def describe_too_long(unit: str = "line") -> str:
    """Return the error message for a line, or another unit of input, that is too long (see `set_max_line_bytes`)."""
    size, remainder = divmod(_max_line_bytes, 1 << 20)
    limit = f"{_max_line_bytes:,} bytes" if remainder else f"{size:,} MiB"
    return f"{unit} longer than {limit}; split it, or raise `max_line_bytes` (given before the command)"


def iter_raw_lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the lines of a binary stream with their line ends.

    name: name of the stream, for errors
    Raises RecordError for a line above the limit (see `set_max_line_bytes`), without reading the rest of it.
    """
    limit = _max_line_bytes
    longest = limit + 1  # including the line end
    for number, line in enumerate(iter(partial(stream.readline, longest), b""), start=1):
        if len(line) == longest and line[-1:] != b"\n":
            raise RecordError(f"{name}:{number}", describe_too_long())
        yield line


def read_lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line) of a binary stream, without byte-order mark and line ends (LF or CRLF).

    name: name of the stream, for errors
    Raises RecordError for damaged compressed data or a line above the limit, DrtkError for an I/O error.
    """
    number = 0
    with convert_read_errors(lambda: f"{name}:{number + 1}"):
        for number, line in enumerate(iter_raw_lines(stream, name), start=1):
            if number == 1 and line.startswith(_BOM):
                line = line[len(_BOM) :]
            yield number, line.rstrip(b"\r\n")


def is_replaceable(target: str) -> bool:
    """Return whether an output is written as NAME.part and renamed: a regular or new file, not in /dev or /proc."""
    if target == STANDARD:
        return False
    if os.path.realpath(target).startswith(("/dev/", "/proc/")) or target.startswith("/dev/"):
        return False  # even if /dev/stdout is a regular file, no file can be renamed to it
    try:
        return S_ISREG(os.stat(target).st_mode)
    except OSError:
        return True  # does not exist yet


def is_writable(folder: Path) -> bool:
    """Return whether a file can be created in `folder`, or, if it does not exist, in its nearest existing parent."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


class Output:
    """An output: stdout, a device or pipe, or a file NAME, which is written as NAME.part (the part).

    Use it as a context manager. On success, the part is renamed to NAME. On an exception, it is removed, unless
    `keep_part` is set.
    target: path of the output, or "-" for stdout; compressed if it ends in .gz or .zst
    append_at: resume at this offset of the part, in bytes, and drop the bytes after it
    journal: path of the part's journal (the progress that resuming needs), which is removed before a new part is started
    manifest: if set before the end, it is written as NAME.meta.json
    The constructor raises DrtkError if NAME is a folder. `begin` raises DrtkError if the output cannot be written,
    another run is writing it, or the part is shorter than `append_at`.
    """

    def __init__(self, target: str, *, append_at: int | None = None, journal: Path | None = None) -> None:
        self.target, self._journal = target, journal
        self.keep_part = append_at is not None
        self.part: Path | None = None
        self.manifest: Mapping[str, Any] | None = None
        self._start = append_at or 0
        self._compress = target.endswith(SUFFIXES)
        self._file: Any = None
        self._frame: Any = None
        self._empty = not append_at
        if Path(target).is_dir() and target != STANDARD:
            raise DrtkError(f"{target}: is a folder; expected a file")

    def begin(self) -> Output:
        """Open the output. The constructor does not open it, so that an interrupt leaves no NAME.part behind."""
        try:
            self._open()
            return self
        except BaseException as error:
            self.discard()
            if isinstance(error, (OSError, ValueError)):
                raise DrtkError(f"{self.target}: {getattr(error, 'strerror', None) or error}") from error
            raise

    __enter__ = begin

    def _open(self) -> None:
        if self.target == STANDARD:
            self._file = _open_stdout()
            return
        if not is_replaceable(self.target):
            self._file = open(self.target, "ab", buffering=1 << 16)  # noqa: SIM115 - closed by commit or abandon
            return
        self.part = Path(self.target).with_name(f"{Path(self.target).name}.part")
        self._file = _open_locked(self.part)
        if os.fstat(self._file.fileno()).st_size < self._start:
            raise DrtkError(f"{self.part}: is truncated (shorter than its journal says); use `force` to start over")
        if self._journal is not None and not self.keep_part:
            self._journal.unlink(missing_ok=True)
        self._file.truncate(self._start)
        self._file.seek(self._start)

    def write(self, data: bytes) -> None:
        """Append bytes. Raises OutputClosed if the reader has closed the pipe, DrtkError for another I/O error."""
        self._empty = False
        if self._compress:
            if self._frame is None:
                self._frame = create_compressor(self.target)
            data = self._frame.compress(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise self._convert_error(error) from error

    def end_frame(self) -> int:
        """Finish the compressed frame and flush; return the offset in bytes to resume from, 0 for stdout and pipes."""
        try:
            if self._frame is not None:
                self._file.write(self._frame.flush())
                self._frame = None
            self._file.flush()
            return 0 if self.part is None else self._file.tell()
        except OSError as error:
            raise self._convert_error(error) from error

    def sync(self) -> None:
        """Flush the data written so far to disk, so that it survives a power failure."""
        try:
            if self.part is not None and not self._file.closed:
                self._file.flush()
                os.fsync(self._file.fileno())
        except OSError as error:
            raise self._convert_error(error) from error

    def _convert_error(self, error: OSError) -> DrtkError:
        if error.errno == errno.EPIPE:
            return OutputClosed("the reader of the output closed the pipe")
        where = "standard output" if self.target == STANDARD else self.part or self.target
        return DrtkError(f"{where}: {error.strerror}")

    def commit(self) -> None:
        """Finish the output: flush NAME.part to disk and rename it to NAME."""
        if self._compress and self._empty:
            self.write(b"")  # an empty compressed file still has a frame
        self.end_frame()
        if self.part is not None:
            self.sync()
            try:
                commit(self.part, Path(self.target), self.manifest)
            except OSError as error:
                raise self._convert_error(error) from error
        self._close()

    def _close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise self._convert_error(error) from error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is not None:
            self.discard()
            return
        try:
            self.commit()
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Close the output without finishing it, and remove the part unless `keep_part` is set."""
        if self._file is None or self._file.closed:  # then a file with that name may belong to another run
            return
        if self.part is not None and not self.keep_part and _has_path(self._file, self.part):
            get_file_manifest_path(self.part).unlink(missing_ok=True)
            self.part.unlink(missing_ok=True)  # before the lock is released
        with contextlib.suppress(DrtkError):  # keep the first error
            self._close()


def _open_stdout() -> IO[bytes]:
    """Open a duplicate of stdout, so that closing it does not close sys.stdout."""
    if sys.stdout is None:
        raise DrtkError("standard output is closed; use --output FILE")
    sys.stdout.flush()
    return os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=1 << 16)


def _open_locked(part: Path) -> IO[bytes]:
    """Open and lock `part` for writing. Raises DrtkError if another run has locked it."""
    while True:
        file = os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), "wb", buffering=1 << 16)
        if not lock(file.fileno()):
            file.close()
            raise DrtkError(f"{part}: another run is writing it; wait for it to end")
        if _has_path(file, part):
            return file
        file.close()  # another run finished and renamed it in the meantime


def _has_path(file: IO[bytes], path: Path) -> bool:
    """Return whether an open file is still at `path`, and was not renamed or replaced."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def digest_bytes(data: bytes) -> str:
    """Return the digest (blake2b, 16 bytes, hexadecimal) of some bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def digest_file(path: str | Path) -> str:
    """Return the digest (blake2b, 16 bytes, hexadecimal) of a file, before decompression."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()

"""Open files and standard streams: compression, atomic replacement, closed pipes."""

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

from drtk.errors import DrtkError, MissingDependency, OutputClosed, RecordError, UsageError, pip_install
from drtk.runtime.atomic import commit, interrupts_held, lock, manifest_beside

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
SUFFIXES = (".gz", ".zst")
_BLOCK = 1 << 10  # compressed bytes per step; zstd unpacks them to 32 MiB at most


def unpacked(stream: BinaryIO, head: bytes) -> BinaryIO:
    """The decompressed bytes of a stream that begins with `head`; the stream itself where it is not compressed.

    Reading raises EOFError where a frame ends early, and the library's own error where it is damaged.
    """
    if head.startswith(GZIP):
        return io.BufferedReader(gzip.GzipFile(fileobj=stream), buffer_size=1 << 20)  # type: ignore[arg-type]
    if head.startswith(ZSTD):
        return io.BufferedReader(_ZstdReader(stream), buffer_size=1 << 20)
    return stream


class _ZstdReader(io.RawIOBase):
    """Frames of zstd, one after the other. zstandard's own stream reader takes a cut file for a finished one."""

    def __init__(self, stream: BinaryIO) -> None:
        # Files packed with `zstd --long` need a window beyond the library's usual 128 MiB.
        self._library = _zstandard().ZstdDecompressor(max_window_size=1 << 31)
        self._stream = stream
        self._frame: Any = None
        self._packed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            packed = self._packed or self._stream.read(_BLOCK)
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


def packer(target: str) -> Any:
    """One frame's compressor for a target's suffix: `compress(data)`, then `flush()` ends the frame.

    The same bytes in give the same bytes out: no time stamp, no name. Raises MissingDependency without zstandard.
    """
    if target.endswith(".gz"):
        return zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return _zstandard().ZstdCompressor(level=3, write_checksum=True).compressobj()


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingDependency("zstandard", "reading or writing .zst", pip_install("zstandard")) from error
    return zstandard


STANDARD = "-"
MAX_LINE_BYTES = 256 << 20  # of decompressed input; `drtk --max-line-bytes` changes it
_max_line_bytes = MAX_LINE_BYTES
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
        data, self._head = self._head[: len(buffer)], self._head[len(buffer) :]
        # Head and what follows it, so that a peek sees both; of a pipe what is there by now, without waiting for more.
        data += self._raw.read1(len(buffer) - len(data))  # type: ignore[attr-defined]
        self._hash.update(data)
        self.size += len(data)
        buffer[: len(data)] = data
        return len(data)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def close(self) -> None:
        """Close the file below, unless it is stdin, which is not ours to close."""
        if not self.closed and self._raw is not getattr(sys.stdin, "buffer", None):
            self._raw.close()
        super().close()


def name_of(source: str) -> str:
    """How complaints call a source: `<stdin>` for "-"."""
    return "<stdin>" if source == STANDARD else source


def is_stream(source: str) -> bool:
    """Whether a source gives its bytes once and no more: stdin, or a pipe, terminal or socket that goes by a name."""
    if source == STANDARD:
        return True
    try:
        mode = os.stat(source).st_mode
    except (OSError, ValueError):
        return False
    return not (S_ISREG(mode) or S_ISDIR(mode))


def open_input(source: str) -> tuple[BinaryIO, DigestingReader]:
    """The decompressed bytes of a file or of stdin, and the reader below that counts and hashes what is on disk.

    Compression is recognised by content, so it works on stdin too. Raises DrtkError where a file cannot be opened.
    """
    try:
        if source == STANDARD:
            if sys.stdin is None:
                raise DrtkError("<stdin>: is closed")
            raw: BinaryIO = sys.stdin.buffer
        else:
            if Path(source).is_dir():
                raise DrtkError(f"{source}: is a folder; expected a file")
            raw = open(source, "rb")  # noqa: SIM115 - handed to the caller
        head = raw.read(4)
    except OSError as error:
        raise DrtkError(f"{name_of(source)}: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name
        raise DrtkError(f"{source!r}: is not the name of a file") from error
    digesting = DigestingReader(raw, head)
    return unpacked(io.BufferedReader(digesting, buffer_size=1 << 20), head), digesting


@contextlib.contextmanager
def compressed_faults(place: Callable[[], str]) -> Iterator[None]:
    """Turns what reading damaged data raises into complaints that begin with `place()`.

    Raises RecordError where compressed data ends early or is damaged, DrtkError where the disk fails.
    """
    try:
        yield
    except EOFError as error:
        raise RecordError(place(), "compressed data ends early") from error
    except zlib.error as error:
        raise RecordError(place(), "damaged gzip data") from error
    except OSError as error:
        if error.errno is None:  # gzip.BadGzipFile
            raise RecordError(place(), "damaged gzip data") from error
        raise DrtkError(f"{place()}: {error.strerror}") from error
    except Exception as error:
        if type(error).__name__ == "ZstdError":  # not imported here, where it may not be installed
            raise RecordError(place(), "damaged zstd data") from error
        raise


def set_max_line_bytes(count: int) -> None:
    """Limit the length of input lines in this process, so that a decompression bomb cannot fill the memory."""
    global _max_line_bytes
    _max_line_bytes = count


def max_line_bytes() -> int:
    """Return the largest length of an input line, in bytes."""
    return _max_line_bytes


def too_long(what: str = "line") -> str:
    """Return the error message for a line, or another unit of input, above `max_line_bytes`."""
    size, rest = divmod(_max_line_bytes, 1 << 20)
    limit = f"{_max_line_bytes:,} bytes" if rest else f"{size:,} MiB"
    return f"{what} longer than {limit}; split it, or raise the limit: drtk --max-line-bytes N COMMAND …"


def raw_lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Iterate over the lines of a binary stream with their line ends.

    Raises RecordError at a line longer than `max_line_bytes`, without reading more of it.
    """
    limit = _max_line_bytes
    longest = limit + 1  # including the line end
    for number, line in enumerate(iter(partial(stream.readline, longest), b""), start=1):
        if len(line) == longest and line[-1:] != b"\n":
            raise RecordError(f"{name}:{number}", too_long())
        yield line


def read_lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """(line number, line without its end) of a binary stream; a BOM and CRs before line ends are taken off.

    Raises RecordError for truncated or damaged compression or a line above the limit, DrtkError for a disk error.
    """
    number = 0
    with compressed_faults(lambda: f"{name}:{number + 1}"):
        for number, line in enumerate(raw_lines(stream, name), start=1):
            if number == 1 and line.startswith(_BOM):
                line = line[len(_BOM) :]
            yield number, line.rstrip(b"\r\n")


def is_replaceable(target: str) -> bool:
    """Whether `target` is a file that can be made beside itself and renamed: not "-", a device, or a pipe."""
    if target == STANDARD:
        return False
    if os.path.realpath(target).startswith(("/dev/", "/proc/")) or target.startswith("/dev/"):
        return False  # /dev/stdout may be a regular file, but its name is no place for another
    try:
        return S_ISREG(os.stat(target).st_mode)
    except OSError:
        return True  # nothing there yet


def check_outputs(outputs: Mapping[str, str | None]) -> None:
    """Raise UsageError if two options name the same output: one would overwrite the other."""
    places: dict[str, str] = {}
    for option, target in outputs.items():
        if not target or (target != STANDARD and not is_replaceable(target) and not os.path.isdir(target)):
            continue  # not given, or a device or pipe, which accepts both
        other = places.setdefault(target if target == STANDARD else os.path.realpath(target), option)
        if other != option:
            raise UsageError(f"{other} and {option} name the same output, {target}; use different names")


def is_writable(folder: Path) -> bool:
    """Whether something can be made in `folder`, or in the nearest of its parents that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


class Output:
    """Where records go: stdout, a device or pipe, or NAME by way of NAME.part.

    As a context manager: it is begun, success renames the part to NAME, a fault removes it, unless `keep_part` is set.
    `end_frame` closes a compressed frame and flushes, after which the offset is a place to cut and go on from.
    `append_at`: go on from that offset; what the part holds beyond it is dropped, and what it holds before is kept.
    `suffix`: what the part's name ends with. `scratch`: the part is not wanted once it was of use, so success removes it.
    `journal`: the journal of the part; removed before a new part is started.
    `manifest`: if set before the end, it is written as NAME.meta.json.
    Raises DrtkError for a folder, and when begun where the target cannot be written, or another run is writing it.
    """

    def __init__(
        self,
        target: str,
        *,
        append_at: int | None = None,
        suffix: str = ".part",
        scratch: bool = False,
        journal: Path | None = None,
    ) -> None:
        self.target, self._suffix, self._scratch, self._journal = target, suffix, scratch, journal
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
        """Begin the part, or go on with it. Ctrl-C comes before it exists, or removes it as any fault does.

        `with` does this: were the part made before, an interrupt in between would leave it to nobody.
        """
        try:
            self._open()
            return self
        except BaseException as error:
            self._abandon()
            if isinstance(error, (OSError, ValueError)):
                raise DrtkError(f"{self.target}: {getattr(error, 'strerror', None) or error}") from error
            raise

    __enter__ = begin

    def _open(self) -> None:
        if self.target == STANDARD:
            self._file = _stdout()
            return
        if not is_replaceable(self.target):
            self._file = open(self.target, "ab", buffering=1 << 16)  # noqa: SIM115 - closed by commit or abandon
            return
        self.part = Path(self.target).with_name(Path(self.target).name + self._suffix)
        with interrupts_held():  # from here on the file is there, but not yet known to be ours
            self._file = _locked(self.part)
        if os.fstat(self._file.fileno()).st_size < self._start:
            raise DrtkError(f"{self.part}: is shorter than its journal says; `force` begins again")
        if self._journal is not None and not self.keep_part:
            self._journal.unlink(missing_ok=True)
        self._file.truncate(self._start)
        self._file.seek(self._start)

    def write(self, data: bytes) -> None:
        """Append bytes. Raises OutputClosed when the reader has gone, DrtkError on a full disk."""
        self._empty = False
        if self._compress:
            if self._frame is None:
                self._frame = packer(self.target)
            data = self._frame.compress(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise self._fault(error) from error

    def end_frame(self) -> int:
        """Finish the current compressed frame, flush to disk; returns the offset reached, in bytes."""
        try:
            if self._frame is not None:
                self._file.write(self._frame.flush())
                self._frame = None
            self._file.flush()
            return 0 if self.part is None else self._file.tell()
        except OSError as error:
            raise self._fault(error) from error

    def sync(self) -> None:
        """Flush the data written so far to disk, so that it survives a power failure."""
        try:
            if self.part is not None and not self._file.closed:
                self._file.flush()
                os.fsync(self._file.fileno())
        except OSError as error:
            raise self._fault(error) from error

    def _fault(self, error: OSError) -> DrtkError:
        if error.errno == errno.EPIPE:
            return OutputClosed("the reader of the output went away")
        where = "standard output" if self.target == STANDARD else self.part or self.target
        return DrtkError(f"{where}: {error.strerror}")

    def commit(self) -> None:
        """Put the finished part in its final place."""
        if self._compress and self._empty:
            self.write(b"")  # an empty compressed file still has a frame
        self.end_frame()
        if self.part is not None:
            self.sync()
            try:
                commit(self.part, Path(self.target), self.manifest)
            except OSError as error:
                raise self._fault(error) from error
        self._close()

    def _close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            if error.errno != errno.EPIPE:  # nobody is left to tell
                raise self._fault(error) from error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is None and self._scratch:
            self.keep_part = False
            self._abandon()
        elif kind is None:
            try:
                self.commit()
            except BaseException:
                self._abandon()
                raise
        else:
            self._abandon()

    def _abandon(self) -> None:
        if self._file is None or self._file.closed:  # what lies there now is another run's
            return
        if self.part is not None and not self.keep_part and _lies_at(self._file, self.part):
            manifest_beside(self.part).unlink(missing_ok=True)
            self.part.unlink(missing_ok=True)  # before the lock goes
        with contextlib.suppress(DrtkError):  # the first fault is the one to tell
            self._close()


def _stdout() -> IO[bytes]:
    """stdout under a descriptor of its own: closing it must not close the interpreter's."""
    if sys.stdout is None:
        raise DrtkError("standard output: is closed")
    sys.stdout.flush()
    return os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=1 << 16)


def _locked(part: Path) -> IO[bytes]:
    """`part`, open for writing and locked. Raises DrtkError where another run holds it."""
    while True:
        file = os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), "wb", buffering=1 << 16)
        if not lock(file.fileno()):
            file.close()
            raise DrtkError(f"{part}: another run is writing it")
        if _lies_at(file, part):
            return file
        file.close()  # the other run finished in between and renamed it: this is its output now


def _lies_at(file: IO[bytes], path: Path) -> bool:
    """Whether an open file goes by that name, and was not renamed or replaced."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def digest_file(path: str | Path) -> str:
    """blake2b (16 bytes, hexadecimal) of a file's bytes as they lie on disk."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()

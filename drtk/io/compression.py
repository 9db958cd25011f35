"""gzip and zstd by frames: reading that notices a missing end, writing that can stop after any frame."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import Any, BinaryIO

from drtk.errors import MissingDependency, pip_install

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

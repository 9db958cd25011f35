"""Read a JSON array of objects (DPR's training data) object by object, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from drtk.data.rows import Row, parse_row
from drtk.runtime.streams import describe_too_long, get_max_line_bytes

# A string or a bracket. A string that continues in the next block matches to the end of this one.
_JSON_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
_SEPARATORS = re.compile(rb"[\s,]*")


def iter_array_rows(blocks: Iterable[bytes]) -> Iterator[tuple[int, Row | ValueError]]:
    """Yield (line number, object) for each element of a JSON array, or a ValueError for an invalid element.

    The line number is that of the first character of the element.
    blocks: the bytes of the file, in blocks of any size; the first must contain the opening bracket
    The last item is a ValueError if the array is not closed or text follows it, or if an element is no object or longer
    than `get_max_line_bytes`.
    """
    for count, (line, text) in enumerate(_iter_elements(blocks), start=1):
        if isinstance(text, ValueError):
            yield line, text
            return
        if text is None:
            yield line, ValueError(f"the array ends in or after element {count - 1:,}; the file seems to be truncated")
            return
        if not text:
            yield line, ValueError(f"element {count:,} is not an object, or text follows the array")
            return
        try:
            yield line, parse_row(text)
        except ValueError as error:
            yield line, ValueError(f"element {count:,}: {error}")


def _iter_elements(blocks: Iterable[bytes]) -> Iterator[tuple[int, bytes | ValueError | None]]:
    """Yield (line number, bytes) of each element of a JSON array.

    Instead of bytes, the last item has None if the file ends early, b"" for an element that is not an object or text
    after the array, or a ValueError for an element that is too long.
    """
    pieces = iter(blocks)
    text = next(pieces, b"").removeprefix(b"\xef\xbb\xbf")
    start = text.index(b"[") + 1 if b"[" in text else len(text)
    line = 1 + text.count(b"\n", 0, start)
    while True:
        gap = _SEPARATORS.match(text, start)
        assert gap is not None  # it may be empty
        line += text.count(b"\n", start, gap.end())
        start = gap.end()
        if start == len(text):
            text, start = next(pieces, b""), 0
            if not text:
                yield line, None
                return
            continue
        if text[start : start + 1] == b"]":
            if not text[start + 1 :].strip() and not any(piece.strip() for piece in pieces):
                return
            yield line, b""
            return
        if text[start : start + 1] != b"{":
            yield line, b""
            return
        try:
            text, start, end = _read_object(text, start, pieces)
        except ValueError as error:
            yield line, error
            return
        if end < 0:
            yield line, None
            return
        yield line, text[start:end]
        line += text.count(b"\n", start, end)
        start = end


def _read_object(text: bytes, start: int, pieces: Iterator[bytes]) -> tuple[bytes, int, int]:
    """Read until the object at `start` is complete; return text, start and end of the object. The end is -1 if the file ends first."""
    depth, at = 0, start
    while True:
        for token in _JSON_TOKEN.finditer(text, at):
            mark = token[0]
            if mark in b"{[":
                depth += 1
            elif mark in b"}]":
                depth -= 1
                if depth == 0:
                    if token.end() - start > get_max_line_bytes():
                        raise ValueError(describe_too_long("element"))
                    return text, start, token.end()
            elif token.end() == len(text) and not _is_closed_string(mark):
                at = token.start()  # scan a string that continues in the next block again
                break
            at = token.end()
        if len(text) - start > get_max_line_bytes():
            raise ValueError(describe_too_long("element"))
        # Double the text, so that an object of any size is scanned a bounded number of times.
        more, missing = [], min(len(text) - start, get_max_line_bytes() + 1 - len(text) + start)
        while missing > 0 and (piece := next(pieces, b"")):
            more.append(piece)
            missing -= len(piece)
        if not more:
            return text, start, -1
        text, at, start = text[start:] + b"".join(more), at - start, 0


def _is_closed_string(string: bytes) -> bool:
    """Return whether a JSON string includes its closing quote."""
    if len(string) < 2 or string[-1:] != b'"':
        return False
    body = string[1:-1]
    return (len(body) - len(body.rstrip(b"\\"))) % 2 == 0

"""Read a JSON array of objects (DPR's training data) object by object, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from drtk.data.rows import Row, parse_row
from drtk.runtime.streams import describe_too_long, get_max_line_bytes

# A string or a bracket. A string that continues in the next block matches to the end of this one, and group 1 is no quote.
_JSON_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*("|\\?\Z)|[{}\[\]]', re.DOTALL)
_SEPARATORS = re.compile(rb"[\s,]*")


def iter_array_rows(blocks: Iterable[bytes]) -> Iterator[tuple[int, Row | ValueError]]:
    """Yield (line number, object) for each element of a JSON array, or a ValueError for an invalid element.

    The line number is that of the first character of the element.
    blocks: the bytes of the file, in blocks of any size; the first must contain the opening bracket
    The last item is a ValueError if the array is not closed or text follows it, or if an element is no object or longer
    than `get_max_line_bytes`.
    """
    pieces = iter(blocks)
    text = next(pieces, b"").removeprefix(b"\xef\xbb\xbf")
    start = text.index(b"[") + 1 if b"[" in text else len(text)
    line, count = 1 + text.count(b"\n", 0, start), 0
    while True:
        gap = _SEPARATORS.match(text, start)
        assert gap is not None  # it may be empty
        line += text.count(b"\n", start, gap.end())
        start = gap.end()
        if start == len(text) and (text := next(pieces, b"")):
            start = 0
            continue
        mark = text[start : start + 1]  # b"" at the end of the file
        if mark == b"]" and not (text[start + 1 :].strip() or any(map(bytes.strip, pieces))):
            return
        count += 1
        if mark not in (b"{", b""):
            yield line, ValueError(f"element {count:,} is not an object, or text follows the array")
            return
        try:
            text, start, end = _read_object(text, start, pieces)
        except ValueError as error:
            yield line, error
            return
        if end < 0:
            yield line, ValueError(f"the array ends in or after element {count - 1:,}; the file seems to be truncated")
            return
        try:
            yield line, parse_row(text[start:end])
        except ValueError as error:
            yield line, ValueError(f"element {count:,}: {error}")
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
            elif token[1] != b'"':
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

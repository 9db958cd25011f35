"""A page of text about one file or folder: its manifest and its first records."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from drtk.errors import DrtkError
from drtk.io.intake import Intake
from drtk.io.manifest import Manifest, manifest_path, read_json, read_manifest
from drtk.io.streams import STANDARD

_TOLD_APART = ("kind", "command", "started", "seconds", "settings", "inputs", "counts", "versions")


def manifest_of(path: str) -> Manifest | None:
    """The manifest of a finished folder or of a file; None for a file without one.

    Raises DrtkError for a missing path, MismatchError for a folder that is unfinished or not drtk's.
    """
    if path == STANDARD:
        return None
    if not Path(path).exists():
        raise DrtkError(f"{path}: No such file or directory")
    if Path(path).is_dir():
        return read_manifest(path)
    beside = manifest_path(path)
    return read_json(beside) if beside.exists() else None


def manifest_json(path: str) -> str:
    """The manifest as indented JSON. Raises DrtkError where there is none."""
    manifest = manifest_of(path)
    if manifest is None:
        raise DrtkError(f"{path}: has no manifest ({manifest_path(path).name})")
    return orjson.dumps(manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def describe(path: str, *, count: int) -> str:
    """The page: manifest first, then the first `count` records of a file."""
    manifest = manifest_of(path)
    lines: list[str] = []
    if manifest is not None:
        lines += _manifest_lines(manifest)
    if not Path(path).is_dir():
        first = list(islice(_records(path), count))
        lines += [""] * bool(lines and first) + first
    return "".join(f"{line}\n" for line in lines)


def _manifest_lines(manifest: Manifest) -> Iterator[str]:
    yield _entry("kind", manifest.get("kind"))
    for name, value in manifest.items():
        if name not in _TOLD_APART:
            yield from _block(name, value) if isinstance(value, dict) else [_entry(name, value)]
    yield from _block("counts", manifest.get("counts", {}))
    yield _entry("made", f"{manifest.get('started')}, in {manifest.get('seconds')} s")
    yield _entry("command", manifest.get("command"))
    for item in manifest.get("inputs", []):
        size = f", {item['bytes']:,} bytes" if "bytes" in item else ""
        yield _entry("input", f"{item['path']}{size}, digest {item['digest']}")
    yield from _block(
        "settings", {key: value for key, value in manifest.get("settings", {}).items() if value is not None}
    )
    yield from _block("versions", manifest.get("versions", {}))


def _entry(name: str, value: Any) -> str:
    return f"{name:<11} {value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{name:<11} {value}"


def _block(name: str, values: dict[str, Any]) -> Iterator[str]:
    """A dictionary under one name, wrapped to the terminal."""
    text = "  ".join(f"{key}={_compact(value)}" for key, value in values.items())
    width = max(40, shutil.get_terminal_size().columns)
    yield from textwrap.wrap(
        text,
        width,
        initial_indent=f"{name:<11} ",
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _compact(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


def _records(path: str) -> Iterator[str]:
    """Records as a person reads them: JSON objects field by field, anything else as it stands."""
    limit = 3 * max(40, shutil.get_terminal_size().columns)
    for _, line in Intake().lines(path):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            row = line.decode(errors="replace")
        if isinstance(row, dict):
            fields = (_clipped(f"{field:<11} {_compact(value)}", limit) for field, value in row.items())
            yield "\n".join(fields) + "\n"
        else:
            yield _clipped(_compact(row), limit)


def _clipped(text: str, limit: int) -> str:
    """`text` on one line, cut to `limit` characters."""
    text = text.replace("\n", " ")
    return text if len(text) <= limit else text[: limit - 2] + " …"

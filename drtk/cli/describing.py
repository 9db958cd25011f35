"""A page of text about one file or folder: its manifest and its first records."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from drtk.cli.model_lines import model_lines, recipe_lines
from drtk.errors import DrtkError
from drtk.io.intake import Intake
from drtk.io.integrity import MANIFEST_DIGEST
from drtk.io.json_files import read_json
from drtk.io.manifest import Manifest, has_unfinished_part, manifest_path, read_manifest
from drtk.io.progress import printable
from drtk.io.rows import parse_row
from drtk.io.streams import STANDARD

_SHOWN_SEPARATELY = (
    MANIFEST_DIGEST,
    "kind",
    "command",
    "started",
    "seconds",
    "settings",
    "inputs",
    "counts",
    "versions",
)


def manifest_of(path: str) -> Manifest | None:
    """The manifest of a finished folder or of a file; None for a file without one.

    Raises DrtkError for a missing path, MismatchError for a folder that is unfinished or not drtk's.
    """
    if path == STANDARD:
        return None
    if not Path(path).exists() and not has_unfinished_part(Path(path)):
        raise DrtkError(f"{path}: No such file or directory")
    if Path(path).is_dir() or not Path(path).exists():
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
        about = list(model_lines(Path(path))) if manifest.get("kind") == "model" and Path(path).is_dir() else []
        lines += _manifest_lines(manifest, about)
    if not Path(path).is_dir():
        first = list(islice(_records(path), count))
        lines += [""] * bool(lines and first) + first
    return "".join(f"{printable(line)}\n" for line in lines)


def _manifest_lines(manifest: Manifest, about: Sequence[tuple[str, str]] = ()) -> Iterator[str]:
    """about: names and what is said of them beside what the manifest says"""
    yield _entry("kind", manifest.get("kind"))
    for name, said in about:
        yield from _wrapped(name, said)
    for name, value in manifest.items():
        if name not in _SHOWN_SEPARATELY:
            yield from _told(name, [*value] if name == "files" else value)
    yield from _told("counts", manifest.get("counts", {}))
    yield _entry("made", f"{manifest.get('started')}, in {manifest.get('seconds')} s")
    yield _entry("command", manifest.get("command"))
    for item in manifest.get("inputs", []):
        size = f", {item['bytes']:,} bytes" if "bytes" in item else ""
        digest = f", digest {item['digest']}" if item.get("digest") else ""  # none where it was not read to its end
        yield _entry("input", f"{item['path']}{size}{digest}")
    settings = dict(manifest.get("settings", {}))
    recipe = settings.pop("recipe", None)
    if isinstance(recipe, dict):
        for number, line in enumerate(recipe_lines(recipe, settings.get("changes") or [], settings.get("drop") or [])):
            yield from _wrapped("" if number else "recipe", line)
    yield from _told("settings", settings)
    yield from _told("versions", manifest.get("versions", {}))


def _entry(name: str, value: Any) -> str:
    return f"{name:<11} {value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{name:<11} {value}"


def _told(name: str, value: Any) -> Iterator[str]:
    """A value of a manifest under its name; nothing where it says nothing."""
    if _says_nothing(value):
        return
    if isinstance(value, dict):
        yield from _wrapped(
            name, "  ".join(f"{key}={_plain(item)}" for key, item in value.items() if not _says_nothing(item))
        )
    elif isinstance(value, list):
        yield from _wrapped(name, "  ".join(map(str, value)) if not _holds_more(value) else f"{len(value):,}")
    else:
        yield _entry(name, _plain(value) if isinstance(value, bool) else value)


def _says_nothing(value: Any) -> bool:
    return value is None or value in ("", [], {})


def _holds_more(values: list[Any]) -> bool:
    """Whether a list is of lists or tables (the shards of embeddings), which `--json` shows."""
    return any(isinstance(value, (list, dict)) for value in values)


def _plain(value: Any) -> str:
    """A setting as a person would say it: a list by its parts, yes and no for what is on or off."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and not _holds_more(value):
        return ",".join(map(str, value))
    return _compact(value)


def _wrapped(name: str, text: str) -> Iterator[str]:
    """A text under a name, wrapped to the terminal."""
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
            row = parse_row(line)
        except ValueError:  # TSV, a run, or damaged
            yield _clipped(line.decode(errors="replace"), limit)
            continue
        fields = (_clipped(f"{field:<11} {_compact(value)}", limit) for field, value in row.items())
        yield "\n".join(fields) + "\n"


def _clipped(text: str, limit: int) -> str:
    """`text` on one line, cut to `limit` characters."""
    text = text.replace("\n", " ")
    return text if len(text) <= limit else text[: limit - 2] + " …"

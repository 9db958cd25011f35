"""Which corpus an output was made from, as far as manifests tell.

Scored examples lead to examples, examples to the runs they were mined from, runs to indexes, indexes to embeddings or a corpus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from drtk.errors import DrtkError, MismatchError
from drtk.io.json_files import read_json
from drtk.io.manifest import SOURCES, is_manifest, manifest_path, unchanged
from drtk.io.runs import is_named
from drtk.io.streams import digest_file, is_stream

_MAKERS = ("encode", "index")  # commands whose `source` is a corpus, or leads to one
# Commands whose output has the ids of what they read, and so its origin: the settings that name it.
_COPIERS = {
    "convert": SOURCES,
    "fuse": ("runs",),
    "rerank": SOURCES,
    "score": SOURCES,
    "mine-negatives": ("candidates",),
}


class Origin(NamedTuple):
    """A corpus by the name it had, and its digest."""

    path: str
    digest: str


def origin_of(path: str) -> Origin | None:
    """The corpus that a run, examples, an index or embeddings were made from; None where no manifest tells."""
    return next(iter(origins_of(path)), None)


def origins_of(path: str) -> list[Origin]:
    """The same, of what was put together from several files one for each whose manifest tells."""
    manifest = _manifest(path)
    if manifest is None or manifest.get("kind") == "model":  # which has learnt from a corpus, and is of none
        return []
    if manifest["settings"].get("role") == "query":  # vectors of what is asked, not of what is searched
        return []
    program = str(manifest.get("program"))
    copied = _named(manifest, _COPIERS.get(program, ()))
    if program == "mine-negatives" and manifest["settings"].get("corpus"):
        copied = []  # all ids were looked up in there, whatever the runs are of
    entries = {entry["path"]: entry for entry in manifest["inputs"]}
    whole = [path for path in copied if path in entries and unchanged(entries[path])]
    found = [origin for path in whole for origin in origins_of(path)]
    if not found and (made := _made_from(manifest)) is not None:
        return [made]
    return found


def _named(manifest: Mapping[str, Any], settings: Sequence[str]) -> list[str]:
    """The files and folders that settings name; of NAME=FILE the latter."""
    named = [manifest["settings"].get(name) or [] for name in settings]
    paths = [path for value in named for path in (value if isinstance(value, list) else [value])]
    return [path.partition("=")[2] if is_named(path) else path for path in paths]


def _made_from(manifest: Mapping[str, Any]) -> Origin | None:
    named = manifest["settings"].get("corpus")
    if not named and manifest.get("program") in _MAKERS:
        named = next(iter(_named(manifest, SOURCES)), None)
    for entry in manifest["inputs"]:
        if entry["path"] == named and not Path(str(named)).is_dir():
            digest = entry.get("digest")
            if not digest and unchanged(entry):  # texts were looked up in it, so that nobody had read it to its end
                digest = digest_file(named)
            if digest:
                return Origin(entry["path"], digest)
    for entry in manifest["inputs"]:
        if Path(entry["path"]).is_dir() and unchanged(entry) and (found := origin_of(entry["path"])):
            return found
    return None


def check_origin(path: str, corpus: Origin, *, override: str) -> None:
    """Raises MismatchError where `path` is known to be made from another corpus. override: the option that lets it pass."""
    _check(path, origins_of(path), corpus, override=override)


def _check(path: str, origins: Sequence[Origin], corpus: Origin, *, override: str) -> None:
    for found in origins:
        if found.digest != corpus.digest:
            raise MismatchError(
                f"{path}: was made from another corpus ({found.path}, digest {found.digest[:8]}) than {corpus.path} "
                f"(digest {corpus.digest[:8]}); where ids mean the same in both: {override}"
            )


def check_looked_up(path: str, corpus: str, *, another: bool) -> None:
    """Raises MismatchError where `path` is known to be made from another corpus than the file its texts are looked up in.

    another: that is as it should be
    """
    if another or is_stream(path) or is_stream(corpus) or not Path(corpus).is_file() or not (found := origins_of(path)):
        return
    _check(path, found, Origin(corpus, digest_file(corpus)), override="--another-corpus")


def _manifest(path: str) -> dict[str, Any] | None:
    place = manifest_path(path)
    if not place.exists():
        return None
    try:
        content = read_json(place)
    except DrtkError:
        return None
    return content if is_manifest(content) else None

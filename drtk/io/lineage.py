"""Which corpus an output was made from, as far as manifests tell: scored examples lead to examples, runs to indexes, indexes to embeddings or a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from drtk.errors import DrtkError, MismatchError
from drtk.io.manifest import SOURCES, folder_digest, is_manifest, manifest_path, read_json, unchanged
from drtk.io.streams import digest_file, is_stream

_MAKERS = ("encode", "index")  # commands whose `source` is a corpus, or leads to one
_COPIERS = ("convert", "rerank", "score")  # commands whose output has the ids of their source, and so its origin


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
    copied = _sources(manifest) if manifest.get("program") in _COPIERS else []
    if copied:
        entries = [entry for entry in manifest["inputs"] if entry["path"] in copied and unchanged(entry)]
        return [found for entry in entries for found in origins_of(entry["path"])]
    found = _made_from(manifest)
    return [] if found is None else [found]


def _sources(manifest: Mapping[str, Any]) -> list[str]:
    """The settings that name the records themselves."""
    named = [manifest["settings"].get(name) or [] for name in SOURCES]
    return [path for value in named for path in (value if isinstance(value, list) else [value])]


def _made_from(manifest: Mapping[str, Any]) -> Origin | None:
    named = manifest["settings"].get("corpus")
    if not named and manifest.get("program") in _MAKERS:
        named = next(iter(_sources(manifest)), None)
    for entry in manifest["inputs"]:
        if entry["path"] == named and not Path(str(named)).is_dir() and entry.get("digest"):
            return Origin(entry["path"], entry["digest"])
    for entry in manifest["inputs"]:
        folder = Path(entry["path"])
        if folder.is_dir() and folder_digest(folder) == entry.get("digest") and (found := origin_of(entry["path"])):
            return found
    return None


def check_origin(path: str, corpus: Origin, *, override: str) -> None:
    """Raises MismatchError where `path` is known to be made from another corpus. override: the option that lets it pass."""
    for found in origins_of(path):
        if found.digest != corpus.digest:
            raise MismatchError(
                f"{path}: was made from another corpus ({found.path}, digest {found.digest[:8]}) than {corpus.path} "
                f"(digest {corpus.digest[:8]}); where ids mean the same in both: {override}"
            )


def check_looked_up(path: str, corpus: str, *, another: bool) -> None:
    """Raises MismatchError where `path` is known to be made from another corpus than the file its texts are looked up in.

    another: that is as it should be
    """
    if another or is_stream(path) or is_stream(corpus) or not Path(corpus).is_file() or origin_of(path) is None:
        return
    check_origin(path, Origin(corpus, digest_file(corpus)), override="--another-corpus")


def _manifest(path: str) -> dict[str, Any] | None:
    place = manifest_path(path)
    if not place.exists():
        return None
    try:
        content = read_json(place)
    except DrtkError:
        return None
    return content if is_manifest(content) else None

"""How deep was looked for answers when candidates were labelled: what the manifest beside the labels says."""

from __future__ import annotations

from typing import Any

from drtk.errors import UsageError
from drtk.io.manifest import is_manifest, manifest_path, read_json
from drtk.io.streams import is_stream

MAKER = "rerank-queries label"  # "program" of its manifests


def label_depth(source: str, *, given: int | None, otherwise: int) -> int:
    """The rank in the labels of `source` beyond which no answer was looked for.

    given: what --depth says; otherwise: where neither it nor a manifest says anything (stdin, files joined with cat)
    Raises UsageError where both say something, and not the same.
    """
    noted = None if is_stream(source) else _noted(source)
    if noted is not None and given not in (None, noted):
        raise UsageError(f"--depth {given}: {source} was labelled with --depth {noted}")
    return next(depth for depth in (noted, given, otherwise) if depth is not None)


def _noted(source: str) -> int | None:
    path = manifest_path(source)
    if not path.is_file():
        return None
    content: Any = read_json(path)
    if not is_manifest(content) or content.get("program") != MAKER:
        return None
    depth = content["settings"].get("depth")
    return depth if isinstance(depth, int) else None

"""From embeddings folders to what an index is built of, and what its meta.json must know about them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from drtk.data.embeddings import KIND, read_shards
from drtk.errors import MismatchError
from drtk.indexing import FACTORY, INDEXES
from drtk.indexing.base import Vectors
from drtk.runtime.manifest import Manifest, read_manifest
from drtk.runtime.progress import warn
from drtk.runtime.streams import is_stream


def index_class(kind: str) -> Any:
    """Return the class of an index type: a type of drtk, or a faiss factory string.

    Raises UsageError for a type that is neither.
    """
    if kind in INDEXES:
        return INDEXES.load(kind)
    module, _, attribute = FACTORY.partition(":")
    engine = getattr(import_module(module), attribute)
    engine.check_kind(kind)
    return engine


def encoder_differences(one: Manifest, other: Manifest) -> list[str]:
    """Return the names of the differences between the encoders of two folders; [] if their vectors are comparable.

    Entries that only one manifest has (earlier versions recorded fewer) are not compared.
    """
    mine, theirs = one.get("encoder"), other.get("encoder")
    if not mine or not theirs:
        return []  # vectors made elsewhere: only their dimension can be checked
    if mine.get("digest", mine) != theirs.get("digest", theirs):
        return ["weights or pooling"]
    found = [name for name in ("config", "tokenizer") if mine.get(name) and theirs.get(name) not in (None, mine[name])]
    recipes = [each.get("recipe") or {} for each in (mine, theirs)]
    shared = recipes[0].keys() & recipes[1].keys()
    return found + sorted(name.replace("_", " ") for name in shared if recipes[0][name] != recipes[1][name])


def _passage_differences(one: Manifest, other: Manifest) -> list[str]:
    """Return in what two embeddings folders of passages differ: `encoder_differences`, and the options of encode.

    Prompt, length and title are compared as they were used, not as the model folder recommends them.
    """
    used = [each.get("encoding") or {} for each in (one, other)]
    shared = {"passage_prompt", "passage_length", "title"} & used[0].keys() & used[1].keys()
    found = [name for name in encoder_differences(one, other) if name.replace(" ", "_") not in shared]
    return found + sorted(name.replace("_", " ") for name in shared if used[0][name] != used[1][name])


def wants_unit_length(encoder: dict[str, Any] | None) -> bool:
    """Whether vectors of an encoder must be brought to length 1 before inner products are taken (cosine)."""
    return encoder is not None and encoder.get("similarity") == "cosine" and not encoder.get("normalized", False)


def open_embeddings(folders: Sequence[str]) -> tuple[Vectors, dict[str, Any]]:
    """The vectors of embeddings folders (parts of one encoding), and {"encoder", "corpus", "dimension"}.

    Raises MismatchError for folders that are unfinished, of other kinds, of queries, or of more than one encoder.
    """
    manifests = [
        read_manifest(folder, kind=KIND, encoder=dict | None, encoding=dict | None, part=dict | None, settings=dict)
        for folder in folders
    ]
    for folder, manifest in zip(folders, manifests, strict=True):
        if manifest.get("role", "passage") != "passage":
            held = {"pair": "pairs"}.get(manifest["role"], "queries")
            raise MismatchError(f"{folder}: holds vectors of {held}; an index is made of passages")
        if differences := _passage_differences(manifest, manifests[0]):
            raise MismatchError(
                f"{folder}: was made by another encoder than {folders[0]}, or with other options (different "
                f"{', '.join(differences)}); encode both alike"
            )
    _check_parts(folders, manifests)
    encoder = manifests[0].get("encoder")
    shards = [shard for folder in folders for shard in read_shards(folder) if shard.rows]
    vectors = Vectors(shards, unit=wants_unit_length(encoder))
    sources = {manifest.get("settings", {}).get("source") for manifest in manifests}
    corpus = lasting_path(sources.pop()) if len(sources) == 1 else None
    return vectors, {"encoder": encoder, "corpus": corpus, "dimension": vectors.dimension, "metric": "inner product"}


def _check_parts(folders: Sequence[str], manifests: Sequence[Manifest]) -> None:
    """Raises MismatchError for the same part twice; warns where a part is missing."""
    parts = [manifest.get("part") or {"number": 1, "of": 1} for manifest in manifests]
    of = max(part["of"] for part in parts)
    seen: dict[tuple[int, int], str] = {}
    for folder, part in zip(folders, parts, strict=True):
        if part["of"] > 1 and seen.setdefault((part["number"], part["of"]), folder) != folder:
            raise MismatchError(
                f"{folder}: is part {part['number']} of {part['of']}, as {seen[part['number'], part['of']]} is"
            )
    if len(folders) > 1 and len(folders) < of:
        warn(f"{len(folders)} of {of} parts of an encoding are indexed")


def lasting_path(source: str | None) -> str | None:
    """A file as it can be found from another folder; None for stdin and pipes, or where it is not there."""
    if not source or is_stream(source) or not Path(source).exists():
        return None
    return os.path.abspath(source)

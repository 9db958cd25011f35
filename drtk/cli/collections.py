"""Replace collections in the arguments of a command by the files of the collections."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drtk.errors import UsageError

if TYPE_CHECKING:
    from drtk.data.collection import Part

_OPTIONS: dict[str, Part] = {"corpus": "corpus", "queries": "queries", "answers": "queries", "qrels": "qrels"}
_PROVIDED = {  # by --data
    "mine-negatives": ("corpus", "queries", "qrels"),
    "train-retriever": ("corpus", "queries"),
    "train-reranker": ("corpus", "queries"),
}
_READS_DEV_FOLDER = ("export", "pretrain", "train-retriever", "train-reranker")
_POSITIONAL = ("source", "sources", "passages", "paths")
_READS_QUERIES = ("search", "expand-queries")
_READS_OTHERS = ("import", "score", "rerank", "read", "train-generator", "validate")  # examples, runs, folders of files
_SPLITS = {"mine-negatives": "train", "train-reranker": "train", "fuse": "dev"}  # others: test


def resolve_collections(command: str, given: dict[str, Any], data: str | None) -> dict[str, Any]:
    """Return the arguments `given` to a command, with files in place of collections (see `resolve_collection_file`).

    data: collection that provides the corpus, queries and judgments that are not given
    """
    given = dict(given)
    settings: dict[str, Any] = {key: value for key, value in given.items() if is_dataclass(value)}
    split = _get_split(command, given)
    if data is not None:
        from drtk.data.collection import is_collection

        if not is_collection(data):
            raise UsageError(f"--data {data}: not a collection; give a BEIR folder, irds:ID or hf:NAME")
    trains_list_reranker = any(getattr(value, "kind", None) == "hlatr" for value in settings.values())
    provided = ("qrels",) if trains_list_reranker else _PROVIDED.get(command, ())
    for name, part in _OPTIONS.items():
        if name in given:
            value = given[name]
            if value is None and name in provided:
                value = data
            if command != "eval" or value is None or not Path(value).is_dir():  # eval takes folders of collections
                given[name] = _resolve_file(value, part, split)
    if command in _READS_DEV_FOLDER and (dev := given.get("dev")) is not None and not Path(dev).is_dir():
        from drtk.data.collection import copy_dev_set

        given["dev"] = copy_dev_set(dev)
    for key, value in settings.items():
        known = {name: file for name in _OPTIONS if isinstance(file := getattr(value, name, None), str)}
        given[key] = replace(
            value, **{name: _resolve_file(file, _OPTIONS[name], split) for name, file in known.items()}
        )
    if (input_part := _get_positional_part(command, given, settings)) is not None:
        for name in _POSITIONAL:
            if isinstance(value := given.get(name), list):
                given[name] = [_resolve_file(item, input_part, split) for item in value]
            elif value is not None:
                given[name] = _resolve_file(value, input_part, split)
    return given


def _resolve_file(source: str | None, part: Part, split: str) -> str | None:
    """Resolve a collection; return a regular file unchanged, without importing readers."""
    if source is None or source == "-" or Path(source).is_file():
        return source
    from drtk.data.collection import resolve_collection_file

    return resolve_collection_file(source, part, split=split)


def _get_split(command: str, given: dict[str, Any]) -> str:
    if command == "search" and given.get("tune"):
        return "dev"
    return getattr(given.get("settings"), "split", None) or _SPLITS.get(command, "test")


def _get_positional_part(command: str, given: dict[str, Any], settings: dict[str, Any]) -> Part | None:
    """Return the part of a collection that a command reads as input: "corpus", "queries" or "qrels"; None for none."""
    if command in _READS_OTHERS:
        return None
    kind = next((item.kind for item in settings.values() if hasattr(item, "kind")), None)
    if command == "convert":
        parts: dict[str | None, Part] = {"passages": "corpus", "queries": "queries", "qrels": "qrels"}
        return parts.get(kind)
    return "queries" if command in _READS_QUERIES or given.get("role") == "query" else "corpus"

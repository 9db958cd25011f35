"""Manifests (meta.json): the command, settings, inputs and files of an output."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson

from drtk import __version__
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.runtime.atomic import get_file_manifest_path, write_json
from drtk.runtime.integrity import (
    _DAMAGE_ADVICE,
    add_digest,
    check_object,
    compute_content_digest,
    find_changed_files,
    is_changed,
    list_files,
    read_json,
    read_object,
)
from drtk.runtime.model_card import CARD, format_model_card
from drtk.runtime.streams import STANDARD, digest_bytes, digest_file, get_source_name, is_replaceable, is_stream

Manifest = dict[str, Any]
FOLDER_MANIFEST = "meta.json"
UNFINISHED_MANIFEST = "meta.json.part"
UNFINISHED = "unfinished; run its command again with `force`, or with `resume` if it has that option"
SOURCES = ("source", "sources")  # settings that name the files of records; their content is compared, not paths
_UNUSED_FILES = ("log.jsonl", "README.md")  # files of a model folder that are not needed to load it
_WEIGHTS = (".safetensors", ".bin", ".onnx", ".xml")  # .xml: OpenVINO
_HIDDEN = re.compile(r"(^|/)\.|\.(part|tmp)(/|$)")
_MODEL_CONFIGS = ("config.json", "modules.json")
# At the top of a model folder, in a tower, or in a folder of sentence-transformers, such as 1_Pooling.
_MODEL_FILE = re.compile(
    r"((query|passage)/)?((\w+_)?\d+_[A-Z]\w*/)?"
    r"([^/]+\.(safetensors|json|model)|pytorch_model[^/]*\.bin|vocab\.[^/]+|merges\.txt)"
)
_OUTPUT_RECORD = re.compile(r"[^/]\.(meta|part)\.json$")  # manifest or journal of an output in the folder
# Settings whose values are no paths, even if a file of that name exists.
_NON_PATH_SETTINGS = {
    *("contrastive", "dev_measure", "device", "exclude", "field", "format", "heading", "kind"),
    *("language", "loss", "measure", "measures", "method", "passage_prompt", "policy", "pooling"),
    *("prefix", "prompt", "query_prompt", "role", "select", "separator", "split"),
    *("tag", "task", "tasks", "title", "to"),
}
_CACHED_BYTES = 1 << 20  # the digests of larger input files are cached
_RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "faiss", "bm25s", "nltk", "numpy", "ir_measures")


def get_manifest_path(output: str | Path) -> Path:
    """Return the path of the manifest of an output: inside a folder, or next to a file."""
    path = Path(output)
    return path / FOLDER_MANIFEST if path.is_dir() else get_file_manifest_path(path)


def create_manifest(kind: str, settings: Mapping[str, Any], *, program: str = "") -> Manifest:
    """Return a manifest with the entries that are known at the start of a run.

    kind: kind of the output; program: name of the command
    """
    return {
        "kind": kind,
        "program": program,
        "command": shlex.join(["drtk", *sys.argv[1:]]),
        "settings": dict(settings),
        "inputs": [],
        "counts": {},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def complete_manifest(
    manifest: Manifest, *, inputs: list[dict[str, Any]], counts: Mapping[str, Any], seconds: float
) -> Manifest:
    """Add the entries that are known at the end of a run; return the complete manifest."""
    return manifest | {
        "inputs": inputs,
        "counts": dict(counts),
        "versions": list_versions(),
        "seconds": round(seconds, 3),
    }


def list_versions() -> dict[str, str]:
    """Return the versions of drtk, Python, and the imported libraries among `_RECORDED_PACKAGES`."""
    versions = {"drtk": __version__, "python": sys.version.split()[0]}
    for module in _RECORDED_PACKAGES:
        if module in sys.modules:
            try:
                versions[module] = str(getattr(sys.modules[module], "__version__", None) or version(module))
            except PackageNotFoundError:
                continue
    return versions


def has_unfinished_part(folder: Path) -> bool:
    """Return whether an interrupted run left NAME.part or NAME.part.old next to the folder NAME."""
    return Path(f"{folder}.part").is_dir() or Path(f"{folder}.part.old").is_dir()


def read_manifest(folder: str | Path, *, kind: str | None = None, **keys: Any) -> Manifest:
    """Read the manifest of a finished folder.

    kind: the expected kind of folder; if given, also compare the files of the folder with the manifest (`check_folder`)
    keys: types of required entries (see `read_object`)
    Raises MismatchError for a file, for an unfinished or damaged folder, a folder of another kind, or one that drtk did
    not make; DrtkError if the folder or a required entry is missing, or meta.json cannot be read.
    """
    path = Path(folder)
    if not path.exists():
        if has_unfinished_part(path):
            raise MismatchError(f"{folder}: is {UNFINISHED}")
        raise DrtkError(f"{folder}: no such folder")
    if not path.is_dir():
        raise MismatchError(f"{folder}: is a file; expected a folder" + (f" of kind '{kind}'" if kind else ""))
    if not (path / FOLDER_MANIFEST).exists():
        unfinished = (path / UNFINISHED_MANIFEST).exists()
        reason = f"is {UNFINISHED}" if unfinished else "was not made by drtk; give another folder"
        raise MismatchError(f"{folder}: has no {FOLDER_MANIFEST}; the folder {reason}")
    manifest = read_object(path / FOLDER_MANIFEST, kind=str)
    if kind is not None and manifest["kind"] != kind:
        raise MismatchError(f"{folder}: is of kind '{manifest['kind']}'; expected '{kind}'")
    if kind is not None:
        check_folder(path, manifest)
    check_object(manifest, str(path / FOLDER_MANIFEST), **keys)
    return manifest


def read_manifest_if_any(folder: Path) -> Manifest:
    """Read the meta.json of a folder, which may be from another program; return {} if there is none.

    Raises DrtkError if it is damaged.
    """
    path = folder / FOLDER_MANIFEST
    if not path.exists():
        return {}
    manifest = read_object(path)
    if not manifest:
        raise DrtkError(f"{path}: is empty; {_DAMAGE_ADVICE}")
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the meta.json of a folder, with size, time and digest of every file. This marks the folder as finished.

    For a folder of kind "model", also write its model card.
    """
    if manifest["kind"] == "model":
        (folder / CARD).write_text(format_model_card(folder, manifest), encoding="utf-8")
    files = {name: _record_file(folder / name) for name in list_output_files(folder)}
    write_json(folder / FOLDER_MANIFEST, add_digest(manifest | {"files": files}))


def _record_file(path: Path) -> dict[str, Any]:
    if not path.is_file():  # a link to a folder, or a broken one: not made by drtk
        return {}
    status = path.stat()
    return {"bytes": status.st_size, "digest": digest_file(path), "mtime_ns": status.st_mtime_ns}


def list_output_files(folder: Path) -> list[str]:
    """Return the sorted relative paths of the files in a folder, except its manifest and journals."""
    return [name for name in list_files(folder) if name != FOLDER_MANIFEST and not name.endswith(".json.part")]


def find_damage(folder: Path, manifest: Manifest, *, by_time: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (relative path, problem) for each file that differs from the manifest in size or content, meta.json first.

    The model card is not compared.
    by_time: whether files with the recorded modification time count as unchanged
    """
    if is_changed(manifest):
        yield FOLDER_MANIFEST, "its content changed after it was written"
    is_same = _is_same_file if by_time else lambda path, entry: digest_file(path) == entry.get("digest")
    for name, problem in find_changed_files(folder, manifest.get("files", {}), is_same=is_same):
        if manifest.get("kind") != "model" or name != CARD:
            yield name, problem


def check_folder(folder: Path, manifest: Manifest) -> None:
    """Compare a folder with its manifest: presence and size of all files; in a model folder, only the size of weights.

    Raises MismatchError for a difference.
    """
    if not is_manifest(manifest):  # of another program
        return
    for name, problem in find_changed_files(folder, manifest.get("files", {})):
        is_edited = problem != "is missing" and not name.endswith((*_WEIGHTS, FOLDER_MANIFEST))
        if manifest.get("kind") == "model" and (is_edited or name in _UNUSED_FILES):
            continue
        program = f" with drtk {manifest['program']}" if manifest.get("program") else ""
        raise MismatchError(
            f"{folder / name}: {problem}; rebuild the folder{program} (drtk validate {folder} lists all damage)"
        )


def is_current(output: str, settings: Mapping[str, Any], *, program: str = "") -> bool:
    """Return whether `program` made this output with the same settings from the same inputs.

    An output made from stdin or a pipe is never up to date, because its input cannot be compared.
    """
    return find_changes(output, settings, program=program) == []


def find_changes(output: str, settings: Mapping[str, Any], *, program: str = "") -> list[str] | None:
    """Return the settings, inputs and output files that changed since an output was made.

    None if the output or its manifest is missing; only the manifest if it is damaged; only "drtk PROGRAM" if another
    command made the output.
    program: name of the command; "": any
    """
    path = get_manifest_path(output)
    if not path.exists() or not Path(output).exists():
        return None
    manifest = load_output_manifest(output)
    if manifest is None:
        return [str(path)]
    if program and manifest.get("program") != program:
        return [f"drtk {program}"]
    before, now = manifest["settings"], to_json_values(settings)
    changed = sorted(key for key in before | now if (key in before, before.get(key)) != (key in now, now.get(key)))
    if "bytes" in manifest and Path(output).stat().st_size != manifest["bytes"]:
        changed.append(output)
    if Path(output).is_dir():
        changed += [str(Path(output, name)) for name, _ in find_damage(Path(output), manifest, by_time=True)]
    return changed + [get_source_name(entry["path"]) for entry in manifest["inputs"] if not is_unchanged(entry, output)]


def load_output_manifest(output: str | Path) -> Manifest | None:
    """Return the manifest of an output; None if there is none, it is damaged, or another program wrote it."""
    try:
        content = read_json(get_manifest_path(output))
    except DrtkError:
        return None
    return content if is_manifest(content) else None


def is_manifest(content: Any) -> bool:
    """Return whether the content of a JSON file is a manifest of drtk."""
    return (
        isinstance(content, dict)
        and isinstance(content.get("settings"), dict)
        and str(content.get("command", "")).split(" ")[0] == "drtk"
        and isinstance(content.get("inputs"), list)
        and all(isinstance(item, dict) and isinstance(item.get("path"), str) for item in content["inputs"])
    )


def to_json_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings to JSON values, which can be compared with the settings in a manifest."""
    return orjson.loads(orjson.dumps(dict(settings), option=orjson.OPT_SERIALIZE_NUMPY))


def is_unchanged(entry: Mapping[str, Any], output: str = "") -> bool:
    """Return whether an input still matches its manifest entry, by size, and by time or content; False for streams.

    output: file that is ignored in a folder, with its manifest
    """
    path = Path(entry["path"])
    if is_from_stream(entry) or is_stream(entry["path"]) or not path.exists():
        return False
    if path.is_dir():
        files, names = entry.get("files", {}), {name for name, _ in _list_folder(path)}
        own_name = os.path.relpath(os.path.realpath(output), path.resolve())
        ignored = {own_name, f"{own_name}.meta.json"}
        names -= ignored
        return names == files.keys() - ignored and all(_is_same_file(path / name, files[name]) for name in names)
    return _is_same_file(path, entry)


def _is_same_file(path: Path, entry: Mapping[str, Any]) -> bool:
    status = path.stat()
    if status.st_size != entry.get("bytes"):
        return False
    digest = entry.get("digest")  # None if the file was not read to the end
    return status.st_mtime_ns == entry.get("mtime_ns") or (digest is not None and digest_file(path) == digest)


def is_from_stream(entry: Mapping[str, Any]) -> bool:
    """Return whether a manifest entry is of stdin or a pipe, which have no modification time."""
    return "bytes" in entry and "mtime_ns" not in entry


def find_inputs(settings: Mapping[str, Any], known: Iterable[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """Return manifest entries of existing files and folders in `settings`; values: PATH, NAME=PATH or a list of these.

    Streams are omitted, and entries of files have no digest.
    known: entries made earlier, which are used unchanged
    """
    earlier = {Path(entry["path"]): entry for entry in known}
    paths = _find_paths(settings)
    return [earlier[Path(path)] | {"path": path} if Path(path) in earlier else _describe_input(path) for path in paths]


def check_outputs(outputs: Mapping[str, str | None], settings: Mapping[str, Any]) -> None:
    """Raise UsageError if two options name the same output, or an output is an input file in `settings`.

    outputs: option -> path, or None if not given
    """
    places: dict[str, str] = {}
    for option, target in outputs.items():
        if not target or (target != STANDARD and not is_replaceable(target) and not os.path.isdir(target)):
            continue  # not given, or a device or pipe, which accepts both
        other = places.setdefault(target if target == STANDARD else os.path.realpath(target), option)
        if other != option:
            raise UsageError(f"{other} and {option}: both write {target}; give different files")
    for option, target in outputs.items():
        if target and target != STANDARD and os.path.isfile(target):
            for path in _find_paths(settings):
                if os.path.samefile(path, target):
                    raise UsageError(f"{option} {target}: would overwrite the input {path}; give another file")


def _find_paths(settings: Mapping[str, Any]) -> list[str]:
    settings_values = [value for name, value in settings.items() if name not in _NON_PATH_SETTINGS]
    values = [item for value in settings_values for item in (value if isinstance(value, (list, tuple)) else [value])]
    paths = [value if os.path.exists(value) else value.partition("=")[2] for value in values if isinstance(value, str)]
    return [value for value in paths if os.path.exists(value) and not is_stream(value)]


def find_folders(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return manifest entries of the folders in `settings`, except the source of the records."""
    lookups = {name: value for name, value in settings.items() if name not in SOURCES}
    return [entry for entry in find_inputs(lookups) if "files" in entry]


def _describe_input(path: str) -> dict[str, Any]:
    if os.path.isdir(path):
        return describe_folder(path)
    status = os.stat(path)
    return {"path": path, "bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "digest": None}


def _list_folder(folder: Path) -> list[tuple[str, os.stat_result]]:
    """Return (name, status) of the files that determine the content of a folder, sorted by name.

    - folder made by drtk: meta.json and the files that it records, except log.jsonl and README.md
    - other model folder: weights, configurations and tokenizer files
    - any other folder: all files, except hidden and unfinished ones
    """
    if recorded := _read_recorded_files(folder):
        names = {FOLDER_MANIFEST, *recorded}.difference(_UNUSED_FILES)
        return [(name, (folder / name).stat()) for name in sorted(names) if (folder / name).is_file()]
    names = {str(item.relative_to(folder)) for item in folder.rglob("*") if item.is_file()}
    names = {name for name in names if not _HIDDEN.search(name)}
    if any((folder / name).exists() for name in _MODEL_CONFIGS):
        names = {name for name in names if _MODEL_FILE.fullmatch(name) and not _OUTPUT_RECORD.search(name)}
    return [(name, (folder / name).stat()) for name in sorted(names)]


def describe_folder(folder: str | Path) -> dict[str, Any]:
    """Return the manifest entry of an input folder: its digest, and size, time, digest of the files (`_list_folder`).

    Files have digests only in models and folders made by drtk. They are cached, so that a large file is read once.
    """
    path = Path(folder)
    has_digests = any((path / name).exists() for name in (FOLDER_MANIFEST, *_MODEL_CONFIGS))
    recorded = _read_recorded_files(path)
    files = {}
    for name, status in _list_folder(path):
        entry: dict[str, Any] = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "digest": None}
        if has_digests:
            digest_of = digest_file if status.st_size < _CACHED_BYTES else compute_content_digest
            entry["digest"] = _get_recorded_digest(recorded.get(name), status) or digest_of(path / name)
        files[name] = entry
    contents = {name: entry["digest"] or entry for name, entry in files.items()}
    digest = digest_bytes(orjson.dumps(contents))
    return {"path": str(folder), "digest": digest, "files": files}


def _read_recorded_files(folder: Path) -> dict[str, Any]:
    """Return the entry "files" of the manifest of a folder that drtk made; {} for any other folder."""
    return (load_output_manifest(folder) or {}).get("files") or {}


def _get_recorded_digest(entry: Any, status: os.stat_result) -> str | None:
    """Return the digest that meta.json records for a file; None if there is none, or size or time have changed."""
    if not isinstance(entry, dict) or not isinstance(entry.get("digest"), str):
        return None
    is_same = (entry.get("bytes"), entry.get("mtime_ns")) == (status.st_size, status.st_mtime_ns)
    return entry["digest"] if is_same else None


def add_folders(inputs: list[dict[str, Any]], entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the manifest entries `inputs`, followed by those of `entries` that are other, finished folders."""
    known = {Path(entry["path"]) for entry in inputs}
    folders = [entry for entry in entries if "files" in entry and Path(entry["path"]) not in known]
    return inputs + [entry for entry in folders if not (Path(entry["path"]) / UNFINISHED_MANIFEST).exists()]


class Clock:
    """Stopwatch for a run, in seconds; `before` is the duration of earlier, interrupted sessions."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self.before = 0.0

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self._start

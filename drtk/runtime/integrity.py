"""Check JSON files, and the sizes and digests of files in folders and in drtk's cache."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from drtk.errors import DrtkError
from drtk.runtime.atomic import sync, sync_tree, write_json
from drtk.runtime.progress import log
from drtk.runtime.streams import digest_bytes, digest_file

_DAMAGE_ADVICE = "the file is damaged; rebuild it or restore a copy"
_TYPE_NAMES = {
    str: "a string",
    int: "an integer",
    list: "a list",
    dict: "an object",
    type(None): "null",
    bool: "a boolean",
}


def read_json(path: Path, *, advice: str = _DAMAGE_ADVICE) -> Any:
    """Return the content of a JSON file. Raises DrtkError if it cannot be read; the message for damaged JSON ends with `advice`."""
    try:
        return orjson.loads(path.read_bytes())
    except OSError as error:
        raise DrtkError(f"{path}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise DrtkError(f"{path}: not JSON: {error}; {advice}") from error


def read_object(path: Path, **keys: Any) -> dict[str, Any]:
    """Return the JSON object in a file.

    keys: types of the required keys; `str | None` if the key may be missing
    Raises DrtkError if the file cannot be read, is not an object, or a key is missing or has another type.
    """
    return check_object(read_json(path), str(path), **keys)


def check_object(content: Any, place: str, **keys: Any) -> dict[str, Any]:
    """Return `content` if it is a JSON object with the required keys (see `read_object`). Raises DrtkError otherwise.

    place: name of the file, for errors
    """
    if not isinstance(content, dict):
        raise DrtkError(f"{place}: expected a JSON object, got {_describe_type(type(content))}; {_DAMAGE_ADVICE}")
    for key, kind in keys.items():
        value = content.get(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, bool | None)):
            got = f"got {_describe_type(type(value))}" if key in content else "but it is missing"
            expected = " or ".join(map(_describe_type, getattr(kind, "__args__", (kind,))))
            raise DrtkError(f"{place}: expected '{key}' to be {expected}, {got}; {_DAMAGE_ADVICE}")
    return content


def _describe_type(kind: type) -> str:
    return _TYPE_NAMES.get(kind, kind.__name__)


CACHE_MANIFEST = "meta.json"  # of a cache folder
MANIFEST_DIGEST = "manifest_digest"  # the entry of a JSON file that holds the digest of all other entries


def list_files(folder: Path) -> list[str]:
    """Return the sorted relative paths of all files and symbolic links below a folder."""
    return sorted(str(item.relative_to(folder)) for item in folder.rglob("*") if item.is_symlink() or not item.is_dir())


def find_changed_files(
    folder: Path, record: Mapping[str, Any], *, is_same: Callable[[Path, Mapping[str, Any]], bool] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield (relative path, problem) for each file that is missing or differs from its entry {"bytes", …} in `record`.

    is_same: whether a file of the recorded size has the recorded content; None: compare only sizes
    """
    if not isinstance(record, dict) or not all(isinstance(entry, dict) for entry in record.values()):
        yield "meta.json", "does not record file sizes"
        return
    for name, entry in record.items():
        if "bytes" not in entry:  # a link, which drtk does not make
            continue
        try:
            size = (folder / name).stat().st_size
            if size != entry["bytes"]:
                yield name, f"has {size:,} bytes, expected {entry['bytes']:,}"
            elif is_same is not None and not is_same(folder / name, entry):
                yield name, "its content changed after it was written"
        except FileNotFoundError:
            yield name, "is missing"
        except OSError as error:
            yield name, f"cannot be read: {error.strerror}"


def add_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON file with the digest of its other entries, to detect later changes."""
    entries = {name: value for name, value in content.items() if name != MANIFEST_DIGEST}
    data = orjson.dumps(entries, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    return entries | {MANIFEST_DIGEST: digest_bytes(data)}


def is_changed(content: Mapping[str, Any]) -> bool:
    """Return whether the content of a JSON file was changed after `add_digest`."""
    return add_digest(content) != content


def hash_id(id: str) -> int:
    """Return a 64-bit hash of an id."""
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "little")


def get_cache_folder() -> Path:
    """Return drtk's cache folder: $DRTK_CACHE, or by default drtk in the user's cache folder."""
    if folder := os.environ.get("DRTK_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drtk"


def compute_content_digest(path: Path) -> str:
    """Return the digest of a file or folder. Digests of files are cached by path, size and modification time."""
    if path.is_dir():
        parts = "".join(
            f"{item.name}\0{compute_content_digest(item)}\0" for item in sorted(path.rglob("*")) if item.is_file()
        )
        return digest_bytes(parts.encode())
    status = path.stat()
    name = digest_bytes(str(path.resolve()).encode())
    cached = get_cache_folder() / "digests" / f"{name}.json"
    current = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
    with contextlib.suppress(DrtkError):  # missing or damaged
        entry = read_object(cached, digest=str)
        if entry | current == entry:
            return str(entry["digest"])
    digest = digest_file(path)
    with contextlib.suppress(DrtkError, OSError):  # the cache cannot be written
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_json(cached, current | {"digest": digest})
    return digest


def ensure_cache_folder(
    folder: Path,
    build: Callable[[Path], Mapping[str, Any]],
    *,
    task: str,
    is_usable: Callable[[Mapping[str, Any]], bool] = lambda manifest: True,
) -> bool:
    """Build a cache folder unless it exists; return whether it was built. Wait for another process that is building it.

    A folder whose files have changed in size is rebuilt.
    build: writes the files to a temporary folder, and returns the entries of the manifest, `CACHE_MANIFEST`
    task: what `build` does, for a message, such as "indexing corpus.jsonl"
    is_usable: whether an existing folder with this manifest is used
    Raises the errors of `build`, and DrtkError for an OSError.
    """

    def is_ready() -> bool:
        manifest = _read_cache_manifest(folder)
        return manifest is not None and is_usable(manifest)

    try:
        if is_ready():
            return False
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock_cache_folder(folder, task):
            if is_ready():
                return False
            if folder.exists() and _read_cache_manifest(folder) is None:
                log(f"{folder}: is damaged; rebuilding it")
            making = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}-making-"))
            try:
                manifest = build(making)
                sizes = {name: {"bytes": (making / name).stat().st_size} for name in list_files(making)}
                write_json(making / CACHE_MANIFEST, {**manifest, "files": sizes})
                sync_tree(making)
                if is_ready():  # built by another process, without locks
                    return False
                shutil.rmtree(folder, ignore_errors=True)
                making.rename(folder)
                sync(folder.parent)
            finally:
                shutil.rmtree(making, ignore_errors=True)
    except OSError as error:
        place = error.filename or folder
        raise DrtkError(f"{place}: {error.strerror or error}; set $DRTK_CACHE to another folder") from error
    return True


def _read_cache_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a cache folder; None if it is missing or damaged, or a file has another size."""
    try:
        manifest = read_object(folder / CACHE_MANIFEST, files=dict)
    except DrtkError:
        return None
    return None if any(find_changed_files(folder, manifest["files"])) else manifest


@contextlib.contextmanager
def _lock_cache_folder(folder: Path, task: str) -> Iterator[None]:
    """Lock a cache folder while it is built; remove the temporary folders of killed processes."""
    with open(f"{folder}.lock", "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"waiting for another process, which is {task}")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield  # some network file systems have no locks; two processes may then do the same work
            return
        for left in folder.parent.glob(f"{folder.name}-making-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield

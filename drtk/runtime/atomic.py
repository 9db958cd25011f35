"""Replace files atomically and flush them to disk, so that files stay usable after a kill or a power failure.

An unfinished output NAME is written as NAME.part (its part), and renamed when it is complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import orjson

from drtk.errors import DrtkError

REPLACES = "replaces"  # entry in the manifest of NAME.part: the file that `commit` may replace (see `identify_file`)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():  # some network file systems cannot flush folders
            raise
    finally:
        os.close(handle)


def set_default_permissions(path: Path) -> None:
    """Set the permissions of a file by the umask, which safetensors ignores."""
    umask = os.umask(0o077)  # the umask can only be read by setting it
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def sync_tree(folder: Path) -> None:
    """Flush `folder`, and all files and folders below it, to disk."""
    for item in folder.rglob("*"):
        if not item.is_symlink() and (item.is_file() or item.is_dir()):
            sync(item)
    sync(folder)


def write_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file atomically; `write` gets an open temporary file. Raises DrtkError if it cannot be written."""
    part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(part, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync(path.parent)
    except OSError as error:
        raise DrtkError(f"{path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # it is gone if it was renamed
            part.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file atomically, as `write_file` does."""
    write_file(path, lambda file: file.write(data))


def write_json(path: Path, content: Any) -> None:
    """Write a small JSON file atomically, as `write_file` does."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
    write_bytes(path, orjson.dumps(content, option=options))


def get_file_manifest_path(file: Path) -> Path:
    """Return the path of a file's manifest, NAME.meta.json."""
    return file.with_name(file.name + ".meta.json")


def commit(part: Path, final: Path, manifest: Mapping[str, Any] | None = None) -> None:
    """Rename `part`, a finished NAME.part, to `final`, and write its manifest, if any, next to it.

    `part` must be flushed to disk. The manifest is written before the rename, so that `recover` can complete both.
    Raises OSError and DrtkError.
    """
    if manifest is None:
        os.replace(part, final)
    else:
        manifest = {**manifest, "bytes": part.stat().st_size}
        write_json(get_file_manifest_path(part), {**manifest, REPLACES: identify_file(final)})
        _complete_commit(part, final, manifest)
    sync(final.parent)


def identify_file(output: Path) -> dict[str, int] | None:
    """Return the size and modification time of a file, to detect whether it is replaced; None if it does not exist."""
    try:
        status = output.stat()
    except OSError:
        return None
    return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def _complete_commit(part: Path, final: Path, manifest: Mapping[str, Any]) -> None:
    get_file_manifest_path(final).unlink(missing_ok=True)  # it describes the file that is replaced
    if part.exists():
        os.replace(part, final)
    for path in (final.with_name(final.name + ".part.json"), *list_temporary_files(final)):
        path.unlink(missing_ok=True)
    write_json(get_file_manifest_path(part), manifest)  # without the entry REPLACES
    os.replace(get_file_manifest_path(part), get_file_manifest_path(final))


def list_temporary_files(final: Path) -> list[Path]:
    """Return the temporary files that a killed run left next to `final`."""
    return [Path(name) for name in glob.glob(glob.escape(f"{final}.part") + ".*.tmp")]


def recover(final: Path) -> bool:
    """Complete an interrupted `commit`; return whether one was completed.

    An existing `final` is replaced only if it has not changed since the commit began.
    """
    part = final.with_name(final.name + ".part")
    part_manifest = get_file_manifest_path(part)
    if not part_manifest.exists():
        return False
    finished = part if part.exists() else final
    with contextlib.suppress(FileNotFoundError), open(finished, "rb") as file:
        if not lock(file.fileno()):
            return False  # another run is writing it
        try:
            manifest = orjson.loads(part_manifest.read_bytes())
            size, replaces = manifest["bytes"], manifest.pop(REPLACES, None)
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return False
        if size == os.fstat(file.fileno()).st_size:
            if finished == part and identify_file(final) not in (None, replaces):
                return False
            _complete_commit(part, final, manifest)
            sync(final.parent)
            return True
    part_manifest.unlink(missing_ok=True)  # stale: the user removed or replaced the part
    return False


def lock(handle: int) -> bool:
    """Lock an open file or folder; return False if another process has locked it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        return error.errno != errno.EACCES  # some network file systems have no locks; continue without one
    return True

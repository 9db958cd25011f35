"""Replace files in one step and flush them to disk, so that a kill or a power failure leaves a usable state."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from drtk.errors import DrtkError

REPLACES = "replaces"  # entry of a part's manifest: the `identity` of the file that the commit may replace


@contextmanager
def delay_interrupts() -> Iterator[None]:
    """Within the block Ctrl-C does nothing; what came then takes effect at its end. Nothing in it may wait for anything.

    A mask of signals would not do: threads that do not have it take the signal, and the main one is interrupted all the same.
    Other threads than the main one are never interrupted, and have nothing to hold back.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield  # None: a handler that Python did not set, and could not set again
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():  # some network file systems cannot flush a folder
            raise
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Flush `folder`, and all files and folders below it, to disk."""
    for item in folder.rglob("*"):
        if not item.is_symlink() and (item.is_file() or item.is_dir()):
            sync(item)
    sync(folder)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the content of a small file in one step. Raises OSError."""
    part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        part.write_bytes(data)
        sync(part)
        os.replace(part, path)
        sync(path.parent)
    finally:
        with contextlib.suppress(OSError):  # gone already if it was renamed
            part.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Replace a small JSON file in one step. Raises DrtkError if it cannot be written."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
    try:
        write_bytes(path, orjson.dumps(content, option=options))
    except OSError as error:
        raise DrtkError(f"{path}: {error.strerror}") from error


def get_file_manifest_path(file: Path) -> Path:
    """Return the path of a file's manifest, NAME.meta.json."""
    return file.with_name(file.name + ".meta.json")


def commit(part: Path, final: Path, manifest: Mapping[str, Any] | None = None) -> None:
    """Rename a finished part to `final` and write its manifest, if any, beside it. Raises OSError and DrtkError.

    The part must be flushed to disk. Its manifest is written beside it before the rename, so `recover` can complete both.
    """
    if manifest is not None:
        manifest = {**manifest, "bytes": part.stat().st_size}
        write_json(get_file_manifest_path(part), {**manifest, REPLACES: identify_file(final)})
    with delay_interrupts():
        _complete_commit(part, final, manifest)
    sync(final.parent)


def identify_file(output: Path) -> dict[str, int] | None:
    """Return the size and modification time of a finished output, which identify it; None without one."""
    try:
        facts = output.stat()
    except OSError:
        return None
    return {"bytes": facts.st_size, "mtime_ns": facts.st_mtime_ns}


def _complete_commit(part: Path, final: Path, manifest: Mapping[str, Any] | None) -> None:
    if manifest is None:
        os.replace(part, final)
        return
    get_file_manifest_path(final).unlink(missing_ok=True)  # it describes the file that is replaced
    if part.exists():
        os.replace(part, final)
    leftovers = [final.with_name(final.name + suffix) for suffix in (".part.json", ".part")]  # journal, first pass
    for left in leftovers + list_temporary_files(final):
        left.unlink(missing_ok=True)
    write_json(get_file_manifest_path(part), manifest)  # without what it may replace
    os.replace(get_file_manifest_path(part), get_file_manifest_path(final))


def list_temporary_files(final: Path) -> list[Path]:
    """Return small files beside the part of `final` that were written and not renamed before a kill."""
    return [Path(name) for name in glob.glob(glob.escape(f"{final}.part") + ".*.tmp")]


def recover(final: Path) -> bool:
    """Complete a `commit` that was killed between its steps; return whether one was completed.

    A file at `final` is replaced only if it is the one that the commit found there.
    """
    for suffix in (".part.new", ".part"):
        part = final.with_name(final.name + suffix)
        waiting = get_file_manifest_path(part)
        if waiting.exists() and _resume_commit(part, final, waiting):
            sync(final.parent)
            return True
    return False


def _resume_commit(part: Path, final: Path, waiting: Path) -> bool:
    finished = part if part.exists() else final
    with contextlib.suppress(FileNotFoundError), open(finished, "rb") as file:
        if not lock(file.fileno()):
            return False  # another run is writing it
        try:
            manifest = orjson.loads(waiting.read_bytes())
            size, replaces = manifest["bytes"], manifest.pop(REPLACES, None)
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return False
        if size == os.fstat(file.fileno()).st_size:
            if finished == part and identify_file(final) not in (None, replaces):
                return False
            with delay_interrupts():
                _complete_commit(part, final, manifest)
            return True
    waiting.unlink(missing_ok=True)  # stale: its part was removed or replaced by hand
    return False


def lock(handle: int) -> bool:
    """Lock an open file or folder; return whether no other process holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        return error.errno != errno.EACCES  # some network file systems have no locks; continue without one
    return True

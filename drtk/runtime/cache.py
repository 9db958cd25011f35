"""drtk's cache folder, and digests of files remembered there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from drtk.errors import DrtkError
from drtk.runtime.atomic import sync, sync_tree, write_json
from drtk.runtime.integrity import MANIFEST_DIGEST, add_digest, is_changed, read_object
from drtk.runtime.streams import digest_file


def hash_of(id: str) -> int:
    """The 64-bit key of an id."""
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "little")


def cache_folder() -> Path:
    """$DRTK_CACHE, or drtk's folder in the user's cache."""
    chosen = os.environ.get("DRTK_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drtk"


def content_digest(path: Path) -> str:
    """The digest of a file or folder; a file's is remembered by name, size and time, so that opening stays instant."""
    if path.is_dir():
        parts = "".join(f"{item.name}\0{content_digest(item)}\0" for item in sorted(path.rglob("*")) if item.is_file())
        return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()
    facts = path.stat()
    name = hashlib.blake2b(str(path.resolve()).encode(), digest_size=16).hexdigest()
    note = cache_folder() / "digests" / f"{name}.json"
    seen = {"bytes": facts.st_size, "mtime_ns": facts.st_mtime_ns}
    with contextlib.suppress(DrtkError):  # missing or damaged: computed again
        known = read_object(note, digest=str)
        if MANIFEST_DIGEST in known and not is_changed(known) and known | seen == known:
            return str(known["digest"])
    digest = digest_file(path)
    with contextlib.suppress(DrtkError, OSError):  # without a cache it is computed each time
        note.parent.mkdir(parents=True, exist_ok=True)
        write_json(note, add_digest(seen | {"digest": digest}))
    return digest


def replace_folder(made: Path, folder: Path) -> None:
    """Move a finished cache folder into place, and remove a damaged one that is there.

    Raises OSError if another process put one there in the meantime.
    """
    if folder.exists():
        old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}-making-"))
        folder.rename(old / folder.name)
        shutil.rmtree(old, ignore_errors=True)
    sync_tree(made)
    made.rename(folder)
    sync(folder.parent)

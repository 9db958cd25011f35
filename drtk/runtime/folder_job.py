"""Write output folders as NAME.part and rename them when they are complete; never replace a folder that drtk did not make."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from drtk.config import check_values, to_dict
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.runtime.atomic import lock, sync, sync_tree, write_json
from drtk.runtime.inputs import InputTracker
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import (
    FOLDER_MANIFEST,
    SOURCES,
    UNFINISHED_MANIFEST,
    Clock,
    Manifest,
    add_folders,
    complete_manifest,
    create_manifest,
    find_folders,
    find_inputs,
    is_from_stream,
    is_manifest,
    is_unchanged,
    list_output_files,
    to_json_values,
    write_manifest,
)
from drtk.runtime.progress import log
from drtk.runtime.sharding import get_rank
from drtk.runtime.streams import digest_file, get_source_name, is_writable

_REMOVE_ADVICE = "the file is damaged; remove the folder, or choose another"


@dataclass
class FolderJob:
    """A run of a command that writes a folder. `begin` creates NAME.part, `finish` adds meta.json and renames it to NAME.

    With `force`, the old folder is kept until the end: it is renamed to NAME.part.old, the new folder to NAME, and the old
    one is deleted. `recover` completes these steps after a kill. With several processes (torchrun), only rank 0 creates,
    checks and finishes the folder.
    command, kind: name of the command and kind of the folder, for the manifest
    resumable: whether the command supports `resume`
    side_files: files with further fields of the input records
    may_differ: names of settings that may change when a run is resumed; changes are logged and recorded
    """

    command: str
    kind: str
    output: str
    settings: dict[str, Any] = field(default_factory=dict)
    resumable: bool = False
    resume: bool = False
    force: bool = False
    side_files: tuple[str, ...] = ()
    may_differ: tuple[str, ...] = ()
    tracker: InputTracker = field(default_factory=InputTracker)
    counts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Of a symbolic link, the target is replaced.
        self._final = Path(self.output)
        if self._final.is_symlink() or self._final.name in ("", ".."):
            self._final = Path(os.path.realpath(self.output))
        self.path = Path(f"{self._final}.part")
        self._unfinished = self.path / UNFINISHED_MANIFEST
        self._old = Path(f"{self._final}.part.old")
        self._clock = Clock()
        self._started = time.time()
        self._manifest = create_manifest(self.kind, self.settings, program=self.command)
        self._lock: int | None = None
        self._is_new = False
        self._is_leader = get_rank() == 0
        self._folders: list[dict[str, Any]] = []

    def record(self, settings: Any, **values: Any) -> None:
        """Check and record the settings, and check the output. It has no effect if the command line has set `settings`.

        Library functions call it, so that they can be used in Python programs.
        """
        if not self.settings:
            check_values(settings)
            self.settings |= to_dict(settings) | values
            self._manifest = create_manifest(self.kind, self.settings, program=self.command)
            self.check()

    def check(self) -> None:
        """Check settings and output before anything is read or loaded, and `recover` a killed run.

        Raises UsageError if the output contains an input, MismatchError if the run to resume had other settings or
        files, DrtkError if the output cannot be written or replaced.
        """
        if not self._is_leader:
            return
        for path in (self._final, self.path):
            if path.exists() and not path.is_dir():
                raise DrtkError(f"{path}: is a file; expected a folder")
        if not (is_writable(self._final) and is_writable(self._final.parent)):
            raise DrtkError(f"{self.output}: Permission denied")
        is_current = self._final.is_dir() and os.path.samefile(self._final, os.curdir)
        if is_current or os.path.ismount(self._final):
            kind = "the current folder" if is_current else "a mount point"
            raise DrtkError(f"{self.output}: is {kind} and cannot be replaced; choose a folder inside it")
        self.recover()
        self._check_existing_output()
        self._folders = find_folders(self.settings)  # before the command loads them
        interrupted = self._read_interrupted()
        if interrupted is None and not self._unfinished.exists() and self.path.exists():
            temporary = f"{UNFINISHED_MANIFEST}."  # prefix of a file that was not renamed before a kill
            if foreign := sorted(name for name in os.listdir(self.path) if not name.startswith(temporary)):
                raise DrtkError(f"{self.path}: contains '{foreign[0]}' and was not made by drtk; choose another folder")
        if interrupted is None:
            return
        if self.resume:
            changed = self._find_changes()
            if changed and not self.force:
                raise MismatchError(
                    f"{self.path}: started with other settings or files ({', '.join(changed)}); "
                    "use `force` to start over"
                )
        elif not self.force:
            advice = "`resume` to continue it or `force` to start over" if self.resumable else "`force` to start over"
            raise DrtkError(f"{self.path}: contains an interrupted run; use {advice}")

    def _check_existing_output(self) -> None:
        """Raise DrtkError if a folder exists that this run may not replace."""
        if not _is_nonempty(self._final):
            return
        is_whole = (self._final / FOLDER_MANIFEST).exists()
        if is_whole and not (self.force or (self.resume and self._may_replace_final())):
            raise DrtkError(f"{self.output}: exists already; `force` replaces it")
        self._check_replaceable()

    def _may_replace_final(self) -> bool:
        """Return whether the interrupted run may replace the existing folder."""
        manifest = _load_manifest(self._unfinished) or {}
        return manifest.get("replaces") is not None and manifest["replaces"] == self._compute_final_digest()

    def _compute_final_digest(self) -> str | None:
        path = self._final / FOLDER_MANIFEST
        return digest_file(path) if path.exists() else None

    def recover(self) -> bool:
        """Complete the final renames of a run that was killed; return whether the folder is finished now."""
        unfinished = next((path for path in (self.path, self._old) if path.is_dir()), None)
        if not self._is_leader or unfinished is None:
            return False
        handle = os.open(unfinished, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return lock(handle) and self._recover()
        except OSError as error:
            raise DrtkError(f"{error.filename or self.output}: {error.strerror}") from error
        finally:
            os.close(handle)

    def _recover(self) -> bool:
        is_whole = _load_manifest(self.path / FOLDER_MANIFEST) is not None and not self._was_being_emptied()
        if is_whole and (self.force or not _is_nonempty(self._final) or self._may_replace_final()):
            self._move_to_final()
            return True
        if not self._final.exists() and (self._old / FOLDER_MANIFEST).exists():
            os.rename(self._old, self._final)
        elif self._old.is_dir():
            _remove_drtk_folder(self._old)
        return False

    def _move_to_final(self) -> None:
        """Move the old folder away, rename the finished one, delete the old one. Raises OSError and DrtkError."""
        if _is_nonempty(self._final):
            self._check_replaceable()
            if self._old.exists():
                _remove_drtk_folder(self._old)
            os.rename(self._final, self._old)
        for journal in [*self.path.glob("*.json.part")]:  # not earlier, because a resumed run needs them
            journal.unlink()
        os.rename(self.path, self._final)
        sync(self._final.parent)
        if self._old.exists():
            _remove_drtk_folder(self._old)

    def _check_replaceable(self) -> None:
        """Raise DrtkError if replacing the folder would delete files that drtk did not write, or inputs of this run."""
        if not (self._final / FOLDER_MANIFEST).exists():
            raise DrtkError(f"{self.output}: is not empty and was not made by drtk; choose another folder")
        manifest = read_json(self._final / FOLDER_MANIFEST, advice=_REMOVE_ADVICE)
        if not is_manifest(manifest):
            raise DrtkError(f"{self.output}: its {FOLDER_MANIFEST} was not written by drtk; choose another folder")
        for entry in find_inputs(self.settings):
            if Path(entry["path"]).resolve().is_relative_to(self._final.resolve()):
                raise UsageError(
                    f"{self.output}: replacing it would delete the input {entry['path']}; choose another folder"
                )
        files = list_output_files(self._final)
        foreign = sorted(set(files) - set(manifest.get("files", files)))
        if foreign:
            raise DrtkError(
                f"{self.output}: contains '{foreign[0]}', which drtk did not write; move it, or choose another folder"
            )

    @property
    def is_resuming(self) -> bool:
        """Whether the run continues an interrupted one with the same settings (except `may_differ`) and files.

        A changed `source` is allowed, because the user may have repaired a bad line; the command compares the records.
        With `force`, a run with a changed `source` starts over.
        """
        if not self.resume or self._read_interrupted() is None or self._find_changes():
            return False
        if not self.force:
            return True
        return self._find_changed_stream() is None and all(map(is_unchanged, read_json(self._unfinished)["inputs"]))

    def _read_interrupted(self) -> Manifest | None:
        """Return the manifest of an interrupted run; None if there is none, or if the run was killed while it emptied the folder."""
        manifest = _load_manifest(self._unfinished)
        if manifest is None and self._unfinished.exists():
            raise DrtkError(f"{self._unfinished}: was not written by drtk; choose another folder")
        return None if self._was_being_emptied() else manifest

    def _was_being_emptied(self) -> bool:
        """Return whether an interrupted run was emptying the folder to start over."""
        return bool((_load_manifest(self._unfinished) or {}).get("discards"))

    def _find_changes(self) -> list[str]:
        """Return the settings and inputs that changed since the interrupted run, except `may_differ` and SOURCES."""
        manifest = read_json(self._unfinished)
        before, now = manifest["settings"], to_json_values(self.settings)
        ignored = {*SOURCES, *self.may_differ}
        changed = sorted(key for key in before | now if before.get(key) != now.get(key) and key not in ignored)
        sources = {entry["path"] for entry in find_inputs({key: before.get(key) for key in SOURCES})}
        return changed + [
            entry["path"] for entry in manifest["inputs"] if entry["path"] not in sources and not is_unchanged(entry)
        ]

    def _get_stream_digests(self) -> dict[str, str]:
        """Return the digests of stdin and pipes that were read to the end."""
        entries = (entry for entry in self.tracker.inputs if is_from_stream(entry) and entry["digest"])
        return {entry["path"]: entry["digest"] for entry in entries}

    def _find_changed_stream(self) -> str | None:
        """Return a stream whose content differs from that of the interrupted run; None if there is none."""
        before = read_json(self._unfinished)["streams"]
        return next(
            (path for path, digest in self._get_stream_digests().items() if before.get(path, digest) != digest), None
        )

    def _continue_manifest(self) -> None:
        """Continue the manifest of the interrupted run; log and record changed settings."""
        manifest = read_json(self._unfinished)
        self._clock.before = self._compute_seconds(manifest)
        self._manifest["started"] = manifest["started"]
        before, now = manifest["settings"], to_json_values(self.settings)
        changed = {key: [before.get(key), now[key]] for key in self.may_differ if before.get(key) != now.get(key)}
        changes = manifest.get("changes", [])
        if changed:
            text = ", ".join(
                f"{key} {_format_setting(new)} (was {_format_setting(old)})" for key, (old, new) in changed.items()
            )
            log(f"{self.output}: resuming with changed settings: {text}")
            changes = [*changes, {"at": datetime.now(UTC).isoformat(timespec="seconds"), "settings": changed}]
            manifest |= {"settings": before | now, "changes": changes}
        write_json(self._unfinished, manifest | self._describe_session())
        if changes:
            self._manifest["changes"] = changes

    def _describe_session(self) -> dict[str, Any]:
        """Return a manifest entry with the start time of this session (Unix time) and the duration of earlier sessions."""
        return {"stretch": {"began": self._started, "before": self._clock.before}}

    def _compute_seconds(self, manifest: Manifest) -> float:
        """Return the duration of an interrupted run, whose last session is assumed to end with the newest file."""
        stretch = manifest["stretch"]
        last = max(item.lstat().st_mtime for item in self.path.rglob("*") if not item.is_dir())
        return round(float(stretch["before"] + max(0.0, last - stretch["began"])), 3)

    def begin(self) -> Path:
        """Create and lock the folder to write to, and return it. It has no files of earlier runs, unless one is resumed.

        Raises DrtkError if another run is writing the folder, or the folder cannot be created; MismatchError if the
        resumed run has read other records from stdin or a pipe.
        """
        if not self._is_leader:
            return self.path
        self._folders = self._folders or find_folders(self.settings)
        try:
            self._create_and_lock()
            self._check_existing_output()  # another run may have finished since `check`
            if self.is_resuming:
                if other := self._find_changed_stream():
                    raise MismatchError(
                        f"{self.path}: started with different records from {get_source_name(other)}; use `force` to start over"
                    )
                log(f"resuming {self.output}")
                for path in self.path.glob("*.tmp"):  # files that were not renamed before a kill
                    path.unlink()
                self._continue_manifest()
                return self.path
            self._is_new = True
            manifest = self._manifest | {
                "inputs": find_inputs(self.settings, self._folders),
                "streams": self._get_stream_digests(),
            }
            manifest |= {"replaces": self._compute_final_digest()} | self._describe_session()
            if _is_nonempty(self.path):  # a partly emptied folder is neither finished nor resumable
                write_json(self._unfinished, manifest | {"discards": True})
                for item in self.path.iterdir():
                    if item != self._unfinished:
                        _delete_item(item)
            write_json(self._unfinished, manifest)
        except OSError as error:
            raise DrtkError(f"{self.path}: {error.strerror}") from error
        return self.path

    def _create_and_lock(self) -> None:
        """Create the folder and lock it against other runs."""
        while True:
            self.path.mkdir(parents=True, exist_ok=True)
            self.release()
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if not lock(self._lock):
                raise DrtkError(f"{self.output}: another run is writing it; wait for it to end")
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._lock), os.stat(self.path)):
                    return  # otherwise another run has finished and renamed the folder in the meantime

    def discard(self) -> None:
        """Remove an unfinished folder that this run started and that cannot be resumed. It would block the next run."""
        if not self._is_new:
            return
        self._is_new = False
        with contextlib.suppress(OSError, DrtkError):
            if not self.resumable or all(name.startswith(UNFINISHED_MANIFEST) for name in os.listdir(self.path)):
                _remove_drtk_folder(self.path)

    def release(self) -> None:
        """Unlock the folder. `finish` also does this."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __del__(self) -> None:
        self.release()

    def finish_subfolder(self, folder: Path, *, counts: Mapping[str, Any] | None = None, **entries: Any) -> None:
        """Write the meta.json of a model in a subfolder, with the settings and inputs of this job.

        counts: counts of the model; by default those of the job
        entries: additional manifest entries
        """
        if self._is_leader:
            manifest = create_manifest("model", self.settings, program=self.command) | entries
            inputs, counts = self.tracker.inputs, self.counts if counts is None else counts
            manifest = complete_manifest(manifest, inputs=inputs, counts=counts, seconds=self._clock.seconds)
            write_manifest(folder, manifest)

    def finish(self, **entries: Any) -> None:
        """Write meta.json and rename the folder to its final name.

        entries: additional manifest entries
        Raises DrtkError if the existing folder cannot be replaced; the finished folder is kept as NAME.part.
        """
        if not self._is_leader:
            return
        if self.tracker.bad:
            self.counts["skipped"] = self.tracker.bad
        manifest = self._manifest | entries
        inputs = add_folders(self.tracker.inputs, self._folders)
        manifest = complete_manifest(manifest, inputs=inputs, counts=self.counts, seconds=self._clock.seconds)
        sync_tree(self.path)
        write_manifest(self.path, manifest)
        self._is_new = False
        try:
            self._check_existing_output()
            self._move_to_final()
        except (OSError, DrtkError) as error:
            problem = error if isinstance(error, DrtkError) else f"{self.output}: {error.strerror}"
            raise DrtkError(f"{problem}; the finished folder is kept as {self.path}") from error
        self.release()
        summary = ", ".join(f"{value:,} {name}" for name, value in self.counts.items() if isinstance(value, int))
        log(f"{self.command}: {summary + ', ' if summary else ''}{self._clock.seconds:,.1f} s -> {self.output}")


def _is_nonempty(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _load_manifest(path: Path) -> Manifest | None:
    """Return the manifest in a file; None if the file does not exist or another program wrote it."""
    content = read_json(path, advice=_REMOVE_ADVICE) if path.exists() else None
    return content if is_manifest(content) else None


def _delete_item(item: Path) -> None:
    if item.is_dir() and not item.is_symlink():
        shutil.rmtree(item)
    else:
        item.unlink()


def _remove_drtk_folder(folder: Path) -> None:
    """Delete a folder that drtk made. If the deletion is interrupted, the remaining folder is still recognized as drtk's."""
    whole, unfinished = folder / FOLDER_MANIFEST, folder / UNFINISHED_MANIFEST
    if _is_nonempty(folder) and not (_load_manifest(whole) or _load_manifest(unfinished)):
        raise DrtkError(f"{folder}: was not made by drtk; move it away")
    if whole.exists():
        os.replace(whole, unfinished)
    for item in folder.iterdir():
        if item != unfinished:
            _delete_item(item)
    unfinished.unlink(missing_ok=True)
    folder.rmdir()


def _format_setting(value: Any) -> str:
    if value is None:
        return "not given"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)

"""Output folders: finished when they have a meta.json, replaced only on request, and never one drtk did not make."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.io.intake import Intake
from drtk.io.manifest import (
    FOLDER_MANIFEST,
    SOURCES,
    UNFINISHED_MANIFEST,
    Clock,
    Manifest,
    completed,
    from_stream,
    inputs_named,
    is_manifest,
    new_manifest,
    plain,
    read_json,
    unchanged,
    write_json,
)
from drtk.io.progress import log
from drtk.io.streams import is_writable, name_of


@dataclass
class FolderJob:
    """One run of a command that makes a folder. `begin` opens it, `finish` writes meta.json, last.

    may_differ: settings that a resumed run may have otherwise than the run it goes on with; it says so, and records it
    Where several processes run one command together (torchrun), the one of rank 0 alone looks after the folder.
    """

    command: str
    kind: str
    output: str
    settings: dict[str, Any] = field(default_factory=dict)
    resumable: bool = False
    free: tuple[str, ...] = ()
    resume: bool = False
    force: bool = False
    side_files: tuple[str, ...] = ()
    may_differ: tuple[str, ...] = ()
    intake: Intake = field(default_factory=Intake)
    counts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path = Path(self.output)
        self._clock = Clock()
        self._clocked_from = time.time()
        self._manifest = new_manifest(self.kind, self.settings, program=self.command)
        self._lock: int | None = None
        self._began = False
        self._leads = os.environ.get("RANK", "0") == "0"

    def check(self) -> None:
        """Refuse what cannot be meant, before anything is read or loaded."""
        path = self.path
        if not self._leads:
            return
        if path.exists() and not path.is_dir():
            raise DrtkError(f"{path}: is a file; expected a folder")
        if not is_writable(path):
            raise DrtkError(f"{path}: Permission denied")
        if not path.exists() or not any(path.iterdir()):
            return
        if (path / FOLDER_MANIFEST).exists():
            if not self.force:
                raise DrtkError(f"{path}: exists already; --force replaces it")
            self._refuse_to_destroy()
        elif not self._unfinished.exists():
            raise DrtkError(f"{path}: is not empty and was not made by drtk; choose another folder")
        elif self.resume:
            changed = self._changes()
            if changed and not self.force:
                raise MismatchError(
                    f"{path}: was begun with other settings or files ({', '.join(changed)}); --force begins again"
                )
        elif not self.force:
            ways = "--resume goes on from there, --force begins again" if self.resumable else "--force begins again"
            raise DrtkError(f"{path}: holds an interrupted run; {ways}")

    @property
    def _unfinished(self) -> Path:
        return self.path / UNFINISHED_MANIFEST

    def _refuse_to_destroy(self) -> None:
        """Raises DrtkError where replacing the folder would lose what drtk did not make, or what this run reads."""
        found = read_json(self.path / FOLDER_MANIFEST)
        if not is_manifest(found):
            raise DrtkError(f"{self.path}: its {FOLDER_MANIFEST} is not drtk's; choose another folder")
        for entry in inputs_named(self.settings):
            if Path(entry["path"]).resolve().is_relative_to(self.path.resolve()):
                raise UsageError(f"{self.path}: replacing it would destroy the input {entry['path']}")
        strange = sorted(set(self._files()) - set(found.get("files", self._files())))
        if strange:
            raise DrtkError(
                f"{self.path}: holds '{strange[0]}', which drtk did not make; move it, or choose another folder"
            )

    def _files(self) -> list[str]:
        """Paths of the files in the folder, apart from manifests, relative to it, sorted."""
        manifests = (self.path / FOLDER_MANIFEST, self._unfinished)
        return sorted(
            str(item.relative_to(self.path))
            for item in self.path.rglob("*")
            if item not in manifests and (item.is_symlink() or not item.is_dir())
        )

    @property
    def resuming(self) -> bool:
        """Whether there is unfinished work of these settings and files to go on from.

        A `source` that changed meanwhile does not count (a bad line may have been mended): the command compares what
        it reads with what it made. With --force it does, as beginning again is then allowed.
        """
        if not self.resume or not self._unfinished.exists() or self._changes():
            return False
        if not self.force:
            return True
        return self._other_stream() is None and all(map(unchanged, read_json(self._unfinished)["inputs"]))

    def _changes(self) -> list[str]:
        """Settings that differ from those the unfinished folder was begun with, and files they name that changed."""
        found = read_json(self._unfinished)
        if not is_manifest(found):
            raise DrtkError(f"{self._unfinished}: is not drtk's; choose another folder")
        if not _is_unfinished(found):
            raise DrtkError(f"{self._unfinished}: is damaged; --force without --resume begins again")
        before, now = found["settings"], plain(self.settings)
        free = {*SOURCES, *self.may_differ}
        changed = sorted(key for key in before | now if before.get(key) != now.get(key) and key not in free)
        sources = {entry["path"] for entry in inputs_named({key: before.get(key) for key in SOURCES})}
        return changed + [
            entry["path"] for entry in found["inputs"] if entry["path"] not in sources and not unchanged(entry)
        ]

    def _streams(self) -> dict[str, str]:
        """The digests of stdin and pipes that were read to their end by now."""
        entries = (entry for entry in self.intake.inputs if from_stream(entry) and entry["digest"])
        return {entry["path"]: entry["digest"] for entry in entries}

    def _other_stream(self) -> str | None:
        """A stream that held something else when the unfinished folder was begun."""
        before = read_json(self._unfinished).get("streams", {})
        return next((path for path, digest in self._streams().items() if before.get(path, digest) != digest), None)

    def _take_up(self) -> None:
        """Go on with the manifest of the run before; settings that differ from its own are said and noted there."""
        found = read_json(self._unfinished)
        self._clock.before = self._seconds_of(found)
        self._manifest["started"] = found["started"]
        before, now = found["settings"], plain(self.settings)
        other = {key: [before.get(key), now[key]] for key in self.may_differ if before.get(key) != now.get(key)}
        changes = found.get("changes", [])
        if other:
            said = ", ".join(f"{key} {_said(new)}, which was {_said(old)}" for key, (old, new) in other.items())
            log(f"{self.path}: going on with other settings: {said}")
            changes = [*changes, {"at": datetime.now(UTC).isoformat(timespec="seconds"), "settings": other}]
            found |= {"settings": before | now, "changes": changes}
        write_json(self._unfinished, found | self._stretch())
        if changes:
            self._manifest["changes"] = changes

    def _stretch(self) -> dict[str, Any]:
        """When this stretch of the work began, as seconds of the epoch, and how long those before took."""
        return {"stretch": {"began": self._clocked_from, "before": self._clock.before}}

    def _seconds_of(self, found: Manifest) -> float:
        """What all stretches of an unfinished folder took; the last one ended when something was last written into it.

        A killed process writes no farewell; what it worked after its last file is lost, too.
        """
        stretch = found.get("stretch")
        if stretch is None:
            return 0.0
        last = max(item.lstat().st_mtime for item in self.path.rglob("*") if not item.is_dir())
        return round(float(stretch["before"] + max(0.0, last - stretch["began"])), 3)

    def begin(self) -> Path:
        """The folder, ready to be written into: as it was left where a run is resumed, otherwise empty.

        Raises DrtkError where another run is writing it, or it cannot be made.
        """
        if not self._leads:
            return self.path
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._hold()
            if self.resuming:
                if other := self._other_stream():
                    raise MismatchError(
                        f"{self.path}: was begun with other records from {name_of(other)}; --force begins again"
                    )
                log(f"resuming {self.path}")
                for torn in self.path.glob("*.tmp"):  # small files that a kill caught between writing and renaming
                    torn.unlink()
                self._take_up()
                return self.path
            # Unfinished first, empty later: a half-emptied folder must not pass for a finished one.
            inputs = inputs_named(self.settings)
            begun = self._manifest | {"inputs": inputs, "streams": self._streams()}
            write_json(self._unfinished, begun | self._stretch())
            self._began = True
            (self.path / FOLDER_MANIFEST).unlink(missing_ok=True)
            for item in self.path.iterdir():
                if item != self._unfinished:
                    shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()
        except OSError as error:
            raise DrtkError(f"{self.path}: {error.strerror}") from error
        return self.path

    def _hold(self) -> None:
        """Lock the folder, so that no other run writes it meanwhile."""
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise DrtkError(f"{self.path}: another run is writing it") from error
            # Some network file systems have no locks; writing goes on without one.

    def abandon(self) -> None:
        """Leave no folder behind in which nothing was made: a refused command must not stand in the way of the next."""
        if self._began and [*self.path.iterdir()] == [self._unfinished]:
            self._unfinished.unlink()
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def release(self) -> None:
        """Let other runs have the folder; done by `finish`, and at the latest when the job is given up."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __del__(self) -> None:
        self.release()

    def finish_part(self, folder: Path, kind: str, **facts: Any) -> None:
        """Write the meta.json of a folder within this one that others use by itself; settings and inputs are those of all."""
        if self._leads:
            manifest = new_manifest(kind, self.settings, program=self.command) | facts
            inputs, counts = self.intake.inputs, self.counts
            found = completed(manifest, inputs=inputs, counts=counts, seconds=self._clock.seconds)
            write_json(folder / FOLDER_MANIFEST, found)

    def finish(self, **facts: Any) -> None:
        """Write meta.json with `facts` beside the usual entries; from here on the folder counts as finished."""
        if not self._leads:
            return
        if self.intake.bad:
            self.counts["skipped"] = self.intake.bad
        manifest = self._manifest | facts | {"files": self._files()}
        manifest = completed(manifest, inputs=self.intake.inputs, counts=self.counts, seconds=self._clock.seconds)
        write_json(self.path / FOLDER_MANIFEST, manifest)
        self._unfinished.unlink(missing_ok=True)
        self.release()
        summary = ", ".join(f"{value:,} {name}" for name, value in self.counts.items() if isinstance(value, int))
        log(f"{self.command}: {summary + ', ' if summary else ''}{self._clock.seconds:,.1f} s -> {self.path}")


def _is_unfinished(found: Manifest) -> bool:
    """Return whether the fields of an unfinished manifest that a resumed run reads have the right types."""
    stretch = found.get("stretch", {"began": 0.0, "before": 0.0})
    return (
        isinstance(found.get("started"), str)
        and isinstance(found.get("streams", {}), dict)
        and isinstance(found.get("changes", []), list)
        and isinstance(stretch, dict)
        and all(type(stretch.get(name)) in (int, float) for name in ("began", "before"))
    )


def _said(value: Any) -> str:
    """A setting as a person would write it."""
    if value is None:
        return "not given"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)

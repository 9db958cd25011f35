"""Output folders: finished when they have a meta.json, replaced only on request, and never one drtk did not make."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from drtk.errors import DrtkError, MismatchError
from drtk.io.intake import Intake
from drtk.io.manifest import (
    FOLDER_MANIFEST,
    UNFINISHED_MANIFEST,
    Clock,
    completed,
    new_manifest,
    read_json,
    write_json,
)
from drtk.io.progress import log


@dataclass
class FolderJob:
    """One run of a command that makes a folder. `begin` opens it, `finish` writes meta.json, last."""

    command: str
    kind: str
    output: str
    settings: dict[str, Any] = field(default_factory=dict)
    resume: bool = False
    force: bool = False
    side_files: tuple[str, ...] = ()
    intake: Intake = field(default_factory=Intake)
    counts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path = Path(self.output)
        self._clock = Clock()

    def check(self) -> None:
        """Refuse what cannot be meant, before anything is read or loaded."""
        path = self.path
        if path.exists() and not path.is_dir():
            raise DrtkError(f"{path}: is a file; expected a folder")
        if not path.exists() or not any(path.iterdir()):
            return
        if (path / FOLDER_MANIFEST).exists():
            if not self.force:
                raise DrtkError(f"{path}: exists already; --force replaces it")
        elif not (path / UNFINISHED_MANIFEST).exists():
            raise DrtkError(f"{path}: is not empty and was not made by drtk; choose another folder")
        elif self.resume:
            changed = self._changed_settings()
            if changed and not self.force:
                raise MismatchError(
                    f"{path}: was begun with other settings ({', '.join(changed)}); --force begins again"
                )
        elif not self.force:
            raise DrtkError(f"{path}: holds an interrupted run; --resume goes on from there, --force begins again")

    @property
    def resuming(self) -> bool:
        """Whether there is unfinished work of these settings to go on from."""
        return self.resume and (self.path / UNFINISHED_MANIFEST).exists() and not self._changed_settings()

    def _changed_settings(self) -> list[str]:
        found = read_json(self.path / UNFINISHED_MANIFEST)["settings"]
        mine = orjson.loads(orjson.dumps(self.settings))
        return sorted(key for key in found | mine if found.get(key) != mine.get(key))

    def begin(self) -> Path:
        """The folder, ready to be written into: as it was left where a run is resumed, otherwise empty."""
        resuming = self.resuming
        if self.path.exists() and not resuming:
            for item in self.path.iterdir():
                shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DrtkError(f"{self.path}: {error.strerror}") from error
        if resuming:
            log(f"resuming {self.path}")
        else:
            write_json(self.path / UNFINISHED_MANIFEST, new_manifest(self.kind, self.settings))
        return self.path

    def finish(self, **facts: Any) -> None:
        """Write meta.json with `facts` beside the usual entries; from here on the folder counts as finished."""
        manifest = new_manifest(self.kind, self.settings) | facts
        if self.intake.bad:
            self.counts["skipped"] = self.intake.bad
        manifest = completed(manifest, inputs=self.intake.inputs, counts=self.counts, seconds=self._clock.seconds)
        write_json(self.path / FOLDER_MANIFEST, manifest)
        (self.path / UNFINISHED_MANIFEST).unlink(missing_ok=True)
        summary = ", ".join(f"{value:,} {name}" for name, value in self.counts.items() if isinstance(value, int))
        log(f"{self.command}: {summary + ', ' if summary else ''}{self._clock.seconds:,.1f} s -> {self.path}")

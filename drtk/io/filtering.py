"""Records in, records out, in windows: what makes every filter resumable, atomic and accountable."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import orjson

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.io.intake import Intake
from drtk.io.manifest import Clock, completed, manifest_path, new_manifest, read_json, write_json
from drtk.io.progress import Progress, log
from drtk.io.streams import STANDARD, Output

Record = TypeVar("Record")
WINDOW = 1000  # input records between two places to go on from


@dataclass
class FilterJob:
    """One run of a filter: where it writes, how it resumes, what it took in, what goes into the manifest."""

    command: str
    kind: str
    output: str = STANDARD
    settings: dict[str, Any] = field(default_factory=dict)
    resume: bool = False
    force: bool = False
    bare: bool = False
    side_files: tuple[str, ...] = ()
    window: int = WINDOW
    intake: Intake = field(default_factory=Intake)
    counts: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse what cannot be meant, before anything is read or loaded."""
        if self.output == STANDARD:
            if self.resume:
                raise UsageError("--resume needs a named output: -o FILE")
            return
        final = Path(self.output)
        if final.is_dir():
            raise DrtkError(f"{self.output}: is a folder; expected a file")
        if final.exists() and not self.force:
            raise DrtkError(f"{self.output}: exists already; --force replaces it")
        if self._journal.exists() and not (self.resume or self.force):
            found = read_json(self._journal)
            raise DrtkError(
                f"{self.output}.part: holds {found['records']:,} finished records of an interrupted run; "
                "--resume goes on from there, --force begins again"
            )

    @property
    def _journal(self) -> Path:
        return Path(self.output + ".part.json")

    def run(
        self, records: Iterable[Record], work: Callable[[list[Record]], Iterable[bytes]], *, unit: str = "records"
    ) -> None:
        """Pass windows of records through `work` and write the lines it gives, in order.

        After each window the output is flushed and a journal notes how far it reached, so that a killed run can
        go on; the journal also holds a digest of the records consumed, so that it goes on with the same input only.
        """
        clock = Clock()
        journal = self._opening()
        stream = iter(records)
        digest = hashlib.blake2b(digest_size=16)
        self._skip(stream, journal, digest)
        with (
            Output(self.output, append_at=journal["offset"]) as output,
            Progress(self.command, unit=unit, initial=journal["records"]) as progress,
        ):
            output.keep_part = journal["records"] > 0
            while batch := list(islice(stream, self.window)):
                for record in batch:
                    digest.update(orjson.dumps(record))
                lines = 0
                for line in work(batch):
                    output.write(line)
                    lines += 1
                journal["records"] += len(batch)
                journal["lines"] += lines
                journal["offset"] = output.end_frame()
                journal["digest"] = digest.hexdigest()
                if output.part is not None:
                    write_json(self._journal, journal | {"counts": self.counts})
                    output.keep_part = True
                progress.add(len(batch))
        self._finish(journal, clock)

    def _opening(self) -> dict[str, Any]:
        fresh = {
            "settings": self._deciding_settings(),
            "records": 0,
            "lines": 0,
            "offset": 0,
            "digest": "",
        }
        if self.output == STANDARD or not (self.resume and self._journal.exists()):
            return fresh
        found: dict[str, Any] = read_json(self._journal)
        if found["settings"] != fresh["settings"]:
            if self.force:
                return fresh
            changed = sorted(
                k for k in fresh["settings"] | found["settings"] if fresh["settings"].get(k) != found["settings"].get(k)
            )
            raise MismatchError(
                f"{self.output}.part: was begun with other settings ({', '.join(changed)}); --force begins again"
            )
        part = Path(self.output + ".part")
        if not part.exists() or part.stat().st_size < found["offset"]:
            raise DrtkError(f"{part}: is shorter than its journal says; --force begins again")
        self.counts.update(found.pop("counts", {}))
        log(f"resuming {self.output} after {found['records']:,} records")
        return found

    def _deciding_settings(self) -> dict[str, Any]:
        """Settings that shape the output; what the input is, the digest of its records decides."""
        plain: dict[str, Any] = orjson.loads(orjson.dumps(self.settings))
        return {name: value for name, value in plain.items() if name not in ("source", "skip_bad")}

    def _skip(self, stream: Iterator[Any], journal: dict[str, Any], digest: Any) -> None:
        for record in islice(stream, journal["records"]):
            digest.update(orjson.dumps(record))
        if (
            journal["records"] and digest.hexdigest() != journal["digest"]
        ):  # records are consumed: too late to begin again
            raise MismatchError(f"{self.output}.part: was begun with another input; --force begins again")

    def _finish(self, journal: dict[str, Any], clock: Clock) -> None:
        counts = {"in": journal["records"], "out": journal["lines"], **self.counts}
        if self.intake.bad:
            counts["skipped"] = self.intake.bad
        if self.output != STANDARD:
            manifest = new_manifest(self.kind, self.settings)
            write_json(
                manifest_path(self.output),
                completed(manifest, inputs=self.intake.inputs, counts=counts, seconds=clock.seconds),
            )
            self._journal.unlink(missing_ok=True)
        summary = ", ".join(f"{value:,} {name}" for name, value in counts.items() if isinstance(value, int))
        log(f"{self.command}: {summary}, {clock.seconds:,.1f} s")

"""Records in, records out, in windows: what makes every filter resumable, atomic and accountable."""

from __future__ import annotations

import glob
import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import orjson

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.io.intake import Intake
from drtk.io.interrupts import interrupts_held
from drtk.io.journal import Journal
from drtk.io.manifest import (
    Clock,
    Manifest,
    completed,
    inputs_named,
    manifest_path,
    new_manifest,
    with_folders,
    write_json,
)
from drtk.io.parts import WHOLE, Part, of_part
from drtk.io.progress import Progress, detail, log, warn
from drtk.io.revising import first_pass_at, lines_of
from drtk.io.streams import STANDARD, Output, is_replaceable, is_writable

Record = TypeVar("Record")
WINDOW = 1000  # input records between two places to go on from


@dataclass(frozen=True)
class Done:
    """What a window of records became: lines of the output, and numbers that are added to the job's counts.

    A group of numbers under one name goes into the manifest, but not into the closing line.
    """

    lines: Iterable[bytes]
    counts: dict[str, Any] = field(default_factory=dict)


Revise = Callable[[Callable[[], Iterator[bytes]]], Iterator[Done]]  # given the lines of all windows, as often as wanted


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
    part: Part = WHOLE
    looked_up: tuple[str, ...] = ()  # files and folders, apart from the inputs, that decide what comes out
    told: bool = True  # whether the closing counts are worth a line without -v
    barren: Callable[[], str] | None = (
        None  # says why, where records were read and nothing came of any: that is a fault
    )
    empty: str | None = None  # said where no record came in, which a pipe cannot tell from a fault before it
    vain: Callable[[], str | None] | None = None  # says why, where what came of all records is of no use: a fault, too
    intake: Intake = field(default_factory=Intake)
    counts: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse what cannot be meant, before anything is read or loaded."""
        if self.output != STANDARD and Path(self.output).is_dir():
            raise DrtkError(f"{self.output}: is a folder; expected a file")
        if not is_replaceable(self.output):
            if self.resume:
                raise UsageError("--resume needs a named output: -o FILE")
            return
        final = Path(self.output)
        if final.exists() and not self.force:
            raise DrtkError(f"{self.output}: exists already; --force replaces it")
        if not final.parent.is_dir():
            raise DrtkError(f"{self.output}: there is no folder {final.parent}")
        if not is_writable(final.parent):
            raise DrtkError(f"{self.output}: Permission denied")
        if self.resume or self.force:
            return
        found = Journal.read(self._journal)
        if found is not None and Path(self.output + ".part").exists():  # without it there is nothing to lose
            raise DrtkError(
                f"{self.output}.part: holds {found.records:,} finished records of an interrupted run; "
                "--resume goes on from there, --force begins again"
            )

    @property
    def _journal(self) -> Path:
        return Path(self.output + ".part.json")

    def run(
        self, records: Iterable[Record], work: Callable[[list[Record]], Iterable[bytes]], *, unit: str = "records"
    ) -> None:
        """Pass windows of records through `work` and write the lines it gives, in order.

        `counts` travel in the journal too: count in `work`, not while reading. Everything else as in `run_windows`.
        """
        self.run_windows(records, lambda windows: (Done(work(window)) for window in windows), unit=unit)

    def run_windows(
        self,
        records: Iterable[Record],
        pump: Callable[[Iterator[list[Record]]], Generator[Done, None, None]],
        *,
        unit: str = "records",
        revise: Revise | None = None,
    ) -> None:
        """Pass windows of records through `pump`, which may read ahead, and write what it gives for each, in order.

        After each window the output is flushed and a journal notes how far it reached, so that a killed run can
        go on; the journal also holds a digest of the records consumed, so that it goes on with the same input only.
        revise: makes the output of all lines, where none can be written before the last is known. They wait in the part,
                or, where the output is no file, in a temporary one.
        Of several parts, the records of the others are passed over, and count nowhere.
        """
        clock = Clock()
        manifest = new_manifest(self.kind, self.settings, program=self.command)
        resumable = is_replaceable(self.output)
        journal = self._opening()
        clock.before = journal.seconds
        stream = of_part(records, self.part, window=self.window)
        digest = hashlib.blake2b(digest_size=16)
        self._skip(stream, journal, digest)
        read: deque[tuple[int, str]] = deque()  # of the windows the pump has taken: their size, the digest so far

        def windows() -> Iterator[list[Record]]:
            while window := list(islice(stream, self.window)):
                if resumable:
                    for record in window:
                        digest.update(orjson.dumps(record))
                read.append((len(window), digest.hexdigest() if resumable else ""))
                yield window

        with (
            first_pass_at(self.output, self.command, revised=revise is not None) as target,
            closing(pump(windows())) as made,  # before the bar, which has a thread: processes may be forked here
            Output(target, append_at=journal.offset if journal.records else None, scratch=revise is not None) as output,
            _told_where_to_go_on(output, journal),
            Progress(self.command, unit=unit, initial=journal.records) as progress,
        ):
            if resumable and not journal.records:
                self._journal.unlink(missing_ok=True)  # of a run that is being replaced
            for done in made:
                self._write(done, output, journal)
                size, journal.digest = read.popleft()
                journal.records += size
                journal.offset = output.end_frame()
                if resumable:
                    journal.counts = self.counts
                    journal.seconds = round(clock.seconds, 3)
                    with interrupts_held():  # the one without the other would tell of a part that goes
                        journal.write(self._journal, inputs=self.intake.inputs)
                        output.keep_part = True
                progress.add(size)
            fault = self._fault(journal)
            if fault is not None:
                output.keep_part = False  # there is nothing in it to go on from
                self._journal.unlink(missing_ok=True)
                raise DrtkError(fault)
            if revise is not None:
                self._revise(revise, output.part, journal)
            elif resumable:
                self._forget_manifest()
        self._finish(manifest, journal, clock)

    def _fault(self, journal: Journal) -> str | None:
        """What is wrong with all that was made, once the last record is in; None: nothing."""
        if self.barren is not None and journal.records and not journal.lines:
            return self.barren()
        return None if self.vain is None else self.vain()

    def _revise(self, revise: Revise, part: Path | None, journal: Journal) -> None:
        """Write the output from the lines in `part`, which stays as it is until that is done."""
        if part is None:
            raise ValueError("the first of two passes must write a file")
        journal.lines = 0
        with Output(self.output, suffix=".part.new") as output, Progress(self.command, unit="lines") as progress:
            for done in revise(lambda: lines_of(part)):
                progress.add(self._write(done, output, journal))
                output.end_frame()
            if is_replaceable(self.output):
                self._forget_manifest()

    def _write(self, done: Done, output: Output, journal: Journal) -> int:
        """Write the lines of a window and add up its counts; returns the number of lines."""
        before = journal.lines
        for line in done.lines:
            output.write(line)
            journal.lines += 1
        _add(self.counts, done.counts)
        return journal.lines - before

    def _forget_manifest(self) -> None:
        """The manifest of what is about to be replaced must not be taken for the new output's."""
        manifest_path(self.output).unlink(missing_ok=True)

    def _opening(self) -> Journal:
        if not is_replaceable(self.output):
            return Journal({})
        fresh = Journal.begin(self.settings)
        found = Journal.read(self._journal) if self.resume else None
        if found is None:
            return fresh
        part = Path(self.output + ".part")
        changed = found.changes(fresh)
        if not part.exists() or part.stat().st_size < found.offset:
            problem = f"{part}: is shorter than its journal says"
        elif changed:
            problem = f"{part}: was begun with other settings or files ({', '.join(changed)})"
        elif self.force and found.other_sources():
            problem = f"{part}: was begun with another input"
        else:
            self.counts.update(found.counts)
            log(f"resuming {self.output} after {found.records:,} records")
            return found
        if self.force:
            log(f"{problem}: beginning again")
            return fresh
        raise MismatchError(f"{problem}; --force begins again")

    def _skip(self, stream: Iterator[Any], journal: Journal, digest: Any) -> None:
        for record in islice(stream, journal.records):
            digest.update(orjson.dumps(record))
        if journal.records and digest.hexdigest() != journal.digest:
            # The records are consumed: too late to begin again here.
            raise MismatchError(
                f"{self.output}.part: was begun with another input; --force without --resume begins again"
            )

    def _finish(self, manifest: Manifest, journal: Journal, clock: Clock) -> None:
        counts = {"in": journal.records, "out": journal.lines, **self.counts}
        if self.intake.bad:
            counts["skipped"] = self.intake.bad
        if is_replaceable(self.output):
            size = {"bytes": Path(self.output).stat().st_size}
            inputs = with_folders(self.intake.inputs + inputs_named({"looked_up": self.looked_up}), self.settings)
            write_json(
                manifest_path(self.output),
                completed(manifest, inputs=inputs, counts=counts, seconds=clock.seconds) | size,
            )
            self._journal.unlink(missing_ok=True)
            torn = (
                glob.escape(str(self._journal)) + ".*.tmp"
            )  # journals that a kill caught between writing and renaming
            for path in glob.glob(torn):
                Path(path).unlink(missing_ok=True)
        if self.empty is not None and self.part == WHOLE and not journal.records:
            warn(f"{self.command}: {self.empty}")
        if self.part != WHOLE and not journal.records:
            number, of = self.part
            warn(
                f"part {number} of {of} is empty: the input fills fewer than {number} windows of {self.window:,} records"
            )
        summary = ", ".join(f"{value:,} {name}" for name, value in counts.items() if isinstance(value, int))
        (log if self.told else detail)(f"{self.command}: {summary}, {clock.seconds:,.1f} s")


def _add(counts: dict[str, Any], more: dict[str, Any]) -> None:
    for name, number in more.items():
        if isinstance(number, dict):
            _add(counts.setdefault(name, {}), number)
        else:
            counts[name] = counts.get(name, 0) + number


@contextmanager
def _told_where_to_go_on(output: Output, journal: Journal) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if output.keep_part:
            log(f"{output.part}: keeps what was made from {journal.records:,} records; --resume goes on")
        raise

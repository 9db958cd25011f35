"""Run a filter over its records in windows: resume, journal, manifest."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import orjson

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.runtime.atomic import interrupts_held, recover, torn_files
from drtk.runtime.inputs import Intake
from drtk.runtime.journal import Journal, identity
from drtk.runtime.manifest import (
    Clock,
    Manifest,
    add_named_folders,
    completed,
    folders_named,
    inputs_named,
    new_manifest,
)
from drtk.runtime.progress import Progress, detail, log, warn
from drtk.runtime.sharding import WHOLE, Part, of_part
from drtk.runtime.streams import STANDARD, Output, is_replaceable, is_writable, open_input, read_lines


@contextmanager
def first_pass_at(output: str, command: str, *, revised: bool) -> Iterator[str]:
    """The target of the first pass: `output` itself, whose part is what a second pass reads, or a temporary file's name."""
    if not revised or is_replaceable(output):
        yield output
        return
    with TemporaryDirectory(prefix="drtk-") as folder:
        log(f"{command}: all records are worked on before the first is written; they wait in {folder}")
        yield str(Path(folder) / "records")


def lines_of(part: Path) -> Iterator[bytes]:
    """The lines of a part, whether compressed or not, without their ends. Raises RecordError where it is damaged."""
    stream, raw = open_input(str(part))
    with closing(raw):
        for _, line in read_lines(stream, str(part)):
            yield line


Record = TypeVar("Record")
WINDOW = 1000  # input records between two places to go on from
# Seconds between two journals. Each journal is written after an fsync of the part, so that it never claims more than the
# part holds after a power failure. An fsync after every window took 3% of the time of `chunk`, far more on a slow disk.
JOURNAL_EVERY = 2.0


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
    beside: list[Output] = field(default_factory=list)  # side outputs, flushed before each journal
    # Entries of what the settings name, as it was before models were loaded, and of `looked_up` at the first record.
    _folders: list[dict[str, Any]] = field(default_factory=list, init=False, repr=False)
    _named: list[dict[str, Any]] = field(default_factory=list, init=False, repr=False)
    _others: list[dict[str, Any]] = field(default_factory=list, init=False, repr=False)

    def recover(self) -> bool:
        """Complete the renames of an earlier run that was killed; return whether any were left."""
        if not is_replaceable(self.output):
            return False
        return recover(Path(self.output), may_replace=lambda: self.force or self._resumes_replacement())

    def _resumes_replacement(self) -> bool:
        """Return whether the interrupted run was allowed to replace the existing output."""
        found = Journal.read(self.journal)
        return found is not None and found.replaces is not None and found.replaces == identity(Path(self.output))

    def check(self) -> None:
        """Reject contradictory settings and unusable outputs before anything is read or loaded."""
        if self.output != STANDARD and Path(self.output).is_dir():
            raise DrtkError(f"{self.output}: is a folder; expected a file")
        if not is_replaceable(self.output):
            if self.resume:
                raise UsageError("--resume needs a named output: -o FILE")
            return
        final = Path(self.output)
        if final.exists() and not self.force and not (self.resume and self._resumes_replacement()):
            raise DrtkError(f"{self.output}: exists already; --force replaces it")
        if not final.parent.is_dir():
            raise DrtkError(f"{self.output}: there is no folder {final.parent}")
        if not is_writable(final.parent):
            raise DrtkError(f"{self.output}: Permission denied")
        self._folders = folders_named(self.settings)
        if self.resume or self.force:
            return
        found = Journal.read(self.journal)
        if found is not None and Path(self.output + ".part").exists():  # without it there is nothing to lose
            raise DrtkError(
                f"{self.output}.part: holds {found.records:,} finished records of an interrupted run; "
                "--resume goes on from there, --force begins again"
            )

    @property
    def journal(self) -> Path:
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

        Every few seconds, and when the run fails, a journal records how far the output reaches, so that a killed run can
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
            Output(
                target,
                append_at=journal.offset if journal.records else None,
                scratch=revise is not None,
                journal=self.journal if resumable else None,
            ) as output,
            _JournalWriter(self, output, clock) as journal_writer,
            Progress(self.command, unit=unit, initial=journal.records) as progress,
        ):
            for torn in torn_files(Path(self.output)) if resumable else ():
                torn.unlink(missing_ok=True)
            for done in made:
                self._write(done, output, journal)
                size, journal.digest = read.popleft()
                journal.records += size
                journal.offset = output.end_frame()
                if resumable:
                    journal_writer(journal)
                progress.add(size)
            fault = self._fault(journal)
            if fault is not None:
                journal_writer.discard()  # there is nothing to resume
                raise DrtkError(fault)
            if revise is not None:
                self._revise(revise, output.part, journal, manifest, clock)
            elif resumable:
                output.manifest = self._complete_manifest(manifest, journal, clock)
        self._finish(journal, clock)

    def _fault(self, journal: Journal) -> str | None:
        """What is wrong with all that was made, once the last record is in; None: nothing."""
        if self.barren is not None and journal.records and not journal.lines:
            return self.barren()
        return None if self.vain is None else self.vain()

    def _revise(self, revise: Revise, part: Path | None, journal: Journal, manifest: Manifest, clock: Clock) -> None:
        """Write the output from the lines in `part`, which stays as it is until that is done."""
        if part is None:
            raise ValueError("the first of two passes must write a file")
        journal.lines = 0
        with Output(self.output, suffix=".part.new") as output, Progress(self.command, unit="lines") as progress:
            for done in revise(lambda: lines_of(part)):
                progress.add(self._write(done, output, journal))
                output.end_frame()
            if is_replaceable(self.output):
                output.manifest = self._complete_manifest(manifest, journal, clock)

    def _write(self, done: Done, output: Output, journal: Journal) -> int:
        """Write the lines of a window and add up its counts; returns the number of lines."""
        before = journal.lines
        for line in done.lines:
            output.write(line)
            journal.lines += 1
        _add(self.counts, done.counts)
        return journal.lines - before

    def _opening(self) -> Journal:
        if not is_replaceable(self.output):
            return Journal({})
        fresh = Journal.begin(self.settings, Path(self.output))
        self._named = inputs_named(fresh.settings, self._folders)  # files now: a command may write some before
        self._others = inputs_named({"looked_up": self.looked_up}, self._named)
        found = Journal.read(self.journal) if self.resume else None
        if found is None:
            return fresh
        part = Path(self.output + ".part")
        if not part.exists():
            return fresh
        changed = found.changes(fresh)
        if part.stat().st_size < found.offset:
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

    def _all_counts(self, journal: Journal) -> dict[str, Any]:
        skipped = {"skipped": self.intake.bad} if self.intake.bad else {}
        return {"in": journal.records, "out": journal.lines, **self.counts, **skipped}

    def _complete_manifest(self, manifest: Manifest, journal: Journal, clock: Clock) -> Manifest:
        inputs = add_named_folders(self.intake.inputs + self._others, self._named)
        return completed(manifest, inputs=inputs, counts=self._all_counts(journal), seconds=clock.seconds)

    def _finish(self, journal: Journal, clock: Clock) -> None:
        if self.empty is not None and self.part == WHOLE and not journal.records:
            warn(f"{self.command}: {self.empty}")
        if self.part != WHOLE and not journal.records:
            number, of = self.part
            warn(
                f"part {number} of {of} is empty: the input fills fewer than {number} windows of {self.window:,} records"
            )
        counts = self._all_counts(journal).items()
        summary = ", ".join(f"{value:,} {name}" for name, value in counts if isinstance(value, int))
        (log if self.told else detail)(f"{self.command}: {summary}, {clock.seconds:,.1f} s")


def _add(counts: dict[str, Any], more: dict[str, Any]) -> None:
    for name, number in more.items():
        if isinstance(number, dict):
            _add(counts.setdefault(name, {}), number)
        else:
            counts[name] = counts.get(name, 0) + number


class _JournalWriter(AbstractContextManager["_JournalWriter"]):
    """Write the journal of a run every few seconds, and once more when the run fails."""

    def __init__(self, job: FilterJob, output: Output, clock: Clock) -> None:
        self._job, self._output, self._clock = job, output, clock
        self._pending: Journal | None = None
        self._written = -JOURNAL_EVERY

    def __call__(self, journal: Journal) -> None:
        """Record a finished window; write the journal if it is due."""
        self._pending = replace(journal, counts=deepcopy(self._job.counts), seconds=round(self._clock.seconds, 3))
        if time.monotonic() - self._written >= JOURNAL_EVERY:
            self._write(self._pending)

    def _write(self, journal: Journal) -> None:
        for each in (*self._job.beside, self._output):
            each.sync()
        with interrupts_held():  # a journal without its part, or the reverse, is useless
            journal.write(self._job.journal, inputs=self._job.intake.inputs, named=self._job._named)
            self._output.keep_part = True
            self._pending, self._written = None, time.monotonic()

    def discard(self) -> None:
        """Remove the journal, and let the output remove the part."""
        self._pending = None
        self._output.keep_part = False
        self._job.journal.unlink(missing_ok=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is None:
            return
        with suppress(DrtkError):  # report the first error, not this one
            if self._pending is not None:
                self._write(self._pending)
        found = Journal.read(self._job.journal) if self._output.keep_part else None
        if found is not None:
            log(f"{self._output.part}: has the output of {found.records:,} records; --resume continues from there")

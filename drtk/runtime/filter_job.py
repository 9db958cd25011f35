"""Run a filter (records in, lines out) over batches of records, with a journal (NAME.part.json) from which a killed run resumes."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from contextlib import closing, contextmanager, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import orjson

from drtk.config import check_values, to_dict
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.runtime.atomic import identify_file, list_temporary_files, recover, write_json
from drtk.runtime.inputs import InputTracker
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import (
    SOURCES,
    Clock,
    Manifest,
    add_folders,
    complete_manifest,
    create_manifest,
    find_folders,
    find_inputs,
    is_from_stream,
    is_unchanged,
    to_json_values,
)
from drtk.runtime.progress import Progress, log, log_detail, warn
from drtk.runtime.sharding import WHOLE_INPUT, InputShard, select_shard
from drtk.runtime.streams import STANDARD, Output, count_lines, is_replaceable, is_writable

Record = TypeVar("Record")
BATCH_SIZE = 1000  # input records per batch
# Seconds between two journals. Each journal is written after an fsync of the part, so that it never claims more than the
# part holds after a power failure. An fsync after every batch took 3% of the time of `chunk`, far more on a slow disk.
JOURNAL_EVERY = 2.0


@dataclass(frozen=True)
class BatchResult:
    """The output of a batch of records, with line ends, and numbers to add to the counts of the job.

    lines: one or several lines each
    Nested counts are written to the manifest, but not logged.
    """

    lines: Iterable[bytes]
    counts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Journal:
    """The state of an interrupted `FilterJob`, from which it resumes.

    sources: manifest entries of inputs that were not read to the end; `digest` detects whether their records changed
    others: manifest entries of inputs that were read to the end, and of other files and folders in the settings
    records, lines: numbers of input records and output lines of the finished batches
    offset: size of the output lines in NAME.part, in bytes
    digest: digest of the records read
    seconds: duration of the run, including earlier sessions
    replaces: identity of the finished output that the run may replace (see `identify_file`); None if there was none
    """

    settings: dict[str, Any]
    sources: list[dict[str, Any]] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)
    records: int = 0
    lines: int = 0
    offset: int = 0
    digest: str = ""
    counts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    replaces: dict[str, int] | None = None

    @classmethod
    def load(cls, path: Path) -> Journal | None:
        """Read a journal; return None if there is no file. Raises DrtkError if the file is not a journal."""
        if not path.exists():
            return None
        try:
            return cls(**read_json(path))
        except (DrtkError, TypeError):
            problem = "not the journal of an interrupted run; remove it, or choose another output"
            raise DrtkError(f"{path}: {problem}") from None


def _find_changed_inputs(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["path"] for entry in entries if not is_from_stream(entry) and not is_unchanged(entry)]


@dataclass
class FilterJob:
    """A run of a filter: its output, inputs, counts and journal.

    command, kind: name of the command and kind of the output, for the manifest
    bare: write only the new fields of records, to be joined with the input later
    side_files: files with further fields of the input records
    writes: names of the settings that hold output paths
    batch_size: number of records that are processed and journaled together
    shard: the shard of the input to process
    lookups: further files and folders on which the output depends
    log_summary: log the final counts; otherwise only in verbose mode
    count_names: names of counts in this log line, such as {"in": "files"}
    no_input_warning: the warning if the input has no records, for example because a previous command in a pipe failed
    find_problem: called at the end with the number of output lines, unless the input was empty; returns the error
        message if the output is useless, else None
    side_outputs: further outputs, which are flushed to disk before the journal is written
    is_text: whether the output consists of lines, which are counted; otherwise files, such as pictures
    """

    command: str
    kind: str
    output: str = STANDARD
    settings: dict[str, Any] = field(default_factory=dict)
    resume: bool = False
    force: bool = False
    bare: bool = False
    side_files: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    batch_size: int = BATCH_SIZE
    shard: InputShard = WHOLE_INPUT
    lookups: tuple[str, ...] = ()
    log_summary: bool = True
    count_names: dict[str, str] = field(default_factory=dict)
    no_input_warning: str = "the input has no records, so the output is empty"
    find_problem: Callable[[int], str | None] | None = None
    tracker: InputTracker = field(default_factory=InputTracker)
    counts: dict[str, Any] = field(default_factory=dict)
    side_outputs: list[Output] = field(default_factory=list)
    is_text: bool = True

    def __post_init__(self) -> None:
        self._clock = Clock()
        # Manifest entries of folders in the settings, made before models are loaded; and of all files in the settings and
        # in `lookups`, made before the first record is read.
        self._folders: list[dict[str, Any]] = []
        self._input_entries: list[dict[str, Any]] = []
        self._lookup_entries: list[dict[str, Any]] = []
        self._finished = Journal({})  # state of the batches that are in the output
        self._pending: Journal | None = None  # newest state, if it is not in the journal yet
        self._written = -JOURNAL_EVERY  # time at which the journal was written

    @property
    def journal_path(self) -> Path:
        """The path of the journal."""
        return Path(self.output + ".part.json")

    def record(self, settings: Any, **values: Any) -> None:
        """Check and record the settings, and check the output. It has no effect if the command line has set `settings`.

        Library functions call it, so that they can be used in Python programs.
        """
        if not self.settings:
            check_values(settings)
            self.settings |= to_dict(settings) | values
            self.recover()
            self.check()

    def recover(self) -> bool:
        """Complete the final renames of a run that was killed; return whether they were completed."""
        return is_replaceable(self.output) and recover(Path(self.output))

    def check(self) -> None:
        """Check the output before anything is read or loaded.

        Raises UsageError for `resume` without an output file, DrtkError if the output cannot be written or replaced.
        """
        final = Path(self.output)
        if self.output != STANDARD and final.is_dir():
            raise DrtkError(f"{self.output}: is a folder; expected a file")
        if not is_replaceable(self.output):
            if self.resume:
                raise UsageError("`resume` requires a file name as `output`")
            return
        self._check_existing_output()
        if not final.parent.is_dir():
            raise DrtkError(f"{self.output}: folder {final.parent} does not exist; create it")
        if not is_writable(final.parent):
            raise DrtkError(f"{self.output}: Permission denied")
        self._folders = find_folders(self._drop_outputs(self.settings))
        if self.resume or self.force:
            return
        journal = Journal.load(self.journal_path)
        if journal is not None and Path(self.output + ".part").exists():
            raise DrtkError(
                f"{self.output}.part: contains {journal.records:,} finished records of an interrupted run; "
                "use `resume` to continue it or `force` to start over"
            )

    def _check_existing_output(self) -> None:
        """Raise DrtkError if an output exists that this run may not replace."""
        final = Path(self.output)
        if self.force or not final.exists():
            return
        journal = Journal.load(self.journal_path) if self.resume else None
        if journal is None or journal.replaces != identify_file(final):
            raise DrtkError(f"{self.output}: exists already; `force` replaces it")

    def run(
        self, records: Iterable[Record], work: Callable[[list[Record]], Iterable[bytes]], *, unit: str = "records"
    ) -> None:
        """Write the lines that `work` returns for each batch of records, in input order (see `run_batches`).

        Change `counts` only in `work`, since the journal stores them after each batch.
        """
        self.run_batches(records, lambda batches: (BatchResult(work(batch)) for batch in batches), unit=unit)

    def run_report(self, lines: Iterable[str], *, num_inputs: int) -> None:
        """Write the lines of a report, which have no line ends.

        num_inputs: number of runs or systems in the report, recorded in the manifest as `in`
        """
        self.log_summary = self.output != STANDARD
        self.counts["in"] = num_inputs
        if self.output.endswith((".csv", ".html", ".jsonl", ".md", ".tex")) and self.settings.get("format") == "table":
            warn(f"{self.output}: is written as a text table; set `format` for another format")
        self.run(lines, lambda batch: (f"{line}\n".encode() for line in batch), unit="lines")

    def run_batches(
        self,
        records: Iterable[Record],
        work: Callable[[Iterator[list[Record]]], Generator[BatchResult, None, None]],
        *,
        unit: str = "records",
        group: Callable[[bytes], Any] | None = None,
    ) -> None:
        """Write the results that `work` yields, one for each batch of records, in input order.

        `work` may prefetch batches. If the output is a file, a journal is written after a batch, at most every two
        seconds, and when the run fails. Records of other shards are skipped and not counted.
        unit, group: plural name of the records, and key of the record that a line of the source belongs to (see
            `count_lines`), for the progress bar
        Raises MismatchError if the run to resume had other settings or inputs, DrtkError from `find_problem`.
        """
        self._manifest = create_manifest(self.kind, self.settings, program=self.command)
        resumable = is_replaceable(self.output)
        journal = self._finished = self._open_journal() if resumable else Journal({})
        self._clock.before = journal.seconds
        stream = select_shard(records, self.shard, batch_size=self.batch_size)
        digest = self._skip_finished(stream, journal)
        pending: deque[tuple[int, str]] = deque()  # batches that `work` has read: their size, and the digest after them

        def iter_batches() -> Iterator[list[Record]]:
            while batch := list(islice(stream, self.batch_size)):
                if resumable:
                    for record in batch:
                        digest.update(orjson.dumps(record))
                pending.append((len(batch), digest.hexdigest() if resumable else ""))
                yield batch

        with (
            closing(work(iter_batches())) as results,  # before the progress bar starts a thread: `work` may fork
            Output(
                self.output,
                append_at=journal.offset if journal.records else None,
                journal=self.journal_path if resumable else None,
            ) as output,
            self._keep_journal(output),
            Progress(
                self.command,
                total=len(records) if isinstance(records, Sized) else self._count_records(unit, group),
                get_share=self._get_share_read,
                unit=unit,
                initial=journal.records,
            ) as progress,
        ):
            for path in list_temporary_files(Path(self.output)) if resumable else ():
                path.unlink(missing_ok=True)
            for result in results:
                self._write(result, output)
                size, journal.digest = pending.popleft()
                journal.records += size
                journal.offset = output.end_frame()
                if resumable:
                    seconds = round(self._clock.seconds, 3)
                    self._pending = replace(journal, counts=deepcopy(self.counts), seconds=seconds)
                    if time.monotonic() - self._written >= JOURNAL_EVERY:
                        self._write_journal(self._pending, output)
                progress.add(size)
            problem = self.find_problem(journal.lines) if self.find_problem is not None and journal.records else None
            if problem is not None:  # there is nothing to resume
                self._pending, output.keep_part = None, False
                self.journal_path.unlink(missing_ok=True)
                raise DrtkError(problem)
            if resumable:
                output.manifest = self._build_manifest()
        self._log_summary()

    def build_manifest(self, count: int) -> Manifest:
        """Return the manifest of `count` records that were written in another way than by `run`, such as a table."""
        self._manifest = create_manifest(self.kind, self.settings, program=self.command)
        self._finished.records = self._finished.lines = count
        return self._build_manifest()

    def log_count(self, count: int, unit: str) -> None:
        """Log the number of records that were written in another way than by `run`."""
        log(f"{self.command}: {count:,} {unit}, {self._clock.seconds:,.1f} s -> {self.output}")

    def _count_records(self, unit: str, group: Callable[[bytes], Any] | None) -> int | None:
        """Return the approximate number of records of this run; None if it is unknown or expensive to count."""
        source, sample = self.settings.get("source"), self.settings.get("sample")
        if not isinstance(source, str) or (unit == "queries" and group is None):  # queries with several lines
            return None
        lines = count_lines(source, shards=self.shard[1], group=group)
        return lines if lines is None or sample is None else min(lines, sample)

    def _get_share_read(self) -> float | None:
        source = self.settings.get("source")
        return self.tracker.get_share_read(source) if isinstance(source, str) else None

    @contextmanager
    def _keep_journal(self, output: Output) -> Iterator[None]:
        """Context manager that writes the journal and logs the number of finished records if the run fails."""
        try:
            yield
        except BaseException:
            with suppress(DrtkError):  # report the first error, not this one
                if self._pending is not None:
                    self._write_journal(self._pending, output)
            journal = Journal.load(self.journal_path) if output.keep_part else None
            if journal is not None:
                log(f"{output.part}: contains the output of {journal.records:,} records; use `resume` to continue")
            raise

    def _write_journal(self, journal: Journal, output: Output) -> None:
        for written in (*self.side_outputs, output):
            written.sync()
        opened = {entry["path"] for entry in self.tracker.inputs}
        journal.sources = [entry for entry in self.tracker.inputs if entry.get("digest") is None]
        journal.others = [entry for entry in self.tracker.inputs if entry.get("digest") is not None]
        journal.others += [entry for entry in self._input_entries if entry["path"] not in opened]
        output.keep_part = True
        write_json(self.journal_path, asdict(journal))
        self._pending, self._written = None, time.monotonic()

    def _write(self, result: BatchResult, output: Output) -> None:
        """Write the lines of a batch, and add its counts to the totals of the job."""
        for lines in result.lines:
            output.write(lines)
            self._finished.lines += lines.count(b"\n") if self.is_text else 1
        _add_counts(self.counts, result.counts)

    def _open_journal(self) -> Journal:
        """List the input files, and return the journal to resume from, or a new one.

        Raises MismatchError if the interrupted run had other settings or files, or its part is truncated, unless
        `force` is set.
        """
        settings = to_json_values(self.settings)
        self._check_existing_output()  # another run may have finished since `check`
        settings = {name: value for name, value in settings.items() if name not in (*SOURCES, "skip_bad")}
        self._input_entries = find_inputs(self._drop_outputs(settings), self._folders)  # before the command writes any
        self._lookup_entries = find_inputs({"lookups": self.lookups}, self._input_entries)
        fresh = Journal(settings, replaces=identify_file(Path(self.output)))
        journal = Journal.load(self.journal_path) if self.resume else None
        part = Path(self.output + ".part")
        if journal is None or not part.exists():
            return fresh
        before = journal.settings
        changed = sorted(name for name in before | settings if before.get(name) != settings.get(name))
        changed += _find_changed_inputs(journal.others)
        if part.stat().st_size < journal.offset:
            problem = f"{part}: is truncated (shorter than its journal says)"
        elif changed:
            problem = f"{part}: started with other settings or files ({', '.join(changed)})"
        elif self.force and _find_changed_inputs(journal.sources):  # even if only records after those read have changed
            problem = f"{part}: started with another input"
        else:
            self.counts.update(journal.counts)
            log(f"resuming {self.output} after {journal.records:,} records")
            return journal
        if self.force:
            log(f"{problem}; starting over")
            return fresh
        raise MismatchError(f"{problem}; use `force` to start over")

    def _skip_finished(self, stream: Iterator[Any], journal: Journal) -> Any:
        """Skip the records that are finished according to the journal; return the running digest of the records.

        Raises MismatchError if the interrupted run read other records.
        """
        digest = hashlib.blake2b(digest_size=16)
        for record in islice(stream, journal.records):
            digest.update(orjson.dumps(record))
        if journal.records and digest.hexdigest() != journal.digest:
            # The records are consumed, so the run cannot start over here.
            raise MismatchError(
                f"{self.output}.part: started with another input; use `force` without `resume` to start over"
            )
        return digest

    def _drop_outputs(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name not in self.writes}

    def _collect_counts(self) -> dict[str, Any]:
        skipped = {"skipped": self.tracker.bad} if self.tracker.bad else {}
        return {"in": self._finished.records, "out": self._finished.lines, **self.counts, **skipped}

    def _build_manifest(self) -> Manifest:
        inputs = add_folders(self.tracker.inputs + self._lookup_entries, self._input_entries)
        counts, seconds = self._collect_counts(), self._clock.seconds
        return complete_manifest(self._manifest, inputs=inputs, counts=counts, seconds=seconds)

    def _log_summary(self) -> None:
        number, of = self.shard
        if not self._finished.records and self.shard != WHOLE_INPUT:
            warn(
                f"shard {number} of {of} is empty: the input has fewer than {number} batches of {self.batch_size:,} records"
            )
        elif not self._finished.records:
            warn(f"{self.command}: {self.no_input_warning}")
        counts = self._collect_counts().items()
        numbers = [(name, value) for name, value in counts if isinstance(value, int)]
        summary = ", ".join(f"{value:,} {self.count_names.get(name, name)}" for name, value in numbers)
        target = "" if self.output == STANDARD else f" -> {self.output}"
        (log if self.log_summary else log_detail)(f"{self.command}: {summary}, {self._clock.seconds:,.1f} s{target}")


def _add_counts(counts: dict[str, Any], new_counts: dict[str, Any]) -> None:
    for name, number in new_counts.items():
        if isinstance(number, dict):
            _add_counts(counts.setdefault(name, {}), number)
        else:
            counts[name] = counts.get(name, 0) + number

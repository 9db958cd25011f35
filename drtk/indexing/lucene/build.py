"""Build a Lucene index with Anserini's IndexCollection."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.indexing.base import write_ids
from drtk.indexing.lucene.jvm import convert_java_error, load_class, run_interruptibly, start_jvm
from drtk.indexing.lucene.search import ID, IDS_FILE, INDEX_FOLDER, StoredField, open_reader
from drtk.records import Passage
from drtk.runtime.progress import log_detail, warn

_INPUT_FOLDER = "passages.part"
_IDS_AT_A_TIME = 500_000
_MAX_TEXT_LENGTH = 2**31 - 1  # characters per JSON string; Jackson's default of 20 million is too low for documents

MakeRow = Callable[[Passage], dict[str, Any] | None]  # returns Anserini's JSON of a passage; None if it has no words


def write_index(
    passages: Iterable[Passage],
    folder: Path,
    make_row: MakeRow,
    set_index_arguments: Callable[[Any], None],
    *,
    threads: int,
) -> int:
    """Index all nonempty passages; return their number. Warns if empty passages are not indexed.

    make_row: returns the JSON object of a passage, or None if it is empty
    set_index_arguments: sets arguments of IndexCollection
    threads: 0: all cores
    Passages are first written to temporary JSON files in `folder`, one per thread.
    Raises DrtkError if all passages are empty or Lucene did not index every passage, MismatchError for a duplicate id,
    RecordError for invalid Unicode.
    """
    start_jvm()  # before jnius is imported, which would start a JVM without the jar
    import jnius

    threads = threads or os.cpu_count() or 1
    input_folder = folder / _INPUT_FOLDER
    try:
        try:
            count = _write_rows(passages, input_folder, make_row, threads)
            _run_indexer(input_folder, folder, set_index_arguments, threads, count)
        finally:
            shutil.rmtree(input_folder, ignore_errors=True)
        _write_ids(folder, count)
    except jnius.JavaException as error:
        raise convert_java_error(error, str(folder)) from error
    except OSError as error:
        raise DrtkError(f"{error.filename or folder}: {error.strerror}") from error
    return count


def _write_rows(passages: Iterable[Passage], folder: Path, make_row: MakeRow, num_files: int) -> int:
    """Distribute the JSON rows of passages over the files of a new folder; return the number of rows."""
    folder.mkdir()
    written = empty = 0
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{number:04}.jsonl").open("wb")) for number in range(num_files)]
        for passage in passages:
            row = make_row(passage)
            if row is not None:
                try:
                    line = orjson.dumps(row)
                except TypeError as error:  # half a surrogate pair
                    raise RecordError(
                        f"passage '{passage.id}'", "its text is not valid Unicode; fix its encoding"
                    ) from error
                files[written % num_files].write(line + b"\n")
                written += 1
            else:
                empty += 1
    if empty:
        warn(f"{empty:,} empty passage{'s are' if empty > 1 else ' is'} not indexed")
    if not written:
        raise DrtkError("no passage contains a text to index; check the corpus")
    return written


def _run_indexer(
    input_folder: Path, folder: Path, set_index_arguments: Callable[[Any], None], threads: int, count: int
) -> None:
    constraints = load_class("com.fasterxml.jackson.core.StreamReadConstraints")
    constraints.overrideDefaultStreamReadConstraints(constraints.builder().maxStringLength(_MAX_TEXT_LENGTH).build())
    arguments = load_class("io.anserini.index.IndexCollection$Args")()
    arguments.input = str(input_folder.absolute())
    arguments.index = str((folder / INDEX_FOLDER).absolute())
    arguments.threads = threads
    set_index_arguments(arguments)
    arguments.optimize = True  # merge into one segment: fastest to search, and ids.txt needs one numbering
    arguments.quiet = True
    with _capture_java_output() as output:
        indexer = load_class("io.anserini.index.IndexCollection")(arguments)
        worker: list[Any] = []

        def run_indexer() -> None:
            worker.append(load_class("java.lang.Thread").currentThread())
            indexer.run()

        run_interruptibly(run_indexer, stop=lambda: worker[0].interrupt())
        indexed = indexer.getCounters().indexed.get()
    if indexed != count:
        log_detail(output[0])
        reason = re.search(r"^\S*(?:Exception|Error)\b.*", output[0], re.MULTILINE)
        raise DrtkError(
            f"{folder}: Lucene indexed {indexed:,} of {count:,} passages{f' ({reason[0]})' if reason else ''}; use `verbose` to print its messages"
        )


@contextmanager
def _capture_java_output() -> Iterator[list[str]]:
    """Capture Java's stdout and stderr, because Anserini prints exceptions and continues.

    Yields a list to which the captured text is appended at the end of the block.
    """
    system = load_class("java.lang.System")
    original = system.err
    buffer = load_class("java.io.ByteArrayOutputStream")()
    output: list[str] = []
    stream = load_class("java.io.PrintStream")(buffer, True)
    system.setErr(stream)
    system.setOut(stream)
    try:
        yield output
    finally:
        system.setErr(original)
        system.setOut(original)
        output.append(buffer.toString())


def _write_ids(folder: Path, count: int) -> None:
    """Write the passage ids in the order of Lucene document numbers. Raises MismatchError for a duplicate id."""
    reader = open_reader(folder)
    try:
        stored = StoredField(reader, ID)
        ids: list[str] = []
        for start in range(0, count, _IDS_AT_A_TIME):
            ids.extend(stored.get_values(range(start, min(count, start + _IDS_AT_A_TIME))))
    finally:
        reader.close()
    for id, next_id in pairwise(sorted(ids)):
        if id == next_id:
            raise MismatchError(f"two passages have the id '{id}'; make the ids unique")
    write_ids(folder / IDS_FILE, ids)

"""Write a Lucene index with Anserini's IndexCollection."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.indexing.base import write_ids
from drtk.indexing.lucene.jvm import in_background, java, lucene_error, start_jvm
from drtk.indexing.lucene.search import IDS_FILE, INDEX_FOLDER, JavaMap, bind, chain, find_method, open_reader
from drtk.records import Passage
from drtk.runtime.progress import Progress, log_detail, warn

_SPOOL_FOLDER = "passages.part"
_IDS_AT_A_TIME = 500_000
_MAX_TEXT_LENGTH = (
    2**31 - 1
)  # characters of one JSON string; Jackson's own limit of 20 million is too low for documents

MakeRow = Callable[[Passage], dict[str, Any] | None]  # a row of Anserini's JSON with its `id`; None: nothing to index


def write_index(
    passages: Iterable[Passage],
    folder: Path,
    make_row: MakeRow,
    configure: Callable[[Any], None],
    *,
    threads: int = 0,
    progress: Progress | None = None,
) -> int:
    """Index the passages that have words; return their number. Empty passages are left out with a warning.

    configure: sets arguments of IndexCollection
    Rows are written to one JSON file per thread in `folder`, which are removed afterwards. Raises DrtkError if there is no
    passage or Lucene indexed fewer than it was given, MismatchError for a duplicate id, RecordError for invalid Unicode.
    """
    start_jvm()  # before jnius is imported, which would start a JVM without the jar
    import jnius

    threads = threads or os.cpu_count() or 1
    spool = folder / _SPOOL_FOLDER
    try:
        try:
            count = _write_rows(passages, spool, make_row, threads, progress)
            _run_indexer(spool, folder, configure, threads, count)
        finally:
            shutil.rmtree(spool, ignore_errors=True)
        _write_ids(folder, count)
    except jnius.JavaException as error:
        raise lucene_error(error, str(folder)) from error
    except OSError as error:
        raise DrtkError(f"{error.filename or folder}: {error.strerror}") from error
    return count


def _write_rows(
    passages: Iterable[Passage], spool: Path, make_row: MakeRow, num_files: int, progress: Progress | None
) -> int:
    """Write the rows of passages into files, in turn; return their number."""
    spool.mkdir()
    written = empty = 0
    with ExitStack() as stack:
        files = [stack.enter_context((spool / f"{number:04}.jsonl").open("wb")) for number in range(num_files)]
        for passage in passages:
            row = make_row(passage)
            if row is not None:
                try:
                    line = orjson.dumps(row)
                except TypeError as error:  # half a surrogate pair
                    raise RecordError(f"passage '{passage.id}'", "its text is not valid Unicode") from error
                files[written % num_files].write(line + b"\n")
                written += 1
            else:
                empty += 1
            if progress is not None:
                progress.add()
    if empty:
        warn(f"{empty:,} empty passage{'s' if empty > 1 else ''} left out of the index")
    if not written:
        raise DrtkError("nothing to index: no passage with a text")
    return written


def _run_indexer(spool: Path, folder: Path, configure: Callable[[Any], None], threads: int, count: int) -> None:
    constraints = java("com.fasterxml.jackson.core.StreamReadConstraints")
    constraints.overrideDefaultStreamReadConstraints(constraints.builder().maxStringLength(_MAX_TEXT_LENGTH).build())
    arguments = java("io.anserini.index.IndexCollection$Args")()
    arguments.input = str(spool.absolute())
    arguments.index = str((folder / INDEX_FOLDER).absolute())
    arguments.threads = threads
    configure(arguments)
    arguments.optimize = True  # one segment: the fastest to search, and its numbering is what ids.txt follows
    arguments.quiet = True
    with _capture_java_output() as output:
        indexer = java("io.anserini.index.IndexCollection")(arguments)
        worker: list[Any] = []

        def run() -> None:
            worker.append(java("java.lang.Thread").currentThread())
            indexer.run()

        in_background(run, stop=lambda: worker[0].interrupt())
        indexed = indexer.getCounters().indexed.get()
    if indexed != count:
        log_detail(output[0])
        reason = re.search(r"^\S*(?:Exception|Error)\b.*", output[0], re.MULTILINE)
        raise DrtkError(
            f"{folder}: Lucene indexed {indexed:,} of {count:,} passages{f': {reason[0]}' if reason else ''}"
        )


@contextmanager
def _capture_java_output() -> Iterator[list[str]]:
    """Collect Java's stdout and stderr as one text, available after the block: Anserini prints exceptions and continues."""
    system = java("java.lang.System")
    original = system.err
    buffer = java("java.io.ByteArrayOutputStream")()
    output: list[str] = []
    stream = java("java.io.PrintStream")(buffer, True)
    system.setErr(stream)
    system.setOut(stream)
    try:
        yield output
    finally:
        system.setErr(original)
        system.setOut(original)
        output.append(buffer.toString())


def _write_ids(folder: Path, count: int) -> None:
    """Write the passages' ids in Lucene's numbering. Raises MismatchError for a duplicate id."""
    reader = open_reader(folder)
    try:
        fields = find_method(
            "org.apache.lucene.index.IndexReader", "storedFields", "org.apache.lucene.index.StoredFields"
        )
        document = find_method(
            "org.apache.lucene.index.StoredFields", "document", "org.apache.lucene.document.Document", "int"
        )
        document = java("java.lang.invoke.MethodHandles").collectArguments(document, 0, bind(fields, 0, reader))
        get = find_method("org.apache.lucene.document.Document", "get", "java.lang.String", "java.lang.String")
        read_ids = JavaMap(chain(document, bind(get, 1, "id")))
        numbers = java("java.util.stream.IntStream")
        ids: list[str] = []
        for start in range(0, count, _IDS_AT_A_TIME):
            block = numbers.range(start, min(count, start + _IDS_AT_A_TIME)).boxed().toList()
            ids.extend(in_background(partial(read_ids, block)))
    finally:
        reader.close()
    for one, next_one in pairwise(sorted(ids)):
        if one == next_one:
            raise MismatchError(f"two passages have the id '{one}'")
    write_ids(folder / IDS_FILE, ids)

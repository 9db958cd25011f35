"""Passages into a Lucene index, by Anserini's IndexCollection."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import orjson

from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.indexing.base import first_duplicate, write_ids
from drtk.indexing.config import BM25IndexSettings
from drtk.indexing.lucene.analysis import STOPWORDS_FILE, choose_analysis
from drtk.indexing.lucene.batch import JavaMap, bound, method, then
from drtk.indexing.lucene.jvm import in_background, java, lucene_fault, start_jvm
from drtk.records import Passage
from drtk.runtime.progress import Progress, detail, warn

INDEX_FOLDER = "lucene"
IDS_FILE = "ids.txt"
_SPOOL_FOLDER = "passages.part"
_IDS_AT_A_TIME = 500_000
_LONGEST_TEXT = 2**31 - 1  # characters of one JSON string; Jackson's own limit of 20 million is too low for documents
_BLANK = "".join(map(chr, range(33)))  # what Java's trim takes away, and Anserini calls empty


class Feed(Protocol):
    """What Anserini is fed for one type of index."""

    def row(self, passage: Passage) -> dict[str, Any] | None:
        """A passage as a JSON row of Anserini's, with its `id`; None for one without a word."""

    def configure(self, arguments: Any) -> None:
        """Set what is particular to the type among the arguments of IndexCollection."""

    def save(self) -> None:
        """Write into the index folder what searching must know."""


class _Texts:
    """Titles and texts, joined by a space, cut into words by an analyzer of Lucene's."""

    def __init__(self, settings: BM25IndexSettings, folder: Path) -> None:
        self._analysis, self._folder = choose_analysis(settings, folder), folder

    def row(self, passage: Passage) -> dict[str, Any] | None:
        contents = f"{passage.title} {passage.text}".strip(_BLANK)
        return {"id": passage.id, "contents": contents} if contents else None

    def configure(self, arguments: Any) -> None:
        arguments.collectionClass = "JsonCollection"
        arguments.language = self._analysis.language
        arguments.stemmer = self._analysis.stemmer
        arguments.keepStopwords = self._analysis.stopwords == "none"
        if self._analysis.stopwords == "file":
            arguments.stopwords = str((self._folder / STOPWORDS_FILE).absolute())
        arguments.storeDocvectors = self._analysis.term_vectors

    def save(self) -> None:
        self._analysis.save(self._folder)


def build_index(
    passages: Iterable[Passage], folder: Path, settings: BM25IndexSettings, *, progress: Progress | None = None
) -> int:
    """Index title and text, joined by a space, of every passage; the number of passages in the index.

    UsageError for settings that contradict each other; other faults as `write_index`.
    """
    return write_index(passages, folder, lambda: _Texts(settings, folder), threads=settings.threads, progress=progress)


def write_index(
    passages: Iterable[Passage],
    folder: Path,
    make_feed: Callable[[], Feed],
    *,
    threads: int = 0,
    progress: Progress | None = None,
) -> int:
    """Index the passages that have words, by a feed that is made once Java runs; the number of passages in the index.

    Empty passages are left out, and counted on stderr. Passages pass through JSON files in `folder`, one a thread,
    which are removed again. Raises DrtkError where there is no passage and where Lucene indexed another number than it
    was given; MismatchError where an id occurs twice; and what the feed raises.
    """
    start_jvm()  # before jnius is imported, which would start one without the jar
    import jnius

    threads = threads or os.cpu_count() or 1
    try:
        feed = make_feed()
        spool = folder / _SPOOL_FOLDER
        try:
            written = _spool(passages, spool, feed, threads, progress)
            _index(spool, folder, feed, threads, written)
        finally:
            shutil.rmtree(spool, ignore_errors=True)
        feed.save()
        _write_ids(folder, written)
    except jnius.JavaException as error:
        raise lucene_fault(error, str(folder)) from error
    except OSError as error:
        raise DrtkError(f"{error.filename or folder}: {error.strerror}") from error
    return written


def _spool(passages: Iterable[Passage], spool: Path, feed: Feed, count: int, progress: Progress | None) -> int:
    """Write passages into `count` files, in turn; how many were not empty."""
    spool.mkdir()
    written = empty = 0
    with ExitStack() as stack:
        files = [stack.enter_context((spool / f"{number:04}.jsonl").open("wb")) for number in range(count)]
        for passage in passages:
            row = feed.row(passage)
            if row is not None:
                try:
                    line = orjson.dumps(row)
                except TypeError as error:  # half a surrogate pair
                    raise RecordError(f"passage '{passage.id}'", "its text is not valid Unicode") from error
                files[written % count].write(line + b"\n")
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


def _index(spool: Path, folder: Path, feed: Feed, threads: int, written: int) -> None:
    constraints = java("com.fasterxml.jackson.core.StreamReadConstraints")
    constraints.overrideDefaultStreamReadConstraints(constraints.builder().maxStringLength(_LONGEST_TEXT).build())
    arguments = java("io.anserini.index.IndexCollection$Args")()
    arguments.input = str(spool.absolute())
    arguments.index = str((folder / INDEX_FOLDER).absolute())
    arguments.threads = threads
    feed.configure(arguments)
    arguments.optimize = True  # one segment: the fastest to search, and its numbering is what ids.txt follows
    arguments.quiet = True
    with _captured() as told:
        indexer = java("io.anserini.index.IndexCollection")(arguments)
        worker: list[Any] = []

        def run() -> None:
            worker.append(java("java.lang.Thread").currentThread())
            indexer.run()

        in_background(run, stop=lambda: worker[0].interrupt())
        counters = indexer.getCounters()
        indexed = counters.indexed.get()
    if indexed != written:
        text = told[0]
        detail(text)
        reason = re.search(r"^\S*(?:Exception|Error)\b.*", text, re.MULTILINE)
        raise DrtkError(
            f"{folder}: Lucene indexed {indexed:,} of {written:,} passages{f': {reason[0]}' if reason else ''}"
        )


@contextmanager
def _captured() -> Iterator[list[str]]:
    """Java's stdout and stderr as one text, there once the block is left: Anserini prints faults and goes on."""
    system = java("java.lang.System")
    kept = system.err
    buffer = java("java.io.ByteArrayOutputStream")()
    told: list[str] = []
    stream = java("java.io.PrintStream")(buffer, True)
    system.setErr(stream)
    system.setOut(stream)
    try:
        yield told
    finally:
        system.setErr(kept)
        system.setOut(kept)
        told.append(buffer.toString())


def _write_ids(folder: Path, count: int) -> None:
    """Write `ids.txt`, the passages' ids in Lucene's numbering, and see that none is there twice."""
    reader = open_reader(folder)
    try:
        fields = method("org.apache.lucene.index.IndexReader", "storedFields", "org.apache.lucene.index.StoredFields")
        stored = bound(fields, 0, reader)
        document = method(
            "org.apache.lucene.index.StoredFields", "document", "org.apache.lucene.document.Document", "int"
        )
        document = java("java.lang.invoke.MethodHandles").collectArguments(document, 0, stored)
        name = method("org.apache.lucene.document.Document", "get", "java.lang.String", "java.lang.String")
        ids_of = JavaMap(then(document, bound(name, 1, "id")))
        numbers = java("java.util.stream.IntStream")
        ids: list[str] = []
        for start in range(0, count, _IDS_AT_A_TIME):
            end = min(count, start + _IDS_AT_A_TIME)
            block = numbers.range(start, end).boxed().toList()
            ids.extend(in_background(partial(ids_of, block)))
    finally:
        reader.close()
    if (doubled := first_duplicate(ids)) is not None:
        raise MismatchError(f"two passages have the id '{doubled}'")
    write_ids(folder / IDS_FILE, ids)


def open_reader(folder: Path) -> Any:
    """Lucene's reader of the index in `folder`."""
    path = java("java.io.File")(str((folder / INDEX_FOLDER).absolute())).toPath()
    return java("org.apache.lucene.index.DirectoryReader").open(java("org.apache.lucene.store.FSDirectory").open(path))

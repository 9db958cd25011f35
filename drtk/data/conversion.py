"""Convert records from one format to another, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from drtk.config import check_effects
from drtk.data import formats
from drtk.data.config import ConversionSettings
from drtk.data.examples import ParsedExample
from drtk.data.jsonl import dump, iter_valid, read_passages, read_queries
from drtk.data.writers import FORMATS, TABLES, Format
from drtk.errors import MismatchError, UsageError
from drtk.records import Query
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.inputs import InputTracker
from drtk.runtime.manifest import find_inputs, is_done
from drtk.runtime.progress import log

if TYPE_CHECKING:
    from drtk.data.corpus_store import CorpusStore

WINDOW = 100  # training examples per window
_OPENING, _CLOSING = "opening", "closing"


def convert_records(sources: Sequence[str], settings: ConversionSettings, job: FilterJob) -> None:
    """Write the records of the sources in another format, and if asked the texts they contain.

    Raises UsageError for settings that do not fit, MismatchError for an id that `corpus` or `queries` lacks.
    """
    check_effects(settings)
    if settings.kind is None:
        raise UsageError(f"`as` is needed: one of {', '.join(FORMATS)}")
    kind = settings.kind
    name = FORMATS[kind].check(settings.to or next(iter(FORMATS[kind])))
    if job.side_files and kind != "passages":
        raise UsageError("`with` adds fields to passages: `as` passages")
    job.kind = "corpus" if kind == "passages" else kind
    source = sources[0]
    if len(sources) > 1 and (kind != "examples" or name in TABLES or settings.corpus_out or settings.queries_out):
        raise UsageError(
            "several inputs are for `as` examples, and not for tables, `corpus_out` and `queries_out`, which read twice"
        )
    sides = _create_text_jobs(settings, job)
    if sides or name in TABLES:
        job.tracker.copy_streams(source, *job.side_files)
    for side, read in sides:
        side.tracker.stand_ins = job.tracker.stand_ins
        side.run(read(source, tracker=side.tracker), lambda window: map(dump, window), unit=side.kind)
    if name in TABLES:
        FORMATS[kind].load(name)(lambda tracker: iter_records(source, kind, tracker, job.side_files), kind, job)
        return
    form: Format[Any] = FORMATS[kind].load(name)
    complete = None
    if kind == "examples":
        complete = _TextLookup(form.needs, settings, job.tracker)
        job.window = WINDOW  # each may have a hundred texts
    every = chain.from_iterable(iter_records(each, kind, job.tracker, job.side_files) for each in sources)
    _write(every, form, job, complete)
    if kind == "examples" and not form.needs and not sides and job.counts.get(_MINTED):
        log("ids were made from texts, which are not in the output: `corpus_out` and `queries_out` write them")


def iter_records(source: str, kind: str, tracker: InputTracker, side_files: Sequence[str] = ()) -> Iterator[Any]:
    """Return the records of a source, read as `kind`; errors of records are passed to `tracker`."""
    if kind == "passages":
        return read_passages(source, tracker=tracker, side_files=side_files)
    if kind == "queries":
        return read_queries(source, tracker=tracker)
    found = {"qrels": formats.iter_judgements, "run": formats.iter_hits, "examples": formats.iter_examples}[kind]
    if kind == "examples" and formats.is_triples(source, tracker):
        found = formats.iter_triples
    return iter_valid(found(source, tracker), source, tracker)  # type: ignore[operator]


def _create_text_jobs(
    settings: ConversionSettings, job: FilterJob
) -> list[tuple[FilterJob, Callable[..., Iterator[Any]]]]:
    """Return the jobs that write the texts of examples. Each reads the source itself, so each is atomic and resumable."""
    jobs: list[tuple[FilterJob, Callable[..., Iterator[Any]]]] = []
    for output, kind, read in (
        (settings.corpus_out, "corpus", read_passages),
        (settings.queries_out, "queries", read_queries),
    ):
        if output is None:
            continue
        recorded = {"sources": job.settings["sources"], "texts": kind, "skip_bad": job.settings["skip_bad"]}
        side = FilterJob("convert", kind, output, recorded, resume=job.resume, force=job.force)
        side.tracker.skip_bad = job.tracker.skip_bad
        side.recover()
        if job.resume and is_done(output, recorded, program="convert"):
            continue
        side.check()
        jobs.append((side, read))
    return jobs


class _TextLookup:
    """Add to examples the texts that a format needs and that they lack, from the files `queries` and `corpus`."""

    def __init__(self, needs: tuple[str, ...], settings: ConversionSettings, tracker: InputTracker) -> None:
        self._needs, self._settings, self._tracker = needs, settings, tracker

    def __call__(self, window: list[ParsedExample]) -> list[ParsedExample]:
        if "query" in self._needs:
            window = [found if found.query is not None else self._add_query(found) for found in window]
        lacking = [found for found in window if not found.passages] if "passages" in self._needs else []
        ids = list(dict.fromkeys(id for found in lacking for id in _list_ids(found)))
        texts = dict(zip(ids, self._store.get_many(ids), strict=True)) if ids else {}
        if not texts:
            return window
        return [
            found if found.passages else replace(found, passages=tuple(texts[id] for id in _list_ids(found)))
            for found in window
        ]

    def _add_query(self, found: ParsedExample) -> ParsedExample:
        query = self._queries.get(found.example.query_id)
        if query is None:
            raise MismatchError(f"{self._settings.queries}: has no query '{found.example.query_id}'")
        return replace(found, query=query)

    @cached_property
    def _queries(self) -> dict[str, Query]:
        if self._settings.queries is None:
            raise UsageError("this format holds texts of queries, the input only their ids: `queries` FILE")
        return {query.id: query for query in read_queries(self._settings.queries, tracker=self._tracker)}

    @cached_property
    def _store(self) -> CorpusStore:
        if self._settings.corpus is None:
            raise UsageError("this format holds texts of passages, the input only their ids: `corpus` FILE")
        from drtk.data.corpus_store import CorpusStore

        self._tracker.inputs += find_inputs({"corpus": self._settings.corpus})
        return CorpusStore.open(self._settings.corpus)


def _list_ids(found: ParsedExample) -> tuple[str, ...]:
    return found.example.positives + found.example.negatives


_MINTED = "examples with ids made from texts"


def _write(stream: Iterator[Any], form: Format[Any], job: FilterJob, complete: _TextLookup | None) -> None:
    framed = bool(form.header or form.footer)

    def work(window: list[Any]) -> Iterator[bytes]:
        found = [record for record in window if record is not _OPENING and record is not _CLOSING]
        if complete is not None:
            found = complete(found)
            minted = sum(record.has_new_ids for record in found)
            if minted:
                job.counts[_MINTED] = job.counts.get(_MINTED, 0) + minted
        if window[0] is _OPENING:
            yield form.header
        written = job.counts.get("out", 0)
        for record in found:
            line = form.write(record, job.counts)
            yield form.between + line if written else line
            written += 1
        if framed:  # header and footer are no records
            job.counts["in"] = job.counts["out"] = written
        if window[-1] is _CLOSING:
            yield form.footer

    def frame() -> Iterator[Any]:
        yield _OPENING
        yield from stream
        yield _CLOSING

    job.run(frame() if framed else stream, work)

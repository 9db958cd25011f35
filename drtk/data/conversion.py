"""Convert records from one format to another, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from drtk.config import check_effects
from drtk.data import readers
from drtk.data.config import VECTOR_FILE_SUFFIXES, ConversionSettings
from drtk.data.examples import ParsedExample
from drtk.data.readers import iter_valid, read_passages, read_queries
from drtk.data.writers import FORMATS, Format
from drtk.errors import MismatchError, UsageError
from drtk.records import Query
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import log

if TYPE_CHECKING:
    from drtk.data.corpus_store import CorpusStore

BATCH_SIZE = 100  # training examples per batch
_OPENING, _CLOSING = "opening", "closing"


def convert_records(sources: Sequence[str], settings: ConversionSettings, job: FilterJob) -> None:
    """Convert the records of the sources to another format.

    Raises UsageError for contradictory settings, MismatchError for an id that `corpus` or `queries` lacks.
    """
    check_effects(settings)
    if settings.kind is None:
        raise UsageError(f"`as` is required; choose from {', '.join(FORMATS)}, embeddings")
    kind = settings.kind
    name = FORMATS[kind].check_name(next(iter(FORMATS[kind])) if settings.to in (None, "drtk") else settings.to)
    if job.output.endswith(VECTOR_FILE_SUFFIXES):
        raise UsageError(f"{job.output}: is a file of vectors; give `as` embeddings, or another output")
    if job.side_files and kind != "passages":
        raise UsageError("`with` requires `as` passages")
    job.kind = "corpus" if kind == "passages" else kind
    if len(sources) > 1 and kind != "examples":
        raise UsageError("several inputs require `as` examples; convert them one by one")
    form: Format[Any] = FORMATS[kind].load(name)
    stream = chain.from_iterable(iter_records(name, kind, job.tracker, job.side_files) for name in sources)
    add_texts: Callable[[list[Any]], Iterable[Any]] = list
    if kind == "examples":
        add_texts = _create_text_adder(form.needs, settings, job.tracker)
        job.batch_size = BATCH_SIZE  # an example may have a hundred texts
    _write_records(stream, form, job, add_texts)
    if kind == "examples" and not form.needs and job.counts.get(_GENERATED_IDS):
        log(
            "ids were generated from texts that are not in the output; write the texts with `as` passages and `as` queries"
        )


def iter_records(source: str, kind: str, tracker: InputTracker, side_files: Sequence[str]) -> Iterator[Any]:
    """Yield the records of a source; `tracker` skips invalid records or raises their errors.

    kind: "passages", "queries", "qrels", "run" or "examples"
    side_files: files with further fields of the passages, line by line; used for passages only
    """
    if kind == "passages":
        return read_passages(source, tracker=tracker, side_files=side_files)
    if kind == "queries":
        return read_queries(source, tracker=tracker)
    read = {"qrels": readers.iter_judgments, "run": readers.iter_hits, "examples": readers.iter_examples}[kind]
    return iter_valid(read(source, tracker), source, tracker)  # type: ignore[operator]


def _create_text_adder(
    needs: tuple[str, ...], settings: ConversionSettings, tracker: InputTracker
) -> Callable[[list[ParsedExample]], Iterator[ParsedExample]]:
    """Return a function that adds the texts that the output format needs to examples, from `queries` and `corpus`."""
    queries: dict[str, Query] = {}
    store: CorpusStore | None = None

    def add_texts(examples: list[ParsedExample]) -> Iterator[ParsedExample]:
        nonlocal queries, store
        for parsed in examples:
            example = parsed.example
            if "query" in needs and parsed.query is None:
                if settings.queries is None:
                    raise UsageError("the output format requires query texts, but the input has none; give `queries`")
                queries = queries or {query.id: query for query in read_queries(settings.queries, tracker=tracker)}
                if example.query_id not in queries:
                    raise MismatchError(
                        f"{settings.queries}: has no query '{example.query_id}'; check that it has the queries of the examples"
                    )
                parsed = replace(parsed, query=queries[example.query_id])
            if "passages" in needs and not parsed.passages:
                if settings.corpus is None:
                    raise UsageError("the output format requires passage texts, but the input has none; give `corpus`")
                if store is None:
                    from drtk.data.corpus_store import open_corpus

                    store = open_corpus(settings.corpus, tracker)
                parsed = replace(parsed, passages=tuple(store.get_many(example.positives + example.negatives)))
            yield parsed

    return add_texts


_GENERATED_IDS = "examples with ids made from texts"


def _write_records(
    records: Iterator[Any], form: Format[Any], job: FilterJob, add_texts: Callable[[list[Any]], Iterable[Any]]
) -> None:
    framed = bool(form.header or form.footer)

    def format_batch(batch: list[Any]) -> Iterator[bytes]:
        valid = [*add_texts([record for record in batch if record is not _OPENING and record is not _CLOSING])]
        if generated := sum(isinstance(record, ParsedExample) and record.has_new_ids for record in valid):
            job.counts[_GENERATED_IDS] = job.counts.get(_GENERATED_IDS, 0) + generated
        if batch[0] is _OPENING:
            yield form.header
        written = job.counts.get("out", 0)
        for record in valid:
            line = form.to_bytes(record, job.counts)
            yield form.between + line if written else line
            written += 1
        if framed:  # do not count the header and footer
            job.counts["in"] = job.counts["out"] = written
        if batch[-1] is _CLOSING:
            yield form.footer

    job.run(chain([_OPENING], records, [_CLOSING]) if framed else records, format_batch)

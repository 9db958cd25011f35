"""Detect common mistakes in inputs: unknown ids, swapped files, missing texts, and a run and judgments of different collections."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drtk.data import sniff
from drtk.data.runs import is_named
from drtk.data.tables import is_table
from drtk.data.trec import Judgments, Order, QueryHits, iter_grouped_hits
from drtk.errors import MismatchError, UsageError
from drtk.records import parse_document_id
from drtk.runtime.inputs import InputTracker
from drtk.runtime.integrity import compute_content_digest
from drtk.runtime.manifest import SOURCES, is_unchanged, load_output_manifest
from drtk.runtime.progress import warn
from drtk.runtime.streams import STANDARD, digest_file, is_stream, open_input

if TYPE_CHECKING:
    from drtk.data.corpus_store import CorpusStore


class JudgedHitCounter:
    """Counter of the queries for which a run retrieved a judged document.

    A run without such a query is probably of another collection. Call `add` for each query.
    num_queries: number of queries with a judged document among their hits
    to_document: maps a passage id to its document id, if documents are judged
    """

    def __init__(self, run: str, judgments: Judgments, *, to_document: Callable[[str], str] | None = None) -> None:
        self._run, self._judgments, self._to_document = run, judgments, to_document
        self._example: tuple[str, str, str] | None = None
        self._judges_documents = False
        self.num_queries = 0

    def add(self, query_id: str, doc_ids: Sequence[str]) -> bool:
        """Count a query with its hits; return whether one of the hits is judged for the query."""
        judged = self._judgments.get(query_id)
        if not judged or not doc_ids:
            return False
        if any((self._to_document(id) if self._to_document else id) in judged for id in doc_ids):
            self.num_queries += 1
            return True
        if self.num_queries:
            return False
        self._example = self._example or (query_id, doc_ids[0], next(iter(judged)))
        self._judges_documents |= self._to_document is None and any(parse_document_id(id) in judged for id in doc_ids)
        return False

    def describe_problem(self) -> str | None:
        """Return the error message, with an example from run and judgments.

        None if a judged document was retrieved, or no query has both hits and judgments.
        """
        if self.num_queries or self._example is None:
            return None
        query, retrieved, judged = self._example
        hint = "check that run and judgments are of the same collection"
        if self._judges_documents:
            hint = "the judgments are of source documents, not of passages; use `by=source`"
        return (
            f"{self._run}: no judged document was retrieved (query '{query}': retrieved '{retrieved}', "
            f"judged '{judged}'); {hint}"
        )

    def report_problem(self) -> None:
        """Log the message of `describe_problem`, if any, as a warning.

        Raises UsageError if the reason is that the run has passage ids and the judgments have ids of source documents.
        """
        if (problem := self.describe_problem()) is not None:
            if self._judges_documents:
                raise UsageError(problem)
            warn(problem)


def iter_known_hits(
    run: str,
    *,
    queries: Collection[str],
    corpus: CorpusStore,
    depth: int,
    tracker: InputTracker,
    order: Order = "score",
) -> Iterator[QueryHits]:
    """Yield the hits of each query of a run, without those that the corpus lacks, and without queries that have no hits left.

    queries: the known query ids
    depth: number of top hits per query to check
    order: order of the hits, as in `QueryHits.to_ranking`
    Raises RecordError (file:line) for an unknown query or passage, unless `tracker` skips it.
    """
    for hits in iter_grouped_hits(run, tracker=tracker):
        if hits.query_id not in queries:
            tracker.skip_line(run, hits.lines[0], f"the queries have no '{hits.query_id}'")
            continue
        while absent := set(corpus.find_missing(hits.to_ranked_ids(order)[:depth])):  # repeat: other hits move up
            for id, line in zip(hits.doc_ids, hits.lines, strict=True):
                if id in absent:
                    tracker.skip_line(run, line, f"the corpus has no '{id}'")
            hits.keep([at for at, id in enumerate(hits.doc_ids) if id not in absent])
        if hits.doc_ids:
            yield hits


_OTHER_KINDS = (sniff.JUDGMENTS, sniff.RANKED, sniff.CANDIDATES, sniff.PASSAGES)


def _sniff_file(path: str) -> str | None:
    """Return the kind of a file (see `sniff.sniff_kind`); None for streams, tables, folders and damaged files."""
    if is_stream(path) or is_table(path) or Path(path).is_dir():
        return None
    stream, _ = open_input(path)
    with stream:
        try:
            return sniff.sniff_kind(stream.peek(1 << 12))  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001 - damaged data; reading it reports the place
            return None


def check_examples(source: str) -> None:
    """Raise MismatchError if the first lines look like passages, judgments, hits, predictions or expansions."""
    if (kind := _sniff_file(source)) in (*_OTHER_KINDS, sniff.RUN, sniff.PREDICTIONS, sniff.EXPANSIONS):
        raise MismatchError(
            f"{source}: looks like {kind}; expected training examples, such as from `drtk mine-negatives`"
        )


def check_run(source: str) -> None:
    """Raise MismatchError if the first lines look like passages, queries, judgments, examples or MS MARCO's hits."""
    if (kind := _sniff_file(source)) in (*_OTHER_KINDS, sniff.TRIPLES, sniff.EXAMPLES, sniff.QUERIES, sniff.EITHER):
        raise MismatchError(
            f"{source}: looks like {kind}; expected a TREC run, such as from `drtk search` or `drtk convert --as run`"
        )


def warn_of_other_kind(*, passages: str | None = None, queries: str | None = None) -> None:
    """Log a warning if the file `passages` looks like queries, or the file `queries` like passages, unless the other is right."""
    files = ((passages, sniff.PASSAGES, sniff.QUERIES), (queries, sniff.QUERIES, sniff.PASSAGES))
    kinds = [(source, _sniff_file(source), expected, other) for source, expected, other in files if source is not None]
    if any(kind == expected for _, kind, expected, _ in kinds):
        return  # queries may have titles
    for source, kind, expected, other in kinds:
        if kind == other:
            warn(f"{source}: looks like {other}; expected {expected}")


def check_first_record(source: str, read: Callable[[str], Iterator[Any]], tracker: InputTracker) -> None:
    """Raise the error of a file's first record, to report it before a model is loaded.

    Streams and tables are not checked; nothing is checked if `tracker` may skip bad records.
    read: returns the records of the source
    """
    if not (tracker.skip_bad or is_stream(source) or is_table(source)):
        next(read(source), None)


PASSAGES, WITHOUT_TEXT = "passages", "without a text"  # names of counts


def count_texts(texts: Iterable[str]) -> dict[str, int]:
    """Return {PASSAGES: number of texts, WITHOUT_TEXT: number of blank texts}; counts of 0 are omitted."""
    empty = [not text.strip() for text in texts]
    return {name: number for name, number in ((PASSAGES, len(empty)), (WITHOUT_TEXT, sum(empty))) if number}


def describe_missing_texts(counts: Mapping[str, Any], corpus: str) -> str | None:
    """Return the error message if all passages counted by `count_texts` lack a text; None otherwise."""
    if not counts.get(PASSAGES) or counts.get(WITHOUT_TEXT, 0) < counts[PASSAGES]:
        return None
    return f"{corpus}: none of the {counts[PASSAGES]:,} passages that were read has a text; check that it is the right file"


def warn_if_texts_missing(counts: Mapping[str, Any], corpus: str) -> None:
    """Log a warning if any passage counted by `count_texts` lacks a text."""
    if problem := describe_missing_texts(counts, corpus):
        warn(problem)
    elif counts.get(WITHOUT_TEXT):
        warn(f"{corpus}: {counts[WITHOUT_TEXT]:,} of the {counts[PASSAGES]:,} passages that were read have no text")


_CORPUS_COMMANDS = ("encode", "index")  # commands whose `source` is a corpus, or was made from one
# Commands whose output has the ids of their inputs: the settings that name these inputs.
_COPIED_SETTINGS = {
    "convert": SOURCES,
    "fuse": ("runs",),
    "rerank": SOURCES,
    "score": SOURCES,
    "mine-negatives": ("candidates", "sources"),  # of the command line, and of a library call
}


class CorpusOrigin(NamedTuple):
    """The corpus from which an output was made: its path at that time, and its digest."""

    path: str
    digest: str


def find_origins(path: str) -> list[CorpusOrigin]:
    """Return the corpora a run, examples, an index or embeddings were made from, by the manifest; [] if unknown."""
    manifest = load_output_manifest(path)
    # A model is not bound to the corpus it was trained with; vectors of queries have none.
    if manifest is None or manifest.get("kind") == "model" or manifest["settings"].get("role") == "query":
        return []
    program = str(manifest.get("program"))
    copied = _get_setting_paths(manifest, _COPIED_SETTINGS.get(program, ()))
    if program == "mine-negatives" and manifest["settings"].get("corpus"):
        copied = []  # all ids were looked up in the corpus
    entries = {entry["path"]: entry for entry in manifest["inputs"]}
    origins = [
        origin
        for source in copied
        if source in entries and is_unchanged(entries[source])
        for origin in find_origins(source)
    ]
    return origins or _find_corpus(manifest)


def _find_corpus(manifest: Mapping[str, Any]) -> list[CorpusOrigin]:
    """Return the corpus in the settings of a manifest, or else the corpus of the first input folder that has one; [] if none."""
    if digest := manifest.get("corpus_digest"):
        return [CorpusOrigin(manifest.get("corpus") or STANDARD, digest)]
    corpus = manifest["settings"].get("corpus")
    is_faiss_import = manifest["settings"].get("ids")  # its source is an index
    if not corpus and manifest.get("program") in _CORPUS_COMMANDS and not is_faiss_import:
        corpus = next(iter(_get_setting_paths(manifest, SOURCES)), None)
    for entry in manifest["inputs"]:
        if entry["path"] == corpus and "files" not in entry:  # folders have files, also if they are gone
            digest = entry.get("digest")
            if not digest and is_unchanged(entry):  # texts were looked up, so the file was not read to its end
                digest = digest_file(corpus)
            if digest:
                return [CorpusOrigin(entry["path"], digest)]
    folders = (entry for entry in manifest["inputs"] if Path(entry["path"]).is_dir() and is_unchanged(entry))
    return next((origins[:1] for entry in folders if (origins := find_origins(entry["path"]))), [])


def _get_setting_paths(manifest: Mapping[str, Any], settings: Sequence[str]) -> list[str]:
    """Return the paths in the settings of a manifest that `settings` names; a value is PATH, NAME=PATH or a list."""
    values = [manifest["settings"].get(name) or [] for name in settings]
    paths = [path for value in values for path in (value if isinstance(value, list) else [value])]
    return [path.partition("=")[2] if is_named(path) else path for path in paths]


def check_same_corpus(path: str, corpus: str, *, skip: bool) -> None:
    """Raise MismatchError if `path` was made from another corpus than the file `corpus`, unless `skip` is set.

    Nothing is checked if either is a stream or `corpus` is a folder.
    """
    if skip or is_stream(path) or is_stream(corpus) or not Path(corpus).is_file():
        return
    for origin in find_origins(path):
        digest = compute_content_digest(Path(corpus))
        if origin.digest != digest:
            raise MismatchError(
                f"{path}: was made from another corpus ({origin.path}, digest {origin.digest[:8]}) than {corpus} "
                f"(digest {digest[:8]}); if the ids of both are the same, set `skip_corpus_check`"
            )

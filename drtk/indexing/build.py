"""Build a sparse index from a corpus, or a dense index from embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from drtk.data.checks import find_origins, warn_of_other_kind
from drtk.data.embeddings import KIND, SPARSE_KIND
from drtk.data.readers import read_passages
from drtk.errors import DrtkError, UsageError
from drtk.indexing.base import get_index_class
from drtk.indexing.config import IndexSettings
from drtk.indexing.indexed_text import PARAMETERS, IndexedText
from drtk.indexing.lucene.jvm import is_lucene_installed
from drtk.indexing.vectors import open_embeddings, open_sparse_embeddings
from drtk.records import Passage
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.manifest import describe_folder, find_inputs, read_manifest_if_any
from drtk.runtime.progress import Progress, log
from drtk.runtime.streams import count_lines, get_source_name, resolve_path


def choose_type(sources: Sequence[str]) -> str:
    """Return the default type of an index: exact for embeddings, impact for sparse embeddings, bm25 for a corpus.

    Without Lucene, the type for a corpus is bm25s.
    """
    folder_kind = read_manifest_if_any(Path(sources[0])).get("kind")
    if folder_kind in (KIND, SPARSE_KIND):
        return "exact" if folder_kind == KIND else "impact"
    if is_lucene_installed():
        return "bm25"
    log("index: type bm25s, because Lucene is not installed; drtk doctor shows how to install it")
    return "bm25s"


def build_index(
    sources: Sequence[str],
    kind: str | None,
    settings: IndexSettings,
    job: FolderJob,
    *,
    encoder: dict[str, Any] | None = None,
) -> None:
    """Build an index in the folder of `job`.

    sources: one corpus for a sparse index ("-" is stdin), or embeddings folders for a dense index or one of type impact;
        with `settings.ids`, one file with a faiss index of another program
    kind: index type, see `get_index_class`; by default that of `choose_type`
    encoder: identity of the encoder of the faiss index of another program
    Raises UsageError for sources or settings that do not fit the type, DrtkError for a corpus without passages.
    """
    if settings.ids is not None:
        entries = _import_faiss(sources, kind, settings, job, encoder)
    else:
        kind = kind or choose_type(sources)
        job.record(settings, kind=kind, sources=list(sources))
        engine = get_index_class(kind)
        for name in ("expand", "term_weights"):
            if getattr(settings, name) and kind not in ("bm25", "bm25s"):
                raise UsageError(f"`{name}` requires an index of type bm25 or bm25s")
        build = _index_passages if engine.reads == "passages" else _index_vectors
        if read_manifest_if_any(Path(sources[0])).get("kind") == SPARSE_KIND:
            build = _index_impacts
        entries = {"type": kind, **build(engine, sources, kind, settings, job)}
        if build is not _index_passages:  # so that it is known without the embeddings
            digests = {origin.digest for source in sources for origin in find_origins(source)}
            entries["corpus_digest"] = digests.pop() if len(digests) == 1 else None
    if entries.get("corpus") is None:
        log("index: records no file with the texts; to show passages, give search and serve `corpus=FILE`")
    job.finish(**entries)


def _import_faiss(
    sources: Sequence[str], kind: str | None, settings: IndexSettings, job: FolderJob, encoder: dict[str, Any] | None
) -> dict[str, Any]:
    if len(sources) > 1 or kind is not None or job.side_files:
        raise UsageError("`ids` requires one file with a faiss index; omit `type` and `with`")
    if not Path(sources[0]).is_file():
        raise DrtkError(f"{sources[0]}: no such file; expected a faiss index")
    from drtk.indexing.faiss_index import FaissIndex

    assert settings.ids is not None
    job.record(settings, kind=None, sources=list(sources))
    entries = FaissIndex.import_file(sources[0], settings.ids, job.begin, encoder)
    job.tracker.inputs += find_inputs({"source": sources[0], "ids": settings.ids})
    job.counts["passages"] = entries.pop("passages")
    return {"encoder": encoder, "corpus": None, **entries}


def _index_passages(
    engine: Any, sources: Sequence[str], kind: str, settings: IndexSettings, job: FolderJob
) -> dict[str, Any]:
    if len(sources) > 1:
        raise UsageError(
            f"an index of type {kind} requires one corpus; concatenate the files: cat a.jsonl b.jsonl | drtk index - …"
        )
    if read_manifest_if_any(Path(sources[0])).get("kind") == KIND:
        raise UsageError(
            f"{sources[0]}: contains vectors, but an index of type {kind} is built from passages; give the corpus"
        )
    warn_of_other_kind(passages=sources[0])
    text = IndexedText(settings, kind, sources[0], job.tracker)
    passages = text(read_passages(sources[0], tracker=job.tracker, side_files=job.side_files))
    first = next(passages, None)  # before `job.begin`, so that an unreadable source does not replace an existing index
    if first is None:
        raise DrtkError(f"{get_source_name(sources[0])}: contains no passages; check the corpus")
    get_share = partial(job.tracker.get_share_read, sources[0])
    with Progress("index", total=count_lines(sources[0]), get_share=get_share, unit="passages") as progress:
        count = engine.build(_report_progress(chain([first], passages), progress), job.begin(), settings)
    job.counts |= {"passages": count, **text.counts}
    entries: dict[str, Any] = {"encoder": None, "corpus": resolve_path(sources[0])}
    if settings.term_weights:
        entries["bm25"] = PARAMETERS[settings.weight_scale]
    return entries | ({"software": engine.get_versions()} if hasattr(engine, "get_versions") else {})


def _index_impacts(
    engine: Any, sources: Sequence[str], kind: str, settings: IndexSettings, job: FolderJob
) -> dict[str, Any]:
    if kind != "impact":
        raise UsageError(f"{sources[0]}: contains sparse embeddings; use `type` impact")
    if job.side_files:
        raise UsageError("`with` cannot be combined with sparse embeddings; omit it")
    passages, entries = open_sparse_embeddings(sources)
    job.tracker.inputs += [describe_folder(source) for source in sources]
    with Progress("index", unit="passages") as progress:
        job.counts["passages"] = engine.build(_report_progress(passages, progress), job.begin(), settings)
    return entries | {"software": engine.get_versions()}


def _report_progress(passages: Iterable[Passage], progress: Progress) -> Iterator[Passage]:
    for passage in passages:
        yield passage
        progress.add()


def _index_vectors(
    engine: Any, sources: Sequence[str], kind: str, settings: IndexSettings, job: FolderJob
) -> dict[str, Any]:
    if "-" in sources:
        raise UsageError(
            f"an index of type {kind} cannot be built from a stream; give embeddings folders of `drtk encode`"
        )
    if job.side_files:
        raise UsageError(
            f"`with` cannot be combined with an index of type {kind}, which contains vectors only; omit it"
        )
    for source in sources:
        if Path(source).is_file():
            raise UsageError(
                f"{source}: an index of type {kind} is built from vectors; encode the texts with `drtk encode`, or read vectors with "
                "`drtk convert --as embeddings`, and index the output"
            )
    vectors, entries = open_embeddings(sources)
    engine.check_vectors(vectors, settings, kind=kind)  # before `job.begin`, so that an existing index is not replaced
    job.tracker.inputs += [describe_folder(source) for source in sources]
    entries |= engine.build(vectors, job.begin(), settings, kind=kind)
    job.counts["passages"] = len(vectors)
    return entries

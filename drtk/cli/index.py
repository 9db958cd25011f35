"""drtk index: passages or vectors to an index."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from drtk.cli.decorators import folder_maker
from drtk.cli.options import Folder, with_settings
from drtk.errors import DrtkError, UsageError
from drtk.indexing import INDEXES
from drtk.indexing.config import IndexSettings
from drtk.runtime.folder_job import FolderJob


@with_settings(IndexSettings)
@folder_maker("index", passages=True)
def index(
    output: Folder,
    kind: Annotated[
        str,
        typer.Option("--type", metavar="TYPE", help=f"{', '.join(INDEXES)}, or a faiss factory string (IVF4096,PQ64)."),
    ],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE",
            help="bm25, bm25s, impact: a corpus (- is stdin). Others: folders of drtk encode.",
            show_default=False,
        ),
    ] = None,
    *,
    settings: IndexSettings,
    job: FolderJob,
) -> None:
    """Make an index to search.

    bm25, bm25s and impact read a corpus; all other types read folders of embeddings (the parts of drtk encode --shard too).
    """
    from drtk.indexing.base import index_class

    engine = index_class(kind)
    for name, value in (("--expand", settings.expand), ("--weights", settings.weights)):
        if value and kind not in ("bm25", "bm25s"):
            raise UsageError(f"{name}: only for --type bm25 and bm25s")
    if engine.reads == "passages":
        facts = _index_passages(engine, sources or ["-"], kind, settings, job)
    else:
        facts = _index_vectors(engine, sources or [], kind, settings, job)
    job.finish(type=kind, **facts)


def _index_passages(
    engine: Any, sources: list[str], kind: str, settings: IndexSettings, job: FolderJob
) -> dict[str, Any]:
    from itertools import chain

    from drtk.data.jsonl import read_passages
    from drtk.indexing.indexed_text import IndexedText
    from drtk.indexing.vectors import absolute_path
    from drtk.runtime.progress import Progress
    from drtk.runtime.streams import name_of

    if len(sources) > 1:
        raise UsageError("this index type reads one corpus; join files first: cat a.jsonl b.jsonl | drtk index - …")
    text = IndexedText(settings, kind, sources[0], job.intake)
    passages = text(read_passages(sources[0], intake=job.intake, side_files=job.side_files))
    first = next(passages, None)  # before the folder is touched: an unreadable source must not replace an index
    if first is None:
        raise DrtkError(f"{name_of(sources[0])}: there are no passages to index")
    with Progress("index", unit="passages") as progress:
        count = engine.build(chain([first], passages), job.begin(), settings, progress=progress)
    job.counts |= {"passages": count, **text.counts}
    software = getattr(engine, "software", None)
    facts = {"software": software()} if software else {}
    return {"encoder": None, "corpus": absolute_path(sources[0]), **text.facts, **facts}


def _index_vectors(
    engine: Any, sources: list[str], kind: str, settings: IndexSettings, job: FolderJob
) -> dict[str, Any]:
    from drtk.indexing.vectors import open_embeddings
    from drtk.runtime.manifest import folder_entry
    from drtk.runtime.progress import Progress

    if not sources or "-" in sources:
        raise UsageError(f"--type {kind} reads folders of embeddings (drtk encode makes them), not a stream")
    if job.side_files:
        raise UsageError(f"--with adds fields to passages; --type {kind} reads vectors")
    vectors, facts = open_embeddings(sources)
    engine.check(vectors, settings, kind=kind)  # before the folder is touched
    job.intake.inputs += [folder_entry(source) for source in sources]
    with Progress("index", total=len(vectors), unit="vectors") as progress:
        facts |= engine.build(vectors, job.begin(), settings, kind=kind, progress=progress)
    job.counts["passages"] = len(vectors)
    return facts

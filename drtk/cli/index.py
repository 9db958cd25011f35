"""drtk index: passages or vectors to an index."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.decorators import folder_maker
from drtk.cli.options import Folder, with_settings
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
    from drtk.indexing.build import build_index

    build_index(sources or ["-"], kind, settings, job)

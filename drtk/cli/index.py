"""drtk index: build an index of passages or vectors."""

from __future__ import annotations

from typing import Annotated

from drtk.cli.decorators import folder_command
from drtk.cli.options import Folder, make_argument, make_option, with_settings
from drtk.config import METHOD
from drtk.indexing import INDEXES
from drtk.indexing.config import IndexSettings
from drtk.models.config import ImportedVectorSettings
from drtk.runtime.folder_job import FolderJob


@with_settings(IndexSettings)
@with_settings(ImportedVectorSettings, name="vector_settings")
@folder_command("index", passages=True)
def index(
    output: Folder,
    kind: Annotated[
        str | None,
        make_option(
            "--type TYPE",
            f"Index type: {', '.join(INDEXES)}, or a faiss factory string. [default: exact for vectors, impact for "
            "sparse embeddings; bm25 for a corpus, or bm25s without Lucene]",
            panel=METHOD,
        ),
    ] = None,
    sources: Annotated[
        list[str] | None,
        make_argument(
            "SOURCE",
            "Corpus (bm25, bm25s, impact; - is stdin), embeddings folders (impact, vector types), faiss file (--ids).",
        ),
    ] = None,
    *,
    settings: IndexSettings,
    vector_settings: ImportedVectorSettings,
    job: FolderJob,
) -> None:
    """Build a search index of passages or vectors.

    bm25 and bm25s index the texts of a corpus, impact a corpus or sparse embeddings. All other types index vectors from drtk
    encode. By default, bm25 stems words and removes stop words (English), and bm25s does neither.

    Examples:
    drtk index corpus.jsonl -o bm25
    drtk index vectors --type hnsw -o hnsw
    """
    from drtk.errors import UsageError
    from drtk.indexing.build import build_index

    encoder = None
    if vector_settings.model is not None:
        if settings.ids is None:
            raise UsageError("--model requires --ids; embeddings folders record their encoder")
        from drtk.retrieval.encode import identify_encoder

        encoder = identify_encoder(vector_settings)
    build_index(sources or ["-"], kind, settings, job, encoder=encoder)

"""Read folders of sparse embeddings: the impact of each term of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from drtk.data.embeddings import SPARSE_KIND
from drtk.data.readers import read_records
from drtk.indexing.indexed_text import IMPACTS, read_impacts
from drtk.indexing.vectors import read_passage_manifests
from drtk.records import Passage
from drtk.runtime.manifest import read_manifest


def open_sparse_embeddings(folders: Sequence[str]) -> tuple[Iterator[Passage], dict[str, Any]]:
    """Open folders of sparse embeddings of passages; return the passages, and entries for the manifest of an index.

    Raises the errors of `read_passage_manifests`; iterating raises those of `iter_impact_passages`.
    """
    entries = read_passage_manifests(folders, SPARSE_KIND)[1]
    return (passage for folder in folders for passage in iter_impact_passages(folder)), entries


def iter_impact_passages(folder: str) -> Iterator[Passage]:
    """Yield the id and impacts of each text of a folder, as a passage without text; its field `impacts` is {term: impact}.

    Raises RecordError for invalid impacts, MismatchError for a folder of another kind.
    """
    for number in range(len(read_manifest(folder, kind=SPARSE_KIND, shards=list)["shards"])):
        yield from read_records(str(Path(folder) / f"{number:05d}.jsonl"), _parse_impact_passage)


def _parse_impact_passage(row: dict[str, Any]) -> Passage:
    passage = Passage(str(row.get("_id", "")), "", extra=row)
    return Passage(passage.id, "", extra={IMPACTS: read_impacts(passage)})

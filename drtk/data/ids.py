"""Document ids of passages."""

from __future__ import annotations

from drtk.records import Passage


def parse_document_id(passage_id: str) -> str:
    """Return the document id in a passage id: the part before the last '#', or the whole id."""
    return passage_id.rpartition("#")[0] or passage_id


def get_document_id(passage: Passage) -> str:
    """Return the document id of a passage: `metadata.source_id`, or else the document id in the passage id."""
    source_id = (passage.metadata or {}).get("source_id")
    return parse_document_id(passage.id) if source_id is None else str(source_id)

"""Which document a passage is part of."""

from __future__ import annotations

from drtk.records import Passage


def source_of(passage_id: str) -> str:
    """The document of a chunk by its id: what stands before the last '#'; a passage without one is its own document."""
    return passage_id.rpartition("#")[0] or passage_id


def document_of(passage: Passage) -> str:
    """The document of a passage: its `metadata.source_id`, otherwise what its id tells."""
    named = (passage.metadata or {}).get("source_id")
    return source_of(passage.id) if named is None else str(named)

"""Ids of a corpus, and documents of its passages."""

from __future__ import annotations

from collections.abc import Iterable

from drtk.data.jsonl import read_passages
from drtk.records import Passage
from drtk.runtime.inputs import InputTracker


def parse_document_id(passage_id: str) -> str:
    """Return the document id of a chunk id: the part before the last '#', or the id itself."""
    return passage_id.rpartition("#")[0] or passage_id


def get_document_id(passage: Passage) -> str:
    """Return the document id of a passage: its `metadata.source_id`, or else the one in its id."""
    named = (passage.metadata or {}).get("source_id")
    return parse_document_id(passage.id) if named is None else str(named)


class CorpusIds:
    """The ids of a corpus in its order; called with a passage id, it returns the document id.

    Takes about 250 bytes per passage.
    """

    def __init__(self, passages: Iterable[Passage]) -> None:
        self.ids: list[str] = []
        self._documents: dict[str, str | None] = {}  # its only passage; None if it has several
        self._other: dict[str, str] = {}  # documents that are not in the passage id
        for passage in passages:
            document = get_document_id(passage)
            if document != parse_document_id(passage.id):
                self._other[passage.id] = document
            self._documents[document] = None if document in self._documents else passage.id
            self.ids.append(passage.id)
        self._known = set(self.ids)

    @classmethod
    def read(cls, corpus: str, tracker: InputTracker) -> CorpusIds:
        """Read the ids of a corpus file."""
        return cls(read_passages(corpus, tracker=tracker))

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, passage_id: str) -> bool:
        return passage_id in self._known

    def __call__(self, passage_id: str) -> str:
        return self._other.get(passage_id) or parse_document_id(passage_id)

    def has_document(self, document_id: str) -> bool:
        """Return whether any passage is part of the document."""
        return document_id in self._documents

    def only_passage(self, document_id: str) -> str | None:
        """Return the passage of a document with a single one; None otherwise."""
        return self._documents.get(document_id)

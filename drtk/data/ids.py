"""Ids of a corpus, and documents of its passages."""

from __future__ import annotations

from collections.abc import Iterable

from drtk.data.jsonl import read_passages
from drtk.records import Passage
from drtk.runtime.inputs import Intake


def source_of(passage_id: str) -> str:
    """The document of a chunk by its id: what stands before the last '#'; a passage without one is its own document."""
    return passage_id.rpartition("#")[0] or passage_id


def document_of(passage: Passage) -> str:
    """The document of a passage: its `metadata.source_id`, otherwise what its id tells."""
    named = (passage.metadata or {}).get("source_id")
    return source_of(passage.id) if named is None else str(named)


class CorpusIds:
    """`ids` in the order of the corpus; called with a passage's id it gives the document's.

    About 250 bytes a passage: ten million passages fit into a common machine's memory.
    """

    def __init__(self, passages: Iterable[Passage]) -> None:
        self.ids: list[str] = []
        self._documents: dict[str, str | None] = {}  # its passage, or None where it has several
        self._other: dict[str, str] = {}  # only what the form of an id does not tell
        for passage in passages:
            document = document_of(passage)
            if document != source_of(passage.id):
                self._other[passage.id] = document
            self._documents[document] = None if document in self._documents else passage.id
            self.ids.append(passage.id)
        self._known = set(self.ids)

    @classmethod
    def read(cls, corpus: str, intake: Intake) -> CorpusIds:
        """Those of a corpus file."""
        return cls(read_passages(corpus, intake=intake))

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, passage_id: str) -> bool:
        return passage_id in self._known

    def __call__(self, passage_id: str) -> str:
        return self._other.get(passage_id) or source_of(passage_id)

    def has_document(self, document_id: str) -> bool:
        """Whether any passage is part of the document."""
        return document_id in self._documents

    def only_passage(self, document_id: str) -> str | None:
        """The passage of a document that has just one; None where it has several, or none."""
        return self._documents.get(document_id)

"""The ids of a corpus and the documents of its passages."""

from __future__ import annotations

from collections.abc import Iterable

from drtk.data.readers import read_passages
from drtk.records import Passage
from drtk.runtime.inputs import InputTracker


def parse_document_id(passage_id: str) -> str:
    """Return the document id in a passage id: the part before the last '#', or the whole id."""
    return passage_id.rpartition("#")[0] or passage_id


def get_document_id(passage: Passage) -> str:
    """Return the document id of a passage: `metadata.source_id`, or else the document id in the passage id."""
    source_id = (passage.metadata or {}).get("source_id")
    return parse_document_id(passage.id) if source_id is None else str(source_id)


class CorpusIds:
    """The ids of a corpus, in file order. Calling it with a passage id returns the document id.

    Memory: about 250 bytes per passage.
    """

    def __init__(self, passages: Iterable[Passage]) -> None:
        self.ids: list[str] = []
        self._documents: dict[str, str | None] = {}  # document -> its only passage; None if it has several
        self._other: dict[str, str] = {}  # passage -> document, where the passage id does not contain it
        for passage in passages:
            document = get_document_id(passage)
            if document != parse_document_id(passage.id):
                self._other[passage.id] = document
            self._documents[document] = None if document in self._documents else passage.id
            self.ids.append(passage.id)
        self._known = set(self.ids)

    @classmethod
    def load(cls, corpus: str, tracker: InputTracker) -> CorpusIds:
        """Read the ids of a corpus file."""
        return cls(read_passages(corpus, tracker=tracker))

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, passage_id: str) -> bool:
        return passage_id in self._known

    def __call__(self, passage_id: str) -> str:
        return self._other.get(passage_id) or parse_document_id(passage_id)

    def has_document(self, document_id: str) -> bool:
        """Return whether the corpus has a passage of the document."""
        return document_id in self._documents

    def get_only_passage(self, document_id: str) -> str | None:
        """Return the id of the only passage of a document; None if it has several or none."""
        return self._documents.get(document_id)

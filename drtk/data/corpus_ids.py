"""Look up the ids of a corpus and the documents of its passages, without keeping them in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from zlib import crc32

import numpy as np

from drtk.data.arrays import RaggedWriter, map_array
from drtk.data.ids import get_document_id, parse_document_id
from drtk.data.readers import read_passages
from drtk.records import Passage
from drtk.runtime.inputs import InputTracker

_CHUNK = 512  # passages
_ROW = np.uint64(0xFFFFFFFF)  # the bits of a row in a key


class CorpusIds(Sequence[str]):
    """The ids of a corpus, in file order. Calling it with a passage id returns the document id.

    The ids, and their hashes in sorted order, are memory-mapped from temporary files: about 40 bytes per passage.
    A look-up is a binary search of the hashes; ids are compared, since hashes may collide. At most 2^32 passages.
    """

    def __init__(self, passages: Iterable[Passage]) -> None:
        passages = iter(passages)
        self._has_other_documents = False  # whether a document id is not the one in the passage id
        with tempfile.TemporaryDirectory(prefix="drtk-") as name:  # mapped files can be read after their deletion
            folder = Path(name)
            rows = RaggedWriter(folder, "rows", "uint8")
            with open(folder / "passages", "wb") as passage_keys, open(folder / "documents", "wb") as document_keys:
                while chunk := list(islice(passages, _CHUNK)):
                    ids = [passage.id for passage in chunk]
                    documents = [get_document_id(passage) for passage in chunk]
                    self._has_other_documents |= any(
                        passage.metadata and parse_document_id(passage.id) != document
                        for passage, document in zip(chunk, documents, strict=True)
                    )
                    numbers = np.arange(rows.rows, rows.rows + len(chunk), dtype=np.uint64)
                    hashes = _hash(ids)
                    passage_keys.write((hashes | numbers).tobytes())
                    document_keys.write(((hashes if documents == ids else _hash(documents)) | numbers).tobytes())
                    rows.extend_bytes(
                        [f"{id}\0{document}".encode() for id, document in zip(ids, documents, strict=True)]
                    )
            rows.close()
            self._text = map_array(folder / "rows.values", "uint8").data  # passage id, zero byte, document id
            self._starts = map_array(folder / "rows.starts", "int64")  # (passages + 1,)
            self._passages = _sort_file(folder / "passages")  # (passages,), 32 bits of the hash, 32 bits of the row
            self._documents = _sort_file(folder / "documents")  # the same of document ids

    @classmethod
    def load(cls, corpus: str, tracker: InputTracker) -> CorpusIds:
        """Read the ids of a corpus file."""
        return cls(read_passages(corpus, tracker=tracker))

    def __len__(self) -> int:
        return len(self._passages)

    def __getitem__(self, row: int) -> str:  # type: ignore[override]  # no slices, no negative rows
        if row < 0:
            raise IndexError(row)
        return self._read(row)[0]

    def __contains__(self, passage_id: object) -> bool:
        return any(self._read(row)[0] == passage_id for row in _find_rows(self._passages, str(passage_id)))

    def __call__(self, passage_id: str) -> str:
        rows = map(self._read, _find_rows(self._passages, passage_id) if self._has_other_documents else ())
        return next((document for id, document in rows if id == passage_id), parse_document_id(passage_id))

    def find_missing(self, ids: Sequence[str]) -> list[str]:
        """Return the ids that are not in the corpus; faster than looking up each id."""
        if not len(self):
            return list(ids)
        places = self._passages.searchsorted(_hash(ids))
        starts = self._starts[self._passages.take(places, mode="clip") & _ROW].tolist()
        text = self._text
        return [
            id
            for id, row, start in zip(ids, (f"{id}\0".encode() for id in ids), starts, strict=True)
            if text[start : start + len(row)] != row and id not in self
        ]

    def has_document(self, document_id: str) -> bool:
        """Return whether the corpus has a passage of the document."""
        return any(True for _ in self._iter_passages(document_id))

    def get_only_passage(self, document_id: str) -> str | None:
        """Return the id of the only passage of a document; None if it has several or none."""
        passages = list(islice(self._iter_passages(document_id), 2))
        return passages[0] if len(passages) == 1 else None

    def _iter_passages(self, document_id: str) -> Iterator[str]:
        """Yield the ids of the passages of a document."""
        rows = map(self._read, _find_rows(self._documents, document_id))
        return (id for id, document in rows if document == document_id)

    def _read(self, row: int) -> tuple[str, str]:
        """Return the passage id and the document id of a row. Raises IndexError for a row after the last."""
        id, _, document = str(self._text[self._starts[row] : self._starts[row + 1]], "utf-8").partition("\0")
        return id, document


def _hash(ids: Sequence[str]) -> np.ndarray:
    """Return the 32-bit hashes of ids in the upper half of 64 bits, (ids,) uint64."""
    return np.fromiter((crc32(id.encode()) for id in ids), np.uint64, len(ids)) << np.uint64(32)


def _sort_file(path: Path) -> np.ndarray:
    """Sort a file of 64-bit numbers and memory-map it."""
    if path.stat().st_size:
        np.memmap(path, np.uint64, "r+").sort()
    return map_array(path, "uint64")


def _find_rows(keys: np.ndarray, id: str) -> Iterator[int]:
    """Yield the rows whose keys have the hash of an id. keys: (passages,) uint64, ascending"""
    hash = crc32(id.encode())
    for at in range(int(keys.searchsorted(np.uint64(hash << 32))), len(keys)):
        key = int(keys[at])
        if key >> 32 != hash:
            return
        yield key & 0xFFFFFFFF

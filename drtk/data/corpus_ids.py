"""Look up the ids of a corpus and the documents of its passages, without keeping them in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from zlib import crc32

import numpy as np

from drtk.data.arrays import RaggedArray, RaggedWriter, map_array
from drtk.data.readers import read_passages
from drtk.records import Passage, get_document_id, parse_document_id
from drtk.runtime.inputs import InputTracker

_CHUNK = 512  # passages
_CACHED = 1 << 18  # ids
_ROW = np.uint64(0xFFFFFFFF)  # the bits of a row in a key


class CorpusIds(Sequence[str]):
    """The passage ids of a corpus, in file order. Calling it with a passage id returns the passage's document id.

    For an unknown passage, this is the document id in the passage id (`parse_document_id`).
    The ids, and their hashes in sorted order, are memory-mapped from temporary files: about 40 bytes per passage.
    A look-up is a binary search of the hashes; ids are compared, since hashes may collide. At most 2^32 passages.
    """

    def __init__(self, passages: Iterable[Passage]) -> None:
        passages = iter(passages)
        self._has_other_documents = False  # whether a document id is not the one in the passage id
        self._found: set[str] = set()  # the latest ids that `find_missing` found; runs repeat their ids
        with tempfile.TemporaryDirectory(prefix="drtk-") as name:  # mapped files can be read after their deletion
            folder = Path(name)
            ids_writer, others = RaggedWriter(folder, "ids", "uint8"), RaggedWriter(folder, "others", "uint8")
            with open(folder / "passages", "wb") as passage_keys, open(folder / "documents", "wb") as document_keys:
                while chunk := list(islice(passages, _CHUNK)):
                    ids = [passage.id for passage in chunk]
                    documents = [get_document_id(passage) for passage in chunk]
                    differ = [
                        bool(passage.metadata) and parse_document_id(passage.id) != document
                        for passage, document in zip(chunk, documents, strict=True)
                    ]
                    numbers = np.arange(ids_writer.num_rows, ids_writer.num_rows + len(chunk), dtype=np.uint64)
                    hashes = _hash(ids)
                    passage_keys.write((hashes | numbers).tobytes())
                    document_keys.write(((hashes if documents == ids else _hash(documents)) | numbers).tobytes())
                    self._has_other_documents |= any(differ)
                    ids_writer.extend_bytes([id.encode() for id in ids])
                    others.extend_bytes(
                        [
                            document.encode() if differs else b""
                            for document, differs in zip(documents, differ, strict=True)
                        ]
                    )
            ids_writer.close()
            others.close()
            self._id_bytes = map_array(folder / "ids.values", "uint8").data
            # (passages + 1,); faster than numpy, one by one
            self._starts = map_array(folder / "ids.starts", "int64").data
            # The document ids that are not in the passage ids.
            self._other_document_ids = RaggedArray(folder, "others", "uint8")
            self._passage_keys = _sort_file(folder / "passages")  # (passages,), 32 bits of the hash, 32 bits of the row
            self._document_keys = _sort_file(folder / "documents")  # the same of document ids

    @classmethod
    def load(cls, corpus: str, tracker: InputTracker) -> CorpusIds:
        """Read the ids of a corpus file."""
        return cls(read_passages(corpus, tracker=tracker))

    def __len__(self) -> int:
        return len(self._passage_keys)

    def __getitem__(self, row: int) -> str:  # type: ignore[override]  # no slices, no negative rows
        if row < 0:
            raise IndexError(row)
        return self._id_bytes[self._starts[row] : self._starts[row + 1]].tobytes().decode()

    def __contains__(self, passage_id: object) -> bool:
        return self._find_row(str(passage_id)) is not None

    def __call__(self, passage_id: str) -> str:
        row = self._find_row(passage_id) if self._has_other_documents else None
        return parse_document_id(passage_id) if row is None else self._get_document_id(row)

    def find_missing(self, ids: Sequence[str]) -> list[str]:
        """Return the ids that are not in the corpus. This is faster than testing each id with `in`."""
        found = self._found
        unchecked = [id for id in ids if id not in found]
        if not len(self):
            return unchecked
        rows = self._passage_keys.take(self._passage_keys.searchsorted(_hash(unchecked)), mode="clip") & _ROW
        missing = [id for id, row in zip(unchecked, rows.tolist(), strict=True) if self[row] != id and id not in self]
        if len(found) > _CACHED:
            found.clear()
        found.update(unchecked)
        found.difference_update(missing)
        return missing

    def has_document(self, document_id: str) -> bool:
        """Return whether the corpus has a passage of the document."""
        return any(True for _ in self._iter_passage_ids(document_id))

    def get_only_passage_id(self, document_id: str) -> str | None:
        """Return the id of the only passage of a document; None if it has several or none."""
        passages = list(islice(self._iter_passage_ids(document_id), 2))
        return passages[0] if len(passages) == 1 else None

    def _iter_passage_ids(self, document_id: str) -> Iterator[str]:
        """Yield the ids of the passages of a document."""
        return (
            self[row]
            for row in _find_rows(self._document_keys, document_id)
            if self._get_document_id(row) == document_id
        )

    def _find_row(self, passage_id: str) -> int | None:
        """Return the row of a passage; None if the corpus lacks it."""
        return next((row for row in _find_rows(self._passage_keys, passage_id) if self[row] == passage_id), None)

    def _get_document_id(self, row: int) -> str:
        return self._other_document_ids[row].tobytes().decode() or parse_document_id(self[row])


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

"""Look up passages by id or document in corpora larger than memory, with an index that is built once.

The index has the sorted 64-bit hashes of the ids and the offsets of their lines, and the sorted hashes of the document ids.
A look-up is a binary search and one read; the id of the line is compared, since hashes may collide. A corpus that is
compressed or not JSONL is first written as JSONL next to its index. The index is in the cache (see `get_cache_folder`),
under the digest of the corpus.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drtk.data.arrays import read_array
from drtk.data.readers import read_passages
from drtk.data.rows import dump, parse_passage, parse_row
from drtk.data.tables import is_hub_dataset
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.records import Passage, get_document_id, parse_document_id
from drtk.runtime.inputs import InputTracker
from drtk.runtime.integrity import (
    CACHE_MANIFEST,
    compute_content_digest,
    ensure_cache_folder,
    get_cache_folder,
    hash_id,
    read_object,
)
from drtk.runtime.manifest import find_inputs
from drtk.runtime.progress import log, track
from drtk.runtime.streams import get_max_line_bytes, get_source_name, is_stream, iter_raw_lines

INDEX_VERSION = 2  # of the index files, part of the folder name


class CorpusStore:
    """A corpus with random access to passages by id. Use `CorpusStore.open` to create one.

    has_other_documents: whether the document id of a passage is not the one in its passage id
    """

    def __init__(self, path: Path, folder: Path, *, has_other_documents: bool = False) -> None:
        self._hashes = read_array(folder / "hashes.npy", mmap="r")  # (passages,), ascending
        self._offsets = read_array(folder / "offsets.npy", mmap="r")  # (passages,), in bytes
        self._lengths = read_array(folder / "lengths.npy", mmap="r")  # (passages,), in bytes
        self._document_hashes = read_array(folder / "documents.npy", mmap="r")  # (passages,), ascending
        self._document_rows = read_array(folder / "document_rows.npy", mmap="r")  # (passages,), positions in the others
        self._has_other_documents = has_other_documents
        self.path = path
        jsonl_path = folder / "corpus.jsonl"
        # pread, not a memory map, whose pages would count as memory of this process.
        self._file = os.open(jsonl_path if jsonl_path.exists() else path, os.O_RDONLY)

    @classmethod
    def open(cls, source: str | Path) -> CorpusStore:
        """Open the store of a corpus in any format; build its index if there is none.

        Raises RecordError for an invalid passage or a repeated id, DrtkError for a stream or a missing file.
        """
        if is_stream(str(source)) or is_hub_dataset(str(source)):
            raise DrtkError(
                f"{get_source_name(str(source))}: the corpus must be a file, because its passages are looked up by id; write one with `drtk convert … --as passages -o corpus.jsonl`"
            )
        path = Path(source)
        if not path.exists():
            raise DrtkError(f"{path}: No such file or directory")
        folder = get_cache_folder() / "corpora" / f"{compute_content_digest(path)}-{INDEX_VERSION}"
        ensure_cache_folder(folder, lambda making: _build_index(path, making), task=f"indexing the ids of {path}")
        manifest = read_object(folder / CACHE_MANIFEST, has_other_documents=bool)
        return cls(path, folder, has_other_documents=manifest["has_other_documents"])

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, id: str) -> bool:
        return self.get(id) is not None

    def __getitem__(self, id: str) -> Passage:
        passage = self.get(id)
        if passage is None:
            raise MismatchError(f"{self.path}: has no passage '{id}'; check that it is the right corpus")
        return passage

    def get(self, id: str) -> Passage | None:
        """Return the passage with this id; None if there is none."""
        hash = hash_id(id)
        position = int(self._hashes.searchsorted(np.uint64(hash)))
        while position < len(self._hashes) and int(self._hashes[position]) == hash:
            passage = self._read(position)
            if passage.id == id:
                return passage
            position += 1
        return None

    def get_many(self, ids: Sequence[str]) -> list[Passage]:
        """Return the passages with these ids, in the order of `ids`. Raises MismatchError for an unknown id."""
        hashes = np.fromiter((hash_id(id) for id in ids), dtype=np.uint64, count=len(ids))
        positions = self._hashes.searchsorted(hashes)
        offsets = self._offsets[np.minimum(positions, len(self) - 1)] if len(self) else positions
        passages: list[Passage | None] = [None] * len(ids)
        for index in np.argsort(offsets, kind="stable"):
            position = int(positions[index])
            if position < len(self) and self._hashes[position] == hashes[index]:
                passage = self._read(position)
                passages[index] = passage if passage.id == ids[index] else self.get(ids[index])
        return [passage if passage is not None else self[id] for id, passage in zip(ids, passages, strict=True)]

    def find_missing(self, ids: Sequence[str]) -> list[str]:
        """Return the ids that the corpus lacks. Only hashes are compared, so no texts are read."""
        if not len(self):
            return list(ids)
        hashes = np.fromiter(map(hash_id, ids), np.uint64, len(ids))
        is_known = self._hashes.take(self._hashes.searchsorted(hashes), mode="clip") == hashes
        return [id for id, known in zip(ids, is_known.tolist(), strict=True) if not known]

    def get_id(self, row: int) -> str:
        """Return the id of a passage. row: number of the passage, in the order of the hashes"""
        return self._read(row).id

    def get_document_id(self, passage_id: str) -> str:
        """Return the document id of a passage. For an unknown passage, this is the document id in the passage id."""
        passage = self.get(passage_id) if self._has_other_documents else None
        return parse_document_id(passage_id) if passage is None else get_document_id(passage)

    def iter_document(self, document_id: str) -> Iterator[str]:
        """Yield the ids of the passages of a document."""
        hash = np.uint64(hash_id(document_id))
        first, last = (int(self._document_hashes.searchsorted(hash, side)) for side in ("left", "right"))
        for row in self._document_rows[first:last]:
            passage = self._read(row)
            if get_document_id(passage) == document_id:
                yield passage.id

    def has_document(self, document_id: str) -> bool:
        """Return whether the corpus has a passage of the document."""
        return any(True for _ in self.iter_document(document_id))

    def __iter__(self) -> Iterator[Passage]:
        for position in np.argsort(self._offsets, kind="stable"):
            yield self._read(position)

    def _read(self, position: int | np.integer[Any]) -> Passage:
        line = os.pread(self._file, int(self._lengths[position]), int(self._offsets[position]))
        return parse_passage(parse_row(line))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            self.close()


def open_corpus(corpus: str, tracker: InputTracker) -> CorpusStore:
    """Open a corpus and record it, with its digest, as an input of the run."""
    store = CorpusStore.open(corpus)
    (entry,) = find_inputs({"corpus": corpus})
    tracker.inputs.append(entry | {"digest": entry["digest"] or compute_content_digest(Path(corpus))})
    return store


def _build_index(path: Path, folder: Path) -> dict[str, Any]:
    """Write the index of a corpus to a folder; return the entry of its manifest, `has_other_documents` of `CorpusStore`."""
    log(f"{path}: building an index of its ids (once)")
    hashes, offsets, lengths, document_hashes = array("Q"), array("Q"), array("I"), array("Q")
    has_other_documents = False
    lines = _iter_lines(path) if _is_plain_jsonl(path) else _write_jsonl(path, folder / "corpus.jsonl")
    for passage, offset, length in track(lines, "index corpus", unit="passages"):
        document_id = get_document_id(passage)
        hashes.append(hash_id(passage.id))
        document_hashes.append(hashes[-1] if document_id == passage.id else hash_id(document_id))
        has_other_documents |= document_id != parse_document_id(passage.id)
        offsets.append(offset)
        lengths.append(length)
    order = np.argsort(np.asarray(hashes), kind="stable")
    for name, values in (("hashes", hashes), ("offsets", offsets), ("lengths", lengths)):
        np.save(folder / f"{name}.npy", np.asarray(values)[order])
    del hashes, offsets, lengths, values  # a passage takes up to 50 bytes of memory
    documents = np.asarray(document_hashes)[order]
    del document_hashes, order
    document_rows = np.argsort(documents, kind="stable")
    np.save(folder / "documents.npy", documents[document_rows])
    np.save(folder / "document_rows.npy", document_rows.astype(np.uint32))
    _check_duplicates(path, folder)
    return {"has_other_documents": has_other_documents}


def _is_plain_jsonl(path: Path) -> bool:
    """Return whether the first line of a file is a passage in JSON."""
    if path.is_dir():
        return False
    with open(path, "rb") as file:
        if file.read(1) != b"{":
            return False
        file.seek(0)
        try:
            parse_passage(parse_row(file.readline(get_max_line_bytes())))
        except ValueError:
            return False  # perhaps training data that contains passages
        return True


def _iter_lines(path: Path) -> Iterator[tuple[Passage, int, int]]:
    """Yield (passage, offset, length) of the lines of a JSONL file."""
    offset = 0
    with open(path, "rb", buffering=1 << 20) as file:
        for number, line in enumerate(iter_raw_lines(file, str(path)), start=1):
            if line.strip():
                try:
                    yield parse_passage(parse_row(line)), offset, len(line)
                except ValueError as error:
                    raise RecordError(f"{path}:{number}", str(error)) from error
            offset += len(line)


def _write_jsonl(path: Path, target: Path) -> Iterator[tuple[Passage, int, int]]:
    """Write the passages as JSONL to `target`; yield (passage, offset, length) of each."""
    offset = 0
    with open(target, "wb", buffering=1 << 20) as file:
        for passage in read_passages(str(path)):
            line = dump(passage)
            file.write(line)
            yield passage, offset, len(line)
            offset += len(line)


def _check_duplicates(path: Path, folder: Path) -> None:
    hashes = read_array(folder / "hashes.npy")
    repeated = np.flatnonzero(hashes[1:] == hashes[:-1])
    if not len(repeated):
        return
    store = CorpusStore(path, folder)
    for position in repeated:
        id = store._read(position).id
        if store._read(position + 1).id == id:
            raise RecordError(str(path), f"duplicate id '{id}'; run `drtk validate` to list all duplicates")

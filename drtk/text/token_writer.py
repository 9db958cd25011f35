"""Tokenize a corpus in one pass into memory-mapped files."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drtk.data.arrays import RaggedWriter
from drtk.data.rows import parse_strings
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.records import Passage, get_document_id
from drtk.runtime.inputs import InputTracker
from drtk.runtime.integrity import hash_id
from drtk.runtime.progress import Progress
from drtk.runtime.runners import read_ahead
from drtk.text.word_pieces import WordPieceTokenizer

MIN_PIECES = 3  # word pieces; shorter passages are excluded
FIELDS = {  # field of a passage -> how to add it
    "queries": "add them with `drtk doc2query`",
    "continuations": "add them with `drtk continue-text`",
    "weights": "add them with `drtk termweight`",
    "title_weights": "add them with `drtk termweight --set title=join`",
    "sentences": "split the documents with `drtk chunk`, which writes sentence spans",
    "documents": "split the documents with `drtk chunk`, which writes their ids",
}
LISTS = ("queries", "continuations")
WEIGHTS = ("weights", "title_weights")
_BATCH, _CHARACTERS = 512, 500_000  # passages, and characters of their texts, that are tokenized together


class PassageFields(NamedTuple):
    """A passage and its parsed fields. Fields that were not requested are empty or None.

    location: file:line, for errors
    lists: generated queries and continuations
    tokenizer: the tokenizer of the weights, if the passage names it
    sentence_ends: end of each sentence in characters
    document: id of the document; position: index of the passage in the document
    """

    location: str
    passage: Passage
    lists: dict[str, tuple[str, ...]]
    weights: list[float] | None
    title_weights: list[float] | None
    tokenizer: str | None
    sentence_ends: list[int] | None
    document: str
    position: int | None

    @property
    def expansion_texts(self) -> Iterator[str]:
        """All queries and continuations."""
        return chain.from_iterable(self.lists.values())


def parse_fields(
    passages: Iterable[tuple[str, Passage]], fields: frozenset[str], *, tracker: InputTracker
) -> Iterator[PassageFields]:
    """Parse the fields of (location, passage) pairs.

    Raises RecordError for a malformed field, unless `tracker` skips the passage.
    Raises MismatchError for a passage without the queries, continuations or weights in `fields`.
    """
    for location, passage in passages:
        for name in (*LISTS, "weights"):
            if name in fields and passage.extra.get(name) is None:
                raise MismatchError(f"{location}: passage '{passage.id}' has no '{name}'; {FIELDS[name]}")
        try:
            yield _parse_fields(location, passage, fields)
        except ValueError as error:
            tracker.skip_or_raise(RecordError(location, str(error)))


def _parse_fields(location: str, passage: Passage, fields: frozenset[str]) -> PassageFields:
    metadata = passage.metadata or {}
    tokenizer = title_weights = None
    if not fields.isdisjoint(WEIGHTS):
        title_weights = passage.extra.get("title_weights")
        tokenizer = metadata.get("weights_tokenizer")
        if tokenizer is not None and not isinstance(tokenizer, str):
            raise ValueError("'metadata.weights_tokenizer' must be a string")
    return PassageFields(
        location,
        passage,
        {name: parse_strings(passage.extra[name], name) for name in LISTS if name in fields},
        _parse_weights(passage.extra["weights"], "weights") if "weights" in fields else None,
        None if title_weights is None else _parse_weights(title_weights, "title_weights"),
        tokenizer,
        _parse_sentence_ends(metadata.get("sentences"), len(passage.text)) if "sentences" in fields else None,
        get_document_id(passage) if "documents" in fields else "",
        _parse_position(metadata.get("position"), passage.id) if "documents" in fields else None,
    )


def _parse_weights(value: Any, field: str) -> list[float]:
    # Neither NaN nor beyond float32.
    if not isinstance(value, list) or not all(type(item) in (int, float) and 0 <= item < 1e38 for item in value):
        raise ValueError(f"'{field}' must be a list of numbers, 0 or more")
    return value


def _parse_sentence_ends(value: Any, length: int) -> list[int] | None:
    if value is None:
        return None
    ends = [0]
    for item in value if isinstance(value, list) else [value]:
        is_span = isinstance(item, list) and [type(part) for part in item] == [int, int]
        if not is_span or not ends[-1] <= item[0] <= item[1] <= length:
            raise ValueError("'metadata.sentences' must be a list of [begin, end] in characters of the text, in order")
        ends.append(item[1])
    return ends[1:]


def _parse_position(value: Any, id: str) -> int | None:
    """Return the position of a passage in its document: `metadata.position`, else N of the id `DOC#N`, else None."""
    if value is None:
        number = id.rpartition("#")[2] if "#" in id else ""
        return int(number) if number.isdecimal() and number.isascii() and len(number) < 10 else None
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError("'metadata.position' must be an integer of at least 0")
    return value


def choose_dtype(largest: int) -> tuple[str, int]:
    """Return the dtype of stored token ids up to `largest`, and the index of the bit that marks the start of a word."""
    return ("uint16", 15) if largest < 1 << 15 else ("uint32", 31)


class TokenCorpusWriter:
    """Writer of the files of a `TokenCorpus`.

    fields: as in `TokenCorpus.open`
    counts: numbers of passages, excluded passages (`short`), word pieces of texts (`tokens`), queries, continuations
        and sentences; after `finish` also documents, and documents with a single passage (`alone`)
    """

    def __init__(self, folder: Path, tokenizer: WordPieceTokenizer, fields: frozenset[str]) -> None:
        self._folder, self._tokenizer, self._fields = folder, tokenizer, fields
        dtype, self._bit = choose_dtype(tokenizer.max_id)
        dtypes = {"ids": "uint8", "texts": dtype, "titles": dtype}
        for name in fields.intersection(LISTS):
            dtypes |= {name: dtype, f"{name}_of": "int64"}
        if not fields.isdisjoint(WEIGHTS):
            dtypes |= dict.fromkeys(WEIGHTS, "float32")
        if "sentences" in fields:
            dtypes["sentences"] = "int32"
        self._writers = {name: RaggedWriter(folder, name, values) for name, values in dtypes.items()}
        self._documents, self._positions = array("Q"), array("i")
        self._checked: set[str | None] = {None, tokenizer.name}
        self._specials = np.array(sorted(tokenizer.special_ids), np.int64)
        self._spaced: np.ndarray | None = None  # (vocabulary,) bool: byte-level pieces that begin a word
        if (spaced := tokenizer.space_prefixed_ids) is not None:
            self._spaced = np.isin(np.arange(tokenizer.max_id + 1), [*spaced])
        self.has_specials = False  # whether a text contains a special token, such as "[SEP]"
        self.counts = {"passages": 0, "short": 0, "tokens": 0}
        self.counts |= {name: 0 for name in (*LISTS, "sentences") if name in fields}

    def add(self, passages: Iterable[PassageFields]) -> None:
        """Tokenize and write passages. Passages with fewer than MIN_PIECES word pieces are counted and excluded.

        Raises MismatchError for missing title weights, weights of another tokenizer, or a wrong number of weights.
        """
        progress = Progress("tokenize", unit="passages")
        with progress, closing(read_ahead(_split_batches(passages))) as batches:  # an error ends the reading thread
            for batch in batches:
                self._add_batch(batch)
                progress.add(len(batch))

    def _add_batch(self, batch: list[PassageFields]) -> None:
        texts = [fields.passage.text for fields in batch]
        titles = {title: at for at, title in enumerate(dict.fromkeys(fields.passage.title for fields in batch))}
        generated = [text for fields in batch for text in fields.expansion_texts]
        encoded = self._tokenizer.encode([*texts, *titles, *generated])
        packed = self._pack_tokens(encoded)
        packed_titles = packed[len(texts) :]
        packed_generated = iter(packed[len(texts) + len(titles) :])
        rows: dict[str, list[np.ndarray]] = {name: [] for name in self._writers}
        for fields, text, encoding in zip(batch, packed, encoded, strict=False):
            lists = {name: [next(packed_generated) for _ in items] for name, items in fields.lists.items()}
            if len(text) < MIN_PIECES:
                self.counts["short"] += 1
                continue
            title = packed_titles[titles[fields.passage.title]]
            rows["ids"].append(np.frombuffer(fields.passage.id.encode(), np.uint8))
            rows["texts"].append(text)
            rows["titles"].append(title)
            if "weights" in rows:
                self._check_weights(fields, len(text), len(title))
                rows["weights"].append(np.array(fields.weights or (), np.float64))
                rows["title_weights"].append(np.array(fields.title_weights or (), np.float64))
            for name, items in lists.items():
                items = [item for item in items if len(item)]
                first = self._writers[name].num_rows + len(rows[name])
                rows[f"{name}_of"].append(np.array([first, first + len(items)]))
                rows[name] += items
                self.counts[name] += len(items)
            if "sentences" in rows:
                ends = _find_sentence_ends(fields, encoding)
                rows["sentences"].append(ends)
                self.counts["sentences"] += len(ends)
            if "documents" in self._fields:
                self._documents.append(hash_id(fields.document))
                self._positions.append(-1 if fields.position is None else fields.position)
        for name, arrays in rows.items():
            self._writers[name].extend(arrays)
        self.counts["passages"], self.counts["tokens"] = (
            self._writers["ids"].num_rows,
            self._writers["texts"].num_values,
        )

    def _pack_tokens(self, encoded: Sequence[Any]) -> list[np.ndarray]:
        """Return the token ids of each text, (pieces,) int64, with the marker bit set where a word begins."""
        lengths = np.array([len(encoding) for encoding in encoded], np.int64)
        total = int(lengths.sum())
        ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encoded), np.int64, total)
        is_special = np.isin(ids, self._specials)
        begins = np.ones(total, bool)
        if self._spaced is not None:
            begins[1:] = self._spaced[ids[1:]] | is_special[1:] | is_special[:-1]
        else:
            words = np.fromiter(chain.from_iterable(encoding.word_ids for encoding in encoded), np.int64, total)
            begins[1:] = words[1:] != words[:-1]
        stops = np.cumsum(lengths)
        begins[(stops - lengths)[lengths > 0]] = True
        self.has_specials = self.has_specials or bool(is_special.any())
        return np.split(ids | (begins.astype(np.int64) << self._bit), stops[:-1])

    def _check_weights(self, fields: PassageFields, num_pieces: int, num_title_pieces: int) -> None:
        if fields.tokenizer not in self._checked:
            assert fields.tokenizer is not None
            try:
                other = WordPieceTokenizer(fields.tokenizer)
            except DrtkError as error:
                raise MismatchError(
                    f"{fields.location}: the weights are for the word pieces of {fields.tokenizer}, which cannot be compared "
                    f"with those of {self._tokenizer.name} ({error}); "
                    f"compute them again with `drtk termweight` and `tokenizer` {self._tokenizer.name}"
                ) from error
            try:
                self._tokenizer.check_same_pieces(other)
            except MismatchError as error:
                raise MismatchError(f"{fields.location}: {error}") from error
            self._checked.add(fields.tokenizer)
        for weights, count, of in (
            (fields.weights, num_pieces, "text"),
            (fields.title_weights, num_title_pieces, "title"),
        ):
            if weights is not None and len(weights) != count:
                raise MismatchError(
                    f"{fields.location}: passage '{fields.passage.id}' has {len(weights)} weights for the {count} word pieces "
                    f"of its {of} (tokenizer {self._tokenizer.name}); "
                    "compute them again with `drtk termweight`"
                )
        if "title_weights" in self._fields and num_title_pieces and fields.title_weights is None:
            raise MismatchError(
                f"{fields.location}: passage '{fields.passage.id}' has no 'title_weights'; {FIELDS['title_weights']}"
            )

    def finish(self) -> None:
        """Close all files; with "documents" in `fields`, write the passages of each document (`group_documents`)."""
        for writer in self._writers.values():
            writer.close()
        if "documents" not in self._fields:
            return
        arrays = group_documents(np.array(self._documents, np.uint64), np.array(self._positions, np.int32))
        for name, values in arrays.items():
            values.tofile(self._folder / f"{name}.values")
        sizes = np.diff(arrays["spans"])
        self.counts |= {"documents": len(sizes), "alone": int((sizes == 1).sum())}


def group_documents(keys: np.ndarray, positions: np.ndarray) -> dict[str, np.ndarray]:
    """Group passages by document: number documents by first occurrence, and sort their passages in reading order.

    keys: hash of the document of each passage, (passages,) uint64
    positions: position of each passage in its document, (passages,) int32; -1 if unknown. If any position in a document
        is unknown, its passages keep the file order.
    Returns four arrays by name: `document` and `position` of each passage, (passages,) int32; `members`, the rows of the
    passages sorted by document and position, (passages,) int32; and `spans`, the position in `members` at which each
    document begins, (documents + 1,) int64.
    """
    unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    numbers = np.empty(len(unique), np.int32)
    numbers[np.argsort(first)] = np.arange(len(unique), dtype=np.int32)
    document = numbers[inverse]
    unordered = np.zeros(len(unique), bool)
    unordered[document[positions < 0]] = True
    position = np.where(unordered[document], -1, positions).astype(np.int32)
    members = np.lexsort((position, document)).astype(np.int32)  # stable: equal positions keep the file order
    spans = np.zeros(len(unique) + 1, np.int64)
    np.cumsum(np.bincount(document, minlength=len(unique)), out=spans[1:])
    place = np.arange(len(members)) - spans[document[members]]
    position[members] = np.where(unordered[document[members]], place, position[members])
    return {"document": document, "position": position, "members": members, "spans": spans}


def _find_sentence_ends(fields: PassageFields, encoding: Any) -> np.ndarray:
    """Return the end of each sentence in word pieces, (sentences,). A text without spans is one sentence."""
    count = len(encoding)
    if not fields.sentence_ends:
        return np.array([count])
    begins = np.array([begin for begin, _ in encoding.offsets])
    # The first sentence that ends after the piece begins: a byte-level piece may begin with the space before its sentence.
    number = np.searchsorted(fields.sentence_ends, begins, side="right")
    number = np.minimum(number, len(fields.sentence_ends) - 1)
    return np.append(np.flatnonzero(np.diff(number)) + 1, count)


def _split_batches(passages: Iterable[PassageFields]) -> Iterator[list[PassageFields]]:
    batch: list[PassageFields] = []
    size = 0
    for fields in passages:
        batch.append(fields)
        size += len(fields.passage.text) + sum(map(len, fields.expansion_texts))
        if len(batch) >= _BATCH or size >= _CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

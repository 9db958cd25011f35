"""Read only the ranks of judged documents from a run, block by block, with numpy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from drtk.data.trec import Judgments, QueryHits
from drtk.runtime.inputs import InputTracker

_WORD_BYTES, _PADDING_BYTES = 8, 24  # bytes of a word, and of padding before the data
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio (Fibonacci hashing)
_WORD_MASKS = np.array([(1 << (8 * size)) - 1 for size in range(_WORD_BYTES)] + [(1 << 64) - 1], dtype=np.uint64)


class ByteWords:
    """Bytes that can be read as 64-bit words at any position.

    A field is a range of bytes, given by its start and its end or length; all methods take arrays of fields.
    """

    def __init__(self, data: bytes) -> None:
        padded = bytes(_PADDING_BYTES) + data + bytes(_WORD_BYTES)
        self._words = np.ndarray(len(padded) - _WORD_BYTES + 1, dtype="<u8", buffer=padded, strides=(1,))

    def get_words(self, starts: np.ndarray, lengths: np.ndarray, number: int) -> np.ndarray:
        """Return the 64-bit word with index `number` of each field, padded with zeros after its end, (fields,) uint64."""
        left = np.clip(lengths - _WORD_BYTES * number, 0, _WORD_BYTES)
        places = np.minimum(starts + (_WORD_BYTES * number + _PADDING_BYTES), len(self._words) - 1)
        words = self._words[places]  # take() would copy all unaligned words
        words &= _WORD_MASKS[left]
        return words

    def get_last_bytes(self, starts: np.ndarray, ends: np.ndarray, words: int) -> np.ndarray:
        """Return the last `8 * words` bytes of each field, padded with zeros before its start, (8 * words, fields) uint8."""
        last_words = np.empty((len(ends), words), dtype="<u8")
        for number in range(words):
            bytes_after = _WORD_BYTES * (words - 1 - number)
            missing = np.clip(_WORD_BYTES - (ends - starts - bytes_after), 0, _WORD_BYTES)
            word = self._words[ends + (_PADDING_BYTES - _WORD_BYTES - bytes_after)]
            last_words[:, number] = word & ~_WORD_MASKS[missing]
        return np.ascontiguousarray(last_words.view(np.uint8).T)

    def compute_hashes(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return a hash of the bytes of each field, (fields,) uint64."""
        lengths = ends - starts
        hashes = lengths.astype(np.uint64)
        shortest = int(lengths.min()) if len(lengths) else 0
        for number in range(-(-int(lengths.max(initial=0)) // _WORD_BYTES)):
            mixed = (hashes ^ self.get_words(starts, lengths, number)) * MULTIPLIER
            mixed ^= mixed >> np.uint64(29)
            hashes = (
                mixed if shortest > _WORD_BYTES * number else np.where(lengths > _WORD_BYTES * number, mixed, hashes)
            )
        return hashes

    def find_changes(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return the positions of the fields that differ from the previous field, (changes,)."""
        lengths = ends - starts
        differs = lengths[1:] != lengths[:-1]
        for number in range(-(-int(lengths.max(initial=0)) // _WORD_BYTES)):
            word = self.get_words(starts, lengths, number)
            differs |= word[1:] != word[:-1]
        return np.flatnonzero(differs) + 1


BLOCK = 1 << 22  # bytes; the arrays of a block fit into the processor cache
_LARGEST_QUERY = 1 << 28  # bytes; a larger one is read line by line
_LONGEST_RANK, _LONGEST_SCORE = 8, 16  # characters
_TABLE_BITS = 22
_POWERS = 10.0 ** np.arange(23)


class UnsupportedRunError(Exception):
    """The run cannot be read in blocks; read it line by line with `drtk.data.trec`."""


class JudgedDocuments(NamedTuple):
    """The judged documents of a ranking: {document id: rank from 1} in rank order; `length` is the length of the ranking."""

    query_id: str
    ranks: dict[str, int]
    length: int
    tag: str


def iter_judged_documents(source: str, judgments: Judgments, tracker: InputTracker) -> Iterator[JudgedDocuments | None]:
    """Yield the judged documents of each query of a run, in file order, or None for a query without judgments.

    Ranks are those of `QueryHits.to_ranking`. A document with the id of the query counts as judged, so that the caller can
    exclude it.
    Raises UnsupportedRunError if the run must be read line by line.
    """
    judged_filter = _JudgedFilter(judgments)
    seen: set[str] = set()
    for data in _iter_blocks(source, tracker):
        for group in _iter_query_lines(data, judged_filter):
            if group.query_id in seen:
                raise UnsupportedRunError
            seen.add(group.query_id)
            judged = judgments.get(group.query_id)
            yield None if judged is None else group.find_judged_ranks(judged)


def _iter_blocks(source: str, tracker: InputTracker) -> Iterator[bytes]:
    """Yield the run in blocks. No query is split between blocks."""
    remainder = b""
    for block in tracker.iter_blocks(source, BLOCK):
        data = remainder + block
        if len(data) > _LARGEST_QUERY:
            raise UnsupportedRunError  # read line by line, where the length of a line is limited
        end = data.rfind(b"\n") + 1
        last = data.rfind(b"\n", 0, max(end - 1, 0)) + 1  # where the last whole line begins
        query = data[last:end].split(None, 1)[:1]
        if not query:
            remainder = data
            continue
        cut = _find_query_start(data, query[0], end)
        if cut > 0:
            yield data[:cut]
        remainder = data[cut:]
    if remainder:
        yield remainder if remainder.endswith(b"\n") else remainder + b"\n"


def _find_query_start(data: bytes, query: bytes, end: int) -> int:
    """Return the start of the consecutive lines of `query` that end at `end`."""
    start = end
    while start > 0:
        previous = data.rfind(b"\n", 0, start - 1) + 1
        if data[previous:start].split(None, 1)[:1] != [query]:
            break
        start = previous
    return start


class _JudgedFilter:
    """Filter that excludes most unjudged documents with one look-up in a table of hashes of (query, document)."""

    def __init__(self, judgments: Judgments) -> None:
        self.queries = {query: at for at, query in enumerate(judgments)}
        rows = [(at, id.encode()) for query, at in self.queries.items() for id in (*judgments[query], query)]
        data = b"".join(id for _, id in rows)
        ends = np.cumsum([len(id) for _, id in rows], dtype=np.int64)
        starts = ends - [len(id) for _, id in rows]
        words = ByteWords(data)
        hashes = words.compute_hashes(starts, ends)
        self._table = np.zeros(1 << _TABLE_BITS, dtype=bool)
        self._table[_compute_table_indices(hashes, np.array([at for at, _ in rows], dtype=np.uint64))] = True

    def find_likely_judged(self, doc_hashes: np.ndarray, query_numbers: np.ndarray) -> np.ndarray:
        """Return the rows of all documents judged for their query, and of a few others with equal hashes, (rows,) int64.

        doc_hashes, query_numbers: hash of the document and index of the query in each row, (lines,) uint64
        """
        return np.flatnonzero(self._table[_compute_table_indices(doc_hashes, query_numbers)])


def _compute_table_indices(doc_hashes: np.ndarray, query_numbers: np.ndarray) -> np.ndarray:
    mixed = (doc_hashes ^ (query_numbers * MULTIPLIER)) * MULTIPLIER
    return (mixed >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)


class _QueryLines(NamedTuple):
    """The lines of a query in a block: rows `first` to `end` - 1.

    likely_judged: rows of documents that may be judged; is_sorted: whether the scores decrease strictly
    """

    query_id: str
    block: _RunBlock
    first: int
    end: int
    likely_judged: np.ndarray
    is_sorted: bool

    def find_judged_ranks(self, judged: Mapping[str, int]) -> JudgedDocuments:
        """Return the judged documents of the query, and the document with the id of the query, with their ranks."""
        get_text = self.block.get_text
        ranked: Iterable[tuple[int, str]]
        if self.is_sorted:
            ranked = ((row - self.first + 1, get_text(2, row)) for row in self.likely_judged.tolist())
        else:
            ids = [get_text(2, row) for row in range(self.first, self.end)]
            hits = QueryHits(self.query_id, ids, self.block.scores[self.first : self.end].tolist())
            ranked = enumerate(hits.to_ranked_ids(), start=1)
        ranks = {id: rank for rank, id in ranked if id in judged or id == self.query_id}
        return JudgedDocuments(self.query_id, ranks, self.end - self.first, get_text(5, self.first))


class _RunBlock:
    """A block of run lines: `starts` and `ends` of the fields, (lines, 6), and `scores`, (lines,).

    Raises UnsupportedRunError unless each line has six columns of ASCII characters, separated by one space or tab,
    with a rank of at most 8 digits and a finite score.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        chars = np.frombuffer(data, dtype=np.uint8)
        gaps = np.flatnonzero(chars <= 32)
        if len(gaps) % 6 or len(gaps) == 0 or gaps[0] == 0 or chars.max() > 126:
            raise UnsupportedRunError
        kinds = chars[gaps].reshape(-1, 6)
        between = kinds[:, :5]
        if (kinds[:, 5] != 10).any() or ((between != 32) & (between != 9)).any() or (np.diff(gaps) == 1).any():
            raise UnsupportedRunError
        self.ends = gaps.reshape(-1, 6)
        self.starts = np.empty_like(self.ends)
        flat = self.starts.reshape(-1)
        flat[0], flat[1:] = 0, gaps[:-1] + 1
        self.words = ByteWords(data)
        self._check_ranks()
        self.scores = self._read_scores()

    def __len__(self) -> int:
        return len(self.ends)

    def get_text(self, column: int, row: int) -> str:
        """Return the text of a field."""
        return self._data[self.starts[row, column] : self.ends[row, column]].decode()

    def get_column(self, column: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the starts and ends of the fields in a column, (lines,) each."""
        return self.starts[:, column], self.ends[:, column]

    def _check_ranks(self) -> None:
        starts, ends = self.get_column(3)
        chars = self.words.get_words(starts, ends - starts, 0).view(np.uint8)
        other_than_digits = (chars - np.uint8(48) > 9) & (chars != 0)
        if int((ends - starts).max()) > _LONGEST_RANK or other_than_digits.any():
            raise UnsupportedRunError

    def _read_scores(self) -> np.ndarray:
        """Return the scores, (lines,) float64, equal to `float` of the text."""
        starts, ends = self.get_column(4)
        width = int((ends - starts).max())
        if width > _LONGEST_SCORE:
            return self._parse_scores()
        chars = self.words.get_last_bytes(starts, ends, -(-width // 8))[-width:]
        digits = chars - np.uint8(48)  # other bytes wrap to large numbers
        is_digit, dots = digits < 10, chars == 46
        if not (is_digit | dots | (chars == 0)).all():
            return self._parse_scores()
        mantissa = np.zeros(len(starts), dtype=np.int64)
        num_decimals = np.zeros(len(starts), dtype=np.int64)
        dotted = np.zeros(len(starts), dtype=bool)
        for row in range(width):
            np.multiply(mantissa, 10, out=mantissa, where=is_digit[row])
            np.add(mantissa, digits[row], out=mantissa, where=is_digit[row])
            num_decimals += is_digit[row] & dotted
            dotted |= dots[row]
        one_dot = int(dots.sum()) == int(dots.any(axis=0).sum())
        if not one_dot or int(mantissa.max(initial=0)) >= 1 << 53 or not is_digit.any(axis=0).all():
            return self._parse_scores()
        return mantissa / _POWERS[num_decimals]  # both are exact, so the quotient is correctly rounded

    def _parse_scores(self) -> np.ndarray:
        starts, ends = self.get_column(4)
        fields = [self._data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        if any(b"_" in field for field in fields):
            raise UnsupportedRunError
        try:
            scores = np.array(list(map(float, fields)))
        except ValueError:
            raise UnsupportedRunError from None
        if not np.isfinite(scores).all():
            raise UnsupportedRunError
        return scores


def _iter_query_lines(data: bytes, judged_filter: _JudgedFilter) -> Iterator[_QueryLines]:
    """Yield the lines of each query in a block. Raises UnsupportedRunError if duplicate documents cannot be ruled out."""
    block = _RunBlock(data)
    firsts = np.concatenate([[0], block.words.find_changes(*block.get_column(0))]).astype(np.int64)
    ends = np.append(firsts[1:], len(block))
    names = [block.get_text(0, row) for row in firsts.tolist()]
    numbers = np.array(
        [judged_filter.queries.get(name, len(judged_filter.queries) + at) for at, name in enumerate(names)],
        dtype=np.uint64,
    )
    of_row = np.repeat(numbers, ends - firsts)
    hashes = block.words.compute_hashes(*block.get_column(2))
    keys = np.sort((hashes ^ (of_row * MULTIPLIER)) * MULTIPLIER)
    if (keys[1:] == keys[:-1]).any():
        raise UnsupportedRunError  # a repeated document, or a collision of hashes
    with np.errstate(over="ignore"):
        single = block.scores.astype(np.float32)
    not_decreasing = np.flatnonzero(single[1:] >= single[:-1]) + 1
    unsorted = np.zeros(len(firsts), dtype=bool)
    at = np.searchsorted(firsts, not_decreasing, side="right") - 1
    unsorted[at[firsts[at] != not_decreasing]] = True  # the score may rise from one query to the next
    likely_judged = judged_filter.find_likely_judged(hashes, of_row)
    bounds = np.searchsorted(likely_judged, np.append(firsts, len(block)))
    for number, name in enumerate(names):
        rows = likely_judged[bounds[number] : bounds[number + 1]]
        yield _QueryLines(name, block, int(firsts[number]), int(ends[number]), rows, not unsorted[number])

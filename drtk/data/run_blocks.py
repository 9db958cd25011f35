"""Read a run block by block and keep the ranks of its judged documents only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from drtk.data.trec import Judgements, QueryHits
from drtk.runtime.inputs import Intake

_WORD, _BEFORE = 8, 24  # bytes of a word, and of padding before the data
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: it spreads what is close together
_MASKS = np.array([(1 << (8 * size)) - 1 for size in range(_WORD)] + [(1 << 64) - 1], dtype=np.uint64)


class ByteWords:
    """Bytes as words of 8 that may begin anywhere."""

    def __init__(self, data: bytes) -> None:
        padded = bytes(_BEFORE) + data + bytes(_WORD)
        self._words = np.ndarray(len(padded) - _WORD + 1, dtype="<u8", buffer=padded, strides=(1,))

    def at(self, starts: np.ndarray, lengths: np.ndarray, number: int) -> np.ndarray:
        """The word `number` of each field, bytes beyond its end being 0. (fields,) uint64"""
        left = np.clip(lengths - _WORD * number, 0, _WORD)
        places = np.minimum(starts + (_WORD * number + _BEFORE), len(self._words) - 1)
        found = self._words[places]  # not take(): it would copy words that are not aligned, all of them
        found &= _MASKS[left]
        return found

    def before(self, starts: np.ndarray, ends: np.ndarray, words: int) -> np.ndarray:
        """The last letters of each field as rows of bytes, the last one in the last row, 0 before the field.

        returns: (8 * words, fields) uint8
        """
        found = np.empty((len(ends), words), dtype="<u8")
        for number in range(words):
            over = _WORD * (words - 1 - number)  # letters behind this word
            missing = np.clip(_WORD - (ends - starts - over), 0, _WORD)
            word = self._words[ends + (_BEFORE - _WORD - over)]
            found[:, number] = word & ~_MASKS[missing]
        return np.ascontiguousarray(found.view(np.uint8).T)

    def hashes(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """A hash of each field, which depends on nothing but its letters. (fields,) uint64"""
        lengths = ends - starts
        found = lengths.astype(np.uint64)
        shortest = int(lengths.min()) if len(lengths) else 0
        for number in range(-(-int(lengths.max(initial=0)) // _WORD)):
            mixed = (found ^ self.at(starts, lengths, number)) * MULTIPLIER
            mixed ^= mixed >> np.uint64(29)
            found = mixed if shortest > _WORD * number else np.where(lengths > _WORD * number, mixed, found)
        return found

    def changes(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Rows that differ from the one before. (changes,)"""
        lengths = ends - starts
        differs = lengths[1:] != lengths[:-1]
        for number in range(-(-int(lengths.max(initial=0)) // _WORD)):
            word = self.at(starts, lengths, number)
            differs |= word[1:] != word[:-1]
        return np.flatnonzero(differs) + 1


BLOCK = 1 << 22  # bytes: arrays of a block stay in the processor's cache
_LARGEST_QUERY = 1 << 28  # bytes: the line reader takes over above this size
_LONGEST_RANK, _LONGEST_SCORE = 8, 16  # letters
_TABLE_BITS = 22
_POWERS = 10.0 ** np.arange(23)


class NotPlain(Exception):
    """The run holds what only the careful readers can judge."""


class Places(NamedTuple):
    """The judged documents of a ranking with their ranks, from 1 and rising; `length` is how many were retrieved."""

    query_id: str
    doc_ids: list[str]
    ranks: list[int]
    length: int
    tag: str


@dataclass
class Seen:
    """How many queries of the run have judgements, how many have not, and the first of these."""

    judged: int = 0
    unjudged: int = 0
    example: str = ""


def judged_places(source: str, judgements: Judgements, intake: Intake, seen: Seen) -> Iterator[Places]:
    """The judged queries of a run in file order; a query's own document counts as judged, so that it can be left out.

    Order is that of `QueryHits.ranking`: by score in single precision, then by descending id.
    Raises NotPlain where the run has to be read carefully, or a query comes back after another one.
    """
    wanted = _Wanted(judgements)
    met: set[str] = set()
    for data in _whole_queries(source, intake):
        for group in _groups(data, wanted):
            if group.query_id in met:
                raise NotPlain
            met.add(group.query_id)
            if group.query_id not in judgements:
                seen.unjudged += 1
                seen.example = seen.example or group.query_id
                continue
            seen.judged += 1
            yield group.places(judgements[group.query_id])


def _whole_queries(source: str, intake: Intake) -> Iterator[bytes]:
    """The run in pieces that end where a query does."""
    rest = b""
    for block in intake.blocks(source, BLOCK):
        data = rest + block
        if len(data) > _LARGEST_QUERY:
            raise NotPlain  # read line by line, where the length of a line is limited
        end = data.rfind(b"\n") + 1
        last = data.rfind(b"\n", 0, max(end - 1, 0)) + 1  # where the last whole line begins
        query = data[last:end].split(None, 1)[:1]
        if not query:
            rest = data
            continue
        cut = _begin_of(data, query[0], end)
        if cut > 0:
            yield data[:cut]
        rest = data[cut:]
    if rest:
        yield rest if rest.endswith(b"\n") else rest + b"\n"


def _begin_of(data: bytes, query: bytes, end: int) -> int:
    """Where the run of lines that begin with `query`, and reach to `end`, begins."""
    step = 1 << 14
    low = end
    while low > 0:
        # Lines are looked at in steps backwards, until one is of another query.
        window = data[max(0, low - step) : low]
        first = 0 if low <= step else window.find(b"\n") + 1
        if low > step and first == 0:
            step *= 2
            continue
        lines = window[first:].splitlines(keepends=True)
        at = low
        for line in reversed(lines):
            if line.split(None, 1)[:1] != [query]:
                return at
            at -= len(line)
        if at == low:
            return low
        low = at
    return 0


class _Wanted:
    """Judged documents, as hashes that most others are told from by one look into a table."""

    def __init__(self, judgements: Judgements) -> None:
        self.queries = {query: at for at, query in enumerate(judgements)}
        rows = [(at, id.encode()) for query, at in self.queries.items() for id in (*judgements[query], query)]
        data = b"".join(id for _, id in rows)
        ends = np.cumsum([len(id) for _, id in rows], dtype=np.int64)
        starts = ends - [len(id) for _, id in rows]
        words = ByteWords(data)
        hashes = words.hashes(starts, ends)
        self._table = np.zeros(1 << _TABLE_BITS, dtype=bool)
        self._table[_slot(hashes, np.array([at for at, _ in rows], dtype=np.uint64))] = True

    def may_hold(self, hashes: np.ndarray, queries: np.ndarray) -> np.ndarray:
        """Rows that may be judged documents of their query; every one that is, is among them."""
        return np.flatnonzero(self._table[_slot(hashes, queries)])


def _slot(hashes: np.ndarray, queries: np.ndarray) -> np.ndarray:
    mixed = (hashes ^ (queries * MULTIPLIER)) * MULTIPLIER
    return (mixed >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)


class _Group(NamedTuple):
    """The lines of one query: a part of a block, and the rows of it that may be judged."""

    query_id: str
    block: _Block
    first: int
    last: int
    likely: np.ndarray
    falling: bool

    def places(self, judged: Mapping[str, int]) -> Places:
        """Where the judged documents stand."""
        text, tag = self.block.text, self.block.text(5, self.first)
        length = self.last - self.first
        if not self.falling:
            return self._sorted(judged, tag)
        found = [(int(row) - self.first + 1, text(2, int(row))) for row in self.likely]
        known = [(rank, id) for rank, id in found if id in judged or id == self.query_id]
        return Places(self.query_id, [id for _, id in known], [rank for rank, _ in known], length, tag)

    def _sorted(self, judged: Mapping[str, int], tag: str) -> Places:
        rows = range(self.first, self.last)
        ids = [self.block.text(2, row) for row in rows]
        hits = QueryHits(self.query_id, ids, self.block.scores[self.first : self.last].tolist())
        ranked = enumerate(hits.ranked_ids(), start=1)
        known = [(rank, id) for rank, id in ranked if id in judged or id == self.query_id]
        return Places(self.query_id, [id for _, id in known], [rank for rank, _ in known], len(ids), tag)


class _Block:
    """Lines of six columns: where each column of each line begins and ends, and the scores."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        letters = np.frombuffer(data, dtype=np.uint8)
        gaps = np.flatnonzero(letters <= 32)
        if len(gaps) % 6 or len(gaps) == 0 or gaps[0] == 0 or letters.max() > 126:
            raise NotPlain
        kinds = letters[gaps].reshape(-1, 6)
        between = kinds[:, :5]
        if (kinds[:, 5] != 10).any() or ((between != 32) & (between != 9)).any() or (np.diff(gaps) == 1).any():
            raise NotPlain
        self.ends = gaps.reshape(-1, 6)
        self.starts = np.empty_like(self.ends)
        flat = self.starts.reshape(-1)
        flat[0], flat[1:] = 0, gaps[:-1] + 1
        self.words = ByteWords(data)
        self._check_ranks()
        self.scores = self._scores()

    def __len__(self) -> int:
        return len(self.ends)

    def text(self, column: int, row: int) -> str:
        """One field."""
        return self._data[self.starts[row, column] : self.ends[row, column]].decode()

    def column(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Where a column's fields begin and end: (lines,), (lines,)."""
        return self.starts[:, number], self.ends[:, number]

    def _check_ranks(self) -> None:
        starts, ends = self.column(3)
        letters = self.words.at(starts, ends - starts, 0).view(np.uint8)
        other_than_digits = (letters - np.uint8(48) > 9) & (letters != 0)
        if int((ends - starts).max()) > _LONGEST_RANK or other_than_digits.any():
            raise NotPlain

    def _scores(self) -> np.ndarray:
        """The scores, (lines,) float64: exactly the numbers that are written."""
        starts, ends = self.column(4)
        width = int((ends - starts).max())
        if width > _LONGEST_SCORE:
            return self._parsed()
        letters = self.words.before(starts, ends, -(-width // 8))[-width:]
        digits = letters - np.uint8(48)  # other letters wrap round to large numbers
        is_digit, dots = digits < 10, letters == 46
        if not (is_digit | dots | (letters == 0)).all():
            return self._parsed()
        mantissa = np.zeros(len(starts), dtype=np.int64)
        behind = np.zeros(len(starts), dtype=np.int64)
        dotted = np.zeros(len(starts), dtype=bool)
        for row in range(width):
            np.multiply(mantissa, 10, out=mantissa, where=is_digit[row])
            np.add(mantissa, digits[row], out=mantissa, where=is_digit[row])
            behind += is_digit[row] & dotted
            dotted |= dots[row]
        one_dot = int(dots.sum()) == int(dots.any(axis=0).sum())
        if not one_dot or int(mantissa.max(initial=0)) >= 1 << 53 or not is_digit.any(axis=0).all():
            return self._parsed()
        return mantissa / _POWERS[behind]  # both exact, so the quotient is the nearest double

    def _parsed(self) -> np.ndarray:
        starts, ends = self.column(4)
        fields = [self._data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        if any(b"_" in field for field in fields):
            raise NotPlain
        try:
            found = np.array(list(map(float, fields)))
        except ValueError:
            raise NotPlain from None
        if not np.isfinite(found).all():
            raise NotPlain
        return found


def _groups(data: bytes, wanted: _Wanted) -> Iterator[_Group]:
    """The queries of a block. Raises NotPlain where a document may be given to a query twice."""
    block = _Block(data)
    firsts = np.concatenate([[0], block.words.changes(*block.column(0))]).astype(np.int64)
    lasts = np.append(firsts[1:], len(block))
    names = [block.text(0, row) for row in firsts.tolist()]
    numbers = np.array(
        [wanted.queries.get(name, len(wanted.queries) + at) for at, name in enumerate(names)], dtype=np.uint64
    )
    of_row = np.repeat(numbers, lasts - firsts)
    hashes = block.words.hashes(*block.column(2))
    keys = np.sort((hashes ^ (of_row * MULTIPLIER)) * MULTIPLIER)
    if (keys[1:] == keys[:-1]).any():
        raise NotPlain  # the same document twice; or, once in many lives, two of the same hash
    with np.errstate(over="ignore"):
        single = block.scores.astype(np.float32)
    rises = np.flatnonzero(single[1:] >= single[:-1]) + 1
    unsorted = np.zeros(len(firsts), dtype=bool)
    at = np.searchsorted(firsts, rises, side="right") - 1
    unsorted[at[firsts[at] != rises]] = True  # where a query begins, the score may rise
    likely = wanted.may_hold(hashes, of_row)
    bounds = np.searchsorted(likely, np.append(firsts, len(block)))
    for number, name in enumerate(names):
        rows = likely[bounds[number] : bounds[number + 1]]
        yield _Group(name, block, int(firsts[number]), int(lasts[number]), rows, not unsorted[number])

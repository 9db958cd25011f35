"""Tokenize a corpus in one pass into memory-mapped files."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drtk.data.arrays import RaggedWriter
from drtk.data.ids import document_id_of
from drtk.data.rows import strings_of
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.records import Passage
from drtk.runtime.inputs import Intake
from drtk.runtime.integrity import hash_id
from drtk.runtime.progress import Progress
from drtk.runtime.workers import read_ahead
from drtk.text.sentences import Span
from drtk.text.word_pieces import WordPieceTokenizer

FIELDS = {  # what may be wanted -> where it comes from
    "queries": "drtk doc2query adds them",
    "continuations": "drtk continue-text adds them",
    "weights": "drtk termweight adds them",
    "title_weights": "drtk termweight --title join adds them",
    "sentences": "drtk chunk notes where they lie",
    "documents": "drtk chunk cuts documents into passages that know theirs",
}


class Fields(NamedTuple):
    """A passage with what was asked for; None where that was not, or (titles' weights, sentences) where it is not there.

    place: where complaints say it stands; tokenizer: the one its weights were made for, where it says so
    """

    place: str
    passage: Passage
    queries: tuple[str, ...] | None
    continuations: tuple[str, ...] | None
    weights: list[float] | None
    title_weights: list[float] | None
    tokenizer: str | None
    sentences: list[Span] | None
    document: str
    position: int | None


def fields_of(passages: Iterable[tuple[str, Passage]], wants: Collection[str], *, intake: Intake) -> Iterator[Fields]:
    """The (place, passage) pairs with their fields; an ill-formed field goes to the intake.

    Raises MismatchError where a passage has no queries, continuations or weights and those are wanted.
    """
    for place, passage in passages:
        try:
            yield _fields(place, passage, wants)
        except ValueError as error:
            intake.forgive(RecordError(place, str(error)))


def _fields(place: str, passage: Passage, wants: Collection[str]) -> Fields:
    for name in ("queries", "continuations", "weights"):
        if name in wants and passage.extra.get(name) is None:
            raise MismatchError(f"{place}: passage '{passage.id}' has no '{name}'; {FIELDS[name]}")
    metadata = passage.metadata or {}
    weighted = "weights" in wants or "title_weights" in wants
    title_weights = passage.extra.get("title_weights") if weighted else None
    return Fields(
        place,
        passage,
        strings_of(passage.extra["queries"], "queries") if "queries" in wants else None,
        strings_of(passage.extra["continuations"], "continuations") if "continuations" in wants else None,
        _weights(passage.extra["weights"], "weights") if "weights" in wants else None,
        None if title_weights is None else _weights(title_weights, "title_weights"),
        _name(metadata.get("weights_tokenizer")) if weighted else None,
        _sentences(metadata.get("sentences"), len(passage.text)) if "sentences" in wants else None,
        document_id_of(passage) if "documents" in wants else "",
        _position(metadata.get("position"), passage.id) if "documents" in wants else None,
    )


def _weights(value: Any, field: str) -> list[float]:
    if not isinstance(value, list) or not all(_is_weight(item) for item in value):
        raise ValueError(f"'{field}' must be a list of numbers, 0 or more")
    return value


def _is_weight(item: Any) -> bool:
    return (
        isinstance(item, (int, float)) and not isinstance(item, bool) and 0 <= item < 1e38
    )  # neither NaN nor beyond float32


def _name(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError("'metadata.weights_tokenizer' must be a string")
    return value


def _sentences(value: Any, length: int) -> list[Span] | None:
    """Spans of sentences in characters, in order and within the text."""
    if value is None:
        return None
    problem = ValueError("'metadata.sentences' must be a list of [begin, end] in characters of the text, in order")
    if not isinstance(value, list):
        raise problem
    found: list[Span] = []
    last = 0
    for item in value:
        if not isinstance(item, list) or [type(part) for part in item] != [int, int]:
            raise problem
        begin, end = item
        if not last <= begin <= end <= length:
            raise problem
        found.append((begin, end))
        last = end
    return found


def _position(value: Any, id: str) -> int | None:
    """A passage's number within its document: `metadata.position`, otherwise the N of `DOC#N`."""
    if value is None:
        number = id.rpartition("#")[2] if "#" in id else ""
        return int(number) if number.isdecimal() and number.isascii() and len(number) < 10 else None
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError("'metadata.position' must be a whole number, 0 or more")
    return value


_AT_ONCE, _CHARACTERS = 512, 500_000  # passages, and characters of their texts, that are tokenised together


def packing(largest: int) -> tuple[str, int]:
    """The type in which pieces are kept, and the bit of it that says whether a piece begins a word."""
    return ("uint16", 15) if largest < 1 << 15 else ("uint32", 31)


class Building:
    """Writes what `TokenCorpus` reads into `folder`: `add` takes the passages, `finish` what is known at the end.

    counts: passages taken, those left out as `short`, pieces of the texts as `tokens`, and what was found of each field
    """

    def __init__(self, folder: Path, tokenizer: WordPieceTokenizer, wants: frozenset[str], *, shortest: int) -> None:
        self._folder, self._tokenizer, self._wants, self._shortest = folder, tokenizer, wants, shortest
        dtype, self._bit = packing(tokenizer.largest)
        kinds = {"ids": "uint8", "texts": dtype, "titles": dtype}
        for name in ("queries", "continuations"):
            kinds |= {name: dtype, f"{name}_of": "int64"} if name in wants else {}
        for name in ("weights", "title_weights"):
            kinds |= {name: "float32"} if wants & {"weights", "title_weights"} else {}
        kinds |= {"sentences": "int32"} if "sentences" in wants else {}
        self._writers = {name: RaggedWriter(folder, name, kind) for name, kind in kinds.items()}
        self._documents, self._positions = array("Q"), array("i")
        self._trusted: set[str | None] = {None, tokenizer.name}
        self._specials = np.array(sorted(tokenizer.specials), np.int64)
        self._spaced: np.ndarray | None = None  # (vocabulary,) bool: pieces that begin a word wherever they stand
        if (spaced := tokenizer.spaced) is not None:
            self._spaced = np.isin(np.arange(tokenizer.largest + 1), [*spaced])
        self.has_specials = False  # whether a special token stands in a text, as "[SEP]" does in some
        self.counts = {"passages": 0, "short": 0, "tokens": 0}
        self.counts |= {name: 0 for name in ("queries", "continuations", "sentences") if name in wants}

    def add(self, found: Iterable[Fields], *, total: int | None = None) -> None:
        """Tokenise and write passages; those with fewer than `shortest` pieces are left out and counted.

        Raises MismatchError for weights of another tokenizer, or for more or fewer than there are pieces.
        """
        progress = Progress("tokenise", total=total, unit="passages")
        with progress, closing(read_ahead(_batches(found))) as batches:  # a fault here ends the thread that reads
            for batch in batches:
                self._add(batch)
                progress.add(len(batch))

    def _add(self, batch: list[Fields]) -> None:
        titles = {title: at for at, title in enumerate(dict.fromkeys(each.passage.title for each in batch))}
        texts = [each.passage.text for each in batch]
        more = [text for each in batch for text in (*(each.queries or ()), *(each.continuations or ()))]
        encoded = self._tokenizer.encoded([*texts, *titles, *more])
        packed = self._packed(encoded)
        further = iter(packed[len(texts) + len(titles) :])
        rows: dict[str, list[np.ndarray]] = {name: [] for name in self._writers}
        for at, each in enumerate(batch):
            lists = {
                "queries": [next(further) for _ in each.queries or ()],
                "continuations": [next(further) for _ in each.continuations or ()],
            }
            if len(packed[at]) < self._shortest:
                self.counts["short"] += 1
                continue
            title = packed[len(texts) + titles[each.passage.title]]
            rows["ids"].append(np.frombuffer(each.passage.id.encode(), np.uint8))
            rows["texts"].append(packed[at])
            rows["titles"].append(title)
            if "weights" in rows:
                self._check_weights(each, len(packed[at]), len(title))
                rows["weights"].append(np.array(each.weights or (), np.float64))
                rows["title_weights"].append(np.array(each.title_weights or (), np.float64))
            for name, inside in lists.items():
                if name in rows:
                    filled = [item for item in inside if len(item)]
                    first = self._writers[name].rows + len(rows[name])
                    rows[f"{name}_of"].append(np.array([first, first + len(filled)]))
                    rows[name] += filled
                    self.counts[name] += len(filled)
            if "sentences" in rows:
                ends = _sentence_ends(each, encoded[at])
                rows["sentences"].append(ends)
                self.counts["sentences"] += len(ends)
            if "documents" in self._wants:
                self._documents.append(hash_id(each.document))
                self._positions.append(-1 if each.position is None else each.position)
        for name, items in rows.items():
            self._writers[name].extend(items)
        self.counts["passages"], self.counts["tokens"] = self._writers["ids"].rows, self._writers["texts"].end

    def _packed(self, encoded: Sequence[Any]) -> list[np.ndarray]:
        """For each text its pieces, (pieces,) int64, with the bit set where a word begins."""
        lengths = np.array([len(each) for each in encoded], np.int64)
        total = int(lengths.sum())
        ids = np.fromiter(chain.from_iterable(each.ids for each in encoded), np.int64, total)
        special = np.isin(ids, self._specials)
        begins = np.ones(total, bool)
        if self._spaced is not None:
            begins[1:] = self._spaced[ids[1:]] | special[1:] | special[:-1]
        else:
            words = np.fromiter(chain.from_iterable(each.word_ids for each in encoded), np.int64, total)
            begins[1:] = words[1:] != words[:-1]
        stops = np.cumsum(lengths)
        begins[(stops - lengths)[lengths > 0]] = True
        self.has_specials = self.has_specials or bool(special.any())
        return np.split(ids | (begins.astype(np.int64) << self._bit), stops[:-1]) if len(lengths) else []

    def _check_weights(self, each: Fields, pieces: int, title: int) -> None:
        name = each.tokenizer
        if name not in self._trusted:
            assert name is not None
            try:
                self._tokenizer.check(name)
            except MismatchError as error:
                raise MismatchError(f"{each.place}: {error}") from error
            except DrtkError as error:
                raise MismatchError(
                    f"{each.place}: the weights were made for the word pieces of {name}, which cannot be compared with "
                    f"those of {self._tokenizer.name} ({error}); drtk termweight --tokenizer {self._tokenizer.name} makes them anew"
                ) from error
            self._trusted.add(name)
        for found, count, of in ((each.weights, pieces, "text"), (each.title_weights, title, "title")):
            if found is not None and len(found) != count:
                raise MismatchError(
                    f"{each.place}: passage '{each.passage.id}' has {len(found)} weights for the {count} word pieces "
                    f"{self._tokenizer.name} makes of its {of}"
                )
        if "title_weights" in self._wants and title and each.title_weights is None:
            raise MismatchError(
                f"{each.place}: passage '{each.passage.id}' has no 'title_weights'; {FIELDS['title_weights']}"
            )

    def finish(self) -> None:
        """Write the files that tell which passages belong together, and close all."""
        for writer in self._writers.values():
            writer.close()
        if "documents" in self._wants:
            keys = np.frombuffer(self._documents, np.uint64) if self._documents else np.empty(0, np.uint64)
            places = np.frombuffer(self._positions, np.int32) if self._positions else np.empty(0, np.int32)
            for name, values in arranged(keys, places).items():
                values.tofile(self._folder / f"{name}.values")
                if name == "spans":
                    self.counts["documents"] = len(values) - 1
                    self.counts["alone"] = int((np.diff(values) == 1).sum())


def arranged(keys: np.ndarray, positions: np.ndarray) -> dict[str, np.ndarray]:
    """Documents from one key a passage, numbered as they first appear, and their passages in reading order.

    keys: (passages,) uint64; positions: (passages,) int32 within the document, -1 where unknown; a document with such a passage
    is in the order of the file.
    returns: document (passages,) int32; position (passages,) int32; members (passages,) int32, the passages document after
    document; spans (documents + 1,) int64, where each begins among the members
    """
    unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    numbers = np.empty(len(unique), np.int32)
    numbers[np.argsort(first)] = np.arange(len(unique), dtype=np.int32)
    document = numbers[inverse]
    unordered = np.zeros(len(unique), bool)
    unordered[document[positions < 0]] = True
    position = np.where(unordered[document], -1, positions).astype(np.int32)
    members = np.lexsort((position, document)).astype(np.int32)  # stable: equals stay in the order of the file
    spans = np.zeros(len(unique) + 1, np.int64)
    np.cumsum(np.bincount(document, minlength=len(unique)), out=spans[1:])
    place = np.arange(len(members)) - spans[document[members]]
    position[members] = np.where(unordered[document[members]], place, position[members])
    return {"document": document, "position": position, "members": members, "spans": spans}


def _sentence_ends(each: Fields, encoding: Any) -> np.ndarray:
    """(sentences,): the piece after the last of each sentence that has any; without sentences the text is one."""
    count = len(encoding)
    if not each.sentences:
        return np.array([count])
    begins = np.array([begin for begin, _ in encoding.offsets])
    # A byte-level piece may begin with the space before its sentence: it counts to the first that ends after its beginning.
    number = np.searchsorted(np.array([end for _, end in each.sentences]), begins, side="right")
    number = np.minimum(number, len(each.sentences) - 1)
    return np.append(np.flatnonzero(np.diff(number)) + 1, count)


def _batches(found: Iterable[Fields]) -> Iterator[list[Fields]]:
    batch: list[Fields] = []
    size = 0
    for each in found:
        batch.append(each)
        size += len(each.passage.text) + sum(map(len, (*(each.queries or ()), *(each.continuations or ()))))
        if len(batch) >= _AT_ONCE or size >= _CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

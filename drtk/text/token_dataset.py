"""Tokenized corpora, cached on disk and read from memory-mapped files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from drtk.data.arrays import RaggedArray, map_array
from drtk.data.readers import join_side_files, read_passages
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.records import Passage
from drtk.runtime.inputs import InputTracker
from drtk.runtime.integrity import (
    CACHE_MANIFEST,
    compute_content_digest,
    ensure_cache_folder,
    get_cache_folder,
    hash_id,
    read_object,
)
from drtk.runtime.manifest import describe_folder
from drtk.runtime.progress import log
from drtk.runtime.streams import STANDARD, digest_bytes
from drtk.text.sentences import Span
from drtk.text.token_writer import FIELDS, LISTS, MIN_PIECES, WEIGHTS, TokenCorpusWriter, choose_dtype, parse_fields
from drtk.text.word_pieces import WordPieceTokenizer

VERSION = 2  # of the files, part of the folder's key


class TokenizedText(NamedTuple):
    """A tokenized text. Every array has the shape (tokens,).

    ids: token ids, int32
    words: word index of each token, int32; -1 for special tokens. Words are those of `word_ids()` of tokenizers, but in
        byte-level vocabularies they are separated by white space only
    weights: weight of each token, float32, or None
    types: segment of each token (0 or 1), int32, or None if the text has one segment
    """

    ids: np.ndarray
    words: np.ndarray
    weights: np.ndarray | None = None
    types: np.ndarray | None = None


class TokenCorpus:
    """The word pieces of a corpus, by passage. Use `TokenCorpus.open` to create one; only the paths are pickled.

    `row` is the index of a passage among the passages of at least MIN_PIECES word pieces.
    sources: the corpus files, for errors
    counts: numbers of passages, tokens and field values (see `TokenCorpusWriter`)
    """

    def __init__(self, folder: Path, sources: str) -> None:
        meta = read_object(
            folder / CACHE_MANIFEST, counts=dict, wants=list, largest=int, specials=list, has_specials=bool, files=dict
        )
        self.folder, self.sources = folder, sources
        self.counts: dict[str, int] = meta["counts"]
        self.fields = frozenset(meta["wants"])
        dtype, bit = choose_dtype(meta["largest"])
        self._bit, self._mask = np.array(bit, dtype), np.array((1 << bit) - 1, dtype)
        self._specials = np.array(meta["specials"], np.int32) if meta["has_specials"] else None
        self._ids = RaggedArray(folder, "ids", "uint8")
        self._texts, self._titles = RaggedArray(folder, "texts", dtype), RaggedArray(folder, "titles", dtype)
        self._lists = {
            name: (RaggedArray(folder, name, dtype), RaggedArray(folder, f"{name}_of", "int64"))
            for name in LISTS
            if name in self.fields
        }
        has_weights = not self.fields.isdisjoint(WEIGHTS)
        self._weights = {name: RaggedArray(folder, name, "float32") for name in WEIGHTS if has_weights}
        self._sentences = RaggedArray(folder, "sentences", "int32") if "sentences" in self.fields else None
        if "documents" in self.fields:
            self._document = map_array(folder / "document.values", "int32")
            self._position = map_array(folder / "position.values", "int32")
            self._members = map_array(folder / "members.values", "int32")
            self._document_starts = map_array(folder / "spans.values", "int64")

    @classmethod
    def open(
        cls,
        sources: str | Sequence[str],
        tokenizer: str | WordPieceTokenizer,
        *,
        fields: Collection[str] = (),
        side_files: Sequence[str] = (),
        tracker: InputTracker | None = None,
    ) -> TokenCorpus:
        """Open a corpus in one or more files of any format; tokenize it if it is not cached.

        fields: fields of `token_writer.FIELDS` to read in addition to text and title
        side_files: files with further fields of the passages, line by line
        Passages of fewer than MIN_PIECES word pieces are excluded, and counted as `short`.
        Raises RecordError (file:line) for an invalid record, unless `tracker` skips it. Raises MismatchError if a
        passage lacks requested queries, continuations or weights, its weights belong to another tokenizer, a field has
        no usable value in the corpus, or no passage is long enough. Raises the other errors of `tokenize_corpus`.
        """
        names = [sources] if isinstance(sources, str) else list(sources)
        assert set(fields) <= set(FIELDS), fields
        tokenizer = WordPieceTokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        folder = tokenize_corpus(names, side_files, tokenizer, frozenset(fields), tracker or InputTracker())
        corpus = cls(folder, ", ".join(names))
        corpus._check_counts()
        return corpus

    def _check_counts(self) -> None:
        if self.counts["short"]:
            log(
                f"{self.sources}: {self.counts['short']:,} passages of fewer than {MIN_PIECES} word pieces are excluded"
            )
        if not len(self):
            raise MismatchError(f"{self.sources}: has no passage of {MIN_PIECES} word pieces or more; check the file")
        if "documents" in self.fields and self.counts["documents"] == self.counts["alone"]:
            raise MismatchError(
                f"{self.sources}: no document has two passages, so no passage has a neighbor; {FIELDS['documents']}"
            )
        for name in self._lists:
            if not self.counts[name]:
                raise MismatchError(f"{self.sources}: '{name}' is empty in every passage; {FIELDS[name]}")
        if self.counts.get("sentences") == len(self):
            raise MismatchError(f"{self.sources}: no passage has two sentences; {FIELDS['sentences']}")

    def __len__(self) -> int:
        return len(self._ids)

    def __reduce__(self) -> tuple[type[TokenCorpus], tuple[Path, str]]:
        return TokenCorpus, (self.folder, self.sources)  # the other process maps the files

    @property
    def lengths(self) -> np.ndarray:
        """The number of word pieces of each text, (passages,) int64."""
        return self._texts.lengths

    def get_id(self, row: int) -> str:
        """Return the id of a passage."""
        return self._ids[row].tobytes().decode()

    def iter_ids(self, rows: np.ndarray) -> Iterator[memoryview]:
        """Yield the ids of passages in UTF-8. rows: (passages,)"""
        return self._ids.iter_rows(rows)

    def get_text(self, row: int) -> TokenizedText:
        """Return the text of a passage without added special tokens, and its weights if the corpus has them."""
        text = self._unpack_tokens(self._texts[row])
        return text._replace(weights=np.array(self._weights["weights"][row])) if "weights" in self.fields else text

    def get_title(self, row: int) -> TokenizedText:
        """Return the title of a passage, perhaps empty, with its weights if it has any."""
        title = self._unpack_tokens(self._titles[row])
        if not self._weights or len(self._weights["title_weights"][row]) != len(title.ids):
            return title
        return title._replace(weights=np.array(self._weights["title_weights"][row]))

    def get_queries(self, row: int) -> list[TokenizedText]:
        """Return the generated queries of a passage in order. Duplicates are kept, empty queries are dropped."""
        return self._get_texts("queries", row)

    def get_continuations(self, row: int) -> list[TokenizedText]:
        """Return the generated continuations of a passage in order, without empty ones."""
        return self._get_texts("continuations", row)

    def get_sentence_spans(self, row: int) -> list[Span]:
        """Return (begin, end) of each sentence in word pieces; together they cover the text."""
        assert self._sentences is not None, "the corpus was opened without sentences"
        ends = self._sentences[row].tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def get_document(self, row: int) -> int:
        """Return the index of the document of a passage, in the order of first occurrence."""
        return int(self._document[row])

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return len(self._document_starts) - 1

    @property
    def multi_passage_documents(self) -> np.ndarray:
        """The indices of documents with at least two passages, (documents,)."""
        return np.flatnonzero(np.diff(self._document_starts) > 1)

    def get_first_passages(self, documents: np.ndarray) -> np.ndarray:
        """Return the row of the first passage of each document, (documents,). documents: (documents,)"""
        return self._members[self._document_starts[documents]]

    def get_document_passages(self, document: int) -> np.ndarray:
        """Return the rows of the passages of a document in reading order, (passages,)."""
        return self._members[self._document_starts[document] : self._document_starts[document + 1]]

    def get_consecutive_passages(self, row: int) -> tuple[np.ndarray, int]:
        """Return the rows of the consecutive passages around a passage, (passages,), and the index of `row` among them.

        They are in reading order. Passages are consecutive if no passage of the document is missing between them.
        """
        members = self.get_document_passages(self.get_document(row))
        place = int(np.flatnonzero(members == row)[0])
        gaps = np.flatnonzero(np.diff(self._position[members]) != 1) + 1
        at = int(gaps.searchsorted(place, side="right"))
        begin = int(gaps[at - 1]) if at else 0
        end = int(gaps[at]) if at < len(gaps) else len(members)
        return members[begin:end], place - begin

    def get_next_passage(self, row: int) -> int | None:
        """Return the row of the next passage of the document; None if there is none, or if it is not in the corpus."""
        members, place = self.get_consecutive_passages(row)
        return int(members[place + 1]) if place + 1 < len(members) else None

    def _get_texts(self, name: str, row: int) -> list[TokenizedText]:
        assert name in self._lists, f"the corpus was opened without {name}"
        texts, numbers = self._lists[name]
        first, end = numbers[row].tolist()
        return [self._unpack_tokens(texts[number]) for number in range(first, end)]

    def _unpack_tokens(self, packed: np.ndarray) -> TokenizedText:
        ids = (packed & self._mask).astype(np.int32)
        begins = packed >> self._bit
        special = None if self._specials is None else np.isin(ids, self._specials)
        if special is None or not special.any():
            return TokenizedText(ids, begins.cumsum(dtype=np.int32) - np.int32(1))
        words = np.where(special, 0, begins).cumsum(dtype=np.int32) - np.int32(1)
        words[special] = -1
        return TokenizedText(ids, words)


def tokenize_corpus(
    sources: Sequence[str],
    side_files: Sequence[str],
    tokenizer: WordPieceTokenizer,
    fields: frozenset[str],
    tracker: InputTracker,
) -> Path:
    """Tokenize a corpus unless it is cached; return its cache folder. Add the files to the inputs of `tracker`.

    The parameters are those of `TokenCorpus.open`.

    Raises the errors of reading and of `token_writer`, and DrtkError for a missing file or a cache that cannot be written.
    """
    for name in (*sources, *side_files):
        if name == STANDARD:
            raise DrtkError("<stdin>: the corpus must be a file, as it is read several times; write it to a file")
        if not Path(name).exists():
            raise DrtkError(f"{name}: No such file or directory")
    digests = {name: compute_content_digest(Path(name)) for name in (*sources, *side_files)}
    of_files = [[digests[name] for name in names] for names in (sources, side_files)]
    key = [VERSION, *of_files, tokenizer.digest, sorted(fields), MIN_PIECES]
    folder = get_cache_folder() / "tokens" / digest_bytes(orjson.dumps(key))
    is_new = ensure_cache_folder(
        folder,
        lambda making: _tokenize(making, sources, side_files, tokenizer, fields, digests, tracker),
        task=f"tokenizing {', '.join(sources)}",
        is_usable=lambda manifest: manifest["bad"] <= tracker.skip_bad - tracker.bad,
    )
    if is_new:
        return folder
    for name, digest in digests.items():  # as if this run had read them
        facts = os.stat(name)
        file = {"path": name, "bytes": facts.st_size, "digest": digest, "mtime_ns": facts.st_mtime_ns}
        tracker.inputs.append(describe_folder(name) if Path(name).is_dir() else file)
    tracker.bad += read_object(folder / CACHE_MANIFEST, bad=int)["bad"]
    return folder


def _tokenize(
    folder: Path,
    sources: Sequence[str],
    side_files: Sequence[str],
    tokenizer: WordPieceTokenizer,
    fields: frozenset[str],
    digests: Mapping[str, str],
    tracker: InputTracker,
) -> dict[str, Any]:
    """Write a tokenized corpus to a folder; return the entries of its manifest."""
    log(f"tokenizing {', '.join(sources)} for {tokenizer.name} (once)")
    before = tracker.bad
    writer = TokenCorpusWriter(folder, tokenizer, fields)
    writer.add(parse_fields(_read_with_locations(sources, side_files, tracker), fields, tracker=tracker))
    writer.finish()
    if len(sources) > 1:
        _check_duplicates(folder, ", ".join(sources))
    for name, digest in digests.items():
        if compute_content_digest(Path(name)) != digest:
            raise DrtkError(f"{name}: changed while it was read; run the command again")
    return {
        "counts": writer.counts,
        "bad": tracker.bad - before,
        "wants": sorted(fields),
        "tokenizer": tokenizer.name,
        "largest": tokenizer.max_id,
        "specials": sorted(tokenizer.special_ids),
        "has_specials": writer.has_specials,
    }


def _read_with_locations(
    sources: Sequence[str], side_files: Sequence[str], tracker: InputTracker
) -> Iterator[tuple[str, Passage]]:
    """Yield (file:line, passage) of all sources."""
    current = sources[0]

    def read() -> Iterator[Passage]:
        nonlocal current
        for current in sources:
            yield from read_passages(current, tracker=tracker)

    for passage in join_side_files(read(), ", ".join(sources), side_files, tracker):
        yield f"{current}:{tracker.line}", passage


def _check_duplicates(folder: Path, sources: str) -> None:
    ids = RaggedArray(folder, "ids", "uint8")
    hashes = np.fromiter((hash_id(ids[row].tobytes().decode()) for row in range(len(ids))), np.uint64, len(ids))
    order = np.argsort(hashes, kind="stable")
    for at in np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]]):
        one, other = (ids[int(order[place])].tobytes().decode() for place in (at, at + 1))
        if one == other:
            raise RecordError(sources, f"duplicate id '{one}'; make the ids unique")

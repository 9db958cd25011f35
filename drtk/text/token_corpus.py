"""A corpus as word pieces by number, read from memory-mapped files that epochs, processes and runs share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from drtk.errors import MismatchError
from drtk.io.intake import Intake
from drtk.io.json_files import read_object
from drtk.io.progress import log
from drtk.io.ragged import Ragged, mapped
from drtk.text.sentences import Span
from drtk.text.token_building import packing
from drtk.text.token_cache import META, Request, tokenised
from drtk.text.token_fields import FIELDS
from drtk.text.tokenised import Text
from drtk.text.word_pieces import WordPieceTokenizer

SHORTEST = 3  # word pieces: a shorter passage is left out


class TokenCorpus:
    """Passages as word pieces by number, in the order of the files. Make one with `TokenCorpus.open`; it travels to other processes.

    sources: what the corpus is called in complaints; counts: what was found when it was tokenised
    """

    def __init__(self, folder: Path, sources: str) -> None:
        meta = read_object(
            folder / META, counts=dict, wants=list, largest=int, specials=list, has_specials=bool, files=dict
        )
        self.folder, self.sources = folder, sources
        self.counts: dict[str, int] = meta["counts"]
        self.wants = frozenset(meta["wants"])
        dtype, bit = packing(meta["largest"])
        self._bit, self._mask = np.array(bit, dtype), np.array((1 << bit) - 1, dtype)
        self._specials = np.array(meta["specials"], np.int32) if meta["has_specials"] else None
        self._ids = Ragged(folder, "ids", "uint8")
        self._texts, self._titles = Ragged(folder, "texts", dtype), Ragged(folder, "titles", dtype)
        self._lists = {
            name: (Ragged(folder, name, dtype), Ragged(folder, f"{name}_of", "int64"))
            for name in ("queries", "continuations")
            if name in self.wants
        }
        self._weights = {
            name: Ragged(folder, name, "float32")
            for name in ("weights", "title_weights")
            if self.wants & {"weights", "title_weights"}
        }
        self._sentences = Ragged(folder, "sentences", "int32") if "sentences" in self.wants else None
        if "documents" in self.wants:
            self._document = mapped(folder / "document.values", "int32")
            self._position = mapped(folder / "position.values", "int32")
            self._members = mapped(folder / "members.values", "int32")
            self._spans = mapped(folder / "spans.values", "int64")

    @classmethod
    def open(
        cls,
        sources: str | Sequence[str],
        tokenizer: str | WordPieceTokenizer,
        *,
        wants: Collection[str] = (),
        side_files: Sequence[str] = (),
        intake: Intake | None = None,
        shortest: int = SHORTEST,
    ) -> TokenCorpus:
        """The corpus in one or more files of any format drtk reads, joined with `side_files`; tokenised first where that was not done.

        wants: fields to take beside text and title, of `token_fields.FIELDS`
        shortest: passages with fewer word pieces are left out, and counted as `short`
        Raises RecordError (file:line) for a record that cannot be read unless `intake` forgives it; MismatchError where a passage
        lacks a wanted field, all have an empty one, or weights are of another tokenizer, where no document has two passages or no passage two sentences
        and those are wanted, and where no passage is left.
        """
        names = [sources] if isinstance(sources, str) else list(sources)
        assert set(wants) <= set(FIELDS), wants
        request = Request(names, list(side_files), frozenset(wants), shortest)
        pieces = WordPieceTokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        folder = tokenised(request, pieces, intake=intake or Intake())
        corpus = cls(folder, request.called)
        corpus._check(shortest)
        return corpus

    def _check(self, shortest: int) -> None:
        if self.counts["short"]:
            log(f"{self.sources}: {self.counts['short']:,} passages of fewer than {shortest} word pieces are left out")
        if not len(self):
            raise MismatchError(f"{self.sources}: holds no passage of {shortest} word pieces or more")
        if "documents" in self.wants and self.counts["documents"] == self.counts["alone"]:
            raise MismatchError(
                f"{self.sources}: no document has two passages, so none has a neighbour; {FIELDS['documents']}"
            )
        for name in self._lists:
            if not self.counts[name]:
                raise MismatchError(f"{self.sources}: '{name}' is empty in every passage; {FIELDS[name]}")
        if self.counts.get("sentences") == len(self):
            raise MismatchError(f"{self.sources}: no passage has two sentences; {FIELDS['sentences']}")

    def __len__(self) -> int:
        return len(self._ids)

    def __reduce__(self) -> tuple[type[TokenCorpus], tuple[Path, str]]:
        return TokenCorpus, (self.folder, self.sources)  # other processes map the files themselves

    @property
    def lengths(self) -> np.ndarray:
        """(passages,) int64: word pieces of each text."""
        return self._texts.lengths

    @property
    def title_lengths(self) -> np.ndarray:
        """(passages,) int64: word pieces of each title."""
        return self._titles.lengths

    def id(self, row: int) -> str:
        """The id of a passage."""
        return self._ids[row].tobytes().decode()

    def text(self, row: int) -> Text:
        """The text of a passage, special tokens apart, with its weights where those were wanted."""
        found = self._text(self._texts[row])
        return found._replace(weights=np.array(self._weights["weights"][row])) if "weights" in self.wants else found

    def title(self, row: int) -> Text:
        """The title of a passage, of no tokens where it has none; with its weights where they are there."""
        found = self._text(self._titles[row])
        if not self._weights or len(self._weights["title_weights"][row]) != len(found.ids):
            return found
        return found._replace(weights=np.array(self._weights["title_weights"][row]))

    def queries(self, row: int) -> list[Text]:
        """The queries written to a passage, in order and with those written twice; without those of no tokens."""
        return self._texts_of("queries", row)

    def continuations(self, row: int) -> list[Text]:
        """The continuations of a passage, in order; without those of no tokens."""
        return self._texts_of("continuations", row)

    def sentences(self, row: int) -> list[Span]:
        """(begin, end) of each sentence in pieces of the text; together they cover it. One where the passage told none."""
        assert self._sentences is not None, "sentences were not wanted"
        ends = self._sentences[row].tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def document(self, row: int) -> int:
        """The number of the document a passage is part of; documents are numbered as they first appear."""
        return int(self._document[row])

    @property
    def documents(self) -> int:
        """How many documents there are."""
        return len(self._spans) - 1

    @property
    def shared_documents(self) -> np.ndarray:
        """Numbers of the documents that have at least two passages."""
        return np.flatnonzero(np.diff(self._spans) > 1)

    def span(self, document: int) -> np.ndarray:
        """The passages of a document in reading order, wherever they stand in the file."""
        return self._members[self._spans[document] : self._spans[document + 1]]

    def run(self, row: int) -> tuple[np.ndarray, int]:
        """The passages around one between which none is missing, in reading order, and its place among them."""
        span = self.span(self.document(row))
        place = int(np.flatnonzero(span == row)[0])
        gaps = np.flatnonzero(np.diff(self._position[span]) != 1) + 1
        at = int(gaps.searchsorted(place, side="right"))
        begin = int(gaps[at - 1]) if at else 0
        end = int(gaps[at]) if at < len(gaps) else len(span)
        return span[begin:end], place - begin

    def following(self, row: int) -> int | None:
        """The passage that follows one in its document; None for the last, and where the next is missing."""
        span, place = self.run(row)
        return int(span[place + 1]) if place + 1 < len(span) else None

    def _texts_of(self, name: str, row: int) -> list[Text]:
        assert name in self._lists, f"{name} were not wanted"
        texts, numbers = self._lists[name]
        first, end = numbers[row].tolist()
        return [self._text(texts[number]) for number in range(first, end)]

    def _text(self, packed: np.ndarray) -> Text:
        ids = (packed & self._mask).astype(np.int32)
        begins = packed >> self._bit
        special = None if self._specials is None else np.isin(ids, self._specials)
        if special is None or not special.any():
            return Text(ids, np.cumsum(begins, dtype=np.int32) - np.int32(1))
        words = np.cumsum(np.where(special, 0, begins), dtype=np.int32) - np.int32(1)
        words[special] = -1
        return Text(ids, words)

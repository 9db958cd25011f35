"""A tokenized corpus, cached on disk and read from memory-mapped files."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from drtk.data.arrays import Ragged, map_array
from drtk.data.jsonl import join, read_passages
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.records import Passage
from drtk.runtime.atomic import write_json
from drtk.runtime.inputs import Intake
from drtk.runtime.integrity import (
    add_digest,
    cache_folder,
    content_digest,
    files_in,
    hash_id,
    is_intact,
    read_object,
    record_files,
    replace_folder,
)
from drtk.runtime.manifest import folder_entry
from drtk.runtime.progress import log
from drtk.runtime.streams import STANDARD
from drtk.text.sentences import Span
from drtk.text.token_building import FIELDS, Building, fields_of, packing
from drtk.text.word_pieces import WordPieceTokenizer


class Text(NamedTuple):
    """A tokenised text; every array has the shape (tokens,).

    ids: int32; words: int32, the number of the word each piece belongs to, rising by at most 1, -1 for special tokens, which are
    never masked; weights: float32, one a piece, or None where the text has none
    types: int32, 0 in the first segment and 1 in the second, or None for a text of one segment
    """

    ids: np.ndarray
    words: np.ndarray
    weights: np.ndarray | None = None
    types: np.ndarray | None = None


VERSION = 2  # of the files; another number means another folder
META = "meta.json"


class Request(NamedTuple):
    """What is to be tokenised: files, those joined with them by id, the fields wanted, and the fewest pieces of a passage."""

    sources: list[str]
    side_files: list[str]
    wants: frozenset[str]
    shortest: int

    @property
    def called(self) -> str:
        """How complaints call the corpus."""
        return ", ".join(self.sources)


def tokenised(request: Request, tokenizer: WordPieceTokenizer, *, intake: Intake) -> Path:
    """The folder that holds the corpus in pieces; makes it where it is not there yet. Its files are noted among the inputs.

    Raises what reading and `token_building` raise, and DrtkError where a file is not there or the folder cannot be written.
    """
    files = [*request.sources, *request.side_files]
    for name in files:
        if name == STANDARD:
            raise DrtkError("a corpus that is tokenised once and read often must be a file, not stdin")
        if not Path(name).exists():
            raise DrtkError(f"{name}: No such file or directory")
    place = cache_folder() / "tokens"
    try:
        digests = {name: content_digest(Path(name)) for name in files}
        of_files = [[digests[name] for name in names] for names in (request.sources, request.side_files)]
        key = [VERSION, *of_files, tokenizer.digest, sorted(request.wants), request.shortest]
        folder = place / hashlib.blake2b(orjson.dumps(key), digest_size=16).hexdigest()
        if not _is_at_hand(folder, intake):
            place.mkdir(parents=True, exist_ok=True)
            with _alone(folder, request.called):
                if not _is_at_hand(folder, intake):
                    _tokenise(folder, request, digests, tokenizer, intake)
                    return folder
    except OSError as error:
        raise DrtkError(
            f"{error.filename or place}: {error.strerror or error}; "
            "$DRTK_CACHE can name another folder for tokenised corpora"
        ) from error
    _note_inputs(intake, digests, read_object(folder / META, bad=int)["bad"])
    return folder


def _is_at_hand(folder: Path, intake: Intake) -> bool:
    """Return whether an intact cache exists that skipped no more bad records than this run allows."""
    if not is_intact(folder, META):
        return False
    return bool(read_object(folder / META, bad=int)["bad"] <= intake.skip_bad - intake.bad)


@contextlib.contextmanager
def _alone(folder: Path, called: str) -> Iterator[None]:
    """Holds the lock of a folder to be made, waiting for another process that has it; what killed ones left behind is removed."""
    with open(folder.with_suffix(".lock"), "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"waiting for another process, which is tokenising {called}")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield  # some network file systems have no locks; two processes may then do the same work
            return
        for left in folder.parent.glob(f"{folder.name}-making-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _tokenise(
    folder: Path, request: Request, digests: dict[str, str], tokenizer: WordPieceTokenizer, intake: Intake
) -> None:
    """Make `folder`, by way of a temporary one, so that a half-made corpus is never seen."""
    if folder.exists() and not is_intact(folder, META):
        log(f"{folder}: is damaged or from an older version; rebuilding it")
    log(f"tokenising {request.called} for {tokenizer.name} (once)")
    making = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}-making-"))
    before = intake.bad
    try:
        building = Building(making, tokenizer, request.wants, shortest=request.shortest)
        building.add(fields_of(_placed(request, intake), request.wants, intake=intake))
        building.finish()
        if len(request.sources) > 1:
            _refuse_twins(making, request.called)
        for name, digest in digests.items():
            if content_digest(Path(name)) != digest:
                raise DrtkError(f"{name}: changed while it was read")
        meta: dict[str, Any] = {"counts": building.counts, "bad": intake.bad - before, "wants": sorted(request.wants)}
        meta |= {"tokenizer": tokenizer.name, "largest": tokenizer.largest}
        meta |= {"specials": sorted(tokenizer.specials), "has_specials": building.has_specials}
        meta["files"] = record_files(making, files_in(making), times=True)
        write_json(making / META, add_digest(meta))
        replace_folder(making, folder)
    except OSError:
        if not folder.exists():  # otherwise another process was quicker, and what it made is as good
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _placed(request: Request, intake: Intake) -> Iterator[tuple[str, Passage]]:
    """(file:line, passage) of all sources, one after the other."""
    current = request.sources[0]

    def plain() -> Iterator[Passage]:
        nonlocal current
        for current in request.sources:
            yield from read_passages(current, intake=intake)

    passages = join(plain(), request.called, request.side_files, intake) if request.side_files else plain()
    for passage in passages:
        yield f"{current}:{intake.line}", passage


def _refuse_twins(folder: Path, called: str) -> None:
    ids = Ragged(folder, "ids", "uint8")
    hashes = np.fromiter((hash_id(ids[row].tobytes().decode()) for row in range(len(ids))), np.uint64, len(ids))
    order = np.argsort(hashes, kind="stable")
    for at in np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]]):
        one, other = (ids[int(order[place])].tobytes().decode() for place in (at, at + 1))
        if one == other:
            raise RecordError(called, f"duplicate id '{one}'")


def _note_inputs(intake: Intake, digests: dict[str, str], bad: int) -> None:
    """What a run that found the corpus tokenised has taken in, as if it had read it."""
    for name, digest in digests.items():
        found = os.stat(name)
        file = {"path": name, "bytes": found.st_size, "digest": digest, "mtime_ns": found.st_mtime_ns}
        intake.inputs.append(folder_entry(name) if Path(name).is_dir() else file)
    intake.bad += bad


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
            self._document = map_array(folder / "document.values", "int32")
            self._position = map_array(folder / "position.values", "int32")
            self._members = map_array(folder / "members.values", "int32")
            self._spans = map_array(folder / "spans.values", "int64")

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

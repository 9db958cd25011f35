"""Tokenising a corpus once: where the result lies, who makes it, and who waits for it.

It lies under $DRTK_CACHE (default ~/.cache/drtk), in a folder named by the content of the corpus and its side files, the tokenizer
and the fields that were asked for, so that the same corpus under another name is found again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from drtk.errors import DrtkError, RecordError
from drtk.io.atomic import write_json
from drtk.io.cache import cache_folder, content_digest, hash_of, replace_folder
from drtk.io.intake import Intake
from drtk.io.integrity import add_digest, files_in, is_intact, record_files
from drtk.io.json_files import read_object
from drtk.io.jsonl import join, read_passages
from drtk.io.manifest import folder_entry
from drtk.io.progress import log
from drtk.io.ragged import Ragged
from drtk.io.streams import STANDARD
from drtk.records import Passage
from drtk.text.token_building import Building
from drtk.text.token_fields import fields_of
from drtk.text.word_pieces import WordPieceTokenizer

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
    hashes = np.fromiter((hash_of(ids[row].tobytes().decode()) for row in range(len(ids))), np.uint64, len(ids))
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

"""Texts that two files share, as training and test data should not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from drtk.errors import DrtkError, UsageError
from drtk.io import formats
from drtk.io.examples import FoundExample, is_example
from drtk.io.findings import Findings
from drtk.io.grouping import Grouping
from drtk.io.intake import Intake
from drtk.io.streams import STANDARD
from drtk.records import Passage, Query


def note_leaks(source: str, other: str, kind: str, findings: Findings, queries: Mapping[str, str]) -> None:
    """Note the texts of `source` that `other` holds too; `queries` has the texts of questions that are named by id.

    Compared are the texts of passages (titles aside), or those of queries, also within training data.
    Raises UsageError for stdin, DrtkError where the text of a question is nowhere to be found.
    """
    if STANDARD in (source, other):
        raise UsageError("--leak reads both files by themselves: name them")
    shared = Grouping()
    for side, name in (("here", source), ("there", other)):
        for line, id, text in _texts(name, kind, queries):
            if text := normalised(text):
                shared.add(digest(text), f"{side} {line} {id}")
    what = "texts of passages, without titles," if kind == "passages" else "texts of queries"
    findings.compared = f"{what} compared with those of {other}, case and white space aside"
    for _, places in shared.repeated():
        parts = [place.split() for place in places]
        there = next((part for part in parts if part[0] == "there"), None)
        for side, place, id in parts:
            if there is not None and side == "here":
                findings.add("leak", int(place), f"'{id}' has the text of '{there[2]}' ({other}:{there[1]})")


def _texts(source: str, kind: str, queries: Mapping[str, str]) -> Iterator[tuple[int, str, str]]:
    """(line, id, text) of what can be read of a file; of training data, the questions."""
    intake = Intake(skip_bad=2**62)
    record: Passage | Query | FoundExample | ValueError
    if kind == "passages":
        for line, record in formats.passages(source, intake):
            if isinstance(record, Passage):
                yield line, record.id, record.text
    elif not _is_training_data(source):
        for line, record in formats.queries(source, intake):
            if isinstance(record, Query):
                yield line, record.id, record.text
    else:
        for line, record in formats.examples(source, intake):
            if isinstance(record, FoundExample):
                id = record.example.query_id
                text = record.query.text if record.query is not None else queries.get(id)
                if text is None:
                    raise DrtkError(
                        f"{source}:{line}: only the id of query '{id}' is known: --queries FILE gives its text"
                    )
                yield line, id, text


def _is_training_data(source: str) -> bool:
    first = next((row for _, row in formats.json_rows(source, Intake()) if not isinstance(row, ValueError)), None)
    return first is not None and is_example(first)


def normalised(text: str) -> str:
    """A text as leaks are looked for: case and white space make no difference, anything else does."""
    return " ".join(text.casefold().split())


def digest(text: str) -> str:
    """A key for a text of any length."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

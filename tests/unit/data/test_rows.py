"""Rows of expansions: reading, writing and errors."""

import json
from pathlib import Path

import pytest

from drtk.data.readers import read_expansions
from drtk.data.rows import dump
from drtk.errors import RecordError
from drtk.records import Expansion
from drtk.runtime.inputs import InputTracker

BARE = {"_id": "q7#answer#03", "query_id": "q7", "kind": "answer", "text": "the Nile"}
FULL = BARE | {"_id": "q7#answer#04", "score": -1.5, "rank": 4, "depth": 20, "fold": 0, "mine": [1]}
FULL |= {"top1": {"title": "Nile", "text": "A river."}}


def write_rows(folder: Path, *rows: dict) -> str:
    path = folder / "expansions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_expansions_are_written_back_unchanged(tmp_path: Path) -> None:
    expansions = list(read_expansions(write_rows(tmp_path, BARE, FULL)))
    top1 = {"title": "Nile", "text": "A river."}
    assert expansions == [
        Expansion("q7#answer#03", "q7", "answer", "the Nile"),
        Expansion("q7#answer#04", "q7", "answer", "the Nile", -1.5, 4, top1, 0, 20, {"mine": [1]}),
    ]
    assert [json.loads(dump(expansion)) for expansion in expansions] == [BARE, FULL]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"query_id": None}, "'query_id' must be a string, got null"),
        ({"kind": "a/b"}, "'kind' 'a/b' must be one word, usable as a file name"),
        ({"text": " "}, "'text' is empty"),
        ({"rank": 0}, "'rank' must be an integer of at least 1"),
        ({"depth": 0}, "'depth' must be an integer of at least 1"),
        ({"fold": True}, "'fold' must be an integer of at least 0"),
        ({"score": "high"}, "'score' must be a finite number"),
        ({"top1": []}, "'top1' must be an object"),
        ({"top1": {"text": 3}}, "'top1.text' must be a string, got a number"),
        ({"_id": "q7#answer#03"}, "duplicate id 'q7#answer#03'"),
    ],
)
def test_bad_expansions_are_reported_with_their_line(tmp_path: Path, change: dict, told: str) -> None:
    source = write_rows(tmp_path, BARE, FULL | change)
    with pytest.raises(RecordError) as fault:
        list(read_expansions(source))
    assert str(fault.value) == f"{source}:2: {told}"
    assert [each.id for each in read_expansions(source, tracker=InputTracker(skip_bad=1))] == ["q7#answer#03"]

"""Statistics of a collection: parts add up, and other choices or other files are refused with their place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.expansion.term_weights.base import Statistics, read_statistics
from drtk.runtime.inputs import Intake
from tests.running import write


def anything(made_by: Mapping[str, Any], place: str) -> None: ...


def read(*paths: Path, kind: str = "counts") -> Statistics:
    return read_statistics([str(path) for path in paths], kind, anything, intake=Intake())


def counts(words: dict[str, list[float]], *, stemmer: str = "none") -> str:
    found = Statistics("counts", {"stemmer": stemmer})
    found.add(words, length=3)
    return found.line().decode()


def test_lines_and_files_add_up(tmp_path: Path) -> None:
    one = write(tmp_path / "1", counts({"cat": [1, 2]}) + "\n" + counts({"cat": [1, 1], "dog": [1, 4]}))
    two = write(tmp_path / "2", counts({"dog": [1, 1]}))
    found = read(one, two)
    assert (found.documents, found.length) == (3, 9)
    assert found.words == {"cat": [2, 3], "dog": [2, 5]}
    joined = write(tmp_path / "3", found.line().decode())
    assert read(joined).words == found.words


@pytest.mark.parametrize(
    "line", ['{"_id": "d1", "text": "a"}', "[]", "{", '{"statistics": "counts", "words": {"a": [1]}, "made_by": {}}']
)
def test_what_is_no_statistics_is_named_by_file_and_line(tmp_path: Path, line: str) -> None:
    file = write(tmp_path / "s", counts({"cat": [1, 2]}) + line + "\n")
    with pytest.raises(RecordError, match=r"s:2: is no line of statistics"):
        read(file)


def test_numbers_of_a_word_must_be_as_many_as_its_kind_has(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"s:1: is no line of statistics"):
        read(write(tmp_path / "s", counts({"cat": [1, 2, 3]})))


def test_parts_of_other_choices_do_not_add_up(tmp_path: Path) -> None:
    file = write(tmp_path / "s", counts({"cat": [1, 2]}) + counts({"cat": [1, 2]}, stemmer="porter"))
    with pytest.raises(MismatchError, match=r"s:2: was collected with stemmer porter, not none"):
        read(file)


def test_statistics_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="statistics of counts, but this method needs attention"):
        read(write(tmp_path / "s", counts({"cat": [1, 2]})), kind="attention")


def test_a_file_without_a_passage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DrtkError, match="holds no statistics of a passage"):
        read(write(tmp_path / "s", "\n"))

"""Ids by number."""

from __future__ import annotations

from pathlib import Path

import pytest

from drtk.errors import MismatchError
from drtk.indexing.base import IdTable, first_duplicate, write_ids


def test_ids_come_back_by_number_in_the_order_asked(tmp_path: Path) -> None:
    write_ids(tmp_path / "ids.txt", ["a", "déjà", "日本", "x" * 500])
    table = IdTable(tmp_path / "ids.txt")
    assert len(table) == 4
    assert table.take([3, 0, 2, 0, 1]) == ["x" * 500, "a", "日本", "a", "déjà"]
    assert table.take([]) == []


@pytest.mark.parametrize("content", [None, b"", b"a\nb"])
def test_a_missing_empty_or_torn_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "ids.txt").write_bytes(content)
    with pytest.raises(MismatchError, match=r"ids\.txt"):
        IdTable(tmp_path / "ids.txt")


def test_the_id_that_occurs_twice_is_named() -> None:
    ids = [f"p{number}" for number in range(1000)]
    assert first_duplicate(ids) is None
    assert first_duplicate([*ids, "p17"]) == "p17"
    assert first_duplicate([]) is None

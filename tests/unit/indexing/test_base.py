"""The order of hits, by score, then by descending id, and the table of ids."""

import numpy as np
import pytest

from drtk.errors import DrtkError, MismatchError
from drtk.indexing import base
from drtk.indexing.base import IdTable, RankedIds, sort_hits, write_ids


def test_equal_scores_are_ordered_by_descending_id():
    # As strings "9" > "10" > "1", and "ä" lies behind all ASCII.
    ids, scores = ["1", "10", "9", "ä", "z"], [1.0, 1.0, 1.0, 1.0, 2.0]
    assert sort_hits(ids, scores) == [("z", 2.0), ("ä", 1.0), ("9", 1.0), ("10", 1.0), ("1", 1.0)]
    assert sort_hits(ids, scores, 2) == [("z", 2.0), ("ä", 1.0)]
    ids = ["a", "ä", "ﬁ", "😀", "z", "Z", "a#1", "a#10", "a#2"]  # by code point: trec_eval's order of UTF-8 bytes
    assert [id for id, _ in sort_hits(ids, [0.0] * len(ids))] == sorted(ids, key=str.encode, reverse=True)


def test_ranks_are_places_in_ascending_order_of_ids_and_make_rankings(tmp_path):
    RankedIds.write(["b", "10", "9", "a"], tmp_path)
    table = RankedIds(tmp_path)
    assert table.ranks.tolist() == [3, 0, 1, 2]  # 10 < 9 < a < b
    assert table.get_rows_of_ranks(np.array([3, 0, 1, 2])).tolist() == [0, 1, 2, 3]
    assert table.make_ranking(np.array([0, 1, 2]), np.float32([1, 2, 2]), 2) == [("9", 2.0), ("10", 2.0)]
    ranking = table.make_ranking(np.array([1, 0]), np.float32([0, -0.0]), 2)
    assert str(ranking) == "[('b', 0.0), ('10', 0.0)]"  # without -0.0
    rows, scores = np.array([[2, 1], [0, 3]]), np.float32([[2, 1.5], [0.1, -1]])
    expected = [[("9", 2.0), ("10", 1.5)], [("b", float(np.float32(0.1))), ("a", -1.0)]]
    assert table.make_rankings(rows, scores) == expected
    scores[1, 1] = -np.inf
    with pytest.raises(DrtkError, match="the score of 'a' is NaN or infinite"):
        table.make_rankings(rows, scores)


def test_duplicate_ids_and_ranks_of_other_ids_are_rejected(tmp_path):
    with pytest.raises(MismatchError, match="two passages have the id 'x'"):
        RankedIds.write(["x", "y", "x"], tmp_path)
    RankedIds.write(["x", "y"], tmp_path)
    with (tmp_path / "ids.txt").open("a") as file:
        file.write("z\n")
    with pytest.raises(DrtkError, match="damaged: 2 ranks for 3 ids"):
        RankedIds(tmp_path)


def test_ids_are_returned_by_row_and_damaged_tables_rejected(tmp_path, monkeypatch):
    path = tmp_path / "ids.txt"
    write_ids(path, ["a", "déjà", "日本", "x" * 500])
    table = IdTable(path)
    assert len(table) == 4
    assert table.get_values([3, 0, 2, 0, 1]) == ["x" * 500, "a", "日本", "a", "déjà"]
    assert table.get_values([]) == []
    monkeypatch.setattr(base, "HITS_AT_A_TIME", 2)
    assert table.get_values(np.array([3, 0, 2, 0, 1])) == ["x" * 500, "a", "日本", "a", "déjà"]
    for content in (b"a\nb", b"", None):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(MismatchError, match=r"ids\.txt"):
            IdTable(path)

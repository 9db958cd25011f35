"""Reading Parquet files and Hugging Face datasets."""

import math
from pathlib import Path

import pytest

from drtk.data.readers import load_qrels, read_examples, read_passages, read_queries
from drtk.data.tables import is_table
from drtk.errors import DrtkError, RecordError
from drtk.records import Example, Passage
from drtk.runtime.inputs import InputTracker
from tests.expansion_collection import write_rows

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = [
    {"_id": "1", "title": "A", "text": "one", "metadata": {"year": 1958}, "rank": 1.5, "queries": ["q"]},
    {"_id": "2", "title": "", "text": "two", "metadata": {"author": "B"}, "rank": 1.0},
    {"_id": "3", "title": "C", "text": "three", "metadata": {"year": 1960}},
]


@pytest.mark.parametrize("library", ["pyarrow", "datasets"])
def test_null_fields_of_a_table_are_absent(tmp_path: Path, library: str) -> None:
    table, path = pa.Table.from_pylist(ROWS), str(tmp_path / "table")
    if library == "pyarrow":
        pq.write_table(table, path)
    else:
        pytest.importorskip("datasets").Dataset(table).save_to_disk(path)
    write_rows(tmp_path / "in.jsonl", ROWS)
    assert list(read_passages(path)) == list(read_passages(str(tmp_path / "in.jsonl")))


def test_queries_and_examples_are_read_from_parquet(tmp_path: Path) -> None:
    row = {"query_id": "1", "positives": ["a"], "negatives": ["b"], "scores": {"positives": [2.0], "negatives": [1.0]}}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "examples")
    example = Example("1", ("a",), ("b",), {"positives": [2.0], "negatives": [1.0]})
    assert list(read_examples(str(tmp_path / "examples"))) == [example]
    pq.write_table(pa.Table.from_pylist([{"_id": "1", "text": "who?", "answers": []}]), tmp_path / "queries")
    (query,) = read_queries(str(tmp_path / "queries"))
    assert (query.text, query.answers) == ("who?", ())


def test_a_folder_of_parquet_files_is_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, id in (("train-1.parquet", "2"), ("train-0.parquet", "1")):
        pq.write_table(pa.table({"docid": [id], "title": [None], "text": ["x"]}), tmp_path / "data" / name)
    tracker = InputTracker()
    assert list(read_passages(str(tmp_path), tracker=tracker)) == [Passage("1", "x"), Passage("2", "x")]
    assert [entry["path"] for entry in tracker.inputs] == [str(tmp_path)]


def test_a_bad_row_is_reported_with_its_number(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["1", "2"], "text": ["x", None]}), tmp_path / "a")
    assert is_table(str(tmp_path / "a"))
    with pytest.raises(RecordError, match="a:2: 'text' is missing"):
        list(read_passages(str(tmp_path / "a")))
    pq.write_table(pa.table({"query-id": ["q"], "corpus-id": ["d"], "score": [math.inf]}), tmp_path / "qrels")
    with pytest.raises(RecordError, match="qrels:1: 'score' must be an integer, got inf"):
        load_qrels(str(tmp_path / "qrels"))
    row = {"query_id": "1", "positives": ["a"], "negatives": [], "scores": {"positives": [math.nan]}}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "examples")
    with pytest.raises(RecordError, match=r"examples:1: 'scores\.positives' contains a number that is not finite"):
        list(read_examples(str(tmp_path / "examples")))


def test_a_data_set_with_several_splits_needs_a_split(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    split = datasets.Dataset.from_list([{"_id": "1", "text": "x"}])
    datasets.DatasetDict({"train": split, "test": split}).save_to_disk(str(tmp_path / "all"))
    with pytest.raises(DrtkError, match=r"has the splits train, test; name one, such as .*all/train"):
        list(read_passages(str(tmp_path / "all")))
    assert list(read_passages(str(tmp_path / "all" / "train"))) == [Passage("1", "x")]
    (tmp_path / "all" / "test" / "state.json").unlink()
    with pytest.raises(DrtkError, match=r"all/test: cannot be loaded \("):
        list(read_passages(str(tmp_path / "all" / "test")))

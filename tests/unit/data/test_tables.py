"""Reading and writing Parquet files and Hugging Face datasets."""

from __future__ import annotations

import math
from pathlib import Path

import orjson
import pytest

from drtk.data.config import ConversionSettings
from drtk.data.conversion import convert_records
from drtk.data.readers import read_examples, read_passages, read_queries
from drtk.data.tables import is_table
from drtk.data.trec import load_qrels
from drtk.errors import DrtkError, RecordError, UsageError
from drtk.records import Example, Passage
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.inputs import InputTracker

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

# Fields that differ from record to record: whole and broken numbers, objects with other keys, a list only at the end.
ROWS = [
    {"_id": "1", "title": "A", "text": "one", "metadata": {"year": 1958}, "rank": 1},
    {"_id": "2", "title": "", "text": "two", "metadata": {"author": "B"}, "rank": 1.5},
    {"_id": "3", "title": "C", "text": "three", "queries": ["q"]},
]


def convert(folder: Path, to: str, rows: list[dict[str, object]], kind: str = "passages") -> str:
    (folder / "in.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    job = FilterJob("convert", kind, str(folder / to), {"source": str(folder / "in.jsonl"), "skip_bad": 0})
    convert_records([str(folder / "in.jsonl")], ConversionSettings(kind=kind, to=to), job)  # type: ignore[arg-type]
    return str(folder / to)


@pytest.mark.parametrize("to", ["parquet", "datasets"])
def test_passages_keep_all_fields_in_a_table(tmp_path: Path, to: str) -> None:
    path = convert(tmp_path, to, ROWS)
    assert list(read_passages(path)) == list(read_passages(str(tmp_path / "in.jsonl")))
    assert not list(tmp_path.glob("*.part"))
    manifest = Path(path) / "meta.json" if to == "datasets" else Path(path + ".meta.json")
    actual = orjson.loads(manifest.read_bytes())
    assert (actual["kind"], actual["counts"], len(actual["inputs"])) == ("corpus", {"in": 3, "out": 3}, 1)
    if to == "datasets":
        loaded = pytest.importorskip("datasets").load_from_disk(path)
        assert (loaded["text"][:], loaded.column_names[:3]) == (["one", "two", "three"], ["_id", "title", "text"])


def test_queries_and_examples_are_read_back_from_parquet(tmp_path: Path) -> None:
    row = {"query_id": "1", "positives": ["a"], "negatives": ["b"], "scores": {"positives": [2.0], "negatives": [1.0]}}
    assert list(read_examples(convert(tmp_path, "parquet", [row], "examples"))) == [
        Example("1", ("a",), ("b",), {"positives": [2.0], "negatives": [1.0]})
    ]
    (tmp_path / "parquet").unlink()
    (query,) = read_queries(convert(tmp_path, "parquet", [{"_id": "1", "text": "who?", "answers": []}], "queries"))
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


def test_a_field_with_two_types_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DrtkError, match="records 1 to 2: a field has a different type"):
        convert(tmp_path, "parquet", [{"_id": "1", "text": "x", "n": 1}, {"_id": "2", "text": "x", "n": "one"}])
    assert not (tmp_path / "parquet").exists()


def test_a_table_needs_a_named_output_and_cannot_be_resumed(tmp_path: Path) -> None:
    settings = ConversionSettings(kind="passages", to="parquet")
    (tmp_path / "in.jsonl").write_bytes(b"")
    source = {"source": str(tmp_path / "in.jsonl"), "skip_bad": 0}
    for output, problem in (("-", "requires a file or folder name"), (str(tmp_path / "o"), "cannot be resumed")):
        job = FilterJob("convert", "corpus", output, source, resume=output != "-")
        with pytest.raises(UsageError, match=problem):
            convert_records([source["source"]], settings, job)

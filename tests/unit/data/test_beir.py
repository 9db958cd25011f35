"""Files and splits of BEIR collections."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from drtk.data.beir import choose_dev_split, find_file, find_qrels, require_file
from drtk.errors import DrtkError
from tests.run_commands import write_text
from tests.unit.evaluation.test_dev_evaluation import write_collection


def pack(path: Path) -> None:
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


def test_compressed_files_are_found(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "c")
    assert find_file(folder, "corpus.jsonl") == folder / "corpus.jsonl"
    pack(folder / "corpus.jsonl")
    assert find_file(folder, "corpus.jsonl") == folder / "corpus.jsonl.gz"
    assert find_file(folder, "passages.jsonl") is None
    with pytest.raises(DrtkError, match=r"c: has no passages\.jsonl; expected a BEIR folder"):
        require_file(folder, "passages.jsonl")


def test_the_only_split_is_used_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_collection(tmp_path / "c")
    pack(folder / "qrels" / "dev.tsv")
    caplog.set_level("INFO", logger="drtk")
    assert find_qrels(folder, "test") == folder / "qrels" / "dev.tsv.gz"
    assert caplog.messages == [f"{folder}: has no split 'test'; using its only split, 'dev'"]
    write_text(folder / "qrels" / "train.tsv", "query-id\tcorpus-id\tscore\nq1\tab\t1\n")
    problem = r"has no qrels/test\.tsv, only dev, train; give a file of judgments, or another split"
    with pytest.raises(DrtkError, match=problem):
        find_qrels(folder, "test")


def test_dev_split_is_dev_or_else_train_and_never_test(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "c")
    for split in ("train", "test"):
        write_text(folder / "qrels" / f"{split}.tsv", "query-id\tcorpus-id\tscore\nq1\tab\t1\n")
    assert choose_dev_split(folder) == "dev"
    (folder / "qrels" / "dev.tsv").unlink()
    assert choose_dev_split(folder) == "train"
    (folder / "qrels" / "train.tsv").unlink()
    with pytest.raises(DrtkError, match=r"has neither qrels/dev\.tsv nor qrels/train\.tsv \(found: test\); add one"):
        choose_dev_split(folder)
    with pytest.raises(DrtkError, match=r"has neither qrels/dev\.tsv nor qrels/train\.tsv; add one of them$"):
        choose_dev_split(tmp_path)
    with pytest.raises(DrtkError, match=r"has no qrels/train\.tsv, only test; give"):
        find_qrels(folder, "train")

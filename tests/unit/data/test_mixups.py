"""Files in each other's place are told by what they begin with."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from drtk.data.checks import check_examples, check_run, warn_if_swapped
from drtk.errors import MismatchError
from tests.running import piped, write

FILES = {
    "run": "q1 Q0 d1 1 3.5 t\nq1 Q0 d2 2 3.0 t\n",
    "judgements": "query-id\tcorpus-id\tscore\nq1\td1\t1\n",
    "passages": '{"_id": "d1", "title": "T", "text": "a"}\n',
    "queries": '{"_id": "q1", "text": "a"}\n',
    "examples": '{"query_id": "q1", "positives": ["d1"], "negatives": ["d2"]}\n',
    "triples": "q1\td1\td2\n",
    "damaged": '{"query_id": \n',
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return {name: str(write(tmp_path / name, text)) for name, text in FILES.items()}


def test_examples_are_not_a_run_judgements_or_passages(files: dict[str, str]) -> None:
    for name in ("examples", "triples", "damaged"):  # what is wrong with the last, reading it will say
        check_examples(files[name])
    for name, kind in (("run", "hits of a TREC run"), ("judgements", "judgements"), ("passages", "passages")):
        with pytest.raises(MismatchError, match=f"{name}: seems to hold {kind}; training examples are wanted, which"):
            check_examples(files[name])


def test_a_run_is_not_examples_or_texts(files: dict[str, str]) -> None:
    for name in ("run", "damaged"):
        check_run(files[name])
    for name in ("examples", "judgements", "passages", "queries"):
        with pytest.raises(MismatchError, match=rf"{name}: seems to hold .*; a TREC run is wanted, which drtk search"):
            check_run(files[name])


def test_compressed_files_are_looked_into_and_pipes_left_alone(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "run.gz").write_bytes(gzip.compress(FILES["run"].encode()))
    with pytest.raises(MismatchError, match=r"run\.gz: seems to hold hits of a TREC run"):
        check_examples(str(tmp_path / "run.gz"))
    with piped(FILES["run"].encode()) as name:
        check_examples(name)
        with open(name, "rb") as pipe:
            assert pipe.read() == FILES["run"].encode()


def test_texts_that_stand_in_each_others_place_are_told(
    files: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    warn_if_swapped(files["passages"], files["queries"])
    warn_if_swapped(files["queries"], files["queries"])  # passages without titles look like that
    assert caplog.messages == []
    warn_if_swapped(files["queries"], files["passages"])
    (told,) = caplog.messages
    assert told.endswith("were --queries and --corpus swapped?")
    assert f"{files['passages']} seems to hold passages" in told

"""Every fault has its exit status and a message that begins with the place."""

from __future__ import annotations

import pickle

import pytest

from drtk.errors import DrtkError, MismatchError, MissingDependency, OutputClosed, RecordError, UsageError


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (DrtkError("x"), 1),
        (RecordError("a.jsonl:3", "not JSON"), 1),
        (MismatchError("x"), 1),
        (MissingDependency("faiss", "a flat index", "pip install faiss-cpu"), 1),
        (UsageError("x"), 2),
        (OutputClosed("x"), 141),
    ],
)
def test_each_fault_earns_its_exit_status(fault: DrtkError, status: int) -> None:
    assert fault.status == status
    assert isinstance(fault, DrtkError)


def test_a_record_error_begins_with_the_place() -> None:
    error = RecordError("qrels.tsv:17", "expected 3 columns, found 2")
    assert str(error) == "qrels.tsv:17: expected 3 columns, found 2"
    assert (error.place, error.problem) == ("qrels.tsv:17", "expected 3 columns, found 2")


def test_a_missing_dependency_says_how_to_install_it() -> None:
    error = MissingDependency("faiss", "a flat index", "pip install faiss-cpu")
    assert str(error) == "a flat index needs faiss, which is not installed; install it with: pip install faiss-cpu"


@pytest.mark.parametrize(
    "error",
    [
        DrtkError("a"),
        UsageError("a"),
        RecordError("f:1", "torn"),
        MissingDependency("ray", "it", "pip"),
        OutputClosed("a"),
    ],
)
def test_faults_travel_between_processes(error: DrtkError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.status) == (type(error), str(error), error.status)

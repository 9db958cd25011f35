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

"""Errors have an exit status and can be pickled."""

import pickle

import pytest

from drtk.errors import DrtkError, MismatchError, MissingDependency, OutputClosed, RecordError, UsageError


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DrtkError("x"), 1),
        (RecordError("a.jsonl:3", "not JSON"), 1),
        (MismatchError("x"), 1),
        (MissingDependency("faiss", "a flat index", "pip install faiss-cpu"), 1),
        (UsageError("x"), 2),
        (OutputClosed("x"), 141),
    ],
)
def test_errors_have_an_exit_status_and_can_be_pickled(error: DrtkError, status: int) -> None:
    assert isinstance(error, DrtkError)
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.status, error.status) == (type(error), str(error), status, status)

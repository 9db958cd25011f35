"""Names of runs and training logs."""

import pytest

from drtk.data.runs import parse_runs
from drtk.errors import UsageError


@pytest.mark.parametrize(
    ("given", "called"),
    [
        (["o/mlm/log.jsonl"], ["mlm"]),
        (["o/mlm/log.jsonl", "o/rom/log.jsonl.gz"], ["mlm", "rom"]),
        (["a/mlm/log.jsonl", "b/mlm/log.jsonl", "b/rom/log.jsonl"], ["a/mlm", "b/mlm", "rom"]),
        (["x/a/mlm/log.jsonl", "y/a/mlm/log.jsonl", "y/b/mlm/log.jsonl"], ["x/a/mlm", "y/a/mlm", "b/mlm"]),
        (["log.jsonl", "mlm/log.jsonl"], ["log", "mlm"]),
        (["../log.jsonl"], ["log"]),
        (["first.jsonl", "logs/second.jsonl"], ["first", "second"]),
        (["plain=o/mlm/log.jsonl", "o/rom/log.jsonl", "-"], ["plain", "rom", "stdin"]),
    ],
)
def test_logs_are_named_by_the_shortest_unique_part_of_their_path(given: list[str], called: list[str]) -> None:
    assert [log.name for log in parse_runs(given, are_logs=True)] == called
    assert [log.source for log in parse_runs(given, are_logs=True)] == [each.rpartition("=")[2] for each in given]


def test_logs_with_the_same_name_are_rejected() -> None:
    for given, problem in (
        (["mlm=a.jsonl", "o/mlm/log.jsonl"], "the name 'mlm' is given twice; give each its own: NAME=PATH"),
        (["o/mlm/log.jsonl", "o/mlm/log.jsonl"], "is given twice"),
        (["-", "-"], "stdin can be given for one run only"),
    ):
        with pytest.raises(UsageError, match=problem):
            parse_runs(given, are_logs=True)

"""Commands that compare runs with judgments report a run of another collection."""

import json
import re
from pathlib import Path

import pytest

from drtk.cli.main import app
from drtk.data.checks import JudgedHitCounter
from drtk.errors import DrtkError
from drtk.mining.mine import Miner
from drtk.records import parse_document_id
from tests.expansion_collection import write_rows
from tests.run_commands import Capture, get_messages, write_text

PROBLEM = (
    "a: no judged document was retrieved (query 'q1': retrieved 'D29', judged '29'); "
    "check that run and judgments are of the same collection"
)


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_text(folder / "a.run", "q1 Q0 D29 1 2 t\nq1 Q0 D30 2 1 t\nq2 Q0 D31 1 1 t\n")
    write_text(folder / "b.run", "q1 Q0 29 1 2 t\nq1 Q0 30 2 1 t\nq2 Q0 30 1 1 t\n")
    write_text(folder / "qrels", "q1 0 29 1\nq2 0 31 1\n")
    ids = ["29", "30", "31", "D29", "D30", "D31"]
    write_rows(folder / "corpus.jsonl", [{"_id": id, "text": "t"} for id in ids])


def test_run_without_judged_documents_warns_with_example_ids(folder: Path, capfd: Capture) -> None:
    write_text(folder / "a", (folder / "a.run").read_text())
    for call in (
        "eval a.run b.run --qrels qrels",
        "compare a.run b.run --qrels qrels",
        "report a.run b.run --qrels qrels -o report",
        "plot recall a.run b.run --qrels qrels --format json",
        "fuse a b.run --sweep --qrels qrels",
        "mine-negatives a.run b.run --qrels qrels",
        "mine-negatives a.run --qrels qrels --corpus corpus.jsonl",
    ):
        assert get_messages(capfd, f"{call} -q") == f"drtk: {PROBLEM}\n", call
    assert get_messages(capfd, "eval b.run --qrels qrels -q") == ""
    app("mine-negatives a.run b.run --qrels qrels -o train.jsonl".split(), standalone_mode=False)
    counts = json.loads((folder / "train.jsonl.meta.json").read_text())["counts"]
    assert counts["queries with judged hits"] == {"a": 0, "b": 1}


def test_tuning_with_judgments_of_other_ids_warns(folder: Path, capfd: Capture) -> None:
    write_rows(folder / "other.jsonl", [{"_id": "D29", "text": "wing"}, {"_id": "D30", "text": "tail"}])
    write_text(folder / "queries.jsonl", '{"_id": "q1", "text": "wing"}\n')
    app(["index", "other.jsonl", "--type", "bm25s", "-o", "a"], standalone_mode=False)
    call = ["search", "a", "queries.jsonl", "--tune", "--set", "grid=k1=0.9 b=0.4", "--qrels"]
    assert get_messages(capfd, "", *call, "qrels", "-q") == f"drtk: {PROBLEM}\n"
    write_text(folder / "right", "q1 0 D29 1\n")
    assert get_messages(capfd, "", *call, "right", "-q") == ""


def test_mining_with_judgments_of_other_ids_is_rejected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = ["mine-negatives", "a.run", "--qrels", "qrels", "-o", "train.jsonl"]
    with pytest.raises(DrtkError, match=f"^{re.escape(PROBLEM)}. Judged documents could become negatives"):
        app(call, standalone_mode=False)
    assert not list(folder.glob("train*"))

    class KilledError(BaseException):
        pass

    def raise_killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Miner, "describe_id_mismatch", raise_killed)  # after the last batch
        with pytest.raises(KilledError):
            app(call, standalone_mode=False)
    problem = "^a: no judged document was retrieved. Judged documents could become negatives"
    with pytest.raises(DrtkError, match=problem):
        app([*call, "--resume"], standalone_mode=False)
    assert not list(folder.glob("train*"))


def test_one_judged_document_is_enough() -> None:
    judged = JudgedHitCounter("a", {"q1": {"29": 1}, "q2": {"31": 0}})
    assert not judged.add("q1", ["D29"])
    assert not judged.add("unjudged", ["29"])
    assert judged.describe_problem() == PROBLEM
    assert judged.add("q2", ["30", "31"])
    assert judged.describe_problem() is None
    by_passage = JudgedHitCounter("a", {"q": {"x": 1}})
    by_passage.add("q", ["x#0"])
    hint = "; the judgments are of source documents, not of passages; use `by=source`"
    assert str(by_passage.describe_problem()).endswith(hint)
    assert JudgedHitCounter("a", {"q": {"x": 1}}, to_document=parse_document_id).add("q", ["x#0"])

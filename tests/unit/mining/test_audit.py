"""Audit and report of drtk mine-negatives: all candidates, the HTML page, and resuming after a kill."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from drtk.errors import DrtkError, UsageError
from drtk.mining.audit import Audit
from drtk.mining.mine import Miner
from drtk.runtime.streams import open_input
from tests.expansion_collection import write_rows
from tests.run_commands import run_command, write_text

QUERIES, DEPTH = 120, 10  # two batches


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a run in which query i retrieves d{i+1}, d{i+2}, d{i}, d{i+3}, …, with scores from 10 down to 1."""
    lines = []
    for q in range(QUERIES):
        order = [q + 1, q + 2, q, *range(q + 3, q + DEPTH)]
        lines += [f"q{q} Q0 d{d % QUERIES} {rank} {11 - rank} t\n" for rank, d in enumerate(order, start=1)]
    write_text(tmp_path / "bm25.run", "".join(lines))
    write_text(tmp_path / "qrels.tsv", "".join(f"q{q}\td{q}\t1\n" for q in range(QUERIES)))
    rows = [{"_id": f"d{q}", "title": f"No. {q}", "text": f"this is <passage> number {q}"} for q in range(QUERIES)]
    write_rows(tmp_path / "corpus.jsonl", rows)
    asked = [{"_id": f"q{q}", "text": f"which <number> has {q}?", "answers": [str(q + 1)]} for q in range(QUERIES)]
    write_rows(tmp_path / "queries.jsonl", asked)
    monkeypatch.chdir(tmp_path)
    return tmp_path


CALL = ["mine-negatives", "bm25.run", "--qrels", "qrels.tsv", "--policy", "tevatron"]
TEXTS = ["--queries", "queries.jsonl", "--corpus", "corpus.jsonl"]


def read(path: Path) -> list[dict[str, Any]]:
    with open_input(str(path))[0] as stream:
        return [json.loads(line) for line in stream]


def read_counts(path: Path) -> dict[str, Any]:
    return json.loads(Path(f"{path}.meta.json").read_text())["counts"]


def test_every_candidate_is_kept_dropped_or_not_sampled(cwd, capfd):
    # the positive has 8: --margin 2 asks for 6 or less, ranks 5 to 10; ranks 1, 2 and 4 (10, 9, 7) go; 4 of 6 are drawn
    run_command(capfd, *CALL, "--margin", "2", "--negatives", "4", "--audit", "audit.jsonl.gz", "-o", "out.jsonl")
    rows, examples = read(cwd / "audit.jsonl.gz"), read(cwd / "out.jsonl")
    assert [row["query_id"] for row in rows] == [row["query_id"] for row in examples]
    for row, example in zip(rows, examples, strict=True):
        assert [one["id"] for one in row["kept"]] == example["negatives"]
        dropped = [(one["rank"], one["by"], one["value"], one["limit"]) for one in row["dropped"]]
        assert dropped == [(rank, "margin", value, 6.0) for rank, value in ((1, 10.0), (2, 9.0), (4, 7.0))]
        assert row["not_sampled"] == 2
        assert row["positives"][0]["found"] == {"bm25": [3, 8.0]}
        assert all(one["gap"] == 8 - one["score"] for one in row["kept"])
    counts = read_counts(cwd / "out.jsonl")
    assert counts["dropped"] == {"margin": 3 * QUERIES}
    options = ["--margin", "2", "--negatives", "4", "--seed", "1"]
    assert run_command(capfd, *CALL, *options) != (cwd / "out.jsonl").read_text()  # --seed selects the sample
    fates = {"candidates": 9, "kept": 4, "dropped": 3, "not_sampled": 2, "became_positives": 0, "random": 0}
    assert counts["passages"] == {name: number * QUERIES for name, number in fates.items()}


def test_queries_that_make_no_example_are_in_the_audit_too(cwd, capfd):
    write_text(cwd / "qrels.tsv", "q0\td0\t0\nq1\td1\t1\nq2\td2\t1\nzz\td0\t1\n")
    write_text(cwd / "bm25.run", (cwd / "bm25.run").read_text() + "zz Q0 d4 1 0.5 t\n")
    run_command(capfd, *CALL, "--set", "max_score=0.5", "--audit", "audit.jsonl", "-o", "out.jsonl")
    reasons = ["without positives", "without negatives", "without negatives", None]
    assert [row.get("skipped") for row in read(cwd / "audit.jsonl")] == reasons
    counts = read_counts(cwd / "out.jsonl")
    assert counts["dropped"] == {"max-score": 18}  # 9 candidates of each of two queries
    assert (counts["passages"]["candidates"], counts["passages"]["dropped"]) == (19, 18)


def test_no_examples_at_all_is_an_error_with_reasons(cwd, capfd):
    # one query without a positive; the others find 9 candidates each, all above .5
    write_text(cwd / "qrels.tsv", (cwd / "qrels.tsv").read_text().replace("q0\td0\t1", "q0\td0\t0"))
    call = [*CALL, "--audit", "audit.jsonl", "--report", "report.txt", "-o", "out.jsonl"]
    why = r"^no training examples were mined: 1 without positives, 119 without negatives \(of 1,071 candidates "
    with pytest.raises(DrtkError, match=why + r"1,071 dropped by max-score\)$") as fault:
        run_command(capfd, *call, "--set", "max_score=0.5")
    assert fault.value.status == 1
    assert sorted(path.name for path in cwd.glob("*out*")) == []  # no empty file, and nothing to resume
    for side in ("audit.jsonl", "report.txt"):
        assert (cwd / side).read_text().count("\n") > 5  # which query lost what
    assert sorted(path.name for path in cwd.glob("*part*")) == []
    run_command(capfd, *call, "--force")
    with pytest.raises(DrtkError, match=why + r"1,071 not sampled\)$"):
        run_command(capfd, *call, "--negatives", "0", "--force")
    assert (cwd / "out.jsonl").read_text().count("\n") == 119  # the former output is not lost


def test_the_report_counts_negatives_ranks_and_suspicions(cwd, capfd):
    printed = run_command(capfd, *CALL, *TEXTS, "--report", "-", "-o", "out.jsonl")
    actual = {tuple(re.split(r"\s{2,}", line.strip())) for line in printed.splitlines()}
    # ranks 1 and 2 are above the positive: 240. The answer is the next number: d(i+1), but q119's, 120, is nowhere: 119,
    # all of them rank 1 and counted above already
    assert actual >= {
        ("queries", "120"),
        ("negatives", "1,080"),
        ("bm25", "1,080", "100.0%", "100.0%"),
        ("1 to 10", "1,080", "100.0%"),
        ("score in its source at least the positive's", "240", "22.2%"),
        ("contains an answer of the query", "119", "11.0%"),
        ("any of these", "240", "22.2%"),
    }


def test_the_page_is_self_contained_and_shows_texts(cwd, capfd):
    run_command(capfd, *CALL, *TEXTS, "--margin", "2", "--report", "report.html", "-o", "out.jsonl")
    page = (cwd / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert not re.search(r"(src|href)=|<script|https?:", page)
    margin = "dropped: score within the margin of the positive&#39;s, limit 6"
    for text in ("which &lt;number&gt; has", "&lt;passage&gt;", margin):
        assert text in page
    assert "<number>" not in page
    assert page.count("positive, rank 3 of bm25") == 20
    assert re.search(r"negative, rank \d+ of bm25, score ", page)
    assert page.count("<details>") == page.count("</details>") == 20
    assert sorted(path.name for path in cwd.glob("*part*")) == []


def test_side_files_are_not_overwritten_and_need_a_folder(cwd, capfd):
    write_text(cwd / "there", "mine")
    for option in ("--audit", "--report"):
        for path, problem in (("there", "exists already; `force` replaces it"), ("no/x", "folder no does not exist")):
            with pytest.raises(DrtkError, match=f"{path}: {problem}"):
                run_command(capfd, *CALL, option, path, "-o", "out.jsonl")
    with pytest.raises(UsageError, match="`output` and `report`: both write -;"):
        run_command(capfd, *CALL, "--report", "-")
    assert (cwd / "there").read_text() == "mine"


class Killed(BaseException):
    pass


def test_an_interrupted_run_resumes_with_its_audit_and_report(cwd, capfd, monkeypatch):
    more = [*TEXTS, "--margin", "2", "--negatives", "4"]
    whole = ["--audit", "whole.audit.zst", "--report", "whole.html", "-o", "whole.jsonl"]
    parts = ["--audit", "audit.zst", "--report", "report.html", "-o", "out.jsonl"]
    run_command(capfd, *CALL, *more, *whole)
    mine, done = Miner.mine, Counter[str]()

    def until_killed(self: Miner, batch: Any) -> Any:
        done["batches"] += 1
        if done["batches"] == 2:
            raise Killed
        return mine(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Miner, "mine", until_killed)
        with pytest.raises(Killed):
            run_command(capfd, *CALL, *more, *parts)
    assert (cwd / "audit.zst.part").exists()
    run_command(capfd, *CALL, *more, *parts, "--resume")
    assert (cwd / "out.jsonl").read_bytes() == (cwd / "whole.jsonl").read_bytes()
    assert (cwd / "report.html").read_bytes() == (cwd / "whole.html").read_bytes()
    audits = [open_input(str(cwd / name))[0].read() for name in ("audit.zst", "whole.audit.zst")]
    assert audits[0] == audits[1]
    assert read_counts(cwd / "out.jsonl") == read_counts(cwd / "whole.jsonl")
    assert sorted(path.name for path in cwd.glob("*part*")) == []


def test_a_run_killed_between_audit_and_examples_resumes(cwd, capfd, monkeypatch):
    commit = Audit.commit

    def then_killed(self: Audit) -> None:
        commit(self)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Audit, "commit", then_killed)
        with pytest.raises(Killed):
            run_command(capfd, *CALL, "--audit", "audit.jsonl", "-o", "out.jsonl")
    assert (cwd / "audit.jsonl").exists()
    before = (cwd / "audit.jsonl").read_bytes()
    run_command(capfd, *CALL, "--audit", "audit.jsonl", "-o", "out.jsonl", "--resume")
    assert (cwd / "audit.jsonl").read_bytes() == before
    assert len(read(cwd / "out.jsonl")) == QUERIES

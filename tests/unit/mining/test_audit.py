"""Audit and report: every candidate's fate, figures that add up, a page that stands alone, and going on after a kill."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from drtk.errors import DrtkError, UsageError
from drtk.mining.report import Spread, figures_of, tables
from tests.running import command, write

QUERIES, DEPTH = 250, 10  # three windows


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Query i finds i+1, i+2, …, itself at rank 3, with falling scores from 10; passages say which one they are."""
    lines = []
    for q in range(QUERIES):
        order = [q + 1, q + 2, q, *range(q + 3, q + DEPTH)]
        lines += [f"q{q} Q0 d{d % QUERIES} {rank} {11 - rank} t\n" for rank, d in enumerate(order, start=1)]
    write(tmp_path / "bm25.run", "".join(lines))
    write(tmp_path / "qrels.tsv", "".join(f"q{q}\td{q}\t1\n" for q in range(QUERIES)))
    rows = [{"_id": f"d{q}", "title": f"No. {q}", "text": f"this is <passage> number {q}"} for q in range(QUERIES)]
    write(tmp_path / "corpus.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    asked = [{"_id": f"q{q}", "text": f"which <number> has {q}?", "answers": [str(q + 1)]} for q in range(QUERIES)]
    write(tmp_path / "queries.jsonl", "".join(json.dumps(row) + "\n" for row in asked))
    monkeypatch.chdir(tmp_path)
    return tmp_path


CALL = ["mine-negatives", "bm25.run", "--qrels", "qrels.tsv", "--policy", "tevatron"]


def read(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_every_candidate_is_kept_dropped_or_not_drawn(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # the positive has 8: --margin 2 asks for 6 or less, ranks 5 to 10; ranks 1, 2 and 4 (10, 9, 7) go; 4 of 6 are drawn
    command(capfd, *CALL, "--margin", "2", "--keep", "4", "--audit", "audit.jsonl.gz", "-o", "out.jsonl")
    rows, examples = read(world / "audit.jsonl.gz"), read(world / "out.jsonl")
    assert [row["query_id"] for row in rows] == [row["query_id"] for row in examples]
    for row, example in zip(rows, examples, strict=True):
        assert [one["id"] for one in row["kept"]] == example["negatives"]
        assert [(one["rank"], one["by"], one["value"], one["limit"]) for one in row["dropped"]] == [
            (1, "margin", 10.0, 6.0),
            (2, "margin", 9.0, 6.0),
            (4, "margin", 7.0, 6.0),
        ]
        assert row["not_drawn"] == 2
        assert row["positives"][0]["found"] == {"bm25": [3, 8.0]}
        assert all(one["gap"] == 8 - one["score"] for one in row["kept"])
    counts = json.loads((world / "out.jsonl.meta.json").read_text())["counts"]
    assert counts["dropped"] == {"margin": 3 * QUERIES}
    assert counts["passages"] == {
        "candidates": 9 * QUERIES,
        "kept": 4 * QUERIES,
        "dropped": 3 * QUERIES,
        "not_drawn": 2 * QUERIES,
        "became_positives": 0,
        "random": 0,
    }


def test_queries_that_make_no_example_are_in_the_audit_too(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(world / "qrels.tsv", "q0\td0\t0\nq1\td1\t1\nq2\td2\t1\n")
    write(world / "bm25.run", (world / "bm25.run").read_text() + "zz Q0 d4 1 0.5 t\n")
    write(world / "qrels.tsv", (world / "qrels.tsv").read_text() + "zz\td0\t1\n")
    command(capfd, *CALL, "--max-score", "0.5", "--audit", "audit.jsonl", "-o", "out.jsonl")
    assert [row.get("left_out") for row in read(world / "audit.jsonl")] == [
        "without_positives",
        "without_negatives",
        "without_negatives",
        None,
    ]
    counts = json.loads((world / "out.jsonl.meta.json").read_text())["counts"]
    assert counts["dropped"] == {"max-score": 18}  # 9 candidates of each of two queries
    assert (counts["passages"]["candidates"], counts["passages"]["dropped"]) == (19, 18)


@pytest.mark.parametrize("side", ["audit.jsonl", "report.txt"])
def test_no_example_at_all_is_a_fault_that_says_why(world: Path, capfd: pytest.CaptureFixture[str], side: str) -> None:
    # one query without a positive; 249 find 9 candidates each, all above .5: 2,241
    judged = (world / "qrels.tsv").read_text().replace("q0\td0\t1", "q0\td0\t0")
    write(world / "qrels.tsv", judged)
    call = [*CALL, f"--{side.split('.')[0]}", side, "-o", "out.jsonl"]
    said = r"^no query makes an example: 1 without positives, 249 without negatives \(of 2,241 candidates "
    with pytest.raises(DrtkError, match=said + r"2,241 dropped by max-score\)$") as fault:
        command(capfd, *call, "--max-score", "0.5")
    assert fault.value.status == 1
    assert sorted(path.name for path in world.glob("*out*")) == []  # no empty file, and nothing to go on from
    assert (world / side).read_text().count("\n") > 5  # what tells which query lost what is there
    assert sorted(path.name for path in world.glob("*part*")) == []
    with pytest.raises(DrtkError, match=said + r"2,241 not drawn\)$"):
        command(capfd, *call, "--keep", "0", "--force")
    command(capfd, *call, "--force")
    assert (world / "out.jsonl").read_text().count("\n") == 249
    with pytest.raises(DrtkError, match=r"2,241 not drawn\)$"):
        command(capfd, *CALL, "--keep", "0")  # to stdout
    with pytest.raises(DrtkError, match=r"2,241 not drawn\)$"):
        command(capfd, *call, "--keep", "0", "--force")
    assert (world / "out.jsonl").read_text().count("\n") == 249  # what was there before is not lost


def test_the_report_says_how_many_how_hard_and_how_suspicious(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    texts = ["--queries", "queries.jsonl", "--corpus", "corpus.jsonl"]
    printed = command(capfd, *CALL, *texts, "--report", "-", "-o", "out.jsonl")
    found = {tuple(re.split(r"\s{2,}", line.strip())) for line in printed.splitlines()}
    assert ("queries", "250") in found
    assert ("negatives", "2,250") in found
    assert ("bm25", "2,250", "100.0%", "100.0%") in found
    assert ("1 to 10", "2,250", "100.0%") in found
    # ranks 1 and 2 stand above the positive: 500. The answer is the next number: d(i+1), but q249's, 250, is nowhere: 249,
    # all of them rank 1 and counted above already; what is said of overlap: "this is passage", 3 runs with "number 1" -> 1/3...
    assert ("scores as high as the positive in its source, or higher", "500", "22.2%") in found
    assert ("contains an answer of the query", "249", "11.1%") in found
    assert ("any of these", "500", "22.2%") in found


def test_the_page_stands_alone_and_shows_texts_to_judge(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    texts = ["--queries", "queries.jsonl", "--corpus", "corpus.jsonl"]
    command(capfd, *CALL, *texts, "--margin", "2", "--report", "report.html", "-o", "out.jsonl")
    page = (world / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert not re.search(r"(src|href)=|<script|https?:", page)
    assert "which &lt;number&gt; has" in page
    assert "&lt;passage&gt;" in page
    assert "<number>" not in page
    assert "dropped: less than --margin below the positive, limit 6" in page
    assert page.count(">positive</b>, rank 3 of bm25") == 20
    assert re.search(r">negative, rank \d+ of bm25, score ", page)
    assert page.count("<details>") == 20
    assert page.count("<details>") == page.count("</details>")
    assert sorted(path.name for path in world.glob("*part*")) == []


def test_side_files_are_not_overwritten_and_have_a_place(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(world / "there", "mine")
    for option in ("--audit", "--report"):
        with pytest.raises(DrtkError, match="there: exists already; --force replaces it"):
            command(capfd, *CALL, option, "there", "-o", "out.jsonl")
        with pytest.raises(DrtkError, match="no/x: there is no folder no"):
            command(capfd, *CALL, option, "no/x", "-o", "out.jsonl")
    with pytest.raises(UsageError, match="--output and --report name the same output, -;"):
        command(capfd, *CALL, "--report", "-")
    with pytest.raises(UsageError, match=r"--output and --audit name the same output, out\.jsonl;"):
        command(capfd, *CALL, "--audit", "out.jsonl", "-o", "out.jsonl")
    assert (world / "there").read_text() == "mine"


class Killed(BaseException):
    pass


@pytest.mark.parametrize("windows", [1, 2, 3])
def test_an_interrupted_run_goes_on_with_its_audit_and_its_report(
    windows: int, world: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from drtk.mining.mine import Mining

    more = ["--queries", "queries.jsonl", "--corpus", "corpus.jsonl", "--margin", "2", "--keep", "4"]
    whole = ["--audit", "whole.audit.zst", "--report", "whole.html", "-o", "whole.jsonl"]
    parts = ["--audit", "audit.zst", "--report", "report.html", "-o", "out.jsonl"]
    command(capfd, *CALL, *more, *whole)
    mine, done = Mining.examples, Counter[str]()

    def until_killed(self: Mining, window: Any, **options: Any) -> Any:
        done["windows"] += 1
        if done["windows"] == windows:
            mine(self, window, **options)  # its rows are written, and nobody noted that
            raise Killed
        return mine(self, window, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Mining, "examples", until_killed)
        with pytest.raises(Killed):
            command(capfd, *CALL, *more, *parts)
    assert (world / "audit.zst.part").exists() == (windows > 1)
    command(capfd, *CALL, *more, *parts, "--resume")
    assert (world / "out.jsonl").read_bytes() == (world / "whole.jsonl").read_bytes()
    assert (world / "report.html").read_bytes() == (world / "whole.html").read_bytes()
    assert unpacked(world / "audit.zst") == unpacked(world / "whole.audit.zst")
    counts = [json.loads((world / f"{name}.jsonl.meta.json").read_text())["counts"] for name in ("out", "whole")]
    assert counts[0] == counts[1]
    assert sorted(path.name for path in world.glob("*part*")) == []


def unpacked(path: Path) -> bytes:
    from drtk.runtime.streams import open_input

    with open_input(str(path))[0] as stream:
        return stream.read()


def test_a_run_that_ended_between_its_audit_and_its_examples_goes_on(
    world: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from drtk.mining.audit import Audit

    commit = Audit.commit

    def then_killed(self: Audit) -> None:
        commit(self)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Audit, "commit", then_killed)
        with pytest.raises(Killed):
            command(capfd, *CALL, "--audit", "audit.jsonl", "-o", "out.jsonl")
    assert (world / "audit.jsonl").exists()
    before = (world / "audit.jsonl").read_bytes()
    command(capfd, *CALL, "--audit", "audit.jsonl", "-o", "out.jsonl", "--resume")
    assert (world / "audit.jsonl").read_bytes() == before
    assert len(read(world / "out.jsonl")) == QUERIES


def test_quantiles_of_many_numbers_are_those_of_a_fair_sample() -> None:
    spread = Spread()
    for number in range(40_000):
        spread.add(number / 40_000, str(number))
    assert (spread.count, spread.least, spread.most) == (40_000, 0.0, 39_999 / 40_000)
    # of 4,000 drawn, a quantile at 1/2 has a standard error of sqrt(.25 / 4000) = .0079
    assert spread.quantiles(0.05, 0.5, 0.95) == pytest.approx([0.05, 0.5, 0.95], abs=0.03)


def test_nothing_mined_is_a_report_too() -> None:
    (table,) = tables(figures_of([]))
    assert table.rows == [("queries", "0"), ("examples", "0")]

"""drtk compare: the known t-test, seeds, different query sets, changed queries and formats."""

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from drtk.cli.main import app
from drtk.errors import MismatchError, RecordError, UsageError
from tests.expansion_collection import write_rows
from tests.run_commands import Capture, run_command, write_text

QRELS = "".join(f"q{n} 0 right 1\n" for n in range(1, 6))
RIGHT_AT = {"a": (2, 1, 3, 0, 4), "b": (3, 1, 4, 10, 8)}  # the rank of the right document for q1 … q5 (0: nowhere)


def make_run(ranks: tuple[int, ...], *, without: tuple[str, ...] = ()) -> str:
    lines = []
    for number, rank in enumerate(ranks, start=1):
        docs = [f"d{n}" for n in range(10)]
        if rank:
            docs.insert(rank - 1, "right")
        if f"q{number}" not in without:
            lines += [f"q{number} Q0 {doc} {place} {20 - place} t\n" for place, doc in enumerate(docs, start=1)]
    return "".join(lines)


@pytest.fixture
def runs(folder: Path) -> Path:
    """Return a folder with the judgments and both runs."""
    write_text(folder / "qrels", QRELS)
    for name, ranks in RIGHT_AT.items():
        write_text(folder / f"{name}.run", make_run(ranks))
    return folder


def compare_as_json(capfd: Capture, *arguments: str) -> dict[str, list[dict[str, Any]]]:
    """Return the JSON lines of drtk compare by kind."""
    result: dict[str, list[dict[str, Any]]] = {}
    options = ["--qrels", "qrels", "--measures", "RR@10", "--format", "jsonl", "--set", "permutations=1000"]
    for line in run_command(capfd, "compare", "-q", *arguments, *options).splitlines():
        row = json.loads(line)
        result.setdefault(row.pop("kind"), []).append(row)
    return result


def test_compare_computes_known_tests_and_intervals(runs: Path, capfd: Capture) -> None:
    # RR of a: 1/2 1 1/3 0 1/4; of b: 1/3 1 1/4 1/10 1/8; a - b has mean .055, t 1.156649, p .311789
    (contrast,) = compare_as_json(capfd, "b=b.run", "a=a.run")["contrast"]
    assert contrast["difference"] == pytest.approx(0.055)
    assert contrast["t"] == pytest.approx(1.156649, abs=1e-5)
    assert contrast["t_p"] == pytest.approx(0.311789, abs=1e-5)
    assert contrast["df"] == 4
    assert (contrast["better"], contrast["equal"], contrast["worse"]) == (3, 1, 1)
    sums = [abs(s1 / 6 + s2 / 12 + s3 / 8 + s4 / 10) for s1, s2, s3, s4 in product((1, -1), repeat=4)]
    assert contrast["randomization_p"] == sum(total >= 0.275 - 1e-9 for total in sums) / 16
    assert contrast["effect"] == pytest.approx(0.055 / 0.106328, abs=1e-4)
    # t(.975, 4) = 2.776445: .055 +- 2.776445 * .106328 / sqrt 5
    assert contrast["interval"] == pytest.approx([0.055 - 0.132023, 0.055 + 0.132023], abs=1e-5)
    assert contrast["significant"] is False


def write_texts(runs: Path, title: str, text: str, query: str) -> None:
    """Write c.jsonl and q.jsonl; {} is the id of a passage, or the number of a query."""
    ids = ["right", *(f"d{n}" for n in range(10))]
    write_rows(runs / "c.jsonl", [{"_id": id, "title": title.format(id), "text": text.format(id)} for id in ids])
    queries = [{"_id": f"q{n}", "text": query.format(n), "answers": ["of right", ""]} for n in range(1, 6)]
    write_rows(runs / "q.jsonl", queries)


BY_ANSWERS = ["a.run", "b.run", "--answers", "q.jsonl", "--corpus", "c.jsonl", "--set", "permutations=1000"]


def test_answers_and_judgments_give_the_same_tests(runs: Path, capfd: Capture) -> None:
    write_texts(runs, "of right", "text of {}", "")  # only one text has the answer, but every title
    call = ["compare", "-q", *BY_ANSWERS, "--format", "jsonl"]
    result = [json.loads(line) for line in run_command(capfd, *call, "--measures", "RR").splitlines()]
    (contrast,) = [row for row in result if row["kind"] == "contrast"]
    by_judgments = compare_as_json(capfd, "a.run", "b.run", "--measures", "RR")["contrast"][0]
    assert by_judgments["measure"] == "RR@10"  # the last option counts; ranks are within 10, so both are the same
    for name in ("difference", "t", "t_p", "randomization_p", "better", "equal", "worse"):
        assert contrast[name] == pytest.approx(by_judgments[name])
    # ranks 2 1 3 - 4 against 3 1 4 10 8
    result = [json.loads(line) for line in run_command(capfd, *call).splitlines()]
    means = {(row["system"], row["measure"]): row["mean"] for row in result if row["kind"] == "system"}
    for system, expected in (("a", [0.2, 0.8, 0.8, 0.8]), ("b", [0.2, 0.6, 1.0, 1.0])):
        assert [means[system, f"Answer@{k}"] for k in (1, 5, 20, 100)] == pytest.approx(expected)
    with_titles = [json.loads(line) for line in run_command(capfd, *call, "--set", "match_title=true").splitlines()]
    assert {row["mean"] for row in with_titles if row["kind"] == "system"} == {1.0}  # every title is Paris


def test_runs_of_one_name_are_runs_of_one_system(runs: Path, capfd: Capture) -> None:
    # x: RR all 1 and all 1/2: means 1 and .5, mean .75, sd (n - 1) .353553; y: 1/2 everywhere; x - y = .25 everywhere
    for name, rank in (("one", 1), ("two", 2), ("half", 2)):
        write_text(runs / f"{name}.run", make_run((rank,) * 5))
    result = compare_as_json(capfd, "y=half.run", "x=one.run", "x=two.run")
    x = next(row for row in result["system"] if row["system"] == "x")
    assert x == {"system": "x", "measure": "RR@10", "mean": 0.75, "sd": pytest.approx(0.353553, abs=2e-6),
                 "lowest": 0.5, "highest": 1.0, "runs": 2}  # fmt: skip
    (contrast,) = result["contrast"]
    assert contrast["difference"] == 0.25
    assert contrast["t"] is None  # infinite, which JSON cannot hold
    assert contrast["t_p"] == 0.0
    runs = ["y=half.run", "x=one.run", "x=two.run"]
    table = run_command(capfd, "compare", "-q", *runs, "--qrels", "qrels", "--measures", "RR@10")
    assert re.search(r"x +0\.7500 ± 0\.3536 \(2\)\*?", table)
    assert "∞" in table


def test_holm_correction_is_per_measure(runs: Path, capfd: Capture) -> None:
    write_text(runs / "c.run", make_run((1, 1, 1, 1, 1)))
    result = compare_as_json(capfd, "a.run", "b.run", "c.run")["contrast"]
    raw = [row["t_p"] for row in result]
    assert [row["t_p_corrected"] for row in result] == pytest.approx([max(raw[0], 2 * raw[1]), min(1, 2 * raw[1])])
    plain = compare_as_json(capfd, "a.run", "b.run", "c.run", "--set", "correction=none")["contrast"]
    assert [row["t_p_corrected"] for row in plain] == raw
    call = ["compare", "-q", "a.run", "b.run", "c.run", "--qrels", "qrels", "--format", "csv"]
    columns = run_command(capfd, *call).splitlines()[0].split(",")
    assert len(set(columns)) == len(columns)
    pairs = compare_as_json(capfd, "a.run", "b.run", "c.run", "--all-pairs")["contrast"]
    assert [(row["baseline"], row["system"]) for row in pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    other = compare_as_json(capfd, "a.run", "b.run", "c.run", "--baseline", "c")["contrast"]
    assert [(row["baseline"], row["system"]) for row in other] == [("c", "a"), ("c", "b")]


def test_queries_missing_from_a_run_are_an_error_or_count_as_0(runs: Path, capfd: Capture) -> None:
    write_text(runs / "b.run", make_run(RIGHT_AT["b"], without=("q2", "q5")))
    write_texts(runs, "", "text of {}", "")
    for call, source in ((["a.run", "b.run", "--qrels", "qrels"], "judgments"), (BY_ANSWERS, "answers")):
        problem = f"b.run: lacks 2 queries with {source} that other runs have, for example 'q2'"
        with pytest.raises(MismatchError, match=problem):
            app(["compare", *call], standalone_mode=False)
        assert "count as 0" not in capfd.readouterr().err  # the run is rejected
    as_zero = ["a.run", "b.run", "--set", "missing_as_zero=true"]
    # with 0 for q2 and q5: (-.15 - 1 - .25)/5 = -.28
    (contrast,) = compare_as_json(capfd, *as_zero)["contrast"]
    assert contrast["difference"] == pytest.approx(-0.28)
    app(["compare", *as_zero, "--qrels", "qrels", "-o", "table"], standalone_mode=False)
    messages = capfd.readouterr().err
    assert "text table" not in messages
    assert "b: 2 of 5 queries with judgments are not in the run and count as 0" in messages
    assert re.search(r"compare: 2 in, \d+ out, [\d.]+ s", messages)
    app(["compare", *as_zero, "--qrels", "qrels", "-o", "page.html"], standalone_mode=False)
    assert "page.html: is written as a text table; set --format for another format" in capfd.readouterr().err
    # on q1 q3 q4: b - a = 1/3-1/2, 1/4-1/3, 1/10 : mean (-.166667 - .083333 + .1)/3 = -.05
    (contrast,) = compare_as_json(capfd, "a.run", "b.run", "--intersect")["contrast"]
    assert contrast["difference"] == pytest.approx(-0.05)
    assert contrast["df"] == 2
    write_text(runs / "b.run", "")
    with pytest.raises(MismatchError, match="the runs have no common query with judgments"):
        compare_as_json(capfd, "a.run", "b.run", "--intersect")


def test_single_query_is_compared_but_not_tested(runs: Path, capfd: Capture) -> None:
    write_text(runs / "qrels", "q1 0 right 1\n")
    (contrast,) = compare_as_json(capfd, "a.run", "b.run")["contrast"]
    assert (contrast["t"], contrast["t_p"], contrast["interval"], contrast["effect"]) == (None, 1.0, None, None)
    table = run_command(capfd, "compare", "-q", "a.run", "b.run", "--qrels", "qrels", "--measures", "RR@10")
    assert "2 systems, 1 query." in table
    assert "A single query cannot be tested" in table


def test_queries_that_changed_most_are_shown_with_rank_changes(runs: Path, capfd: Capture) -> None:
    # b - a: q4 +.1, q1 -.1667, q5 -.125, q3 -.0833
    result = compare_as_json(capfd, "a.run", "b.run", "--moved", "2")["move"]
    assert [row["query_id"] for row in result] == ["q4", "q1", "q5"]
    right = {"id": "right", "grade": 1, "before": None, "after": 10, "title": "", "snippet": ""}
    assert result[0]["relevant"][0] == right
    assert result[0]["firsts"][0]["id"] == "d0"
    write_texts(runs, "title {}", "text of {} about kites", "kite {}?")
    texts = ["--corpus", "c.jsonl", "--queries", "q.jsonl", "--measures", "RR@10", "--qrels", "qrels", "--moved", "1"]
    lines = run_command(capfd, "compare", "-q", "a.run", "b.run", *texts).splitlines()
    at = lines.index("q4  kite 4?")
    assert lines[at : at + 5] == [
        "q4  kite 4?",
        "  RR@10 0.0000 (a) → 0.1000 (b), +0.1000",
        "  - relevant, not retrieved → rank 10: right title right",
        "    text of right about kites",
        "  - first in both, not judged: d0 title d0",
    ]


def test_html_page_escapes_text_and_is_self_contained(runs: Path, capfd: Capture) -> None:
    evil = "<script>alert('kite')</script> & \"kites\""
    write_texts(runs, evil, evil, f"kite {evil}")
    options = ["--corpus", "c.jsonl", "--queries", "q.jsonl", "--format", "html", "--heading", "<b>mine</b>"]
    run_command(capfd, "compare", "-q", "a.run", "b.run", *options, "--qrels", "qrels", "-o", "page.html")
    page = (runs / "page.html").read_text()
    assert "<script" not in page
    assert "&lt;b&gt;mine&lt;/b&gt;" in page
    assert not re.search(r"https?://|@import|url\(|src=|href=", page)
    assert all(f"<{tag}" in page for tag in ("table", "svg", "details", "mark"))
    assert json.loads((runs / "page.html.meta.json").read_text())["counts"]["in"] == 2  # runs, not lines of the page


def test_all_formats_have_the_same_values(runs: Path, capfd: Capture) -> None:
    call = ["compare", "-q", "b.run", "a.run", "--qrels", "qrels", "--measures", "RR@10", "--format"]
    markdown, latex, table = (run_command(capfd, *call, format) for format in ("markdown", "latex", "csv"))
    assert "| a | **0.4167** |" in markdown
    assert "| RR@10 | +0.0550 | -0.0770 … +0.1870 | +0.52 | 1.16 | 0.312 |" in markdown
    assert "a & \\bfseries 0.4167 \\\\" in latex
    assert "RR@10 & +0.0550 & $-0.0770$ \\dots{} $+0.1870$ & +0.52 & 1.16 & 0.312 &" in latex
    header, row = table.splitlines()
    values = dict(zip(header.split(","), row.split(","), strict=True))
    assert float(values["t"]) == pytest.approx(1.156649, abs=1e-5)
    assert (values["system"], values["against"]) == ("a", "b")


def test_wrong_usage_is_rejected(runs: Path, capfd: Capture) -> None:
    write_texts(runs, "", "text of {}", "")
    qrels = ["--qrels", "qrels"]
    for arguments, problem in (
        (["x=a.run", "x=b.run", *qrels], "two systems are required"),
        (["a.run", "b.run"], "`qrels` or `answers`"),
        (["a.run", "b.run", "--baseline", "c", *qrels], "`baseline`: no system is called 'c'; choose from a, b"),
        (["a.run", "b.run", "--measures", "num_ret", *qrels], "num_ret is not a mean"),
        (["x=a.run", "x=a.run", "b.run", *qrels], "is given twice"),
        ([*BY_ANSWERS, *qrels], "--qrels and --answers"),
        ([*BY_ANSWERS, "--measures", "nDCG@10"], "requires `qrels`"),
        ([*BY_ANSWERS, "--by", "source"], "`by=source`"),
        (BY_ANSWERS[:4], "`answers` requires `corpus`"),
        ([word if word != "b.run" else "-" for word in BY_ANSWERS], "cannot come from stdin"),
    ):
        with pytest.raises(UsageError, match=problem):
            run_command(capfd, "compare", *arguments)
    write_text(runs / "b.run", "q1 Q0 nowhere 1 1.0 t\n")
    with pytest.raises(MismatchError, match=r"b\.run:1: passage 'nowhere' is not in the corpus"):
        run_command(capfd, "compare", *BY_ANSWERS)
    write_text(runs / "b.run", make_run((1,)) + "q1 Q0 d0 1 20 t\n")
    with pytest.raises(RecordError, match=r"^b\.run:12: .*is listed a second time"):
        run_command(capfd, "compare", "a.run", "b.run", *qrels)

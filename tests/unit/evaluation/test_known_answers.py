"""Known answers of the evaluation chapter, through the command line (8.4 to 8.9 have files of their own)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.data import shared_data
from tests.running import command, write


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def values(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, float]:
    printed = command(capfd, "eval", "-q", *arguments, "--format", "jsonl")
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("k1", "b", "scores"),
    [("0.9", "0.4", [0.861627, 0.469703, 0.337415]), ("0.82", "0.68", [0.904166, 0.478089, 0.336647])],
)
def test_bm25_of_four_documents(
    here: Path, capfd: pytest.CaptureFixture[str], k1: str, b: str, scores: list[float]
) -> None:
    # a b b c, a c, b d d, c d e e e; the query is b d; every letter is a word
    texts = ["a b b c", "a c", "b d d", "c d e e e"]
    write(
        here / "c.jsonl", "".join(json.dumps({"_id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(texts, 1))
    )
    write(here / "q.jsonl", '{"_id": "q", "text": "b d"}\n')
    options = ["--stopwords", "none", "--stemmer", "none"]
    command(capfd, "index", "c.jsonl", "--type", "bm25s", "-o", "index", "-q", *options)
    rows = [line.split() for line in command(capfd, "search", "index", "q.jsonl", "--k1", k1, "--b", b).splitlines()]
    assert [row[2] for row in rows] == ["d3", "d1", "d4"]  # d2 has neither word
    assert [float(row[4]) for row in rows] == pytest.approx(scores, abs=2e-6)


def test_reciprocal_rank_recall_and_hit_rate(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # q1 finds d1 of d1 d7 at rank 2, d7 at 3; q2 d2 at 3; q3 nothing; q4 is not in the run
    run = {"q1": "d3 d1 d7", "q2": "d9 d8 d2", "q3": "d4 d5 d6"}
    lines = [f"{q} Q0 {d} {n} {9 - n} t\n" for q, docs in run.items() for n, d in enumerate(docs.split(), start=1)]
    write(here / "a.run", "".join(lines))
    write(here / "qrels", "q1 0 d1 1\nq1 0 d7 1\nq2 0 d2 1\nq3 0 d0 1\nq4 0 d1 1\n")
    found = values(capfd, "a.run", "--qrels", "qrels", "--measures", "MRR@10 R@3 R@2 Hit@2 recall_3 success_2")
    assert found["MRR@10"] == pytest.approx(0.208333, abs=2e-6)  # (1/2 + 1/3) / 4
    assert (found["R@3"], found["R@2"], found["Hit@2"]) == (0.5, 0.125, 0.25)
    assert (found["recall_3"], found["success_2"]) == (0.5, 0.25)
    only = values(capfd, "a.run", "--qrels", "qrels", "--measures", "MRR@10", "--retrieved-only")
    assert only["MRR@10"] == pytest.approx(0.277778, abs=2e-6)  # the wrong one, unless it is asked for


def test_ndcg_with_linear_and_exponential_gains(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # DCG 3 + 2/2 + 1/log2(6) = 4.386853; ideal 3 + 2/log2(3) + 2/2 + 1/log2(5) + 1/log2(6) with judged 3 2 2 1 1 0
    grades = {"d1": 3, "d2": 0, "d3": 2, "d5": 1, "d6": 2, "d7": 1}
    write(here / "qrels", "".join(f"q 0 {id} {grade}\n" for id, grade in grades.items()))
    write(
        here / "a.run",
        "".join(f"q Q0 {id} {n} {9 - n} t\n" for n, id in enumerate(["d1", "d2", "d3", "d9", "d5"], start=1)),
    )
    measures = "nDCG@10 nDCG(dcg='exp-log2')@10 ndcg_cut_10"
    found = values(capfd, "a.run", "--qrels", "qrels", "--measures", measures)
    assert found["nDCG@10"] == found["ndcg_cut_10"] == pytest.approx(0.721594, abs=2e-6)
    assert found["nDCG(dcg='exp-log2')@10"] == pytest.approx(0.792739, abs=2e-6)
    # a relevance level changes nothing in it
    assert (
        values(capfd, "a.run", "--qrels", "qrels", "--measures", "nDCG@10", "--rel", "2")["nDCG@10"] == found["nDCG@10"]
    )


def test_trec_deep_learning_counts_grades_two_and_three(capfd: pytest.CaptureFixture[str]) -> None:
    # the figures of the data set's README: nDCG untouched by the level, AP and RR not
    folder = shared_data("trec_eval") / "dl20-passage"
    arguments = [folder / "run.txt", "--qrels", folder / "qrels.txt", "--measures"]
    plain = values(capfd, *arguments, "nDCG@10 AP RR")
    binary = values(capfd, *arguments, "nDCG@10 AP RR", "--rel", "2")
    assert [plain[name] for name in ("nDCG@10", "AP", "RR")] == pytest.approx([0.6714, 0.4362, 0.9435], abs=2e-4)
    found = [binary[name] for name in ("nDCG@10", "AP(rel=2)", "RR(rel=2)")]
    assert found == pytest.approx([0.6714, 0.4093, 0.8274], abs=2e-4)

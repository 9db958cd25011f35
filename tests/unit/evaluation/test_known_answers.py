"""Known answers of the evaluation chapter, through the command line (8.4 to 8.9 have files of their own)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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

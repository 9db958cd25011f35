"""ROUGE: worked by hand, against the library's own words, and where it is not installed."""

from __future__ import annotations

import sys

import pytest

from drtk.errors import MissingDependency
from drtk.evaluation.answers import rouge


def test_a_value_worked_by_hand():
    # 4 of 5 words written are among the 6 wanted: P 4/5, R 4/6, F 8/11; pairs: "the cat", of 4 and 5: F 2/9
    # longest common subsequence the cat on mat, 4: F 8/11
    found = rouge(["The cat on a mat!"], ["the cat sat on the mat"])
    assert found == pytest.approx({"rouge1": 8 / 11, "rouge2": 2 / 9, "rougeL": 8 / 11})


def test_the_mean_over_texts_and_none_of_them():
    found = rouge(["a b", "c", ""], ["a b", "d", "e"])
    assert found == pytest.approx({"rouge1": 1 / 3, "rouge2": 1 / 3, "rougeL": 1 / 3})
    assert rouge([], []) == {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}


def test_words_of_ascii_texts_are_those_of_the_library_and_other_scripts_count():
    from rouge_score.rouge_scorer import RougeScorer

    written, wanted = "Re-trains `x_y` (v2.0), it's 3D", "it retrains x_y v2 0; 3d's"
    theirs = RougeScorer(["rouge1", "rouge2", "rougeL"]).score(wanted, written)
    assert rouge([written], [wanted]) == pytest.approx({name: each.fmeasure for name, each in theirs.items()})
    assert rouge(["что такое крыло"], ["Крыло"])["rouge1"] == pytest.approx(2 * (1 / 3) / (1 / 3 + 1))


def test_without_the_library_the_command_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(MissingDependency, match=r"ROUGE needs rouge-score.*pip install rouge-score"):
        rouge(["a"], ["a"])

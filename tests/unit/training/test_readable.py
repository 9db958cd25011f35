"""Whether examples name passages in which there is something to read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from drtk.errors import DrtkError
from drtk.records import Passage
from drtk.training import example_order as readable
from drtk.training.example_order import check_readable


class Corpus:
    def __init__(self, blank: range) -> None:
        self._blank = blank
        self.looked_up: list[str] = []

    def many(self, ids: Sequence[str]) -> list[Passage]:
        self.looked_up += ids
        return [Passage(id, "" if int(id) in self._blank else "text") for id in ids]


def text_alone(passage: Passage) -> str:
    return passage.text


def test_of_very_many_passages_so_many_are_looked_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(readable, "_MOST", 30)
    monkeypatch.setattr(readable, "_AT_ONCE", 7)
    corpus = Corpus(range(45, 90))
    check_readable([str(number) for number in range(90)], corpus, called="c", read=text_alone)
    assert corpus.looked_up == [str(number) for number in range(2, 90, 3)]  # 90 / 30 = 3 apart: 2, 5 ... 89
    # of 30, those from 45 on: 47, 50 ... 89 are (89 - 47) / 3 + 1 = 15
    assert "c: 15 of the 30 passages looked up there have no text" in caplog.text


def test_nothing_to_read_is_a_fault_and_no_passage_none() -> None:
    with pytest.raises(DrtkError, match=r"^c: none of the 3 passages looked up there has a text: is it the right file"):
        check_readable(["1", "2", "3"], Corpus(range(9)), called="c", read=text_alone)
    check_readable(["1", "2", "3"], Corpus(range(9)), called="c", read=lambda passage: "a title")
    check_readable([], Corpus(range(9)), called="c", read=text_alone)

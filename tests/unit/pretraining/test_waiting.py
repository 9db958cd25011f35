"""The share of time that training waits for data."""

from __future__ import annotations

import pytest

from drtk.pretraining.trainer import Waiting


def test_waits_are_set_against_all_time_since_the_first_began():
    times = iter([10.0, 11.0, 14.0, 16.0, 20.0])  # waits from 10 to 11 and from 14 to 16; asked at 20
    waiting = Waiting(lambda: next(times))
    for _ in range(2):
        with waiting:
            pass
    assert waiting.share() == pytest.approx(3 / 10)


def test_a_share_since_the_last_question_forgets_what_came_before():
    times = iter([0.0, 1.0, 4.0, 4.0, 10.0, 12.0])  # waits 0 to 1, asked at 4; waits 4 to 10, asked at 12
    waiting = Waiting(lambda: next(times))
    with waiting:
        pass
    assert waiting.share_since_last() == pytest.approx(1 / 4)
    with waiting:
        pass
    assert waiting.share_since_last() == pytest.approx(6 / 8)


def test_what_never_waited_has_a_share_of_nothing():
    waiting = Waiting(iter([1.0, 2.0, 3.0]).__next__)
    assert waiting.share() == 0
    assert waiting.share_since_last() == 0

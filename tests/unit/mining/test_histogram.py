"""Histograms of the report: pictures of one size, with round numbers along both axes where they belong."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

import pytest

from drtk.mining.report import Figures, Spread
from drtk.mining.report_page import HEIGHT, WIDTH, histogram, report_page, ticks


def spread_of(values: Sequence[float]) -> Spread:
    spread = Spread()
    for at, value in enumerate(values):
        spread.add(value, str(at))
    return spread


def drawn(values: Sequence[float]) -> tuple[dict[str, tuple[float, float]], list[dict[str, float]], str]:
    """(words by their text with their places, bars, caption) of a histogram."""
    figure = ElementTree.fromstring("".join(histogram("what is counted", spread_of(values))))
    words = {text.text or "": (float(text.get("x", "")), float(text.get("y", ""))) for text in figure.iter("text")}
    bars = [{name: float(bar.get(name, "")) for name in ("x", "y", "width", "height")} for bar in figure.iter("rect")]
    return words, bars, "".join(figure.find("figcaption").itertext())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("low", "high", "least", "beyond", "expected"),
    [
        (1.5, 30.5, 1.0, False, [10, 20, 30]),
        (0.5, 3.5, 1.0, False, [1, 2, 3]),
        (0.0, 0.87, 0.0, False, [0, 0.2, 0.4, 0.6, 0.8]),
        (-17.5, 2.5, 0.0, False, [-15, -10, -5, 0]),
        (0.0, 0.073, 0.0, True, [0, 0.05, 0.1]),
        (0.0, 1.0, 0.0, True, [0, 0.5, 1]),
        (0.0, 0.0003, 0.0, False, [0, 0.0001, 0.0002, 0.0003]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, least: float, beyond: bool, expected: list[float]) -> None:
    assert ticks(low, high, 3 if beyond else 5, least=least, beyond=beyond) == pytest.approx(expected)


def test_bars_stand_above_their_numbers_and_as_high_as_their_shares() -> None:
    # ranks 1 1 1 2: shares 75% and 25%; the axis goes to 100% in steps of 50%
    words, (first, second), caption = drawn([1.0, 1.0, 1.0, 2.0])
    assert caption == "what is counted; 1 to 2, mean 1.25"
    assert {"0%", "50%", "100%", "1", "2", "share of 4 negatives"} == {*words}
    bottom, half = (words[said][1] - 4 for said in ("0%", "50%"))
    assert first["height"] == pytest.approx(1.5 * (bottom - half))
    assert second["height"] == pytest.approx(0.5 * (bottom - half))
    assert first["y"] + first["height"] == pytest.approx(bottom)
    for bar, said in ((first, "1"), (second, "2")):
        assert bar["x"] + bar["width"] / 2 == pytest.approx(words[said][0], abs=0.02)


@pytest.mark.parametrize(
    "values", [[0.5, 0.5], [0.0, 0.0], [3.0] * 9, [-8.5, 2.25, 1e-3], [*map(float, range(1, 1001))]]
)
def test_nothing_lies_outside_the_picture(values: list[float]) -> None:
    words, bars, _ = drawn(values)
    assert bars
    assert len(words) >= 5
    for x, y in [*words.values(), *((bar["x"] + bar["width"], bar["y"]) for bar in bars)]:
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


def test_all_pictures_of_a_page_are_of_one_size() -> None:
    figures = Figures(rank=spread_of([1.0, 2.0]), measures={"gap": spread_of([0.1, 0.7]), "ce": spread_of([1.0])})
    figures.negatives.add(2, "q")
    page = "\n".join(report_page(figures, title="t", questions=str, show=lambda query, passage: ("", "")))
    assert page.count(f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}"') == 2  # a single number is not drawn
    assert "figure { margin: 0; width: 28.75rem;" in page

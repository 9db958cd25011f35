"""HTML pages: text is escaped, tags are closed, and charts fit their frame."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

import pytest
from markupsafe import Markup

from drtk.runtime import pages
from drtk.runtime.tables import Cell

EVIL = '<script>alert(1)</script> & "it\'s"'


def test_text_is_escaped_everywhere_and_tags_are_closed() -> None:
    parts = [
        pages.render_heading(EVIL),
        pages.render_paragraph(EVIL, kind="dim"),
        pages.render_table([EVIL, "n"], [[Cell(EVIL), Cell(1.0, True, EVIL)]]),
        pages.render_difference_bars([0.5, -0.25, 0.0], name=EVIL),
        pages.render_figures([pages.render_histogram([1.0], [0.5, 1.5], label=EVIL, caption=EVIL)]),
        pages.render_details(
            EVIL,
            [
                pages.render_passage_item(
                    EVIL, EVIL, EVIL, f"a {pages.HIGHLIGHT_MARKS[0]}{EVIL}{pages.HIGHLIGHT_MARKS[1]} b"
                )
            ],
        ),
        pages.render_paragraph(pages.render_shaded_words([(EVIL, 2.0), (" ", 0.0)], 2.0), kind="words"),
        pages.render_bar_table([(EVIL, EVIL, 0.5)]),
    ]
    text = "\n".join(pages.render_page(EVIL, parts, subtitle=EVIL))
    assert "<script" not in text
    body = ElementTree.fromstring(text[text.index("<body>") : text.index("</html>")].replace("<br>", "<br/>"))
    assert [mark.text for mark in body.iter("mark")] == [EVIL]
    cells = ["".join(cell.itertext()) for cell in body.iter("td")]
    assert cells == [EVIL, "1.0000", EVIL, EVIL, EVIL, ""]
    assert isinstance(parts[0], Markup)


@pytest.mark.parametrize(
    ("low", "high", "least", "cover", "expected"),
    [
        (1.5, 30.5, 1.0, False, [10, 20, 30]),
        (0.5, 3.5, 1.0, False, [1, 2, 3]),
        (-17.5, 2.5, 0.0, False, [-15, -10, -5, 0]),
        (0.0, 0.073, 0.0, True, [0, 0.05, 0.1]),
        (0.0, 0.0003, 0.0, False, [0, 0.0001, 0.0002, 0.0003]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, least: float, cover: bool, expected: list[float]) -> None:
    assert pages.compute_ticks(low, high, 3 if cover else 5, min_step=least, cover_high=cover) == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("shares", "edges"), [([0.75, 0.25], [0.5, 1.5, 2.5]), ([0.1, 0.0, 0.9], [-0.25, 0.0, 0.25, 0.5])]
)
def test_histogram_bars_are_placed_above_their_values(shares: Sequence[float], edges: Sequence[float]) -> None:
    figure = ElementTree.fromstring(pages.render_histogram(shares, edges, label="share", caption="ranks"))
    places = {text.text or "": (float(text.get("x", "")), float(text.get("y", ""))) for text in figure.iter("text")}
    drawn = [[float(bar.get(name, "")) for name in ("x", "y", "width", "height")] for bar in figure.iter("rect")]
    bottom = places["0%"][1] - 4
    per_share = (bottom - (places["50%"][1] - 4)) / 0.5
    assert [height for *_, height in drawn] == pytest.approx([share * per_share for share in shares if share], abs=0.02)
    assert [y + height for _, y, _, height in drawn] == pytest.approx([bottom] * len(drawn), abs=0.02)
    if "1" in places:  # whole numbers are in the middle of their bins
        assert drawn[0][0] + drawn[0][2] / 2 == pytest.approx(places["1"][0], abs=0.02)
    width, height = pages.HISTOGRAM_SIZE
    assert all(0 <= x <= width and 0 <= y <= height for x, y in places.values())


def test_bars_of_differences_go_up_and_down_from_zero_and_have_an_axis() -> None:
    chart = ElementTree.fromstring(pages.render_difference_bars([0.4, 1e-12, -0.2], name="RR", zero=1e-9))
    up, down = list(chart.iter("rect"))
    axis = next(line for line in chart.iter("line") if line.get("class") == "axis")
    zero = float(axis.get("y1", ""))
    assert (up.get("class"), down.get("class")) == ("up", "down")
    assert float(up.get("y", "")) + float(up.get("height", "")) == pytest.approx(zero)
    assert float(down.get("y", "")) == pytest.approx(zero)
    assert float(up.get("height", "")) == pytest.approx(2 * float(down.get("height", "")), abs=0.02)
    texts = {text.text: float(text.get("y", "")) - 4 for text in chart.iter("text")}
    labels = list(texts)
    assert labels[0] == "difference in RR by query"
    assert labels[1] == "\N{MINUS SIGN}0.4"
    assert labels[-1] == "1 better, 1 equal, 1 worse of 3"
    assert texts["+0.4"] == pytest.approx(float(up.get("y", "")))
    assert texts["0"] == pytest.approx(zero)

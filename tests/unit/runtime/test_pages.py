"""HTML pages: text is escaped, tags are closed, and charts fit their frame."""

import xml.etree.ElementTree as ElementTree

import pytest
from markupsafe import Markup

from drtk.runtime import pages
from drtk.runtime.tables import Cell

EVIL = '<script>alert(1)</script> & "it\'s"'


def test_text_is_escaped_everywhere_and_tags_are_closed():
    marks = pages.HIGHLIGHT_MARKS
    parts = [
        pages.render_heading(EVIL),
        pages.render_paragraph(EVIL, kind="dim"),
        pages.render_table([EVIL, "n"], [[Cell(EVIL), Cell(1.0, True, EVIL)]]),
        pages.render_difference_bars([0.5, -0.25, 0.0], name=EVIL),
        pages.render_figures([pages.render_histogram([1.0], [0.5, 1.5], label=EVIL, caption=EVIL)]),
        pages.render_details(EVIL, [pages.render_passage_item(EVIL, EVIL, EVIL, f"a {EVIL.join(marks)} b")]),
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


def test_bars_of_differences_go_up_and_down_from_zero_and_have_an_axis():
    chart = ElementTree.fromstring(pages.render_difference_bars([0.4, 1e-12, -0.2], name="RR", zero=1e-9))
    up, down = list(chart.iter("rect"))
    axis = next(line for line in chart.iter("line") if line.get("class") == "axis")
    zero = float(axis.get("y1", ""))
    assert (up.get("class"), down.get("class")) == ("up", "down")
    assert float(up.get("y", "")) + float(up.get("height", "")) == pytest.approx(zero)
    assert float(down.get("y", "")) == pytest.approx(zero)
    assert float(up.get("height", "")) == pytest.approx(2 * float(down.get("height", "")), abs=0.02)
    texts = {text.text: float(text.get("y", "")) - 4 for text in chart.iter("text")}
    assert list(texts)[:2] == ["difference in RR by query", "\N{MINUS SIGN}0.4"]
    assert list(texts)[-1] == "1 better, 1 equal, 1 worse of 3"
    assert texts["+0.4"] == pytest.approx(float(up.get("y", "")))
    assert texts["0"] == pytest.approx(zero)

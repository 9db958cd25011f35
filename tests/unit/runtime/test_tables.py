"""Tables as text, Markdown and LaTeX: alignment and escaping."""

import pytest

from drtk.runtime.tables import Cell, Row, format_table, format_value

HEADER = ["system", "RR", "a-long-measure"]


def rows(*notes: str) -> list[Row]:
    """Return a row per note, which follows the value in the second column; first and last row have a best value."""
    return [
        [Cell(f"s{at}"), Cell(0.5 + at / 10, at == 0, note), Cell(0.25, at == len(notes) - 1)]
        for at, note in enumerate(notes)
    ]


def table(found: list[Row], format: str = "table") -> list[str]:
    return list(format_table(HEADER, found, format, digits=2))


@pytest.mark.parametrize("notes", [("", ""), ("†", ""), ("", "†"), (" ± 0.10 (3)†", ""), ("", " ± 0.10 (3)", "†")])
def test_digits_and_headings_are_aligned_with_and_without_marks(notes):
    head, *lines = table(rows(*notes))
    assert {line.index(f"0.{5 + at}0") + 4 for at, line in enumerate(lines)} == {head.index("RR") + 2}
    assert {line.rindex("0.25") + 4 for line in lines} == {len(head)}


def test_marks_have_a_column_of_their_own():
    # values end at column 12, marks begin there: a dagger, a dagger and a star, a star
    assert table(rows("†", "", "†")) == [
        "system    RR    a-long-measure",
        "s0      0.50†*            0.25",
        "s1      0.60              0.25",
        "s2      0.70†             0.25*",
    ]


def test_latex_uses_booktabs_rules_and_siunitx_columns():
    assert table(rows("†", " ± 0.10 (3)"), "latex") == [
        "% \\usepackage{booktabs, siunitx} \\sisetup{detect-weight, retain-explicit-plus}",
        "\\begin{tabular}{l S[table-format=1.2, table-space-text-post={~$\\pm$ 0.10 (3)}] S[table-format=1.2]}",
        "\\toprule",
        "system & {RR} & {a-long-measure} \\\\",
        "\\midrule",
        "s0 & \\bfseries 0.50{$^\\dagger$} & 0.25 \\\\",
        "s1 & 0.60{~$\\pm$ 0.10 (3)} & \\bfseries 0.25 \\\\",
        "\\bottomrule",
        "\\end{tabular}",
    ]


def test_latex_has_minus_signs_and_texts_of_number_columns_in_braces():
    found: list[Row] = [[Cell("a - b"), Cell("-0.5 … +1.25"), Cell("-12.5")], [Cell("R@1"), Cell("-"), Cell("<.01")]]
    lines = table(found, "latex")
    assert lines[1] == "\\begin{tabular}{l l S[table-format=+2.1]}"
    assert lines[5:7] == ["a $-$ b & $-0.5$ \\dots{} $+1.25$ & -12.5 \\\\", "R@1 & - & {$<$.01} \\\\"]


def test_markdown_left_aligns_marked_values_of_equal_length():
    assert table(rows("†", ""), "markdown")[1:] == [
        "| :--- | :--- | ---: |",
        "| s0 | **0.50†** | 0.25 |",
        "| s1 | 0.60 | **0.25** |",
    ]
    uneven = [[Cell("s0"), Cell(10.5, note="†"), Cell(1)], [Cell("s1"), Cell(9.5), Cell(2)]]
    assert table(uneven, "markdown")[1] == "| :--- | ---: | ---: |"


def test_a_rounded_zero_has_no_sign():
    assert format_value(-0.001, 2) == "0.00"
    assert [format_value(value, 2) for value in (3, None, "x", -1.005)] == ["3", "", "x", "-1.00"]

"""Splitting of documents at their headings, and pages of passages."""

import re
from typing import Any

import pytest

from drtk.records import Passage
from drtk.text.sections import Section, find_pages, get_headings, split_sections

TEXT = "# Doc\n\nIntro one.\n\n## A\n\na1 a2\n\n### B\n\nb1 b2 b3\n\n### C\n\n## D\n\nd1 d2\n"


def make_document(text: str = TEXT, title: str = "Doc") -> Passage:
    headings = [
        {"level": len(match[1]), "title": match[2], "begin": match.start(), "end": match.end()}
        for match in re.finditer(r"^(#+) (.+)\n", text, re.MULTILINE)
    ]
    return Passage("d", text, title, {"headings": headings})


def count_words(texts: list[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def split(document: Passage, cap: int) -> list[tuple[tuple[str, ...], str]]:
    """Return (headings, text with single spaces) of each section."""
    headings = get_headings(document)
    assert headings is not None
    sections = split_sections(document, headings, count_words, cap)
    return [(part.headings, " ".join(document.text[part.begin : part.end].split())) for part in sections]


def test_a_section_is_kept_with_its_subsections_if_they_fit() -> None:
    document = make_document()
    whole = "Intro one. ## A a1 a2 ### B b1 b2 b3 ### C ## D d1 d2"  # 17 words, with the marks of headings
    assert split(document, 17) == [((), whole)]
    assert split(document, 16) == [
        ((), "Intro one."),
        (("A",), "a1 a2 ### B b1 b2 b3 ### C"),
        (("D",), "d1 d2"),
    ]
    assert split(document, 8) == [
        ((), "Intro one."),
        (("A",), "a1 a2"),
        (("A", "B"), "b1 b2 b3"),
        (("A",), "### C"),
        (("D",), "d1 d2"),
    ]
    assert split(document, 1) == split(document, 8)  # long texts are split later
    assert split(make_document(title="Other"), 17) == [(("Doc",), whole)]
    assert split(make_document("No headings."), 1) == [((), "No headings.")]
    assert split(make_document(""), 1) == []
    assert split(make_document("# Doc\n"), 1) == [((), "# Doc")]
    functions = "# Doc\n\n## f\n\n## g\n\n## h\n\nhelp\n\n## i\n"
    assert split(make_document(functions), 2) == [((), "## f ## g"), (("h",), "help"), ((), "## i")]
    assert split(make_document("### Deep\n\nx\n\n# Top\n\ny\n"), 2) == [(("Deep",), "x"), (("Top",), "y")]


@pytest.mark.parametrize(
    "headings",
    [
        None,
        "text",
        ["A"],
        [{"level": 1, "title": "A", "begin": 0}],
        [{"level": 1, "title": "A", "begin": 0, "end": 99}],
        [{"level": 1, "title": "A", "begin": 3, "end": 4}, {"level": 1, "title": "B", "begin": 0, "end": 1}],
    ],
)
def test_other_metadata_is_not_taken_for_headings(headings: Any) -> None:
    assert get_headings(Passage("d", "Text.", "", {"headings": headings})) is None
    assert get_headings(Passage("d", "Text.")) is None


def test_pages_are_found_by_characters_other_than_white_space() -> None:
    pages = ["one  two", "three", "four"]
    text = "\n\n".join(pages)
    begins = [text.index(page) for page in pages]
    document = Passage("d", text, "", {"pages": begins})
    plain = " ".join(text.split())
    words = [plain.index(word) for word in ("one", "two", "three", "four")]
    assert find_pages(document, Section(0, len(text)), plain, words) == [1, 1, 2, 3]
    start = text.index("two")
    rest = " ".join(text[start:].split())
    words = [0, rest.index("three"), rest.index("four")]
    assert find_pages(document, Section(start, len(text)), rest, words) == [1, 2, 3]
    assert find_pages(Passage("d", text), Section(0, 3), "one", [0]) is None

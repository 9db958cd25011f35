"""Split documents with headings (drtk import) into sections, and find the pages of passages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from drtk.records import Passage

SEPARATOR = " > "  # between the headings of a title
_HEADING_FIELDS = {"level": int, "title": str, "begin": int, "end": int}


@dataclass(frozen=True)
class Section:
    """A part of a document's text, and the headings above it, outermost first."""

    begin: int
    end: int
    headings: tuple[str, ...] = ()


def get_headings(document: Passage) -> list[dict[str, Any]] | None:
    """Return the list of headings in the metadata of an imported document, perhaps empty.

    None if there is no such list, or if it is malformed or does not fit the text.
    """
    headings = (document.metadata or {}).get("headings")
    if not isinstance(headings, list):
        return None
    end = 0
    for heading in headings:
        if not isinstance(heading, dict) or any(
            type(heading.get(name)) is not kind for name, kind in _HEADING_FIELDS.items()
        ):
            return None
        if not end <= heading["begin"] <= heading["end"] <= len(document.text):
            return None
        end = heading["end"]
    return headings


def split_sections(
    document: Passage, headings: Sequence[dict[str, Any]], count_units: Callable[[list[str]], Sequence[int]], cap: int
) -> list[Section]:
    """Split a document at its headings into sections, in order.

    count_units: returns the length of each text, in words or word pieces; cap: a number of these units
    A section with all its subsections is kept together if it has at most `cap` units, unless it only contains a single
    subsection. Otherwise the text before its first subsection is a section of any length, and each subsection is split
    in the same way. The heading of a section is not part of its text, unless there is no other text; successive headings
    without text are one section. A top heading that repeats the title is omitted.
    """
    text = document.text
    text_begins = [0, *(heading["end"] for heading in headings)]  # of the texts below the headings
    text_ends = [*(heading["begin"] for heading in headings), len(text)]
    levels = [0, *(heading["level"] for heading in headings)]
    pieces = [text[begin:end] for begin, end in zip(text_begins, text_ends, strict=True)]
    lines = [text[heading["begin"] : heading["end"]] for heading in headings]
    counts = count_units(pieces + lines)
    totals = list(
        accumulate((counts[i] + (counts[len(pieces) + i - 1] if i else 0) for i in range(len(pieces))), initial=0)
    )
    sections: list[Section] = []
    alone: Section | None = None  # the last section of headings without text
    # (index of a heading, 0 for the document; index after its subsections; titles of the headings above it, and with its own)
    pending: list[tuple[int, int, tuple[str, ...], tuple[str, ...]]] = [(0, len(pieces), (), ())]
    while pending:
        index, stop, above, path = pending.pop()
        children = _find_children(levels, index, stop)
        spans = list(zip(children, [*children[1:], stop], strict=False))
        is_empty = not pieces[index].strip()
        fits = counts[index] + totals[stop] - totals[index + 1] <= cap
        begin, end = text_begins[index], text_ends[stop - 1]
        if (fits and not (is_empty and len(children) == 1)) or not children or not text[begin:end].strip():
            if text[begin:end].strip():
                sections.append(Section(begin, end, path))
            elif index and lines[index - 1].strip():
                begin = headings[index - 1]["begin"]
                if alone is not None and alone is sections[-1] and alone.headings == above:
                    begin = sections.pop().begin
                alone = Section(begin, text_begins[index], above)
                sections.append(alone)
            continue
        if not is_empty:
            sections.append(Section(text_begins[index], text_ends[index], path))
        for start, end in reversed(spans):
            title = headings[start - 1]["title"]
            is_title = not path and title == document.title
            pending.append((start, end, path, path if is_title else (*path, title)))
    return sections


def _find_children(levels: Sequence[int], index: int, stop: int) -> list[int]:
    """Return the indices of the headings directly below heading `index`; its last subsection ends before heading `stop`."""
    children: list[int] = []
    for other in range(index + 1, stop):
        if not children or levels[other] <= levels[children[-1]]:
            children.append(other)
    return children


def find_pages(document: Passage, section: Section, text: str, begins: Sequence[int]) -> list[int] | None:
    """Return the page number, from 1, of each position in a section; None if the document has no pages.

    text: the text of the section, whose white space may differ; begins: positions in this text, in ascending order
    """
    pages = (document.metadata or {}).get("pages")
    if not isinstance(pages, list) or not pages or any(type(page) is not int for page in pages):
        return None
    first = bisect_right(pages, section.begin)
    inner = [page for page in pages[first:] if page < section.end]
    starts = list(accumulate(_count_characters(document.text[i:j]) for i, j in pairwise([section.begin, *inner])))
    positions = accumulate(_count_characters(text[i:j]) for i, j in pairwise([0, *begins]))
    return [first + bisect_right(starts, position) for position in positions]


def _count_characters(text: str) -> int:
    """Return the number of characters, not counting white space, which chunking changes."""
    return sum(map(len, text.split()))

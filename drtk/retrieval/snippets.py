"""Show the passages that a search returned."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache

from drtk.indexing.base import Ranking
from drtk.records import Passage
from drtk.runtime.progress import printable
from drtk.text.words import stem_with, stop_words

SNIPPET_WORDS = 50
LEAD_WORDS = 12  # words before the first match, where its sentence does not begin nearer
_WORD = re.compile(r"\w+")

Mark = Callable[[str], str]


def matched_stems(question: str) -> frozenset[str]:
    """Stems of the question's words, those that carry meaning where it has any."""
    words = [word.lower() for word in _WORD.findall(question)]
    return frozenset(map(_stemmer(), [word for word in words if word not in stop_words()] or words))


def snippet(text: str, stems: frozenset[str], *, words: int = SNIPPET_WORDS, mark: Mark = str) -> str:
    """About `words` words of `text` on one line, where the most different `stems` stand together.

    Matching words go through `mark`; an ellipsis stands where text is left out. Without a match: the beginning.
    """
    spans = [(match.start(), match.end()) for match in _WORD.finditer(text)]
    found = {place: _stemmer()(text[start:end].lower()) for place, (start, end) in enumerate(spans)}
    hits = {place: stem for place, stem in found.items() if stem in stems}
    first = _beginning(text, spans, _densest(hits, words)) if len(spans) > words else 0
    last = min(first + words, len(spans))
    begin = spans[first][0] if first else 0
    end = spans[last - 1][1] if last < len(spans) else len(text)
    pieces, at = [], begin
    for place in hits:
        if first <= place < last:
            start, stop = spans[place]
            pieces += [text[at:start], mark(text[start:stop])]
            at = stop
    line = " ".join("".join([*pieces, text[at:end]]).split())
    return ("… " if first else "") + line + (" …" if last < len(spans) else "")


def _densest(hits: Mapping[int, str], words: int) -> int:
    """The hit (word -> stem) from which a window holds the most different stems, then the most hits; the earliest of equals."""
    best, chosen = (0, 0), 0
    reach = words - LEAD_WORDS
    for place in hits:
        inside = [hits[other] for other in range(place, place + reach) if other in hits]
        if (len(set(inside)), len(inside)) > best:
            best, chosen = (len(set(inside)), len(inside)), place
    return chosen


def _beginning(text: str, spans: Sequence[tuple[int, int]], hit: int) -> int:
    """The word to begin with: the start of the hit's sentence where it is near, otherwise a few words before the hit."""
    earliest = max(0, hit - LEAD_WORDS)
    for place in range(hit, earliest, -1):
        if re.search(r"[.!?\n]\s*\W*$", text[spans[place - 1][1] : spans[place][0]]):
            return place
    return earliest


@cache
def _stemmer() -> Callable[[str], str]:
    return stem_with("porter")


def shown(
    question: str, ranking: Ranking, passages: Iterable[Passage | None], *, width: int, mark: Mark = str
) -> Iterator[str]:
    """Lines for a terminal of `width` columns: rank, score and title; the id; the snippet. None: a text not at hand."""
    stems = matched_stems(question)
    for rank, ((id, score), passage) in enumerate(zip(ranking, passages, strict=True), start=1):
        id = printable(id)
        head = f"{rank:>2}  {score:<z8.4f}  "
        indent = " " * 4
        if passage is None:
            yield head + id
            continue
        title = printable(" ".join(passage.title.split()))
        yield head + (textwrap.shorten(title, max(20, width - len(head)), placeholder=" …") if title else id)
        if title:
            yield indent + id
        yield from _wrapped(snippet(printable(passage.text), stems, mark="\0{}\1".format), width, indent, mark)
        yield ""


def _wrapped(line: str, width: int, indent: str, mark: Mark) -> Iterator[str]:
    """The line in several; marked words (between NUL and SOH, each one word) count as long as they look."""
    at, row = 0, ""
    for word in line.split():
        length = len(word.replace("\0", "").replace("\1", ""))
        if row and at + 1 + length > width - len(indent):
            yield indent + row
            at, row = 0, ""
        row += (" " if row else "") + re.sub("\0([^\1]*)\1", lambda match: mark(match[1]), word)
        at += length + (1 if at else 0)
    if row:
        yield indent + row

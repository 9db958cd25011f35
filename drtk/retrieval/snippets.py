"""Format the passages of a ranking for the terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache

from drtk.data.corpus_store import CorpusStore
from drtk.indexing.base import Ranking
from drtk.records import Passage
from drtk.runtime.progress import escape_control_characters
from drtk.text.words import load_stop_words, make_stemmer

SNIPPET_WORDS = 50
LEAD_WORDS = 12  # at most so many words before the first match
_WORD = re.compile(r"\w+")
_INDENT = " " * 4

Highlight = Callable[[str], str]


def stem_query_words(query: str) -> frozenset[str]:
    """Return the stems of a query's words without stop words; of all words if there are only stop words."""
    words = [word.lower() for word in _WORD.findall(query)]
    return frozenset(map(_load_stemmer(), [word for word in words if word not in load_stop_words()] or words))


def extract_snippet(text: str, stems: frozenset[str], *, words: int = SNIPPET_WORDS, mark: Highlight = str) -> str:
    """Return the `words` consecutive words of `text` with the most different `stems`, on one line.

    mark: applied to matching words. An ellipsis marks text left out. Without a match, the text's beginning is returned.
    """
    spans = [(match.start(), match.end()) for match in _WORD.finditer(text)]
    word_stems = [_load_stemmer()(text[start:end].lower()) for start, end in spans]
    hits = {place: stem for place, stem in enumerate(word_stems) if stem in stems}
    first = _find_snippet_start(text, spans, _find_densest_match(hits, words)) if len(spans) > words else 0
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


def _find_densest_match(hits: Mapping[int, str], words: int) -> int:
    """Return the matching word whose following window has the most different stems, then the most matches."""
    best, start = (0, 0), 0
    for place in hits:
        inside = [hits[other] for other in range(place, place + words - LEAD_WORDS) if other in hits]
        if (len(set(inside)), len(inside)) > best:
            best, start = (len(set(inside)), len(inside)), place
    return start


def _find_snippet_start(text: str, spans: Sequence[tuple[int, int]], hit: int) -> int:
    """Return the first word of the hit's sentence if it is at most LEAD_WORDS before the hit, else the word so far before."""
    earliest = max(0, hit - LEAD_WORDS)
    for place in range(hit, earliest, -1):
        if re.search(r"[.!?\n]\s*\W*$", text[spans[place - 1][1] : spans[place][0]]):
            return place
    return earliest


@cache
def _load_stemmer() -> Callable[[str], str]:
    return make_stemmer("porter")


class PassageSnippets:
    """Return (title, snippet) of a passage for a question; both are empty if the passage is unknown.

    corpus: None if no passage is known. mark: applied to matching words
    """

    def __init__(self, corpus: str | None, *, words: int, mark: Highlight = str) -> None:
        self._store = None if corpus is None else CorpusStore.open(corpus)
        self._words, self._mark = words, mark

    def __call__(self, question: str, id: str | None) -> tuple[str, str]:
        passage = None if self._store is None or id is None else self._store.get(id)
        if passage is None:
            return "", ""
        return passage.title, extract_snippet(
            passage.text, stem_query_words(question), words=self._words, mark=self._mark
        )


def format_passages(
    query: str, ranking: Ranking, passages: Iterable[Passage | None], *, width: int, highlight: Highlight = str
) -> Iterator[str]:
    """Yield lines of at most `width` columns: rank, score and title; id; snippet. A passage may be None: no text."""
    stems = stem_query_words(query)
    for rank, ((id, score), passage) in enumerate(zip(ranking, passages, strict=True), start=1):
        id = escape_control_characters(id)
        head = f"{rank:>2}  {score:<z8.4f}  "
        if passage is None:
            yield head + id
            continue
        title = escape_control_characters(" ".join(passage.title.split()))
        yield head + (textwrap.shorten(title, max(20, width - len(head)), placeholder=" …") if title else id)
        if title:
            yield _INDENT + id
        yield from _wrap(
            extract_snippet(escape_control_characters(passage.text), stems, mark="\0{}\1".format), width, highlight
        )
        yield ""


def _wrap(line: str, width: int, highlight: Highlight) -> Iterator[str]:
    """Wrap a line and highlight the words between NUL and SOH; the marks do not count as columns."""
    at, row = 0, ""
    for word in line.split():
        length = len(word.replace("\0", "").replace("\1", ""))
        if row and at + 1 + length > width - len(_INDENT):
            yield _INDENT + row
            at, row = 0, ""
        row += (" " if row else "") + re.sub("\0([^\1]*)\1", lambda match: highlight(match[1]), word)
        at += length + (1 if at else 0)
    if row:
        yield _INDENT + row

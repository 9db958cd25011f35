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
MAX_LEAD_WORDS = 12  # before the first match
_WORD = re.compile(r"\w+")
_INDENT = " " * 4

Highlight = Callable[[str], str]


def stem_query_words(query: str) -> frozenset[str]:
    """Return the stems of the query words, without stop words unless all words are stop words."""
    words = [word.lower() for word in _WORD.findall(query)]
    return frozenset(map(_load_stemmer(), [word for word in words if word not in load_stop_words()] or words))


def extract_snippet(text: str, stems: frozenset[str], *, words: int = SNIPPET_WORDS, mark: Highlight = str) -> str:
    """Return a span of at most `words` words of a text, on one line, with ellipses where truncated.

    The span starts at most MAX_LEAD_WORDS words before the match followed by the most distinct `stems`; without a
    match, at the beginning of the text.
    stems: stems of the query words
    mark: function that is applied to matching words
    """
    spans = [(match.start(), match.end()) for match in _WORD.finditer(text)]
    word_stems = [_load_stemmer()(text[start:end].lower()) for start, end in spans]
    matches = {index: stem for index, stem in enumerate(word_stems) if stem in stems}  # by word index
    first = _find_snippet_start(text, spans, _find_densest_match(matches, words)) if len(spans) > words else 0
    last = min(first + words, len(spans))
    position = spans[first][0] if first else 0
    end = spans[last - 1][1] if last < len(spans) else len(text)
    pieces = []
    for number in matches:
        if first <= number < last:
            start, stop = spans[number]
            pieces += [text[position:start], mark(text[start:stop])]
            position = stop
    line = " ".join("".join([*pieces, text[position:end]]).split())
    return ("… " if first else "") + line + (" …" if last < len(spans) else "")


def _find_densest_match(matches: Mapping[int, str], words: int) -> int:
    """Return the word index of the match at the start of the window with the most distinct stems, then the most matches.

    Returns 0 without a match.
    matches: word index -> stem    words: length of the snippet; the window is MAX_LEAD_WORDS shorter
    """
    best, start = (0, 0), 0
    for number in matches:
        window = [matches[other] for other in range(number, number + words - MAX_LEAD_WORDS) if other in matches]
        if (len(set(window)), len(window)) > best:
            best, start = (len(set(window)), len(window)), number
    return start


def _find_snippet_start(text: str, spans: Sequence[tuple[int, int]], match: int) -> int:
    """Return the index of the first word of the match's sentence, at most MAX_LEAD_WORDS before the match."""
    earliest = max(0, match - MAX_LEAD_WORDS)
    for number in range(match, earliest, -1):
        if re.search(r"[.!?\n]\s*\W*$", text[spans[number - 1][1] : spans[number][0]]):
            return number
    return earliest


@cache
def _load_stemmer() -> Callable[[str], str]:
    return make_stemmer("porter")


def format_place(passage: Passage) -> str:
    """Return the file, and the page if known, of an imported passage, such as "guide.pdf, page 3"; else ""."""
    metadata = passage.metadata or {}
    path, page = metadata.get("path"), metadata.get("page")
    if not isinstance(path, str):
        return ""
    return f"{path}, page {page}" if type(page) is int else path


class PassageSnippets:
    """Function from a question and a passage id to (title, snippet); ("", "") for an unknown passage.

    For the id of a split document, its first passage is used.

    corpus: file of the passages; None if there is no corpus
    words: maximum number of words of a snippet
    mark: function that is applied to matching words
    """

    def __init__(self, corpus: str | None, *, words: int, mark: Highlight = str) -> None:
        self._store = None if corpus is None else CorpusStore.open(corpus)
        self._words, self._mark = words, mark

    def __call__(self, question: str, id: str | None) -> tuple[str, str]:
        if self._store is None or id is None or (passage := self._store.get(id) or self._store.get(f"{id}#0")) is None:
            return "", ""
        return passage.title, extract_snippet(
            passage.text, stem_query_words(question), words=self._words, mark=self._mark
        )


def format_passages(
    query: str, ranking: Ranking, passages: Iterable[Passage | None], *, width: int, highlight: Highlight = str
) -> Iterator[str]:
    """Yield the lines of a ranking: rank, score and title, then id, then file and page, then snippet.

    width: number of columns to which titles and snippets are wrapped
    passages: passages in ranking order; for None, only rank, score and id are printed
    highlight: function that is applied to matching words
    """
    stems = stem_query_words(query)
    for rank, ((id, score), passage) in enumerate(zip(ranking, passages, strict=True), start=1):
        id = escape_control_characters(id)
        head = f"{rank:>2}  {score:<z8.4f}  "
        if passage is None:
            yield head + id
            continue
        title = escape_control_characters(" ".join(passage.title.split()))
        place = escape_control_characters(format_place(passage))
        if title:
            indent = " " * len(head)
            yield from textwrap.wrap(title, max(len(head) + 20, width), initial_indent=head, subsequent_indent=indent)
            yield _INDENT + id
        else:
            yield head + id
        if place:
            yield _INDENT + place
        yield from _wrap_line(
            extract_snippet(escape_control_characters(passage.text), stems, mark="\0{}\1".format), width, highlight
        )
        yield ""


def _wrap_line(line: str, width: int, highlight: Highlight) -> Iterator[str]:
    """Wrap a line to `width` columns, and highlight the words between NUL and SOH characters, which have no width."""
    column, row = 0, ""
    for word in line.split():
        length = len(word.replace("\0", "").replace("\1", ""))
        if row and column + 1 + length > width - len(_INDENT):
            yield _INDENT + row
            column, row = 0, ""
        row += (" " if row else "") + re.sub("\0([^\1]*)\1", lambda match: highlight(match[1]), word)
        column += length + (1 if column else 0)
    if row:
        yield _INDENT + row

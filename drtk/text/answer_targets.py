"""What a GAR generator shall write for a question: an answer, the sentence that holds one, or titles (methods, section 7.2)."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from drtk.records import Passage
from drtk.text.answers import Contains
from drtk.text.sentences import plain_sentences


def initial_capitals(answer: str) -> str:
    """An answer in capitals alone with each word's first letter as a capital; any other answer as it is.

    >>> initial_capitals("DAVID BECKHAM"), initial_capitals("the BBC")
    ('David Beckham', 'the BBC')
    """
    return string.capwords(answer) if answer.isupper() else answer


def answer_target(answers: Sequence[str], *, case: Literal["kept", "initial"]) -> str | None:
    """The first answer that is not blank, on one line; None where there is none.

    case: initial: one in capitals alone (TriviaQA) with initial capitals
    """
    found = next((text for answer in answers if (text := " ".join(answer.split()))), None)
    return initial_capitals(found) if found and case == "initial" else found


def sentence_target(passages: Iterable[Passage], contains: Contains) -> str | None:
    """The sentence with an answer, of the first passage whose text has one; None where no passage has.

    An answer that goes over the end of a sentence is in the fewest sentences that hold it, the first ones of equals.
    """
    passage = next((passage for passage in passages if contains(passage.text)), None)
    return None if passage is None else _around_answer(passage.text, contains)


def _around_answer(text: str, contains: Contains) -> str:
    sentences = plain_sentences(text)
    for size in range(1, len(sentences)):
        for begin in range(len(sentences) - size + 1):
            stretch = " ".join(sentences[begin : begin + size])
            if contains(stretch):
                return stretch
    return " ".join(text.split())


def title_target(
    passages: Iterable[Passage],
    contains: Contains,
    *,
    mode: Literal["all", "first"],
    separator: str,
    match_title: bool = False,
) -> str | None:
    """Titles of answer-bearing passages in their order, each once, joined; or the first alone. None where there is none.

    match_title: an answer may stand in the title (GAR's scripts), and not in the text alone (methods, section 8.5)
    """
    titles = dict.fromkeys(_titles_with_answer(passages, contains, match_title=match_title))
    if mode == "first":
        return next(iter(titles), None)
    return separator.join(titles) or None


def _titles_with_answer(passages: Iterable[Passage], contains: Contains, *, match_title: bool) -> Iterator[str]:
    for passage in passages:
        title = " ".join(passage.title.split())
        if title and contains(f"{title} {passage.text}" if match_title else passage.text):
            yield title

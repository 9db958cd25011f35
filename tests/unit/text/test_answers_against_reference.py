"""Answers in texts, exact match, targets of generators: against loops written from the description of the methods alone."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drtk.query_expansion.train_generator import answer_target, initial_capitals, sentence_target, title_target
from drtk.records import Passage
from drtk.text.answers import PatternMatch, TokenMatch, answer_tokens, exact_match, normalize_answer
from drtk.text.expanded_text import expanded_query, plain_query
from drtk.text.sentences import split_plain_sentences
from tests.reference import answers as slow
from tests.reference import queries
from tests.reference.queries import Found

# Characters that Python's tables know: the regex library's are of a later Unicode.
ANY = st.text(st.characters(exclude_categories=["Cs", "Cn", "Co"]), max_size=12)
SPELLINGS = """a A The an U.S. 1,000 Beyonc\u00e9 Beyonce\u0301 Beyonce O'Brien O\u2019Brien \u1e9e \u03a3\u03a3 \u03c3\u03c2 \u0130
\u65e5\u672c \u65e5 \U0001d7d8 \ufb01 _ \u2014 ( \u200b \ufffd"""
WORDS = st.sampled_from(SPELLINGS.split())
TEXT = st.lists(st.tuples(WORDS | ANY, st.sampled_from([" ", "", "\u00a0", "\t", "-", "'"])), max_size=8).map(
    lambda parts: "".join(word + glue for word, glue in parts)
)


def spelled(text: str, how: int) -> str:
    """The text in another case or composition."""
    changes: list[Callable[[str], str]] = [str, str.upper, str.lower, str.title]
    return unicodedata.normalize("NFC" if how % 2 else "NFD", changes[how // 2](text))


@settings(deadline=None)
@given(text=TEXT)
def test_tokens_are_those_of_a_walk_over_the_characters(text: str) -> None:
    assert answer_tokens(text) == slow.tokens(text)


@settings(deadline=None, max_examples=150)
@given(
    text=TEXT,
    others=st.lists(TEXT, max_size=2),
    cut=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    how=st.integers(0, 7),
)
@example(text="\u039f\u03a3'\u0391", others=["\u03bf\u03c2"], cut=(0, 0), how=0)
def test_an_answer_is_found_where_the_reference_finds_it(
    text: str, others: list[str], cut: tuple[int, int], how: int
) -> None:
    answers = [spelled(text[cut[0] : cut[0] + cut[1]], how), *others]
    wanted = any(slow.tokens(answer) and slow.stands_in(answer, text) for answer in answers)
    assert TokenMatch(answers)(text) is wanted
    if all(slow.tokens(answer) for answer in answers if answer.strip()):
        assert slow.has_answer(answers, text) is wanted


@pytest.mark.filterwarnings("ignore:Possible nested set")
@settings(deadline=None)
@given(
    pattern=st.text(st.sampled_from("ab\u00e9e\u0301A.*+?[]()|^$\\d1 \n"), max_size=8),
    text=st.text(st.sampled_from("ab\u00e9e\u0301AB1 \n."), max_size=20),
)
@example(pattern=" ", text="to be")
def test_a_pattern_is_found_where_the_reference_finds_it(pattern: str, text: str) -> None:
    assert PatternMatch([pattern])(text) is slow.has_answer([pattern], text, regex=True)


@settings(deadline=None, max_examples=150)
@given(prediction=TEXT, golds=st.lists(TEXT, min_size=1, max_size=3), how=st.integers(0, 7), taken=st.booleans())
@example(prediction="\u2018the\u2019 cat", golds=["\u2018 \u2019 cat"], how=0, taken=False)
@example(prediction="the-re", golds=["there"], how=0, taken=False)
def test_exact_match_is_that_of_the_reference(prediction: str, golds: list[str], how: int, taken: bool) -> None:
    golds = [*golds, spelled(prediction, how)] if taken else golds
    assert normalize_answer(prediction) == slow.normal(prediction)
    assert exact_match(prediction, golds) is bool(slow.exact_match(prediction, golds))


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["DAVID", "Beckham", "VIII", "O'BRIEN", "U.S.", "1984", "\u00c9MILE", "the", "-", "ROCK-N-ROLL"]
        ),
        max_size=5,
    )
)
def test_capitals_of_an_answer_are_those_of_the_reference(words: list[str]) -> None:
    answer = " ".join(words)
    assert initial_capitals(answer) == queries.initial_capitals(answer)
    if answer:
        assert answer_target([answer], case="initial") == queries.initial_capitals(answer)
        assert answer_target([answer], case="kept") == answer


@given(st.text("ab ?", max_size=8), st.text("xy ", max_size=5))
def test_a_query_is_that_of_the_reference(question: str, expansion: str) -> None:
    # blanks mean nothing to who reads a query
    assert plain_query(question).split() == queries.plain(question).split()
    assert expanded_query(question, expansion).split() == queries.expanded(question, expansion).split()


def test_a_query_of_words_is_that_of_the_reference_to_the_character() -> None:
    for question in ("who wrote hamlet", " who wrote hamlet?", "who wrote hamlet?\n", "who? where??"):
        assert plain_query(question) == queries.plain(question)
        assert expanded_query(question, "a play") == queries.expanded(question, "a play")


def hits(draw: random.Random, answers: list[str]) -> list[Passage]:
    """Up to eight passages of up to three sentences, some of them with an answer, some with the title of another."""
    found = []
    for number in range(draw.randint(0, 8)):
        sentences = []
        for _ in range(draw.randint(1, 3)):
            words = draw.choices(["river", "Lake", "stone", *answers, "bridge", "town", "north"], k=draw.randint(1, 5))
            sentences.append(" ".join(["Here", *words]) + ".")
        found.append(
            Passage(f"d{number}", " ".join(sentences), draw.choice(["Nile", "Lake Victoria", "Speke", "Ruvu"]))
        )
    return found


@pytest.mark.parametrize("seed", range(60))
def test_what_a_generator_learns_to_write_is_what_the_reference_says(seed: int) -> None:
    draw = random.Random(seed)
    answers = draw.choice([["Ripon Falls"], ["speke", "1858"], ["Beyonc\u00e9"], ["never said"]])
    passages = hits(draw, [answer.upper() for answer in answers if answer != "never said"])
    found = [Found(passage.id, passage.text, passage.title) for passage in passages]
    contains = TokenMatch(answers)
    assert sentence_target(passages, contains) == queries.sentence_target(found, answers, split=split_plain_sentences)
    for mode in ("all", "first"):
        titles = queries.title_targets(found, answers, every=mode == "all")
        assert title_target(passages, contains, mode=mode, separator=" | ") == (" | ".join(titles) or None)  # type: ignore[arg-type]

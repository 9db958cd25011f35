"""DPR's answer matching, and SQuAD's exact match and F1, compared with a reference."""

import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drtk.text.answers import (
    PatternMatcher,
    TokenMatcher,
    compute_token_f1,
    is_exact_match,
    normalize_answer,
    tokenize_for_matching,
)
from tests.reference import answers as reference

BEYONCE = "Beyonc\u00e9"
DPR_TABLE = [
    ("18", "Released in 2018.", False),
    ("May 18, 2018", "It was shown in the United States on May 18, 2018, having opened abroad", True),
    ("U.S.", "moved to the U.S. in 1990", True),
    ("US", "moved to the U.S. in 1990", False),
    ("Beyonce", f"{BEYONCE} Knowles", False),
    (unicodedata.normalize("NFD", BEYONCE), f"{BEYONCE} Knowles", True),
    ("the Beatles", "The BEATLES split", True),
    ("rock-n-roll", "rock n roll", False),
    ("O'Brien", "Conan O\u2019Brien", False),
    ("1000", "over 1,000 people", False),
    ("\u039f\u03a3", "\u03bf\u03c3\u03b1", False),
    ("to be", "what is to or not to be", True),  # after a first token that leads nowhere
]


def test_token_match():
    for answer, text, contained in DPR_TABLE:
        assert TokenMatcher([answer])(text) is contained, answer
    assert not TokenMatcher(["", " \u200b"])  # DPR's code lets an empty answer match everything
    assert not TokenMatcher([""])("anything")
    assert TokenMatcher(["", "thing"])("any thing")
    assert TokenMatcher(["nowhere", "Paris"])("It is paris.")


@pytest.mark.filterwarnings("error")
def test_pattern_match():
    assert PatternMatcher([r"19\d\d"])("in 1984, and")
    assert PatternMatcher(["PARIS|rome"])("to Rome")
    assert PatternMatcher(["^two$"])("one\ntwo\nthree")
    assert not PatternMatcher(["^two$"])("one two three")
    for form in ("NFC", "NFD"):
        assert PatternMatcher([BEYONCE])(unicodedata.normalize(form, BEYONCE))
    assert not PatternMatcher([" "])("to be")
    assert not PatternMatcher(["(unclosed"])("(unclosed")
    assert PatternMatcher(["(unclosed", "fine"]).invalid == ["(unclosed"]
    assert PatternMatcher(["[[]x"])("a [x")  # without a warning


def test_exact_match_and_f1():
    for prediction, answer, equal in (
        ("U.S.", "US", True),
        ("1,000", "1000", True),
        ("rock-n-roll", "rocknroll", True),
        ("rock n roll", "rock-n-roll", False),
        (BEYONCE, "Beyonce", False),
        ("the", "a", True),  # both are empty without articles
        ("The  Eiffel Tower!", "eiffel tower", True),
        ("\u2018the\u2019 cat", "\u2018 \u2019 cat", True),  # only ASCII punctuation is removed
        ("the-re", "there", True),
    ):
        assert is_exact_match(prediction, ["something else", answer]) is equal, prediction
    # Punctuation before articles: "A.N." becomes "an", which is an article.
    assert normalize_answer("A.N. answer") == "answer"
    assert normalize_answer("the-the") == "thethe"
    # "tower paris" and "eiffel tower in paris": 2 shared, precision 2/2, recall 2/4: F1 = 2*2/(2+4)
    assert compute_token_f1("the tower, Paris", ["Eiffel Tower in Paris"]) == pytest.approx(2 / 3)
    assert compute_token_f1("x", ["y", "x y"]) == pytest.approx(2 / 3)
    assert compute_token_f1("the", ["a"]) == 1.0
    assert compute_token_f1("the", ["b"]) == 0.0


# Characters that Python's tables know: those of the regex library are of a later Unicode.
ANY = st.text(st.characters(exclude_categories=["Cs", "Cn", "Co"]), max_size=12)
SPELLINGS = """a A The an U.S. 1,000 Beyonc\u00e9 Beyonce\u0301 Beyonce O'Brien O\u2019Brien \u1e9e \u03a3\u03a3 \u03c3\u03c2 \u0130
\u65e5\u672c \u65e5 \U0001d7d8 \ufb01 _ \u2014 ( \u200b \ufffd"""
TEXT = st.lists(
    st.tuples(st.sampled_from(SPELLINGS.split()) | ANY, st.sampled_from([" ", "", "\u00a0", "\t", "-", "'"])),
    max_size=8,
).map(lambda parts: "".join(word + glue for word, glue in parts))


def respell(text: str, how: int) -> str:
    """Return the text in another case or composition."""
    changes: list[Callable[[str], str]] = [str, str.upper, str.lower, str.title]
    return unicodedata.normalize("NFC" if how % 2 else "NFD", changes[how // 2](text))


@settings(max_examples=150)
@given(TEXT, st.lists(TEXT, max_size=2), st.tuples(st.integers(0, 60), st.integers(0, 60)), st.integers(0, 7))
@example(text="\u039f\u03a3'\u0391", others=["\u03bf\u03c2"], cut=(0, 0), how=0)
def test_token_match_equals_the_reference(text, others, cut, how):
    assert tokenize_for_matching(text) == reference.tokens(text)
    answers = [respell(text[cut[0] : cut[0] + cut[1]], how), *others]
    expected = any(reference.tokens(answer) and reference.contains_tokens(answer, text) for answer in answers)
    assert TokenMatcher(answers)(text) is expected

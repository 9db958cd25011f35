"""Hand-computed candidates without a generator: sentences, titles and frequent words of retrieved passages."""

from drtk.query_expansion.config import ExpansionSettings
from drtk.query_expansion.from_passages import QuestionPassages, iter_sentences, iter_term_strings, make_candidates
from drtk.records import Passage

QUESTION = "who discovered the source of the river nile?"
ONE = Passage("p1", "Egypt has a desert. The river Nile has a source. The source was discovered by Speke.", "Nile")
TWO = Passage("p2", "Speke reached a lake. Speke named it.", "John Speke")
THREE = Passage("p3", "The lake feeds the Nile. Egypt drinks.", "Nile")
FOUND = QuestionPassages("q1", QUESTION, [ONE, TWO, THREE])


def test_sentences_are_the_best_of_each_passage_then_the_second_best():
    # words of the question: discovered source river nile. p1: 0, 3 and 2 of them; p2: 0 and 0, so in their order; p3: 1 and 0.
    assert list(iter_sentences(QUESTION, FOUND.passages)) == [
        "The river Nile has a source.",
        "Speke reached a lake.",
        "The lake feeds the Nile.",
        "The source was discovered by Speke.",
        "Speke named it.",
        "Egypt drinks.",
        "Egypt has a desert.",
    ]
    repeated = Passage("p", "The Nile, the Nile, the Nile. The river Nile.")
    assert next(iter_sentences(QUESTION, [repeated])) == "The river Nile."  # distinct words count


def test_terms_of_the_top_passages_precede_those_of_each_passage():
    # without question and function words:
    # p1 egypt desert speke; p2 (title) john speke, speke reached lake speke named; p3 lake feeds egypt drinks
    # of all three: egypt 2 passages, 2 times; speke 2, 4 times; lake 2, 2 times; the others 1 passage, once each
    actual = list(iter_term_strings(QUESTION, FOUND.passages, feedback=3, size=3))
    assert actual[0] == "speke egypt lake"  # 4 times, then 2 and 2: egypt occurs first
    assert actual[1:] == ["egypt desert speke", "speke john reached", "lake feeds egypt"]
    # of the first two alone: speke in both; of the rest egypt, desert, john, reached … once each, in their order
    assert next(iter_term_strings(QUESTION, FOUND.passages, feedback=2, size=3)) == "speke egypt desert"
    unequal = [Passage("p1", "lake lake lake desert"), Passage("p2", "desert")]
    # passages count before frequency
    assert next(iter_term_strings(QUESTION, unequal, feedback=2, size=2)) == "desert lake"


def test_candidates_are_distinct_and_limited_in_number():
    assert make_candidates(FOUND, "title", ExpansionSettings()) == ["Nile", "John Speke"]
    assert len(make_candidates(FOUND, "sentence", ExpansionSettings(candidates=4))) == 4
    assert make_candidates(FOUND, "terms", ExpansionSettings(candidates=1, terms=2)) == ["speke egypt"]
    bare = QuestionPassages("q2", QUESTION, [Passage("p9", "  ")])
    assert [make_candidates(bare, kind, ExpansionSettings()) for kind in ("sentence", "title", "terms")] == [[], [], []]

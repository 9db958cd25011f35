"""Weights of word pieces as term frequencies (docs/methods/term-weights.md), and impacts."""

from collections.abc import Iterator

import pytest

from drtk.errors import DrtkError
from drtk.indexing.config import IndexSettings
from drtk.indexing.indexed_text import IndexedText, compute_frequency, compute_word_frequencies, read_impacts
from drtk.records import Passage
from drtk.runtime.inputs import InputTracker
from drtk.text.word_pieces import WordPieces, WordPieceTokenizer
from tests.tiny_models import save_tiny_encoder


def test_frequencies_are_the_known_ones():
    assert [compute_frequency(weight) for weight in (-0.002, 0.0161, 0.5, 1.0)] == [0, 2, 50, 100]
    assert [compute_frequency(weight, "sqrt") for weight in (-0.002, 0.0161, 0.5, 1.0)] == [0, 13, 71, 100]


def test_a_word_weighs_what_its_first_piece_weighs_and_its_largest_occurrence_counts():
    # Wing|s wing|s , the: occurrences of "wings" weigh .02 and .05, whatever their second pieces do; "the" 0.004 -> 0
    text = "Wings wings, the"
    pieces = WordPieces([1, 2, 1, 2, 3, 4], [(0, 4), (4, 5), (6, 10), (10, 11), (11, 12), (13, 16)], [0, 0, 1, 1, 2, 3])
    weights = [0.02, 0.9, 0.05, 0.9, 0.8, 0.004]
    assert compute_word_frequencies(text, pieces, weights) == {"wings": 5}
    assert compute_word_frequencies(text, pieces, weights, scale="sqrt") == {"wings": 22, "the": 6}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_encoder(tmp_path_factory.mktemp("model") / "m"))


def make_passage(tokenizer: str, text: str, weighs: list[float], id: str = "p", **fields: object) -> Passage:
    """Return a passage with these weights of words (separated by spaces), copied to all word pieces."""
    extra = {"weights": spread(tokenizer, text, weighs)} | fields
    return Passage(id, text, metadata={"weights_tokenizer": tokenizer}, extra=extra)


def spread(tokenizer: str, text: str, weighs: list[float]) -> list[float]:
    (pieces,) = WordPieceTokenizer(tokenizer)([text])
    return [weighs[text[:begin].count(" ")] for begin, _ in pieces.offsets]


def repeat(*passages: Passage) -> tuple[list[Passage], list[str]]:
    """Return the passages with repeated words, and the errors of others."""
    problems: list[str] = []
    tracker = InputTracker()
    tracker.skip_or_raise = lambda error: problems.append(str(error))  # type: ignore[method-assign]

    def read() -> Iterator[Passage]:
        for tracker.line, passage in enumerate(passages, start=1):
            yield passage

    text = IndexedText(IndexSettings(term_weights=True), "bm25", "c.jsonl", tracker)
    return list(text(read())), problems


def test_the_text_repeats_each_word_by_its_frequency(tokenizer):
    actual, problems = repeat(make_passage(tokenizer, "Rivers riveral rivers", [0.02, 0.01, 0.03]))
    assert [(passage.text, passage.title) for passage in actual] == [("rivers rivers rivers riveral", "")]
    assert problems == []


def test_a_word_of_title_and_text_has_the_larger_weight(tokenizer):
    title = {"title_weights": spread(tokenizer, "engines violins", [0.03, 0.01])}
    passage = make_passage(tokenizer, "rivers engines", [0.02, 0.01], **title)
    passage = Passage(passage.id, passage.text, "engines violins", passage.metadata, passage.extra)
    ((one,), _) = repeat(passage)
    assert sorted(one.text.split()) == ["engines"] * 3 + ["rivers"] * 2 + ["violins"]


def test_unreadable_passages_are_reported_with_their_line(tokenizer):
    good = make_passage(tokenizer, "rivers", [0.01])
    pieces = len(good.extra["weights"])
    faulty = [
        make_passage(tokenizer, "rivers", [0.01], "short", weights=[0.1] * (pieces + 1)),
        Passage("none", "rivers", metadata={"weights_tokenizer": tokenizer}),
        Passage("unnamed", "rivers", extra={"weights": []}),
        make_passage(tokenizer, "rivers", [0.01], "words", weights=["a"]),
        make_passage(tokenizer, "rivers", [0.01], "huge", weights=[1e6] * pieces),
    ]
    actual, problems = repeat(*faulty, good)
    assert [passage.text for passage in actual] == ["rivers"]
    short = f"'weights' has {pieces + 1} numbers, but the tokenizer returns {pieces} word pieces"
    assert problems == [
        "c.jsonl:2: passage 'none': has no 'weights'; run `drtk termweight` first",
        "c.jsonl:3: passage 'unnamed': has no 'metadata.weights_tokenizer' (the tokenizer of the weights); give `tokenizer`",
        f"c.jsonl:1: passage 'short': {short}; run `drtk termweight` again",
        "c.jsonl:4: passage 'words': 'weights' must be a list of finite numbers",
        "c.jsonl:5: passage 'huge': the weight of 'rivers' is too large (frequency 100,000,000); expected weights between 0 and 1",
    ]


def test_a_missing_tokenizer_is_an_error(tmp_path):
    passage = Passage("p", "text", metadata={"weights_tokenizer": str(tmp_path / "nowhere")}, extra={"weights": [1.0]})
    with pytest.raises(DrtkError, match="nowhere: no such folder; if it was moved, set `tokenizer`"):
        repeat(passage)


def test_impacts_below_one_and_long_words_are_excluded():
    impacts = {"a": 3, "b": 0, "c": -2, "x" * 256: 9, "y" * 255: 1}
    assert read_impacts({"impacts": impacts}) == {"a": 3, "y" * 255: 1}


@pytest.mark.parametrize(
    ("impacts", "problem"),
    [
        ({"wing": 1.5}, "the impact of 'wing' must be an integer, got 1.5"),
        ({"wing": True}, "must be an integer, got bool"),
        ({"wing": "3"}, "must be an integer, got str"),
        ({"wing": 65_536}, "must be at most 65,535, got 65,536"),
        ({"two words": 1}, "'two words' in 'impacts' must not be empty or contain white space"),
        ({"": 1}, "must not be empty"),
        ([1], "must be an object"),
    ],
)
def test_invalid_impacts_are_rejected(impacts, problem):
    with pytest.raises(ValueError, match=problem):
        read_impacts({"impacts": impacts})

"""Documents to passages."""

from __future__ import annotations

import pytest

from drtk.errors import UsageError
from drtk.records import Passage
from drtk.text.chunking import Chunker, check, needs_sentences
from drtk.text.config import ChunkSettings
from drtk.text.sentences import train_model
from drtk.text.tokenizers import load_tokenizer, portable
from tests.unit.text.tokenizers_made_here import byte_pieces, sentence_pieces, word_pieces

MODEL = train_model(["He went. She came. It was so. Then they left."], "english")


def sentence_of(length: int) -> str:
    """A sentence of `length` words; with the tokenizer, the last word and the full stop are one piece each."""
    return " ".join(["Word", *["word"] * (length - 1)]) + "."


def chunk(document, cap, pieces=None, **settings):
    return Chunker(ChunkSettings(**settings), cap, MODEL, pieces)([document])[0]


def lengths(passages):
    return [len(passage.text.split()) for passage in passages]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("greedy", [130, 30, 144, 16, 140, 5]),
        ("condenser", [130, 30, 150, 10, 140, 5]),
        ("cotmae", [160, 150, 150, 5]),
        ("words", [144, 144, 144, 33]),  # 465 words = 3 * 144 + 33
    ],
)
def test_the_known_answers_hold_for_texts(policy, expected):
    text = " ".join(map(sentence_of, [60, 70, 30, 150, 10, 140, 5]))
    assert lengths(chunk(Passage("d", text), 144, policy=policy)) == expected


def test_the_known_answers_hold_in_word_pieces(tmp_path):
    folder = word_pieces(tmp_path)
    definition = portable(load_tokenizer(folder), folder)
    text = " ".join(map(sentence_of, [59, 69, 29, 149, 9, 139, 4]))  # the full stop is a piece of its own
    passages = chunk(Passage("d", text), 144, definition)
    tokenizer = load_tokenizer(folder)
    counted = [len(tokenizer.tokenize(passage.text)) for passage in passages]
    assert counted == [130, 30, 144, 16, 140, 5]


@pytest.mark.parametrize("make", [word_pieces, byte_pieces, sentence_pieces])
def test_no_letter_is_lost_and_no_word_cut_whatever_the_tokenizer(make, tmp_path):
    folder = make(tmp_path)
    text = "the cat sat on naïve unbelievable mats, and 10,000 € happened there with wording! the mat sat. " * 9
    passages = chunk(Passage("d", text), 30, portable(load_tokenizer(folder), folder))
    assert len(passages) > 9
    assert " ".join(passage.text for passage in passages).replace(" ", "") == text.replace(" ", "")
    whole = set(text.replace(",", " ").replace("!", " ").replace(".", " ").split())
    for passage in passages:
        assert set(passage.text.replace(",", " ").replace("!", " ").replace(".", " ").split()) <= whole


def test_a_passage_says_where_it_comes_from():
    document = Passage("a#b", "He went. She came.", "Title", {"url": "u"}, {"lang": "en", "weights": [1.0]})
    first, second = chunk(document, 2)
    assert (first.id, second.id) == ("a#b#0", "a#b#1")
    assert first.metadata == {
        "url": "u",
        "source_id": "a#b",
        "position": 0,
        "prev": None,
        "next": "a#b#1",
        "sentences": [[0, 8]],
    }
    assert (second.metadata["prev"], second.metadata["next"]) == ("a#b#0", None)
    assert (second.title, second.text) == ("Title", "She came.")
    assert second.extra == {"lang": "en"}  # weights belong to the words of the whole text
    assert document.metadata == {"url": "u"}


@pytest.mark.parametrize("policy", ["greedy", "condenser", "cotmae", "words"])
def test_sentences_are_noted_by_their_place_in_the_passage(policy):
    text = "He went away.  She came back\nagain. Then they all left for good and never came back to us. It was so."
    for passage in chunk(Passage("d", text), 7, policy=policy):
        spans = passage.metadata["sentences"]
        assert [passage.text[begin:end] for begin, end in spans]
        assert " ".join(passage.text[begin:end] for begin, end in spans) == passage.text


def test_blocks_of_words_note_the_parts_of_the_sentences_they_hold():
    (first, second) = chunk(Passage("d", "One two three. Four five six seven."), 4, policy="words")
    assert [first.text[begin:end] for begin, end in first.metadata["sentences"]] == ["One two three.", "Four"]
    assert [second.text[begin:end] for begin, end in second.metadata["sentences"]] == ["five six seven."]


def test_without_sentences_words_need_no_model():
    settings = ChunkSettings(policy="words", sentences=False)
    assert not needs_sentences(settings)
    passages = Chunker(settings, 2, None)([Passage("d", "a b c")])[0]
    assert [passage.text for passage in passages] == ["a b", "c"]
    assert "sentences" not in passages[0].metadata


@pytest.mark.parametrize("text", ["", "  \n\t "])
@pytest.mark.parametrize("policy", ["greedy", "condenser", "cotmae", "words"])
def test_a_document_without_words_has_no_passages(text, policy):
    assert chunk(Passage("d", text, "Title"), 5, policy=policy) == []


def test_white_space_becomes_one_space_unless_it_is_kept():
    text = "He  went.\n\nShe\tcame. "
    assert [passage.text for passage in chunk(Passage("d", text), 9)] == ["He went. She came."]
    assert [passage.text for passage in chunk(Passage("d", text), 9, keep_whitespace=True)] == [
        "He  went.\n\nShe\tcame."
    ]


def test_paragraphs_end_sentences_where_asked():
    text = "A heading\n\nthe text of it\n \nmore text"
    assert [passage.text for passage in chunk(Passage("d", text), 4)] == ["A heading the text", "of it more text"]
    assert [passage.text for passage in chunk(Passage("d", text), 4, paragraphs=True)] == [
        "A heading",
        "the text of it",
        "more text",
    ]


def test_overlap_repeats_a_sentence():
    text = "He went. She came. It was. They left."
    assert [passage.text for passage in chunk(Passage("d", text), 4, overlap=1)] == [
        "He went. She came.",
        "She came. It was.",
        "It was. They left.",
    ]


def test_short_passages_depend_on_seed_document_and_number_alone():
    text = " ".join(sentence_of(3) for _ in range(200))
    one, other = Passage("one", text), Passage("other", text)
    settings = ChunkSettings(short_prob=0.5, seed=3)
    together = Chunker(settings, 30, MODEL)([other, one])[1]
    assert together == Chunker(settings, 30, MODEL)([one])[0]
    assert lengths(together) != lengths(chunk(other, 30, short_prob=0.5, seed=3))
    assert lengths(together) != lengths(chunk(one, 30, short_prob=0.5, seed=4))
    assert max(lengths(together)) == 30  # half of the passages are as long as ever


@pytest.mark.parametrize(("policy", "low"), [("condenser", 1), ("cotmae", 2)])
def test_short_caps_come_from_the_range_of_the_policy(policy, low):
    # sentences of one word: a passage is as long as its cap (cotmae: one longer, and never for the cap itself)
    document = Passage("d", " ".join(["Go!"] * 3000))
    found = lengths(chunk(document, 4, policy=policy, short_prob=1.0))
    over = 1 if policy == "cotmae" else 0
    assert set(found[:-1]) == {cap + over for cap in range(low, 5)}
    assert set(lengths(chunk(document, 4, policy=policy, short_prob=1.0, short_min=3))[:-1]) == {3 + over, 4 + over}


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "words", "tokenizer": "x"},
        {"tokenizer": "x", "max_words": 5},
        {"max_tokens": 5},
        {"reserve_special": True},
        {"policy": "words", "short_prob": 0.1},
        {"policy": "words", "paragraphs": True},
        {"policy": "cotmae", "overlap": 1},
        {"policy": "words", "max_words": 5, "overlap": 5},
        {"short_min": 101, "short_prob": 0.1},
        {"save_punkt": "x", "punkt_model": "y"},
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings):
    with pytest.raises(UsageError, match="--"):
        check(ChunkSettings(**settings))

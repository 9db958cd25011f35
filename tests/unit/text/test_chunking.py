"""Groups of sentences, and passages of documents."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drtk.errors import UsageError
from drtk.records import Passage
from drtk.text.chunking import Chunker, check_settings, group_sentences, needs_sentences, split_blocks
from drtk.text.config import ChunkSettings
from drtk.text.rng import sample_integer
from drtk.text.sentences import train_model
from drtk.text.tokenizers import load_tokenizer, serialize_tokenizer
from tests.unit.text.small_tokenizers import byte_pieces, sentence_pieces, word_pieces

LENGTHS = [60, 70, 30, 150, 10, 140, 5]
MODEL = train_model(["He went. She came. It was so. Mr. Brown left."], "english")
POLICIES = ("greedy", "condenser", "cotmae", "words")


def sizes(groups):
    return [sum(end - begin for _, begin, end in group) for group in groups]


def units(groups):
    return [(sentence, unit) for group in groups for sentence, begin, end in group for unit in range(begin, end)]


def test_settings_without_effect_are_rejected_in_python_too() -> None:
    with pytest.raises(UsageError, match="--max-tokens requires --tokenizer"):
        check_settings(ChunkSettings(max_tokens=5))


def test_greedy_cuts_long_sentences():
    groups = group_sentences("greedy", LENGTHS, 144)
    assert sizes(groups) == [130, 30, 144, 16, 140, 5]
    assert groups[2:4] == [[(3, 0, 144)], [(3, 144, 150), (4, 0, 10)]]  # the rest opens the next group
    assert group_sentences("greedy", [20], 10) == [[(0, 0, 10)], [(0, 10, 20)]]
    # Words begin at multiples of 4; a cap of 10 must cut at 8 and then at 16.
    groups = group_sentences("greedy", [20], 10, boundary=lambda sentence, begin, latest: latest - latest % 4)
    assert groups == [[(0, 0, 8)], [(0, 8, 16)], [(0, 16, 20)]]


@pytest.mark.parametrize(
    ("lengths", "cap", "overlap", "sentences"),
    [
        ([3, 3, 3, 3, 3], 10, 1, [[0, 1, 2], [2, 3, 4]]),
        ([5, 5, 9], 10, 1, [[0, 1], [2]]),  # 5 + 9 would exceed 10
        ([4, 4, 4], 8, 5, [[0, 1], [1, 2]]),  # not the whole group
    ],
)
def test_greedy_overlap(lengths, cap, overlap, sentences):
    groups = group_sentences("greedy", lengths, cap, overlap=overlap)
    assert groups == [[(sentence, 0, lengths[sentence]) for sentence in group] for group in sentences]


def test_greedy_targets():
    # After a group with a smaller cap, its only sentence would fit into the next, but is not repeated.
    groups = group_sentences("greedy", [2, 2, 2], 10, group_cap=lambda group: 10 if group else 3, overlap=1)
    assert groups == [[(0, 0, 2)], [(1, 0, 2), (2, 0, 2)]]
    # A target of 3 closes the first group after one sentence of 4, and cuts nothing.
    groups = group_sentences("greedy", [4, 4, 4, 4], 10, group_cap=lambda group: 10 if group else 3)
    assert sizes(groups) == [4, 8, 4]


def test_other_policies():
    assert sizes(group_sentences("condenser", LENGTHS, 144)) == [130, 30, 150, 10, 140, 5]  # the long sentence alone
    assert sizes(group_sentences("cotmae", LENGTHS, 144)) == [160, 150, 150, 5]  # closed once over 144
    for policy in POLICIES[:3]:
        assert group_sentences(policy, [], 10) == group_sentences(policy, [0, 0], 10) == []
        assert group_sentences(policy, [0, 3, 0, 4, 0], 10) == [[(1, 0, 3), (3, 0, 4)]]


def test_split_blocks_with_overlap():
    assert split_blocks(257, 100) == [(0, 100), (100, 200), (200, 257)]
    assert split_blocks(200, 100) == [(0, 100), (100, 200)]
    assert split_blocks(0, 100) == []
    assert split_blocks(10, 4, overlap=1) == [(0, 4), (3, 7), (6, 10)]
    assert split_blocks(11, 4, overlap=1) == [(0, 4), (3, 7), (6, 10), (9, 11)]
    assert split_blocks(3, 4, overlap=3) == [(0, 3)]


ANY_LENGTHS = st.lists(st.integers(0, 40))


@given(ANY_LENGTHS, st.integers(1, 30), st.integers(0, 9), st.sampled_from(POLICIES[:3]))
def test_every_unit_is_in_one_group_in_order(lengths, cap, seed, policy):
    everything = [(sentence, unit) for sentence, length in enumerate(lengths) for unit in range(length)]
    for target in (None, lambda group: sample_integer(1, cap, seed, group)):
        assert units(group_sentences(policy, lengths, cap, group_cap=target)) == everything


@given(ANY_LENGTHS, st.integers(1, 30), st.integers(0, 3))
def test_greedy_groups_are_full_and_within_the_cap(lengths, cap, overlap):
    groups = group_sentences("greedy", lengths, cap, overlap=overlap)
    assert all(0 < size <= cap for size in sizes(groups))
    assert set(units(groups)) == {(sentence, unit) for sentence, length in enumerate(lengths) for unit in range(length)}
    if not overlap:
        for size, group in zip(sizes(groups), groups[1:], strict=False):
            sentence, begin, _ = group[0]
            assert begin or size + lengths[sentence] > cap


# Passages.


def chunk(document, cap, pieces=None, **settings):
    return Chunker(ChunkSettings(**settings), cap, MODEL, pieces)([document])[0]


def texts(text, cap, **settings):
    return [passage.text for passage in chunk(Passage("d", text), cap, **settings)]


def lengths_of(passages):
    return [len(passage.text.split()) for passage in passages]


def test_passage_metadata():
    extra = {"lang": "en", "weights": [1], "title_weights": [1]}
    document = Passage("a#b", "He went. She came.", "Title", {"url": "u"}, extra)
    first, second = chunk(document, 2)
    assert (first.id, second.id) == ("a#b#0", "a#b#1")
    links = {"url": "u", "source_id": "a#b", "sentences": [[0, 8]]}
    assert first.metadata == links | {"position": 0, "prev": None, "next": "a#b#1"}
    assert second.metadata == links | {"position": 1, "prev": "a#b#0", "next": None, "sentences": [[0, 9]]}
    assert (second.title, second.text) == ("Title", "She came.")
    assert second.extra == {"lang": "en"}  # weights belong to the words of the whole text
    assert document.metadata == {"url": "u"}


TEXTS = st.lists(
    st.sampled_from(["He", "went", "away.", "She", "U.S.", "3.5", "no!", "\n\n", " ", "\t", "(so.)", "é€"])
).map(" ".join)


@pytest.mark.parametrize("policy", POLICIES)
@given(text=TEXTS, cap=st.integers(1, 12), paragraphs=st.booleans(), keep=st.booleans())
@settings(max_examples=40)
def test_passages_in_order_are_the_document(policy, text, cap, paragraphs, keep):
    paragraphs = paragraphs and policy != "words"
    passages = chunk(Passage("d", text), cap, policy=policy, paragraphs=paragraphs, keep_whitespace=keep)
    assert [word for passage in passages for word in passage.text.split()] == text.split()
    for passage in passages:
        spans = passage.metadata["sentences"]
        assert (spans[0][0], spans[-1][1]) == (0, len(passage.text))
        assert " ".join(passage.text[begin:end] for begin, end in spans).split() == passage.text.split()
        if policy in ("greedy", "words"):
            assert len(passage.text.split()) <= cap


@pytest.mark.parametrize("make", [word_pieces, byte_pieces, sentence_pieces])
def test_no_tokenizer_loses_letters_or_cuts_words(make, tmp_path):
    folder = make(tmp_path)
    text = "the cat sat on naïve unbelievable mats, and 10,000 € happened there with wording! the mat sat. " * 9
    passages = chunk(Passage("d", text), 30, serialize_tokenizer(load_tokenizer(folder), folder))
    assert len(passages) > 9
    assert " ".join(passage.text for passage in passages).replace(" ", "") == text.replace(" ", "")
    words = set(re.findall(r"[^\s,!.]+", text))
    assert {word for passage in passages for word in re.findall(r"[^\s,!.]+", passage.text)} <= words


def test_blocks_of_words_keep_the_parts_of_sentences():
    first, second = chunk(Passage("d", "One two three. Four five six seven."), 4, policy="words")
    assert [first.text[begin:end] for begin, end in first.metadata["sentences"]] == ["One two three.", "Four"]
    assert [second.text[begin:end] for begin, end in second.metadata["sentences"]] == ["five six seven."]
    without = ChunkSettings(policy="words", sentences=False)
    assert not needs_sentences(without)
    passages = Chunker(without, 2, None)([Passage("d", "a b c")])[0]
    assert [passage.text for passage in passages] == ["a b", "c"]
    assert "sentences" not in passages[0].metadata


def test_white_space_paragraphs_and_overlap():
    for text in ("", "  \n\t "):
        assert texts(text, 5) == texts(text, 5, policy="words") == []
    text = "He  went.\n\nShe\tcame. "
    assert texts(text, 9) == ["He went. She came."]
    assert texts(text, 9, keep_whitespace=True) == ["He  went.\n\nShe\tcame."]
    text = "A heading\n\nthe text of it\n \nmore text"
    assert texts(text, 4) == ["A heading the text", "of it more text"]
    assert texts(text, 4, paragraphs=True) == ["A heading", "the text of it", "more text"]
    table = "As a table:\n| a | b c |\n| d | e f |\n| g | h i |"
    assert texts(table, 9, paragraphs=True) == ["As a table: | a | b c |", "| d | e f |", "| g | h i |"]
    overlapping = texts("He went. She came. It was. They left.", 4, overlap=1)
    assert overlapping == ["He went. She came.", "She came. It was.", "It was. They left."]


def test_short_passages_depend_on_seed_document_and_number():
    text = " ".join("Word word word." for _ in range(200))
    one, other = Passage("one", text), Passage("other", text)
    short = ChunkSettings(short_prob=0.5, seed=3)
    together = Chunker(short, 30, MODEL)([other, one])[1]
    assert together == Chunker(short, 30, MODEL)([one])[0]
    full = [length == 30 for length in lengths_of(together)]
    for passages in (chunk(other, 30, short_prob=0.5, seed=3), chunk(one, 30, short_prob=0.5, seed=4)):
        others = [length == 30 for length in lengths_of(passages)]
        assert sum(actual != theirs for actual, theirs in zip(full, others, strict=False)) > 5  # other groups are short
    assert max(lengths_of(together)) == 30  # half of the passages keep the cap


@pytest.mark.parametrize(("policy", "low", "over"), [("condenser", 1, 0), ("cotmae", 2, 1)])
def test_short_caps_come_from_the_range_of_the_policy(policy, low, over):
    # With sentences of one word a passage is as long as its cap; cotmae exceeds it by one.
    document = Passage("d", " ".join(["Go!"] * 1000))
    lengths = lengths_of(chunk(document, 4, policy=policy, short_prob=1.0))
    assert set(lengths[:-1]) == {cap + over for cap in range(low, 5)}

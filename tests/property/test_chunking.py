"""What holds of every cutting of every document."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drtk.records import Passage
from drtk.text.chunking import Chunker, blocks, condenser, cotmae, greedy
from drtk.text.config import ChunkSettings
from drtk.text.rng import between
from drtk.text.sentences import train_model

LENGTHS = st.lists(st.integers(0, 40))
MODEL = train_model(["He went. She came. It was so. Mr. Brown left."], "english")
TEXTS = st.lists(
    st.sampled_from(["He", "went", "away.", "She", "U.S.", "3.5", "no!", "\n\n", " ", "\t", "(so.)", "é€"])
).map(" ".join)


def units(groups):
    return [(sentence, unit) for group in groups for sentence, begin, end in group for unit in range(begin, end)]


@given(
    lengths=LENGTHS, cap=st.integers(1, 30), seed=st.integers(0, 9), policy=st.sampled_from([greedy, condenser, cotmae])
)
def test_every_unit_is_in_one_group_in_its_place(lengths, cap, seed, policy):
    everything = [(sentence, unit) for sentence, length in enumerate(lengths) for unit in range(length)]
    assert units(policy(lengths, cap)) == everything
    assert units(policy(lengths, cap, target=lambda group: between(1, cap, seed, group))) == everything


@given(lengths=LENGTHS, cap=st.integers(1, 30), overlap=st.integers(0, 3))
def test_greedy_groups_never_exceed_the_cap_and_cannot_take_the_next_sentence(lengths, cap, overlap):
    groups = greedy(lengths, cap, overlap=overlap)
    sizes = [sum(end - begin for _, begin, end in group) for group in groups]
    assert all(0 < size <= cap for size in sizes)
    assert set(units(groups)) == {(sentence, unit) for sentence, length in enumerate(lengths) for unit in range(length)}
    if not overlap:
        for size, group in zip(sizes, groups[1:], strict=False):
            sentence, begin, _ = group[0]
            assert begin or size + lengths[sentence] > cap


@given(count=st.integers(0, 300), cap=st.integers(1, 40), overlap=st.integers(0, 39))
def test_blocks_cover_all_words_and_share_what_was_asked(count, cap, overlap):
    overlap = min(overlap, cap - 1)
    found = blocks(count, cap, overlap=overlap)
    assert sorted({word for begin, end in found for word in range(begin, end)}) == list(range(count))
    assert all(0 < end - begin <= cap for begin, end in found)
    assert all(last[1] - first[0] == overlap for last, first in pairwise(found))


@pytest.mark.parametrize("policy", ["greedy", "condenser", "cotmae", "words"])
@given(text=TEXTS, cap=st.integers(1, 12), paragraphs=st.booleans(), keep=st.booleans())
@settings(max_examples=60, deadline=None)
def test_passages_in_order_are_the_document_and_links_are_reciprocal(policy, text, cap, paragraphs, keep):
    chosen = ChunkSettings(policy=policy, paragraphs=paragraphs and policy != "words", keep_whitespace=keep)
    passages = Chunker(chosen, cap, MODEL)([Passage("d", text)])[0]
    assert [word for passage in passages for word in passage.text.split()] == text.split()
    ids = [passage.id for passage in passages]
    assert ids == [f"d#{position}" for position in range(len(passages))]
    assert [passage.metadata["next"] for passage in passages] == [*ids[1:], None][: len(ids)]
    assert [passage.metadata["prev"] for passage in passages] == [None, *ids[:-1]][: len(ids)]
    for passage in passages:
        spans = passage.metadata["sentences"]
        assert spans[0][0] == 0
        assert spans[-1][1] == len(passage.text)
        noted = " ".join(passage.text[begin:end] for begin, end in spans)
        assert noted.split() == passage.text.split()
        if policy in ("greedy", "words"):
            assert len(passage.text.split()) <= cap

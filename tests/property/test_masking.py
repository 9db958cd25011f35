"""What holds of every strategy, over any text: special tokens stay visible, and the budget of its kind is kept."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drtk.pretraining.corruption import Vocabulary, corrupt_tokens, delete_tokens, insert_masks
from drtk.pretraining.masking import MASKING
from drtk.pretraining.masking.strategies import (
    MaskInput,
    OtherMask,
    compute_extra_rate,
    compute_mask_budget,
    group_words,
    mask_whole_words,
)
from drtk.text.rng import create_generator
from drtk.text.token_dataset import Text

RATES = st.sampled_from([0.0, 0.05, 0.15, 0.3, 0.45, 0.5, 0.999, 1.0]) | st.floats(0, 1)
WHOLE = {"whole-word", "keyword"}
VOCABULARY = Vocabulary(size=50, mask=4, special=frozenset(range(5)))


@st.composite
def texts(draw):
    """[CLS], one to three segments of words with a [SEP] after each; weights of few values, so that ties are many."""
    words, ids = [-1], [2]
    for _ in range(draw(st.integers(1, 3))):
        sizes = draw(st.lists(st.integers(1, 4), max_size=15))
        words += [*np.arange(len(sizes)).repeat(np.array(sizes, dtype=int)).tolist(), -1]
        ids += [*draw(st.lists(st.integers(5, 49), min_size=sum(sizes), max_size=sum(sizes))), 3]
    weights = draw(st.lists(st.sampled_from([0.0, 0.0, 0.25, 1.0, 7.5]), min_size=len(ids), max_size=len(ids)))
    types = np.cumsum([0, *(id == 3 for id in ids[:-1])]).clip(max=1)
    return Text(
        np.array(ids, np.int32), np.array(words, np.int32), np.array(weights, np.float32), types.astype(np.int32)
    )


def counted_of(text, with_specials):
    return len(text.ids) if with_specials else int((text.words >= 0).sum())


def masked(name, text, rate, *, seed, counted, other=None, **options):
    return MASKING.load(name)(MaskInput(text, rate, create_generator(seed), counted, other), **options)


def other_of(text, rate, *, seed, counted):
    return OtherMask(mask_whole_words(MaskInput(text, rate, create_generator(seed, "other"), counted)), rate)


@pytest.mark.parametrize("name", MASKING)
@settings(max_examples=60, deadline=None)
@given(text=texts(), rates=st.tuples(RATES, RATES), seed=st.integers(0, 999), with_specials=st.booleans())
def test_special_tokens_stay_visible_and_a_seed_decides(name, text, rates, seed, with_specials):
    inner, rate = sorted(rates)
    counted = counted_of(text, with_specials)
    other = other_of(text, inner, seed=seed, counted=counted)
    before = [part.copy() for part in (*text, other.hidden)]
    hidden = masked(name, text, rate, seed=seed, counted=counted, other=other)
    assert (hidden.dtype, hidden.shape) == (bool, text.ids.shape)
    assert not hidden[text.words < 0].any()
    assert hidden.tolist() == masked(name, text, rate, seed=seed, counted=counted, other=other).tolist()
    assert all(
        np.array_equal(*pair) for pair in zip(before, (*text, other.hidden), strict=True)
    )  # nothing is written to
    if name in WHOLE:
        assert is_of_whole_words(hidden, text)


def is_of_whole_words(hidden, text):
    same = (text.words[1:] == text.words[:-1]) & (text.words[1:] >= 0)
    return (hidden[1:] == hidden[:-1])[same].all()


@settings(max_examples=60, deadline=None)
@given(
    text=texts(),
    rate=RATES,
    seed=st.integers(0, 999),
    with_specials=st.booleans(),
    scale=st.sampled_from(["max", "minmax", "sum"]),
)
def test_random_and_rom_hide_the_budget_exactly(text, rate, seed, with_specials, scale):
    counted = counted_of(text, with_specials)
    expected = min(compute_mask_budget(rate, counted), int((text.words >= 0).sum()))
    assert masked("random", text, rate, seed=seed, counted=counted).sum() == expected
    assert masked("rom", text, rate, seed=seed, counted=counted, scale=scale).sum() == expected


@settings(max_examples=60, deadline=None)
@given(text=texts(), rate=RATES, seed=st.integers(0, 999), with_specials=st.booleans())
def test_whole_words_never_exceed_the_budget_and_leave_no_room_for_another(text, rate, seed, with_specials):
    counted = counted_of(text, with_specials)
    sizes, budget = group_words(text.words).sizes, compute_mask_budget(rate, counted)
    for name, options in [("whole-word", {}), ("rom", {"whole_word": True})]:
        hidden = masked(name, text, rate, seed=seed, counted=counted, **options)
        assert is_of_whole_words(hidden, text)
        left = budget - hidden.sum()
        assert left >= 0
        visible = (
            sizes[~np.logical_or.reduceat(hidden[text.words >= 0], group_words(text.words).begins)]
            if len(sizes)
            else []
        )
        assert all(size > left for size in visible)


@settings(max_examples=60, deadline=None)
@given(text=texts(), rate=RATES, seed=st.integers(0, 999), with_specials=st.booleans())
def test_keywords_reach_the_budget_and_exceed_it_by_less_than_a_word(text, rate, seed, with_specials):
    counted = counted_of(text, with_specials)
    budget, sizes = compute_mask_budget(rate, counted), group_words(text.words).sizes
    count = masked("keyword", text, rate, seed=seed, counted=counted).sum()
    assert min(budget, sizes.sum()) <= count <= (budget + max(sizes, default=1) - 1 if budget else 0)


@settings(max_examples=60, deadline=None)
@given(text=texts(), rates=st.tuples(RATES, RATES), seed=st.integers(0, 999), with_specials=st.booleans())
def test_an_extension_holds_the_other_mask_and_the_complement_the_rest(text, rates, seed, with_specials):
    inner, rate = sorted(rates)
    counted, content = counted_of(text, with_specials), text.words >= 0
    other = other_of(text, inner, seed=seed, counted=counted)
    extended = masked("extension", text, rate, seed=seed, counted=counted, other=other)
    assert extended[other.hidden].all()
    assert is_of_whole_words(extended, text)
    assert extended.sum() <= compute_mask_budget(inner, counted) + compute_mask_budget(
        compute_extra_rate(rate, inner), counted
    )
    rest = masked("complement", text, rate, seed=seed, counted=counted, other=other)
    assert (rest ^ other.hidden)[content].all()
    assert not (rest & other.hidden).any()


@settings(max_examples=60, deadline=None)
@given(text=texts(), seed=st.integers(0, 999), with_specials=st.booleans())
def test_at_rate_zero_nothing_is_hidden(text, seed, with_specials):
    counted = counted_of(text, with_specials)
    nothing = OtherMask(np.zeros(len(text.ids), dtype=bool), 0.0)
    for name in set(MASKING) - {"complement"}:
        assert not masked(name, text, 0.0, seed=seed, counted=counted, other=nothing).any(), name


@settings(max_examples=60, deadline=None)
@given(text=texts(), rate=RATES, seed=st.integers(0, 999))
def test_what_is_visible_is_never_corrupted(text, rate, seed):
    hidden = masked("random", text, rate, seed=seed, counted=len(text.ids))
    for how in ("none", "mask", "bert", "replaced"):
        found = corrupt_tokens(text.ids, hidden, how, create_generator(seed), VOCABULARY)
        assert found[~hidden].tolist() == text.ids[~hidden].tolist()
        assert ((found >= 0) & (found < VOCABULARY.size)).all()


@settings(max_examples=60, deadline=None)
@given(text=texts(), rate=RATES, seed=st.integers(0, 999))
def test_an_edited_text_is_the_text_with_a_share_put_in_or_taken_out(text, rate, seed):
    share = round(rate * int((text.words >= 0).sum()))
    longer = insert_masks(text, rate, create_generator(seed), VOCABULARY)
    assert longer.text.ids[longer.edited == 0].tolist() == text.ids.tolist()
    assert longer.text.types[longer.edited == 0].tolist() == text.types.tolist()
    assert (longer.text.ids[longer.hidden] == VOCABULARY.mask).all()
    assert longer.hidden.sum() == longer.edited.sum() == share
    shorter = delete_tokens(text, rate, create_generator(seed))
    assert len(shorter.text.ids) == len(text.ids) - share
    assert shorter.edited.sum() <= share
    assert bool(shorter.edited.any()) == (share > 0)
    for found in (longer, shorter):
        assert (found.text.words < 0).sum() == (text.words < 0).sum()
        numbers = found.text.words[found.text.words >= 0].tolist()
        assert all(0 <= later - number <= 1 for number, later in pairwise([-1, *numbers]))
        assert len({len(part) for part in (found.hidden, found.edited, *found.text) if part is not None}) == 1

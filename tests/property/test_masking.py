"""Properties of all masking strategies on random texts: special tokens stay visible, and the budget is kept."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drtk.pretraining.masking import (
    MASKING,
    MaskInput,
    Vocabulary,
    compute_added_rate,
    compute_mask_budget,
    corrupt_tokens,
    delete_tokens,
    group_words,
    insert_masks,
    mask_whole_words,
)
from drtk.text.rng import create_generator
from drtk.text.token_dataset import TokenizedText

SETTINGS = settings(max_examples=60, deadline=None)
RATES = st.sampled_from([0.0, 0.05, 0.15, 0.3, 0.45, 0.5, 0.999, 1.0]) | st.floats(0, 1)
WHOLE_WORD_STRATEGIES = {"whole-word", "keyword"}
VOCABULARY = Vocabulary(size=50, mask=4, special=frozenset(range(5)))


@st.composite
def texts(draw):
    """Draw [CLS] and one to three segments of words with a [SEP] after each; weights have few values, for many ties."""
    words, ids = [-1], [2]
    for _ in range(draw(st.integers(1, 3))):
        sizes = draw(st.lists(st.integers(1, 4), max_size=15))
        words += [*np.arange(len(sizes)).repeat(np.array(sizes, dtype=int)).tolist(), -1]
        ids += [*draw(st.lists(st.integers(5, 49), min_size=sum(sizes), max_size=sum(sizes))), 3]
    weights = draw(st.lists(st.sampled_from([0.0, 0.0, 0.25, 1.0, 7.5]), min_size=len(ids), max_size=len(ids)))
    types = np.cumsum([0, *(id == 3 for id in ids[:-1])]).clip(max=1)
    return TokenizedText(
        np.array(ids, np.int32), np.array(words, np.int32), np.array(weights, np.float32), types.astype(np.int32)
    )


def count_tokens(text, with_specials):
    return len(text.ids) if with_specials else int((text.words >= 0).sum())


def mask(name, text, rate, *, seed, counted, other=(), **options):
    given = MaskInput(text, group_words(text.words), rate, create_generator(seed), counted, *other)
    return MASKING.load(name)(given, **options)


def make_other_mask(text, rate, *, seed, counted):
    given = MaskInput(text, group_words(text.words), rate, create_generator(seed, "other"), counted)
    return mask_whole_words(given), rate


@pytest.mark.parametrize("name", MASKING)
@SETTINGS
@given(text=texts(), rates=st.tuples(RATES, RATES), seed=st.integers(0, 999), with_specials=st.booleans())
def test_special_tokens_stay_visible_and_the_seed_determines_the_mask(name, text, rates, seed, with_specials):
    inner, rate = sorted(rates)
    counted = count_tokens(text, with_specials)
    other = make_other_mask(text, inner, seed=seed, counted=counted)
    before = [part.copy() for part in (*text, other[0])]
    hidden = mask(name, text, rate, seed=seed, counted=counted, other=other)
    assert (hidden.dtype, hidden.shape) == (bool, text.ids.shape)
    assert not hidden[text.words < 0].any()
    assert hidden.tolist() == mask(name, text, rate, seed=seed, counted=counted, other=other).tolist()
    assert all(map(np.array_equal, before, (*text, other[0])))  # the input is not changed
    if name in WHOLE_WORD_STRATEGIES:
        assert masks_whole_words(hidden, text)


def masks_whole_words(hidden, text):
    same = (text.words[1:] == text.words[:-1]) & (text.words[1:] >= 0)
    return (hidden[1:] == hidden[:-1])[same].all()


@SETTINGS
@given(texts(), RATES, st.integers(0, 999), st.booleans(), st.sampled_from(["max", "minmax", "sum"]))
def test_random_and_rom_mask_exactly_the_budget(text, rate, seed, with_specials, scale):
    counted = count_tokens(text, with_specials)
    expected = min(compute_mask_budget(rate, counted), int((text.words >= 0).sum()))
    assert mask("random", text, rate, seed=seed, counted=counted).sum() == expected
    assert mask("rom", text, rate, seed=seed, counted=counted, scale=scale).sum() == expected


@SETTINGS
@given(text=texts(), rate=RATES, seed=st.integers(0, 999), with_specials=st.booleans())
def test_whole_words_never_exceed_the_budget_and_no_visible_word_fits(text, rate, seed, with_specials):
    counted = count_tokens(text, with_specials)
    sizes, budget = group_words(text.words).sizes, compute_mask_budget(rate, counted)
    for name, options in [("whole-word", {}), ("rom", {"whole_word": True})]:
        hidden = mask(name, text, rate, seed=seed, counted=counted, **options)
        assert masks_whole_words(hidden, text)
        left = budget - hidden.sum()
        assert left >= 0
        if len(sizes):
            visible = ~np.logical_or.reduceat(hidden[text.words >= 0], group_words(text.words).begins)
            assert (sizes[visible] > left).all()


@SETTINGS
@given(text=texts(), rate=RATES, seed=st.integers(0, 999), with_specials=st.booleans())
def test_keywords_exceed_the_budget_by_less_than_a_word(text, rate, seed, with_specials):
    counted = count_tokens(text, with_specials)
    budget, sizes = compute_mask_budget(rate, counted), group_words(text.words).sizes
    count = mask("keyword", text, rate, seed=seed, counted=counted).sum()
    assert min(budget, sizes.sum()) <= count <= (budget + max(sizes, default=1) - 1 if budget else 0)


@SETTINGS
@given(text=texts(), rates=st.tuples(RATES, RATES), seed=st.integers(0, 999), with_specials=st.booleans())
def test_an_extension_contains_the_other_mask_and_a_complement_the_remaining_tokens(text, rates, seed, with_specials):
    inner, rate = sorted(rates)
    counted, content = count_tokens(text, with_specials), text.words >= 0
    other = make_other_mask(text, inner, seed=seed, counted=counted)
    extended = mask("extension", text, rate, seed=seed, counted=counted, other=other)
    assert extended[other[0]].all()
    assert masks_whole_words(extended, text)
    budgets = [compute_mask_budget(share, counted) for share in (inner, compute_added_rate(rate, inner))]
    assert extended.sum() <= sum(budgets)
    complement = mask("complement", text, rate, seed=seed, counted=counted, other=other)
    assert (complement ^ other[0])[content].all()
    assert not (complement & other[0]).any()


@SETTINGS
@given(text=texts(), rate=RATES, seed=st.integers(0, 999))
def test_visible_tokens_are_never_corrupted(text, rate, seed):
    hidden = mask("random", text, rate, seed=seed, counted=len(text.ids))
    for how in ("none", "mask", "bert", "replaced"):
        corrupted = corrupt_tokens(text.ids, hidden, how, create_generator(seed), VOCABULARY)
        assert corrupted[~hidden].tolist() == text.ids[~hidden].tolist()
        assert ((corrupted >= 0) & (corrupted < VOCABULARY.size)).all()


@SETTINGS
@given(text=texts(), rate=RATES, seed=st.integers(0, 999))
def test_insertions_and_deletions_edit_a_share_of_the_tokens(text, rate, seed):
    share = round(rate * int((text.words >= 0).sum()))
    longer = insert_masks(text, rate, create_generator(seed), VOCABULARY)
    assert longer.text.ids[longer.edited == 0].tolist() == text.ids.tolist()
    assert longer.text.types[longer.edited == 0].tolist() == text.types.tolist()
    assert (longer.text.ids[longer.masked] == VOCABULARY.mask).all()
    assert longer.masked.sum() == longer.edited.sum() == share
    shorter = delete_tokens(text, rate, create_generator(seed))
    assert len(shorter.text.ids) == len(text.ids) - share
    assert shorter.edited.sum() <= share
    assert bool(shorter.edited.any()) == (share > 0)
    for edited in (longer, shorter):
        assert (edited.text.words < 0).sum() == (text.words < 0).sum()
        numbers = edited.text.words[edited.text.words >= 0].tolist()
        assert all(0 <= later - number <= 1 for number, later in pairwise([-1, *numbers]))
        assert len({len(part) for part in (edited.masked, edited.edited, *edited.text) if part is not None}) == 1

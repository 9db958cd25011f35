"""Masks that refer to another: SimLM's extension and MASTER's complement (methods: sections 4.5 and 4.6)."""

from __future__ import annotations

import numpy as np
import pytest

from drtk.pretraining.masking.strategies import Other, Strategy
from drtk.pretraining.masking.strategies import complement, extension, extra_rate, whole_words
from drtk.text.rng import generator
from tests.unit.pretraining.masking.texts import places, text_of


@pytest.mark.parametrize(
    ("inner", "rate", "extra"),
    [
        (0.30, 0.50, 0.285714),
        (0.15, 0.30, 0.176471),
        (0.40, 0.60, 0.333333),
        (0.30, 1.0, 1.0),
        (0.3, 0.3, 0.0),
        (1.0, 1.0, 0.0),
    ],
)
def test_the_extra_rate_makes_up_the_difference(inner: float, rate: float, extra: float) -> None:
    # (.50 - .30) / (1 - .30) = .285714, so that .30 + .70 * .285714 = .50
    assert extra_rate(rate, inner) == pytest.approx(extra, abs=2e-6)
    assert inner + (1 - inner) * extra_rate(rate, inner) == pytest.approx(rate)


def test_a_smaller_rate_cannot_extend_a_larger() -> None:
    with pytest.raises(ValueError, match=r"rate 0\.5 cannot have the rate 0\.3"):
        extra_rate(0.3, 0.5)


def other(rate: float, *, words: int = 142) -> Other:
    return Other(whole_words(text_of([1] * words), rate, rng=generator("inner", rate), counted=words), rate)


def test_the_expected_share_is_that_of_the_rate() -> None:
    # 142 words: 43 hidden, then round(142 * .285714) = 41 of all: 43 + 99 * 41 / 142 = 71.585 on average.
    # The extra ones among the 99 are hypergeometric, with a deviation of 2.9; the mean of 2,000 is known to .07.
    text, rng = text_of([1] * 142), generator("extension")
    counts = []
    for _ in range(2000):
        inner = Other(whole_words(text, 0.3, rng=rng, counted=142), 0.3)
        hidden = extension(text, 0.5, rng=rng, counted=142, other=inner)
        assert hidden[inner.hidden].all()
        counts.append(hidden.sum())
    assert np.mean(counts) == pytest.approx(71.585, abs=0.3)


@pytest.mark.parametrize("rate", [0.15, 0.3, 1.0])
def test_equal_rates_add_nothing(rate: float) -> None:
    inner = other(rate)
    assert places(extension(text_of([1] * 142), rate, rng=generator(1), counted=142, other=inner)) == places(
        inner.hidden
    )


def test_an_extension_to_one_hides_all_but_special_tokens() -> None:
    hidden = extension(text_of([1] * 142), 1.0, rng=generator(1), counted=142, other=other(0.3))
    assert places(hidden) == list(range(1, 143))


def test_an_extension_leaves_the_other_mask_as_it_was() -> None:
    inner = other(0.3)
    before = inner.hidden.copy()
    extended = extension(text_of([1] * 142), 0.3, rng=generator(1), counted=142, other=inner)
    extended[:] = True
    assert inner.hidden.tolist() == before.tolist()


def test_the_complement_is_hidden_where_the_other_is_visible_and_nowhere_else() -> None:
    text, inner = text_of([1] * 142), other(0.5)
    hidden = complement(text, 0.5, rng=generator(1), counted=142, other=inner)
    assert (hidden ^ inner.hidden)[1:-1].all()
    assert not hidden[[0, -1]].any()
    assert hidden.sum() == 71


@pytest.mark.parametrize(("strategy", "name"), [(extension, "extension"), (complement, "complement")])
def test_a_mask_to_refer_to_is_needed_and_must_be_of_the_same_text(strategy: Strategy, name: str) -> None:
    text = text_of([1, 1])
    with pytest.raises(ValueError, match=f"'{name}' refers to the mask of another slot"):
        strategy(text, 0.5, rng=generator(1), counted=2)
    with pytest.raises(ValueError, match="a mask of 5 tokens for a text of 4"):
        strategy(text, 0.5, rng=generator(1), counted=2, other=Other(np.zeros(5, dtype=bool), 0.3))

"""Filters of a distribution in their order, and draws that depend on nothing but what they are for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drtk.models.generation import filter_logits, sample_tokens, sample_uniforms

FIVE = torch.tensor([[0.40, 0.25, 0.20, 0.10, 0.05]]).log()


def test_top_k_comes_before_the_nucleus() -> None:
    # the three most likely, brought to a sum of 1: .470588 .294118 .235294; two of them reach .7: .40/.65 and .25/.65.
    # The other order keeps three: .40 + .25 = .65 < .7, so .20 stays as well
    kept, tokens = filter_logits(FIVE, top_k=3, top_p=0.7, temperature=1.0)
    assert kept[0].tolist() == pytest.approx([0.615385, 0.384615, 0.0], abs=2e-6)
    assert tokens[0].tolist() == [0, 1, 2]
    alone, _ = filter_logits(FIVE, top_k=3, top_p=1.0, temperature=1.0)
    assert alone[0].tolist() == pytest.approx([0.470588, 0.294118, 0.235294], abs=2e-6)


def test_no_filter_leaves_the_distribution_and_temperature_sharpens_it() -> None:
    everything, tokens = filter_logits(FIVE, top_k=0, top_p=1.0, temperature=1.0)
    assert everything[0].tolist() == pytest.approx([0.40, 0.25, 0.20, 0.10, 0.05], abs=2e-6)
    assert tokens[0].tolist() == [0, 1, 2, 3, 4]
    # temperature .5 squares: .16 .0625 .04 .01 .0025, sum .275
    sharp, _ = filter_logits(FIVE, top_k=0, top_p=1.0, temperature=0.5)
    assert sharp[0].tolist() == pytest.approx(
        [0.16 / 0.275, 0.0625 / 0.275, 0.04 / 0.275, 0.01 / 0.275, 0.0025 / 0.275]
    )


def test_the_most_likely_token_always_stays() -> None:
    kept, _ = filter_logits(FIVE, top_k=0, top_p=0.0001, temperature=1.0)
    assert kept[0].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_each_token_has_its_share_of_the_line() -> None:
    probabilities, tokens = torch.tensor([[0.5, 0.3, 0.2, 0.0]] * 6), torch.tensor([[7, 8, 9, 5]] * 6)
    places = torch.tensor([0.0, 0.499, 0.5, 0.799, 0.8, 0.9999999])
    assert sample_tokens(probabilities, tokens, places).tolist() == [7, 7, 8, 8, 9, 9]


@given(
    st.lists(st.floats(-8, 8), min_size=2, max_size=12),
    st.integers(0, 12),
    st.floats(0.01, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_what_is_drawn_was_kept(logits: list[float], top_k: int, top_p: float, place: float) -> None:
    kept, tokens = filter_logits(torch.tensor([logits]), top_k=top_k, top_p=top_p, temperature=1.0)
    assert float(kept.sum()) == pytest.approx(1.0, abs=1e-5)
    token = int(sample_tokens(kept, tokens, torch.tensor([place], dtype=torch.float64))[0])
    assert float(kept[0][tokens[0] == token][0]) > 0


def test_draws_depend_on_seed_key_sample_and_step_alone() -> None:
    table = sample_uniforms(["a", "b"], seed=1, count=3, steps=5)
    assert table.shape == (2, 3, 5)
    assert (sample_uniforms(["b"], seed=1, count=1, steps=5) == table[1, :1]).all()
    assert (sample_uniforms(["a"], seed=1, count=3, steps=2) == table[0, :, :2]).all()
    assert len(np.unique(table)) == 30
    assert (sample_uniforms(["a"], seed=2, count=3, steps=5) != table[:1]).all()
    assert table.min() >= 0
    assert table.max() < 1

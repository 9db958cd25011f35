"""Pooling of three token vectors by hand-computed values, with padding on either side."""

import math

import pytest
import torch

from drtk.models.config import POOLINGS
from drtk.models.encoder import pool, pool_splade

TOKENS = torch.tensor([[1.0, 8.0], [4.0, 2.0], [7.0, 5.0]])
EXPECTED = {
    "cls": [1.0, 8.0],
    "max": [7.0, 8.0],
    "mean": [4.0, 5.0],  # (1+4+7)/3, (8+2+5)/3
    "mean_sqrt_len_tokens": [12 / math.sqrt(3), 15 / math.sqrt(3)],
    "weightedmean": [(1 + 8 + 21) / 6, (8 + 4 + 15) / 6],  # weights 1 2 3
    "lasttoken": [7.0, 5.0],
}
WITHOUT_FIRST = {  # the first token is a prompt
    "cls": [4.0, 2.0],
    "max": [7.0, 5.0],
    "mean": [5.5, 3.5],
    "mean_sqrt_len_tokens": [11 / math.sqrt(2), 7 / math.sqrt(2)],
    "weightedmean": [(8 + 21) / 5, (4 + 15) / 5],  # a token keeps the weight of its place
    "lasttoken": [7.0, 5.0],
}


def pad_tokens(side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return TOKENS with two padding positions, (1, 5, 2), and the attention mask, (1, 5)."""
    junk = torch.full((2, 2), 100.0)
    parts = (TOKENS, junk) if side == "right" else (junk, TOKENS)
    mask = [1, 1, 1, 0, 0] if side == "right" else [0, 0, 1, 1, 1]
    return torch.cat(parts).unsqueeze(0), torch.tensor([mask])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("mode", POOLINGS)
def test_each_mode_has_hand_computed_values_with_and_without_a_prompt(mode: str, side: str):
    hidden, mask = pad_tokens(side)
    assert pool(hidden, mask, (mode,))[0].tolist() == pytest.approx(EXPECTED[mode])
    assert pool(hidden, mask, (mode,), skip=1)[0].tolist() == pytest.approx(WITHOUT_FIRST[mode])


def test_half_precision_is_summed_in_float32():
    hidden = torch.full((1, 4096, 1), 1.0, dtype=torch.bfloat16)  # bfloat16 cannot count beyond 256
    actual = pool(hidden, torch.ones(1, 4096, dtype=torch.long), ("mean_sqrt_len_tokens",))
    assert actual.dtype == torch.float32
    assert actual.item() == pytest.approx(64.0)  # 4096 / sqrt(4096)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_term_weight_is_the_logarithm_of_one_plus_its_largest_positive_logit(side: str):
    logits, mask = pad_tokens(side)  # the logits of padding are 100
    logits = torch.cat([logits, -logits], dim=-1)
    expected = [math.log(1 + 7), math.log(1 + 8), 0.0, 0.0]
    assert pool_splade(logits.clone(), mask)[0].tolist() == pytest.approx(expected)
    assert pool_splade(logits.clone(), mask, skip=1)[0].tolist() == pytest.approx([math.log(8), math.log(6), 0.0, 0.0])
    assert pool_splade(logits.clone().bfloat16(), mask).dtype == torch.float32

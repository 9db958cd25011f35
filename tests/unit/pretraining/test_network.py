"""The size of projectors, and the tokens that a generator may replace."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drtk.pretraining.composition import Composition, Corruption, GeneratorSpec, Slot
from drtk.pretraining.dataset import SlotBatch
from drtk.pretraining.token_generator import fill_masks


class ConstantGenerator:
    """A generator that predicts 9 at all masked positions."""

    def fill(self, ids: Tensor, attention: Tensor, where: Tensor, **_: Any) -> Tensor:
        return torch.where(where, torch.full_like(ids, 9), ids)


def fill(
    corruption: Corruption, scope: Any, *, edited: list[list[int]] | None = None, noise: bool = True
) -> list[list[int]]:
    """Fill the masks of two copies of [CLS] a [MASK] [SEP] [PAD]."""
    slot = SlotBatch(
        original_ids=torch.tensor([[2, 5, 6, 3, 0]] * 2),
        input_ids=torch.tensor([PLAIN] * 2),
        attention=torch.tensor([[1, 1, 1, 1, 0]] * 2),
        content=torch.tensor([[False, True, True, False, False]] * 2),
        masked=torch.tensor([[False, False, True, False, False]] * 2),
        present=torch.tensor([True, True]),
        edited=None if edited is None else torch.tensor(edited),
        noise=torch.zeros(2, 5) if noise else None,
    )
    plan = Composition({"s": Slot(("passage",), corruption=corruption)}, (), generator=GeneratorSpec(scope=scope))
    return fill_masks(slot, "s", plan, ConstantGenerator()).tolist()  # type: ignore[arg-type]


PLAIN, MASKED, EVERYWHERE = [2, 5, 4, 3, 0], [2, 5, 9, 3, 0], [2, 9, 9, 9, 0]


def test_fill_masks_keeps_padding_and_first_token() -> None:
    assert fill("replaced", "masked") == [MASKED, MASKED]
    assert fill("replaced", "all") == [EVERYWHERE, EVERYWHERE]
    assert fill("inserted", "all") == [MASKED, MASKED]  # inserted tokens only
    assert fill("mask", "all") == [PLAIN, PLAIN]
    assert fill("replaced", "masked", noise=False) == [PLAIN, PLAIN]
    # edits sampled per example: the first row has replaced tokens, the second an insertion
    assert fill("any", "all", edited=[[-1] * 5, [0, 0, 1, 0, 0]]) == [EVERYWHERE, MASKED]

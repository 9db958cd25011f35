"""Which tokens a generator may change, whatever it proposes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from drtk.pretraining.batch import SlotBatch
from drtk.pretraining.composition import Corruption, Generator
from drtk.pretraining.encoded_batch import fill_masks


class Nines:
    """A generator that proposes 9 wherever it is asked, as drtk.pretraining.token_generator.Generator does."""

    def fill(self, ids: Tensor, attention: Tensor, hidden: Tensor, *, scope: str, **given: Any) -> Tensor:
        asked = attention.bool() if scope == "all" else hidden
        return torch.where(asked, torch.full_like(ids, 9), ids)


def batch(*, edited: list[list[int]] | None = None) -> SlotBatch:
    """[CLS] a [MASK] [SEP] and a pad, twice."""
    ids = torch.tensor([[2, 5, 4, 3, 0]] * 2)
    return SlotBatch(
        clean=torch.tensor([[2, 5, 6, 3, 0]] * 2),
        given=ids,
        attention=torch.tensor([[1, 1, 1, 1, 0]] * 2),
        content=torch.tensor([[False, True, True, False, False]] * 2),
        hidden=torch.tensor([[False, False, True, False, False]] * 2),
        present=torch.tensor([True, True]),
        edited=None if edited is None else torch.tensor(edited),
        noise=torch.zeros(2, 5),
    )


MASKED, EVERYWHERE = [2, 5, 9, 3, 0], [2, 9, 9, 9, 0]


@pytest.mark.parametrize(
    ("corruption", "scope", "expected"),
    [
        ("replaced", "masked", MASKED),
        ("replaced", "all", EVERYWHERE),
        ("inserted", "all", MASKED),  # what was not inserted stays
        ("mask", "all", [2, 5, 4, 3, 0]),
    ],
)
def test_padding_and_the_first_token_stay(corruption: Corruption, scope: Any, expected: list[int]) -> None:
    found = fill_masks(batch(), corruption, Nines(), Generator(scope=scope))
    assert found.tolist() == [expected, expected]


def test_of_edits_drawn_by_the_example_those_replaced_are_filled_everywhere_and_insertions_where_they_are() -> None:
    mixed = batch(edited=[[-1] * 5, [0, 0, 1, 0, 0]])
    assert fill_masks(mixed, "any", Nines(), Generator(scope="all")).tolist() == [EVERYWHERE, MASKED]


def test_nothing_is_filled_without_draws() -> None:
    quiet = batch()
    quiet.noise = None
    assert fill_masks(quiet, "replaced", Nines(), Generator()).tolist() == quiet.given.tolist()

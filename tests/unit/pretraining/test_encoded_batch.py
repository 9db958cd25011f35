"""The projector, and which tokens a generator may change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drtk.pretraining.batch import SlotBatch
from drtk.pretraining.composition import Corruption, Generator
from drtk.pretraining.encoded_batch import Projector, fill_masks


def test_its_size_for_bert_base() -> None:
    # 768 * 1536 + 2 * 1536 + 1536 * 768 = 2,362,368: no bias, and the second norm has neither scale nor shift
    def count(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    assert count(Projector(768, kind="bn")) == 768 * 1536 + 2 * 1536 + 1536 * 768 == 2_362_368
    assert count(Projector(768, kind="tanh")) == 768 * 768 + 768
    assert count(Projector(768, kind="none")) == 0


def test_batch_norm_leaves_columns_of_mean_0_and_variance_1() -> None:
    torch.manual_seed(0)
    projected = Projector(8, kind="bn").train()(5 + 3 * torch.randn(64, 8))
    torch.testing.assert_close(projected.mean(dim=0), torch.zeros(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(projected.var(dim=0, unbiased=False), torch.ones(8), atol=0.02, rtol=0)  # epsilon


def test_both_views_together_are_not_each_by_itself() -> None:
    torch.manual_seed(0)
    projector, views = Projector(8, kind="bn").train(), torch.randn(2, 16, 8)
    together = projector(views.flatten(0, 1)).view(2, 16, 8)
    assert (together[0] - projector(views[0])).abs().max() > 0.01


def test_tanh_is_one_layer_within_plus_and_minus_one() -> None:
    projector = Projector(4, kind="tanh")
    vectors = torch.randn(3, 4)
    linear = projector.layers[0]
    assert isinstance(linear, nn.Linear)
    torch.testing.assert_close(projector(vectors), torch.tanh(vectors @ linear.weight.T + linear.bias))
    assert projector(1e6 * vectors).abs().max() <= 1


def test_several_devices_can_share_the_statistics() -> None:
    shared = nn.SyncBatchNorm.convert_sync_batchnorm(Projector(4, kind="bn"))
    assert [type(layer) for layer in shared.layers].count(nn.SyncBatchNorm) == 2


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

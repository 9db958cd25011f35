"""The projector: its size, its statistics, and that several devices can share them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drtk.pretraining.encoded_batch import Projector


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


def test_none_changes_nothing() -> None:
    vectors = torch.randn(3, 4)
    assert Projector(4, kind="none")(vectors) is vectors


def test_several_devices_can_share_the_statistics() -> None:
    shared = nn.SyncBatchNorm.convert_sync_batchnorm(Projector(4, kind="bn"))
    assert [type(layer) for layer in shared.layers].count(nn.SyncBatchNorm) == 2


@pytest.mark.parametrize("kind", ["bn", "tanh"])
def test_gradients_reach_the_vectors(kind: str) -> None:
    vectors = torch.randn(6, 4, requires_grad=True)
    Projector(4, kind=kind)(vectors)[0].square().sum().backward()  # type: ignore[arg-type]
    assert vectors.grad is not None
    assert (vectors.grad[0] != 0).any()
    assert bool((vectors.grad[1:] != 0).any()) is (kind == "bn")  # through the statistics alone

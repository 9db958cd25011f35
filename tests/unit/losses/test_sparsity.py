"""FLOPS regularization by hand, and equal to sentence-transformers."""

from __future__ import annotations

import pytest
import torch

from drtk.losses.sparsity import compute_flops_ramp, flops
from drtk.training.config import RetrieverConfig
from tests.retriever_setup import compute_terms

WEIGHTS = torch.tensor([[1.0, 0.0, 3.0], [2.0, 0.0, 0.0]])


def test_flops_is_the_sum_of_squared_mean_weights_of_each_term():
    assert flops(WEIGHTS).item() == pytest.approx(1.5**2 + 0.0 + 1.5**2)  # 4.5; the mean of squares would be 7
    assert flops(WEIGHTS[:, [0]]).item() == pytest.approx(2.25)


def test_the_ramp_is_quadratic_and_stays_at_one():
    assert [compute_flops_ramp(step, 4) for step in (1, 2, 3, 4, 5)] == [1 / 16, 4 / 16, 9 / 16, 1.0, 1.0]
    assert compute_flops_ramp(1, 0) == 1.0


@pytest.mark.parametrize("loss", ["infonce", "kl", "margin-mse"])
def test_the_loss_equals_spladeloss(loss: str, monkeypatch: pytest.MonkeyPatch):
    st = pytest.importorskip("sentence_transformers.sparse_encoder.losses")
    monkeypatch.setattr("sentence_transformers.sparse_encoder.losses.splade.embed_columns", lambda _, rows, **__: rows)
    draw = torch.Generator().manual_seed(3)
    queries, passages = torch.rand(3, 20, generator=draw), torch.rand(3, 2, 20, generator=draw)
    teacher = torch.tensor([[4.0, 1.0], [2.0, 3.0], [5.0, 0.5]])
    weights = {"query_flops_weight": 0.3, "passage_flops_weight": 0.07}
    alone = {} if loss == "infonce" else {"contrastive_weight": 0.0}
    settings = RetrieverConfig(loss=loss, head="sparse", similarity="dot", negatives=1, **alone, **weights)
    actual = compute_terms(settings, queries, passages.flatten(0, 1), teacher=teacher)
    model = torch.nn.Identity()
    main = {
        "infonce": lambda: st.SparseMultipleNegativesRankingLoss(model, scale=1.0),
        "kl": lambda: st.SparseDistillKLDivLoss(model, temperature=1.0),
        "margin-mse": lambda: st.SparseMarginMSELoss(model),
    }[loss]()
    whole = st.SpladeLoss(model, main, document_regularizer_weight=0.07, query_regularizer_weight=0.3)
    expected = whole([queries, passages[:, 0], passages[:, 1]], None if loss == "infonce" else teacher)
    assert 0.07 * actual["passage_flops"] == pytest.approx(expected["document_regularizer_loss"].item())
    assert 0.3 * actual["query_flops"] == pytest.approx(expected["query_regularizer_loss"].item())
    assert actual["loss"] == pytest.approx(sum(expected.values()).item(), rel=1e-5)

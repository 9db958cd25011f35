"""Losses: known answers, precision, and equality with sentence-transformers."""

from functools import partial
from math import exp, log

import pytest
import torch

from drtk.losses import RETRIEVER_LOSSES
from drtk.losses.distillation import kl_divergence, margin_mse
from drtk.losses.ranking import (
    binary_cross_entropy,
    listwise_cross_entropy,
    multi_positive_cross_entropy,
    pairwise_margin_loss,
    pairwise_softmax_loss,
    r_drop_losses,
    select_hardest,
    term_recall_loss,
)
from drtk.losses.sparsity import compute_flops_ramp, flops
from drtk.training.config import RetrieverConfig
from drtk.training.retriever_loss import uses_teacher_scores
from tests.retriever_setup import compute_terms

FIRST = torch.tensor([[2.0, 1.0, 0.5, -1.0]])
SECOND = torch.tensor([[1.5, 1.2, 0.5, -0.5]])


def test_the_listwise_loss_matches_a_hand_computed_value():
    # e^2 + e^1 + e^.5 + e^-1 = 7.389056 + 2.718282 + 1.648721 + .367879 = 12.123939; ln 12.123939 - 2 = .495182
    assert listwise_cross_entropy(FIRST).item() == pytest.approx(0.495182, abs=2e-6)
    both = listwise_cross_entropy(torch.cat([FIRST, SECOND]))
    assert both.item() == pytest.approx((0.495182 + 0.808275) / 2, abs=2e-6)
    assert listwise_cross_entropy(FIRST.bfloat16()).dtype == torch.float32
    assert listwise_cross_entropy(FIRST.bfloat16()).item() == pytest.approx(0.495182, abs=2e-6)


def test_r_drop_matches_the_known_answer():
    # .5 * .495182 + .5 * .808275 = .651728; the divergence in both directions is .059042
    first, second = FIRST.clone().requires_grad_(), SECOND.clone().requires_grad_()
    cross_entropy, divergence = r_drop_losses(first, second)
    assert cross_entropy.item() == pytest.approx(0.651728, abs=2e-6)
    assert divergence.item() == pytest.approx(0.059042, abs=2e-6)
    for loss in (cross_entropy, divergence):
        for gradient in torch.autograd.grad(loss, (first, second), retain_graph=True):
            assert float(gradient.abs().min()) > 1e-3
    assert r_drop_losses(FIRST.bfloat16(), FIRST.bfloat16())[0].dtype == torch.float32


def test_the_hardest_are_the_positive_and_the_best_scored_negatives():
    logits = torch.tensor([[0.0, 3.0, 9.0, 1.0, 2.0], [5.0, 4.0, 3.0, 2.0, 1.0]])
    assert select_hardest(logits, 3).tolist() == [[0, 2, 1], [0, 1, 2]]
    assert select_hardest(logits, 1).tolist() == [[0], [0]]
    assert sorted(select_hardest(logits, 9)[0].tolist()) == [0, 1, 2, 3, 4]


def test_the_binary_loss_matches_a_hand_computed_value():
    # -ln sigmoid(2) = ln(1 + e^-2) = .126928; -ln(1 - sigmoid(1)) = ln(1 + e) = 1.313262; the mean is .720095
    loss = binary_cross_entropy(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 0.0]))
    assert loss.item() == pytest.approx((log(1 + exp(-2)) + log(1 + exp(1))) / 2, abs=2e-6)
    assert binary_cross_entropy(FIRST[0].bfloat16(), torch.ones(4)).dtype == torch.float32


def test_several_positives_share_the_label():
    # one positive: the listwise loss; two: half of the -log p of each; log p = logit - 2.495182 (above)
    logits = torch.cat([FIRST, torch.tensor([[99.0, -99.0]])], dim=1).requires_grad_()
    present = torch.tensor([[True] * 4 + [False] * 2])  # the last two are padding
    loss = multi_positive_cross_entropy(logits, torch.tensor([[1, 0, 0, 0, 0, 0]]), present)
    assert loss.item() == pytest.approx(0.495182, abs=2e-6)
    loss.backward()
    assert logits.grad[0, 4:].tolist() == [0.0, 0.0]
    assert bool(torch.isfinite(logits.grad).all())
    two = multi_positive_cross_entropy(logits, torch.tensor([[1, 0, 1, 0, 0, 0]]), present)
    assert two.item() == pytest.approx(2.495182 - (2 + 0.5) / 2, abs=2e-6)


def test_the_better_expansion_gets_a_lower_score() -> None:
    scores = torch.zeros(1, 2, requires_grad=True)
    pairwise_margin_loss(scores, torch.tensor([[101, 1]]), torch.ones(1, 2, dtype=torch.bool)).backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [[-1.0, 1.0]]
    equal = torch.tensor([[0.3, 0.1]], requires_grad=True)  # no pairs
    loss = pairwise_margin_loss(equal, torch.tensor([[7, 7]]), torch.ones(1, 2, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.isfinite(equal.grad).all()  # type: ignore[arg-type]


def test_recall_loss_depends_only_on_first_pieces():
    # ((.5 - 1)^2 + (.2 - 0)^2) / 2 = (.25 + .04) / 2 = .145; the pieces between are continuations
    weights, recall = torch.tensor([[0.5, 0.9, 0.1, 0.2]]), torch.tensor([[1.0, 0, 0, 0]])
    assert term_recall_loss(weights, recall, torch.tensor([[1, 0, 0, 1]])).item() == pytest.approx(0.145, abs=2e-6)
    # mean over words: errors 1, 1, 1 of the first passage and 4 of the second: 7 / 4
    weights, first = torch.tensor([[1.0, 1, 1], [2, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert term_recall_loss(weights, torch.zeros(2, 3), first).item() == pytest.approx(1.75)
    assert term_recall_loss(weights, torch.zeros(2, 3), torch.zeros(2, 3)).item() == 0.0


def test_pairwise_loss_equals_hand_computed_values():
    # -log(e^3 / (e^3 + e^2)) = log(1 + e^-1) = .313262; log(1 + e^.5) = .974077; their mean .643669
    both = pairwise_softmax_loss(torch.tensor([3.0, 1.0]), torch.tensor([2.0, 1.5]))
    assert both.item() == pytest.approx(0.643669, abs=2e-6)


@pytest.mark.parametrize("name", list(RETRIEVER_LOSSES))
def test_every_retriever_loss_is_computed_in_float32(name: str):
    generator = torch.Generator().manual_seed(0)
    half = [torch.randn(rows, 8, generator=generator).bfloat16() for rows in (3, 6)]
    more = {"teacher": torch.randn(3, 2, generator=generator)} if uses_teacher_scores(name) else {"mask": None}
    loss = partial(RETRIEVER_LOSSES.load(name), similarity="cosine", temperature=0.1, **more)
    vectors = [each.float().requires_grad_() for each in half]
    value = loss(*vectors)
    assert torch.equal(loss(*half), value)
    assert all(bool(slope.isfinite().all() and slope.any()) for slope in torch.autograd.grad(value, vectors))


def test_flops_is_the_sum_of_squared_mean_weights_of_each_term():
    weights = torch.tensor([[1.0, 0.0, 3.0], [2.0, 0.0, 0.0]])
    assert flops(weights).item() == pytest.approx(1.5**2 + 0.0 + 1.5**2)  # 4.5; the mean of squares would be 7
    # the ramp is quadratic and stays at 1
    assert [compute_flops_ramp(step, 4) for step in (1, 2, 3, 4, 5)] == [1 / 16, 4 / 16, 9 / 16, 1.0, 1.0]
    assert compute_flops_ramp(1, 0) == 1.0


def test_kl_and_margins_have_known_values():
    # of the cosines .8 .7 .75: sum of p_t log(p_t / p_s); teacher's margins 2 3, student's .1 .05: (1.9^2 + 2.95^2) / 2
    cosines, teacher = torch.tensor([0.80, 0.70, 0.75]), torch.tensor([[4.0, 2.0, 1.0]])
    vectors = torch.tensor([[1.0, 0.0]]), torch.stack([cosines, (1 - cosines.square()).sqrt()], dim=1)
    for loss, temperature, expected in ((kl_divergence, 0.02, 0.236832), (margin_mse, 1.0, 6.15625)):
        for scale in (1.0, 2.0):
            given = {"teacher": scale * teacher, "teacher_temperature": scale, "temperature": temperature}
            assert loss(*vectors, similarity="cosine", **given).item() == pytest.approx(expected, abs=1e-5)


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

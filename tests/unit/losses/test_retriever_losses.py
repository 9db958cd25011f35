"""Retriever losses: known answers of docs/methods/fine-tuning.md, docs/methods/distillation.md."""

from __future__ import annotations

import math

import pytest
import torch

from drtk.losses import RETRIEVER_LOSSES
from drtk.losses.contrastive import infonce, mask_duplicate_positives, mask_labeled_positives, simlm_full, simlm_paper
from drtk.losses.distillation import kl_divergence, margin_mse, score_candidates
from drtk.training.retriever_loss import learns_from_teacher
from tests.retriever_setup import P, Q

LOSSES = {"infonce": infonce, "simlm-paper": simlm_paper, "simlm-full": simlm_full}
TEACHER = torch.tensor([[4.0, 2.0, 1.0]])
COSINES = torch.tensor([0.80, 0.70, 0.75])
QUERY = torch.tensor([[1.0, 0.0]])
CANDIDATES = torch.stack([COSINES, (1 - COSINES.square()).sqrt()], dim=1)  # unit vectors with those cosines


@pytest.mark.parametrize(
    ("loss", "first", "expected", "sharp"),
    [
        # the scores of query 1 at temperature .5, whose positive has 1.6, and the loss of query 2
        ("infonce", (1.6, 1.2, 0.56, -1.2), 0.807592, None),
        # also d+ with (.6,-.8) (.28,.96) (-.6,.8): 0, .8 / .5, 0
        ("simlm-paper", (1.6, 1.2, 0.56, -1.2, 0, 1.6, 0), 1.252637, 0.346920),
        # also d+ with q2, q with q2, d+ with d2+
        ("simlm-full", (1.6, 1.2, 0.56, -1.2, 1.2, 0, 1.6), 1.215482, 0.346932),
    ],
)
def test_contrastive_losses_match_known_answers(loss: str, first: tuple, expected: float, sharp: float | None):
    of_first = math.log(sum(map(math.exp, first))) - 1.6
    value = LOSSES[loss](Q, P, similarity="cosine", temperature=0.5).item()
    assert value == pytest.approx((of_first + expected) / 2, abs=2e-6)
    sharp_value = LOSSES[loss](Q.bfloat16(), P.bfloat16(), similarity="cosine", temperature=0.02)
    assert sharp_value.dtype == torch.float32
    assert sharp_value.item() == pytest.approx(sharp or 0.0, abs=0.05)
    if sharp:
        assert LOSSES[loss](Q, P, similarity="cosine", temperature=0.02).item() == pytest.approx(sharp, abs=4e-6)


def test_infonce_of_inner_products():
    # row 1: q = (2, 0), scores 3 2 .4 -1 -> log(e^3 + e^2 + e^.4 + e^-1) - 3 = .378757; row 2 .495182
    queries = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    passages = torch.tensor([[1.5, 0.5], [1.0, -1.0], [0.2, 2.0], [-0.5, 1.0]])
    value = infonce(queries, passages, similarity="dot", temperature=1.0)
    assert value.item() == pytest.approx((0.378757 + 0.495182) / 2, abs=2e-6)


def test_masks_of_duplicates_and_known_positives():
    # three queries, n = 2; passage 7 is the positive of queries 0 and 1, and a negative of query 2
    mask = mask_duplicate_positives(torch.tensor([7, 1, 7, 2, 3, 7]), 3)
    assert mask.int().tolist() == [[0, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0]]
    # n = 2: positives of query 0 are 7 and 2 (which is its own negative here), of query 1 1, of query 2 3
    passages, positives = torch.tensor([7, 2, 1, 7, 3, 2]), torch.tensor([[7, 2], [1, -1], [3, -1]])
    mask = mask_labeled_positives(passages, positives, own=torch.tensor([0, 2, 4]))
    assert mask.int().tolist() == [[0, 1, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]


def test_a_positive_of_one_query_is_masked_where_it_is_no_negative():
    # d2 is relevant to both queries, d1 to the first only; n = 1, all scores 0
    # q1: q1.d1 and d1.q2 (d1 is a negative of q2) are left: ln 2; q2: q2.d1, q2.d2, d2.d1 are left: ln 3
    mask = torch.tensor([[False, True], [False, False]])
    value = simlm_full(torch.zeros(2, 3), torch.zeros(2, 3), similarity="dot", temperature=1.0, mask=mask)
    assert value.item() == pytest.approx((math.log(2) + math.log(3)) / 2)


def test_kl_is_from_the_teacher_to_the_student():
    # sum of p_t log(p_t / p_s); reversed it is .103878
    given = {"similarity": "cosine", "temperature": 0.02}
    assert kl_divergence(QUERY, CANDIDATES, teacher=TEACHER, **given).item() == pytest.approx(0.236832, abs=2e-6)
    halved = kl_divergence(QUERY, CANDIDATES, teacher=2 * TEACHER, teacher_temperature=2.0, **given)
    assert halved.item() == pytest.approx(0.236832, abs=4e-6)
    # a second query whose teacher agrees with its student: (.236832 + 0) / 2
    teacher = torch.cat([TEACHER, COSINES.unsqueeze(0) / 0.02])
    both = kl_divergence(QUERY.repeat(2, 1), CANDIDATES.repeat(2, 1), teacher=teacher, **given)
    assert both.item() == pytest.approx(0.236832 / 2, abs=2e-6)


def test_queries_are_compared_with_their_own_candidates_only():
    # the second query's candidates are those of the first in reverse
    queries, candidates = QUERY.repeat(2, 1), 3 * torch.cat([CANDIDATES, CANDIDATES.flip(0)])
    scores = score_candidates(queries, candidates, similarity="cosine", temperature=0.02).flatten().tolist()
    assert scores == pytest.approx([40.0, 35.0, 37.5, 37.5, 35.0, 40.0], abs=1e-4)
    assert score_candidates(queries, candidates, similarity="dot", temperature=1.0)[0, 0].item() == pytest.approx(2.4)


def test_margins_are_compared():
    # teacher 4 - 2 = 2, 4 - 1 = 3; student .8 - .7 = .1, .8 - .75 = .05: (1.9^2 + 2.95^2) / 2 = 6.15625
    given = {"similarity": "cosine", "temperature": 1.0}
    assert margin_mse(QUERY, CANDIDATES, teacher=TEACHER, **given).item() == pytest.approx(6.15625, abs=1e-5)
    softer = margin_mse(QUERY, CANDIDATES, teacher=2 * TEACHER, teacher_temperature=2.0, **given)
    assert softer.item() == pytest.approx(6.15625, abs=1e-5)
    assert margin_mse(QUERY, CANDIDATES[:1], teacher=TEACHER[:, :1], **given).item() == 0.0


@pytest.mark.parametrize("name", list(RETRIEVER_LOSSES))
def test_every_retriever_loss_has_finite_gradients(name: str):
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(rows, 8, generator=generator, requires_grad=True) for rows in (3, 6)]
    more = {"teacher": torch.randn(3, 2, generator=generator)} if learns_from_teacher(name) else {"mask": None}
    value = RETRIEVER_LOSSES.load(name)(*vectors, similarity="cosine", temperature=0.1, **more)
    value.backward()
    assert value.shape == ()
    assert torch.isfinite(value)
    assert all(each.grad is not None and each.grad.abs().sum() > 0 for each in vectors)

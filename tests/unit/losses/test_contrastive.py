"""Known answers of methods, sections 6.3 and 11."""

from __future__ import annotations

import math

import pytest
import torch

from drtk.losses import RETRIEVER_LOSSES
from drtk.losses.contrastive import (
    infonce,
    infonce_rows,
    known_positives,
    same_as_positive,
    simlm_full,
    simlm_full_rows,
    simlm_paper,
    simlm_paper_rows,
)
from drtk.training.retriever_loss import learns_from_teacher
from tests.finetuning import P, Q


def test_cosine_at_temperature_one_half():
    # row 1: scores 1.6 1.2 .56 -1.2 -> log(e^1.6 + e^1.2 + e^.56 + e^-1.2) - 1.6 = .734570
    rows = infonce_rows(Q, P, similarity="cosine", temperature=0.5)
    assert rows.tolist() == pytest.approx([0.734570, 0.807592], abs=2e-6)
    assert infonce(Q, P, similarity="cosine", temperature=0.5).item() == pytest.approx(0.771081, abs=2e-6)


def test_dot_product_at_temperature_one():
    # row 1: q = (2, 0), scores 3 2 .4 -1 -> log(e^3 + e^2 + e^.4 + e^-1) - 3 = .378757
    queries = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    found = torch.tensor([[1.5, 0.5], [1.0, -1.0], [0.2, 2.0], [-0.5, 1.0]])
    rows = infonce_rows(queries, found, similarity="dot", temperature=1.0)
    assert rows.tolist() == pytest.approx([0.378757, 0.495182], abs=2e-6)
    assert rows.mean().item() == pytest.approx(0.436970, abs=2e-6)


LOSSES = {"infonce": infonce, "simlm-paper": simlm_paper, "simlm-full": simlm_full}


def test_simlm_as_printed_puts_the_positive_against_all_others_as_well():
    # row 1, tau .5: q.m 1.2 .56 -1.2 and d+.m = 0 1.6 0, of (.6,-.8) (.28,.96) (-.6,.8): 0, .8 / .5 = 1.6, 0
    # log(e^1.6 + e^1.2 + e^.56 + e^-1.2 + e^0 + e^1.6 + e^0) - 1.6 = 1.249437
    first = math.log(sum(map(math.exp, (1.6, 1.2, 0.56, -1.2, 0, 1.6, 0)))) - 1.6
    rows = simlm_paper_rows(Q, P, similarity="cosine", temperature=0.5)
    assert rows.tolist() == pytest.approx([1.249437, 1.252637], abs=2e-6)
    assert first == pytest.approx(1.249437, abs=2e-6)
    assert simlm_paper(Q, P, similarity="cosine", temperature=0.5).item() == pytest.approx(1.251037, abs=2e-6)
    assert simlm_paper(Q, P, similarity="cosine", temperature=0.02).item() == pytest.approx(0.346920, abs=4e-6)


def test_simlm_as_released_has_four_blocks():
    # row 1, tau .5: q with passages 1.6 1.2 .56 -1.2; d+ with q2 1.2; q with q2 0; d+ with d2+ 1.6
    first = math.log(sum(map(math.exp, (1.6, 1.2, 0.56, -1.2, 1.2, 0, 1.6)))) - 1.6
    rows = simlm_full_rows(Q, P, similarity="cosine", temperature=0.5)
    assert first == pytest.approx(1.375436, abs=2e-6)
    assert rows.tolist() == pytest.approx([1.375436, 1.215482], abs=2e-6)
    assert simlm_full(Q, P, similarity="cosine", temperature=0.5).item() == pytest.approx(1.295459, abs=2e-6)
    assert simlm_full(Q, P, similarity="cosine", temperature=0.02).item() == pytest.approx(0.346932, abs=4e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_half_precision_vectors_are_compared_in_float32(loss: str):
    value = LOSSES[loss](Q.bfloat16(), P.bfloat16(), similarity="cosine", temperature=0.02)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx({"infonce": 0.0, "simlm-paper": 0.347, "simlm-full": 0.347}[loss], abs=0.05)


def test_a_shared_positive_is_barred_everywhere_but_at_home():
    # three queries, n = 2; passage 7 is the positive of queries 0 and 1, and a negative of query 2
    barred = same_as_positive(torch.tensor([7, 1, 7, 2, 3, 7]), 3)
    assert barred.int().tolist() == [[0, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0]]


def test_every_answer_of_a_query_is_barred_wherever_it_comes_from():
    # n = 2: query 0 answers 7 and 2 (its own negative is 2, from another line); query 1 answers 1; query 2 has 3
    passages, answers = torch.tensor([7, 2, 1, 7, 3, 2]), torch.tensor([[7, 2], [1, -1], [3, -1]])
    barred = known_positives(passages, answers, own=torch.tensor([0, 2, 4]))
    assert barred.int().tolist() == [[0, 1, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize(("loss", "columns"), [("infonce", 2), ("simlm-paper", 3), ("simlm-full", 5)])
def test_barred_columns_leave_every_sum(loss: str, columns: int):
    # two queries with one positive, n = 1, all scores 0: ln of the columns with the duplicate, ln 1 = 0 without
    queries, found = torch.zeros(2, 3), torch.zeros(2, 3)
    value = LOSSES[loss](queries, found, similarity="dot", temperature=1.0)
    assert value.item() == pytest.approx(math.log(columns), abs=2e-6)
    barred = same_as_positive(torch.tensor([4, 4]), 2)
    assert LOSSES[loss](queries, found, similarity="dot", temperature=1.0, barred=barred).item() == 0.0


def test_an_answer_of_one_query_alone_is_barred_in_the_blocks_where_it_would_be_false():
    # d2 answers both queries, d1 the first alone; n = 1, all scores 0
    # q1: q1.d1, d1.q2 (d1 is no answer of q2) are left: ln 2; q2: q2.d1, q2.d2, d2.d1 are left: ln 3
    barred = torch.tensor([[False, True], [False, False]])
    rows = simlm_full_rows(torch.zeros(2, 3), torch.zeros(2, 3), similarity="dot", temperature=1.0, barred=barred)
    assert rows.tolist() == pytest.approx([math.log(2), math.log(3)])


@pytest.mark.parametrize("name", list(RETRIEVER_LOSSES))
def test_every_retriever_loss_is_finite_and_has_gradients(name: str):
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(3, 8, generator=generator, requires_grad=True)
    found = torch.randn(6, 8, generator=generator, requires_grad=True)
    loss = RETRIEVER_LOSSES.load(name)
    more = {"teacher": torch.randn(3, 2, generator=generator)} if learns_from_teacher(name) else {"barred": None}
    value = loss(queries, found, similarity="cosine", temperature=0.1, **more)
    value.backward()
    assert value.shape == ()
    assert torch.isfinite(value)
    assert queries.grad is not None
    assert queries.grad.abs().sum() > 0
    assert found.grad is not None
    assert found.grad.abs().sum() > 0

"""Known answers of methods, sections 6.3 and 11."""

from __future__ import annotations

import math

import pytest
import torch

from drtk.losses import RETRIEVER_LOSSES
from drtk.losses.contrastive import infonce, infonce_rows, same_as_positive
from drtk.settings.core import load_preset, merge
from drtk.settings.finetuning import RetrieverSettings
from drtk.training.retriever import retriever_objective

Q = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
P = torch.tensor([[0.8, 0.6], [0.6, -0.8], [0.28, 0.96], [-0.6, 0.8]])  # d1+, n1, d2+, n2


def test_cosine_at_temperature_one_half():
    # row 1: scores 1.6 1.2 .56 -1.2 -> log(e^1.6 + e^1.2 + e^.56 + e^-1.2) - 1.6 = .734570
    rows = infonce_rows(Q, P, similarity="cosine", temperature=0.5)
    assert rows.tolist() == pytest.approx([0.734570, 0.807592], abs=1e-6)
    assert infonce(Q, P, similarity="cosine", temperature=0.5).item() == pytest.approx(0.771081, abs=1e-6)


def test_cosine_at_temperature_one_fiftieth():
    assert infonce(Q, P, similarity="cosine", temperature=0.02).item() == pytest.approx(0.000190410, abs=1e-8)


def test_cosine_does_not_see_lengths():
    stretched = infonce(3 * Q, P * torch.tensor([[2.0], [5.0], [0.1], [7.0]]), similarity="cosine", temperature=0.5)
    assert stretched.item() == pytest.approx(0.771081, abs=1e-6)


def test_dot_product_at_temperature_one():
    # row 1: q = (2, 0), scores 3 2 .4 -1 -> log(e^3 + e^2 + e^.4 + e^-1) - 3 = .378757
    queries = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    found = torch.tensor([[1.5, 0.5], [1.0, -1.0], [0.2, 2.0], [-0.5, 1.0]])
    rows = infonce_rows(queries, found, similarity="dot", temperature=1.0)
    assert rows.tolist() == pytest.approx([0.378757, 0.495182], abs=1e-6)
    assert rows.mean().item() == pytest.approx(0.436970, abs=1e-6)


@pytest.mark.parametrize(("batch", "n", "expected"), [(64, 16, 6.931472), (128, 2, 5.545177), (64, 1, 4.158883)])
def test_identical_vectors_give_the_logarithm_of_the_columns(batch: int, n: int, expected: float):
    # ln(64 * 16) = ln 1024, ln(128 * 2) = ln 256, ln 64
    value = infonce(torch.ones(batch, 4), torch.ones(batch * n, 4), similarity="cosine", temperature=0.02)
    assert value.item() == pytest.approx(expected, abs=1e-5)


def test_half_precision_vectors_are_compared_in_float32():
    value = infonce(Q.bfloat16(), P.bfloat16(), similarity="cosine", temperature=0.02)
    assert value.dtype == torch.float32


def test_a_shared_positive_is_barred_everywhere_but_at_home():
    # passages 7 1 | 7 2 | 9 7: query 1 finds its positive 7 again in columns 2 and 5, query 2 in 0 and 5, query 3 has 9
    barred = same_as_positive(torch.tensor([7, 1, 7, 2, 9, 7]), 3)
    assert barred.int().tolist() == [[0, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0]]


def test_barred_columns_leave_the_sum():
    # two queries with one positive, n = 1, dot product 0 everywhere: ln 2 with the duplicate, ln 1 = 0 without
    queries, found = torch.zeros(2, 3), torch.zeros(2, 3)
    assert infonce(queries, found, similarity="dot", temperature=1.0).item() == pytest.approx(math.log(2))
    barred = same_as_positive(torch.tensor([4, 4]), 2)
    assert infonce(queries, found, similarity="dot", temperature=1.0, barred=barred).item() == 0.0

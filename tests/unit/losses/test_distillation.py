"""Known answers of methods, section 6.8."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from drtk.losses.distillation import candidate_scores, distill_kl, kl, margin_mse, squared_margins

TEACHER = torch.tensor([[4.0, 2.0, 1.0]])
COSINES = torch.tensor([0.80, 0.70, 0.75])
QUERY = torch.tensor([[1.0, 0.0]])
CANDIDATES = torch.stack([COSINES, (1 - COSINES.square()).sqrt()], dim=1)  # unit vectors with those cosines


def test_the_teacher_comes_first():
    # sum of p_t log(p_t / p_s); the other way round it would be .103878
    student = COSINES.unsqueeze(0) / 0.02
    assert distill_kl(student, TEACHER).item() == pytest.approx(0.236832, abs=2e-6)
    assert distill_kl(TEACHER, student).item() == pytest.approx(0.103878, abs=2e-6)


def test_it_is_the_cross_entropy_with_soft_labels_less_the_teachers_entropy():
    # .761098 - .524267: what MASTER's code minimises has the same gradient
    student, shares = COSINES.unsqueeze(0) / 0.02, TEACHER.softmax(-1)
    soft, entropy = F.cross_entropy(student, shares).item(), -(shares * shares.log()).sum().item()
    assert (soft, entropy) == (pytest.approx(0.761098, abs=2e-6), pytest.approx(0.524267, abs=2e-6))
    assert distill_kl(student, TEACHER).item() == pytest.approx(soft - entropy, abs=2e-6)


def test_vectors_are_compared_with_their_own_candidates_alone():
    # two queries: the second's candidates are those of the first in another order, and it has the same vector
    queries, found = QUERY.repeat(2, 1), torch.cat([CANDIDATES, CANDIDATES.flip(0)])
    scores = candidate_scores(queries, 3 * found, similarity="cosine", temperature=0.02)
    assert scores.tolist()[0] == pytest.approx([40.0, 35.0, 37.5], abs=1e-4)
    assert scores.tolist()[1] == pytest.approx([37.5, 35.0, 40.0], abs=1e-4)
    assert candidate_scores(queries, 3 * found, similarity="dot", temperature=1.0)[0, 0].item() == pytest.approx(2.4)


def test_a_query_that_agrees_halves_the_mean():
    # the second query's teacher says what its student says: (.236832 + 0) / 2
    teacher = torch.cat([TEACHER, COSINES.unsqueeze(0) / 0.02])
    value = kl(QUERY.repeat(2, 1), CANDIDATES.repeat(2, 1), teacher=teacher, similarity="cosine", temperature=0.02)
    assert value.item() == pytest.approx(0.236832 / 2, abs=2e-6)
    same = kl(QUERY, CANDIDATES, teacher=COSINES.unsqueeze(0) / 0.02, similarity="cosine", temperature=0.02)
    assert same.item() == pytest.approx(0.0, abs=2e-6)


def test_a_teachers_temperature_divides_its_scores():
    value = kl(QUERY, CANDIDATES, teacher=2 * TEACHER, similarity="cosine", temperature=0.02, teacher_temperature=2.0)
    assert value.item() == pytest.approx(0.236832, abs=4e-6)


def test_margins_are_compared():
    # teacher 4 - 2 = 2, 4 - 1 = 3; student .8 - .7 = .1, .8 - .75 = .05: (1.9^2 + 2.95^2) / 2 = 6.15625
    assert squared_margins(COSINES.unsqueeze(0), TEACHER).item() == pytest.approx(6.15625, abs=1e-5)
    value = margin_mse(QUERY, CANDIDATES, teacher=TEACHER, similarity="cosine", temperature=1.0)
    assert value.item() == pytest.approx(6.15625, abs=1e-5)
    shifted = squared_margins(TEACHER - 17, TEACHER)
    assert shifted.item() == pytest.approx(0.0, abs=2e-6)
    assert squared_margins(TEACHER[:, :1], TEACHER[:, :1]).item() == 0.0

"""Known answers of docs/methods/fine-tuning.md, docs/methods/distillation.md, for presets and fixed vectors."""

import math

import pytest
import torch

from drtk.errors import UsageError
from drtk.training.retriever_loss import RetrieverLoss, compute_warmup_temperature
from tests.retriever_setup import P, Q, compute_terms, load_settings

COSINES = torch.tensor([0.80, 0.70, 0.75])
ONE = torch.tensor([[1.0, 0.0]]), torch.stack([COSINES, (1 - COSINES.square()).sqrt()], dim=1)
TEACHER = torch.tensor([[4.0, 2.0, 1.0]])


def close(value: float) -> object:
    return pytest.approx(value, abs=5e-6)


def test_the_default_temperature_is_1_for_inner_products_and_0_02_for_cosines():
    # docs/methods/fine-tuning.md: the known answers at temperature 1 and .02
    queries = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    actual = torch.tensor([[1.5, 0.5], [1.0, -1.0], [0.2, 2.0], [-0.5, 1.0]])
    assert compute_terms(load_settings(similarity="dot"), queries, actual)["loss"] == close(0.436970)
    assert compute_terms(load_settings(similarity="cosine"), Q, P)["loss"] == pytest.approx(0.000190410, abs=5e-7)
    for settings, temperature in (
        (load_settings(), 1.0),  # as the start model says
        (load_settings(similarity="dot", temperature=0.02), 0.02),
        (load_settings("simlm-r1", similarity="dot"), 0.02),  # the preset's own
    ):
        assert RetrieverLoss.from_config(settings, similarity="dot").temperature == temperature


def test_margin_mse_is_the_whole_loss_unless_alpha_is_given():
    settings = load_settings(loss="margin-mse", similarity="cosine", temperature=1.0)
    assert compute_terms(settings, *ONE, teacher=TEACHER) == {"distillation": close(6.15625), "loss": close(6.15625)}
    more = load_settings(loss="margin-mse", similarity="cosine", temperature=1.0, contrastive_weight=0.5)
    actual = compute_terms(more, *ONE, teacher=TEACHER)
    assert actual["loss"] == close(6.15625 + 0.5 * actual["contrastive"])


def test_matryoshka_loss_normalizes_truncated_vectors():
    # Of two queries and passages of length 1, the first two of three numbers: (.6, 0) (0, .8), (.6, .64) (.48, .6).
    queries = torch.tensor([[0.6, 0.0, 0.8], [0.0, 0.8, 0.6]])
    passages = torch.tensor([[0.6, 0.64, 0.48], [0.48, 0.6, 0.64]])
    settings = load_settings("dpr-nq", matryoshka=(2,), normalize=True)
    goal = RetrieverLoss.from_config(settings, similarity="dot", normalize=True)
    actual = goal.compute_terms(queries, passages, {"passage_indices": torch.arange(2)})
    # cut: .36 .288 and .512 .48; cut, then made of length 1 as encode --dimensions does: .6839 .6247 and .7295 .7809
    lengths = math.hypot(0.6, 0.64), math.hypot(0.48, 0.6)
    first = math.log(1 + math.exp(0.48 / lengths[1] - 0.6 / lengths[0]))
    second = math.log(1 + math.exp(0.64 / lengths[0] - 0.6 / lengths[1]))
    assert actual["contrastive_2"] == close((first + second) / 2)
    bare = RetrieverLoss.from_config(settings, similarity="dot").compute_terms(
        queries, passages, {"passage_indices": torch.arange(2)}
    )
    cut = math.log(1 + math.exp(0.288 - 0.36)), math.log(1 + math.exp(0.512 - 0.48))
    assert bare["contrastive_2"] == close(sum(cut) / 2)
    assert bare["contrastive"] == actual["contrastive"]


def test_the_temperature_warms_up_from_one():
    # 1 / t rises to 50 over 1000 steps, and is 1 at least: 0, 10 of 1000 -> .5 -> 1; 100 -> 5; 500 -> 25
    actual = [compute_warmup_temperature(step, final=0.02, warmup_steps=1000) for step in (0, 10, 100, 500, 1000, 5000)]
    assert actual == pytest.approx([1, 1, 1 / 5, 1 / 25, 0.02, 0.02])
    assert compute_warmup_temperature(3, final=0.05, warmup_steps=0) == 0.05
    assert compute_warmup_temperature(3, final=2.0, warmup_steps=10) == 2.0


def test_losses_that_cannot_be_combined_are_rejected():
    for changes, message in (
        ({"loss": "hinge"}, "unknown retriever loss 'hinge'; choose from infonce, simlm-paper"),
        ({"loss": "kl", "contrastive": "margin-mse"}, "`contrastive` margin-mse: is a distillation loss"),
        ({"loss": "kl", "negatives": 0}, "`loss` kl requires `negatives` above 0"),
    ):
        with pytest.raises(UsageError, match=message):
            RetrieverLoss.from_config(load_settings(**changes), similarity="cosine")

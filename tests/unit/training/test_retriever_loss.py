"""Known answers of docs/methods/fine-tuning.md, docs/methods/distillation.md, for presets and fixed vectors."""

from __future__ import annotations

import math

import pytest
import torch

from drtk.errors import UsageError
from drtk.training.retriever_loss import RetrieverLoss, compute_warmup_temperature
from tests.retriever_setup import P, Q, compute_terms, load_settings

SIMLM = [f"simlm-{where}{stage}{how}" for where in ("", "nq-") for stage in ("r1", "r2") for how in ("", "-official")]
DISTILLED = [f"simlm-{where}distill{how}" for where in ("", "nq-") for how in ("", "-official")]
DOT = ["qac-r1", "qac-r2", "rom-ft", "dpr-nq", "dpr-nq-roberta-shared", "master-official-r1", "master-official-r2"]
COSINES = torch.tensor([0.80, 0.70, 0.75])
ONE = torch.tensor([[1.0, 0.0]]), torch.stack([COSINES, (1 - COSINES.square()).sqrt()], dim=1)
TEACHER = torch.tensor([[4.0, 2.0, 1.0]])


def close(value: float) -> object:
    return pytest.approx(value, abs=5e-6)


@pytest.mark.parametrize("preset", SIMLM)
def test_simlm_presets_give_the_released_loss(preset: str):
    assert compute_terms(load_settings(preset), 3 * Q, 2 * P)["loss"] == close(0.346932)
    assert compute_terms(load_settings(preset, temperature=0.5), Q, P)["loss"] == close(1.295459)
    assert compute_terms(load_settings(preset, loss="simlm-paper"), Q, P)["loss"] == close(0.346920)
    assert compute_terms(load_settings(preset, loss="simlm-paper", temperature=0.5), Q, P)["loss"] == close(1.251037)
    assert compute_terms(load_settings(preset, loss="infonce", temperature=0.5), Q, P)["loss"] == close(0.771081)


@pytest.mark.parametrize("preset", DOT)
def test_presets_of_inner_products_divide_by_nothing(preset: str):
    # q (2, 0): 3 2 .4 -1 -> log(e^3 + e^2 + e^.4 + e^-1) - 3 = .378757; the other .495182
    queries = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    actual = torch.tensor([[1.5, 0.5], [1.0, -1.0], [0.2, 2.0], [-0.5, 1.0]])
    expected = {"contrastive": close(0.436970), "loss": close(0.436970)}
    assert compute_terms(load_settings(preset), queries, actual) == expected


def test_the_quickstart_divides_by_its_own_temperature():
    # scores / .05; row 1: 16 12 5.6 -12, row 2: 12 -16 19.2 16
    first = math.log(sum(map(math.exp, (16, 12, 5.6, -12)))) - 16
    second = math.log(sum(map(math.exp, (12, -16, 19.2, 16)))) - 19.2
    assert compute_terms(load_settings("quickstart"), Q, P)["loss"] == close((first + second) / 2)
    assert compute_terms(load_settings("quickstart", temperature=0.5), Q, P)["loss"] == close(0.771081)


@pytest.mark.parametrize("preset", DISTILLED)
def test_simlms_distillation_is_kl_plus_alpha_times_contrast(preset: str):
    # .236832 + .2 * .085097 = .253851; the script for NQ has alpha 1: .321929
    alpha = 1.0 if preset == "simlm-nq-distill-official" else 0.2
    actual = compute_terms(load_settings(preset), *ONE, teacher=TEACHER)
    assert actual == {
        "distillation": close(0.236832),
        "contrastive": close(0.085097),
        "loss": close(0.236832 + alpha * 0.085097),
    }
    weighted = compute_terms(load_settings(preset, contrastive_weight=0.2), *ONE, teacher=TEACHER)
    assert weighted["loss"] == close(0.253851)
    alone = compute_terms(load_settings(preset, contrastive_weight=0.0), *ONE, teacher=TEACHER)
    assert alone == {"distillation": close(0.236832), "loss": close(0.236832)}


def test_masters_distillation_compares_inner_products():
    # vectors of length sqrt(50) and more have products 40, 35, 37.5 at temperature 1: SimLM's answer again
    terms = compute_terms(load_settings("master-official-distill"), ONE[0] * 50, ONE[1], teacher=TEACHER)
    assert terms["loss"] == close(0.253851)


@pytest.mark.parametrize(
    ("preset", "changes", "expected"),
    [
        ("qac-r1", {}, 6.931472),  # ln(64 * 16)
        ("simlm-r1", {"loss": "infonce"}, 6.931472),
        ("simlm-r1", {"loss": "simlm-paper"}, 7.624131),  # ln 2047
        ("simlm-r1", {}, 7.100852),  # ln(1024 + 3 * 63)
        ("simlm-nq-r2-official", {}, 7.100852),
        ("simlm-distill", {}, 7.452982),  # ln(64 * 24 + 189)
        ("dpr-nq", {}, 5.545177),  # ln(128 * 2)
        ("dpr-nq-roberta-shared", {}, 5.545177),
        ("master-official-r1", {}, math.log(64 * 32)),
        ("master-official-distill", {}, math.log(512 * 42)),
        ("quickstart", {}, math.log(16 * 2)),
    ],
)
def test_vectors_that_are_all_alike_count_the_columns_of_a_presets_batch(preset: str, changes: dict, expected: float):
    settings = load_settings(preset, **changes)
    n = settings.negatives + 1
    vectors = torch.ones(settings.batch_size, 4), torch.ones(settings.batch_size * n, 4)
    actual = compute_terms(settings, *vectors, teacher=torch.zeros(settings.batch_size, n))
    assert actual["contrastive"] == pytest.approx(expected, abs=1e-5)
    assert actual.get("distillation", 0.0) == pytest.approx(0.0, abs=2e-6)  # the student says what the teacher says


def test_inner_products_are_divided_by_nothing_and_cosines_by_a_fiftieth_unless_told_otherwise():
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


def test_margin_mse_stands_alone_unless_alpha_is_given():
    settings = load_settings(loss="margin-mse", similarity="cosine", temperature=1.0)
    assert compute_terms(settings, *ONE, teacher=TEACHER) == {"distillation": close(6.15625), "loss": close(6.15625)}
    more = load_settings(loss="margin-mse", similarity="cosine", temperature=1.0, contrastive_weight=0.5)
    actual = compute_terms(more, *ONE, teacher=TEACHER)
    assert actual["loss"] == close(6.15625 + 0.5 * actual["contrastive"])


def test_answers_are_masked_wider_than_duplicates():
    # q1 answers d1 and d2: without masks as ever; duplicates are none here; with answers row 1 loses e^.56
    answers = torch.tensor([[0, 2], [2, -1]])
    first = math.log(sum(map(math.exp, (1.6, 1.2, -1.2)))) - 1.6
    given = {"loss": "infonce", "temperature": 0.5}
    actual = compute_terms(load_settings("simlm-r1", **given, mask_false_negatives=True), Q, P, positives=answers)
    assert actual["loss"] == close((first + 0.807592) / 2)
    actual = compute_terms(load_settings("simlm-r1", **given, mask_duplicate_positives=True), Q, P)
    assert actual["loss"] == close(0.771081)


def test_matryoshka_adds_the_loss_of_the_first_numbers():
    # of the first number alone all cosines are -1, 0 or 1; here: q1 1, q2 0 (a vector of nothing); d .8 .6 .28 -.6 -> 1 1 1 -1
    settings = load_settings("quickstart", temperature=0.5, matryoshka=(1,))
    first = math.log(3 * math.exp(2) + math.exp(-2)) - 2
    actual = compute_terms(settings, Q, P)
    assert actual["contrastive"] == close(0.771081)
    assert actual["contrastive_1"] == close((first + math.log(4)) / 2)
    assert actual["loss"] == close(actual["contrastive"] + actual["contrastive_1"])
    weighed = compute_terms(load_settings("simlm-distill", matryoshka=(1,)), *ONE, teacher=TEACHER)
    parts = (
        weighed[f"{name}{size}"] * weight
        for name, weight in (("distillation", 1), ("contrastive", 0.2))
        for size in ("", "_1")
    )
    assert weighed["loss"] == close(sum(parts))


def test_matryoshka_goes_by_the_vectors_as_they_will_be_used():
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

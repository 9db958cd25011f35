"""Known answers of methods, sections 0.4, 5, 6.3 and 11, on the references of the pre-training losses."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM
from transformers.models.bert.modeling_bert import BertLayer

from tests.reference import retrieval
from tests.reference.cocondenser import pair_losses
from tests.reference.cotmae import window
from tests.reference.diffcse import (
    copied_or_said,
    deletion_labels,
    difference_labels,
    insertion_count,
    insertion_labels,
    reduced,
)
from tests.reference.master import PASS_OF, Tasks, master
from tests.reference.means import binary_loss, token_loss, token_mean, with_total
from tests.reference.mlm import mlm
from tests.reference.parts import fresh_layers, projector_modules, small_bert, small_config
from tests.reference.simcse import contrast_losses, cosine
from tests.reference.simlm import simlm
from tests.reference.text import Text


def values(losses: list[Tensor]) -> list[float]:
    return [loss.item() for loss in losses]


def mean(losses: list[Tensor]) -> float:
    return token_mean([losses]).item()


def near(expected: float | list[float], *, abs: float = 2e-6) -> object:
    return pytest.approx(expected, abs=abs)


def numbers(*tokens: float) -> list[Tensor]:
    return [torch.tensor(token) for token in tokens]


def said(share: float, *, of: int = 3) -> Tensor:
    """The loss of a token whose softmax probability is `share` among `of` classes."""
    logits = torch.tensor([share, *[(1 - share) / (of - 1)] * (of - 1)]).log()
    return token_loss(logits, 0)


def found(share_of_original: float, label: int) -> Tensor:
    """The loss of a label in two classes, "original" (0) having that probability."""
    return token_loss(torch.tensor([share_of_original, 1 - share_of_original]).log(), label)


# --- means ---------------------------------------------------------------------------------------------------------


def test_the_mean_is_over_tokens_not_over_sequences():
    # (1 + 2 + 3 + 6) / 4 = 3, where the mean of the sequences' means were (2 + 6) / 2 = 4
    assert token_mean([numbers(1, 2, 3), numbers(6)]).item() == 3.0


def test_chunks_weigh_by_their_tokens():
    # means 2.0 of 3 tokens and 1.0 of 1 token: 7 / 4
    assert token_mean([numbers(2, 2, 2), numbers(1)]).item() == 1.75


def test_terms_are_means_of_their_own_tokens():
    # 2.0 over 10 tokens and 1.0 over 30: 3.0; pooled it were 50 / 40 = 1.25
    terms = {"mkp": token_mean([numbers(*[2.0] * 10)]), "dor": token_mean([numbers(*[1.0] * 30)])}
    assert with_total(terms)["total"].item() == 3.0
    assert token_mean([numbers(*[2.0] * 10), numbers(*[1.0] * 30)]).item() == 1.25


def test_no_labelled_token_is_a_loss_of_zero():
    assert token_mean([[], []]).item() == 0.0


# --- language models -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("vocabulary", "expected"), [(30522, 10.326203), (50265, 10.825064)])
def test_equal_logits_cost_the_logarithm_of_the_vocabulary(vocabulary: int, expected: float):
    assert token_loss(torch.zeros(vocabulary), 17).item() == near(expected, abs=2e-6)


def test_simlm_of_three_tokens():
    # -ln .7, -ln .2, -ln .5 = .356675 1.609438 .693147, mean .886420; -ln .6, -ln .1, -ln .4: mean 1.243234
    encoder, decoder = [said(p) for p in (0.7, 0.2, 0.5)], [said(p) for p in (0.6, 0.1, 0.4)]
    terms = with_total({"encoder": token_mean([encoder]), "decoder": token_mean([decoder])})
    assert terms["encoder"].item() == near(0.886420)
    assert terms["decoder"].item() == near(1.243234)
    assert terms["total"].item() == near(2.129654)
    # the changed token alone, -ln .2 - ln .1, is another figure
    assert (encoder[1] + decoder[1]).item() == near(3.912023)


def level(vocabulary: int) -> BertForMaskedLM:
    """A random model whose head gives every token the same logit."""
    model = small_bert(layers=2, width=8, vocabulary=vocabulary)
    norm = model.cls.predictions.transform.LayerNorm
    with torch.no_grad():
        for weight in (norm.weight, norm.bias, model.cls.predictions.bias):
            weight.zero_()
    return model


TEXT = Text([2, 9, 11, 8, 3], [2, 4, 11, 4, 3], [1, 3], [0, 4])


def layers_of(model: BertForMaskedLM) -> list[BertLayer]:
    return fresh_layers(1, config=small_config(width=8, vocabulary=model.config.vocab_size))


def test_simlm_with_equal_logits():
    # two means of ln 30522 = 10.326203
    model = level(30522)
    assert simlm(model, layers_of(model), [(TEXT, TEXT)])["total"].item() == near(20.652406, abs=5e-6)
    assert mlm(model, [TEXT])["mlm"].item() == near(10.326203, abs=3e-6)


@pytest.mark.parametrize(("passes", "expected"), [(1, 61.957218), (3, 82.609624)])
def test_master_with_equal_logits(passes: int, expected: float):
    # (5 decoders + 1 or 3 encoder passes) * ln 30522
    model = level(30522)
    names = ("mlm", "mlm_cmp", "mlm_npr")[:passes]
    tasks = Tasks(dict.fromkeys(names, TEXT), dict.fromkeys(PASS_OF, TEXT))
    terms = master(model, dict.fromkeys(PASS_OF, layers_of(model)), [tasks])
    assert terms["total"].item() == near(expected, abs=2e-5)


# --- contrast ------------------------------------------------------------------------------------------------------

PAIRS = [torch.tensor(row) for row in ([1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8])]


def test_two_pairs_of_cocondenser():
    # row 0: scores .8 0 .6 without itself, ln(e^.8 + 1 + e^.6) - .8 = .818925
    # row 1: .8 .6 .96, ln(e^.8 + e^.6 + e^.96) - .8 = 1.096023
    rows = pair_losses(PAIRS)
    assert values(rows) == near([0.818925, 1.096023, 0.818925, 1.096023])
    assert mean(rows) == near(0.957474)


def test_cocondenser_leaves_out_the_anchor_itself():
    # with itself in the sum the mean were 1.344038
    wrong = [torch.logsumexp(torch.stack(PAIRS) @ a, dim=0) - a @ b for a, b in zip(PAIRS, swapped(PAIRS), strict=True)]
    assert mean(wrong) == near(1.344038)
    assert mean(pair_losses(PAIRS)) < 1.0


def test_cocondenser_looks_both_ways():
    # from the first texts to the second ones alone: ln(e^.8 + e^.6) - .8 = .598139
    one_way = [torch.logsumexp(torch.stack(PAIRS[1::2]) @ PAIRS[i], dim=0) - PAIRS[i] @ PAIRS[i + 1] for i in (0, 2)]
    assert mean(one_way) == near(0.598139)
    assert len(pair_losses(PAIRS)) == 4


def swapped(vectors: list[Tensor]) -> list[Tensor]:
    return [vectors[number + 1 - 2 * (number % 2)] for number in range(len(vectors))]


def test_the_temperature_of_cocondenser_divides_the_scores():
    # twice as long vectors have four times the scores
    doubled = pair_losses([2 * row for row in PAIRS], temperature=4.0)
    assert values(doubled) == near(values(pair_losses(PAIRS)))


def test_identical_vectors_of_2048_pairs():
    # every row: 4095 equal scores, ln 4095
    rows = pair_losses([torch.tensor([0.6, 0.8])] * 4096)
    assert mean(rows) == near(8.317522, abs=2e-6)


COSINES = [[torch.tensor(entry) for entry in row] for row in ([0.8, 0.28], [0.6, 0.96])]


def test_two_sentences_of_simcse():
    # ln(e^.8 + e^.28) - .8 = .466573, ln(e^.6 + e^.96) - .96 = .529260
    assert values(contrast_losses(COSINES, temperature=1.0)) == near([0.466573, 0.529260])
    assert mean(contrast_losses(COSINES, temperature=1.0)) == near(0.497917)
    assert mean(contrast_losses([[c.double() for c in row] for row in COSINES], temperature=0.05)) == near(
        0.000388370, abs=2e-9
    )


def test_simcse_with_equal_cosines():
    assert mean(contrast_losses([[torch.tensor(0.3)] * 64] * 64, temperature=0.05)) == near(4.158883, abs=2e-6)


def test_a_cosine_does_not_see_lengths():
    # (3, 4) and (4, 3): 24 / 25
    assert cosine(torch.tensor([3.0, 4.0]), torch.tensor([8.0, 6.0])).item() == near(0.96)


QUERIES = [torch.tensor(row) for row in ([1.0, 0.0], [0.0, 1.0])]
PASSAGES = [torch.tensor(row) for row in ([0.8, 0.6], [0.6, -0.8], [0.28, 0.96], [-0.6, 0.8])]


@pytest.mark.parametrize(
    ("loss", "rows", "cold"),
    [
        (retrieval.infonce, [0.734570, 0.807592], 0.000190410),
        (retrieval.simlm_paper, [1.249437, 1.252637], 0.346920),
        (retrieval.simlm_full, [1.375436, 1.215482], 0.346932),
    ],
)
def test_two_queries_with_two_passages(loss: Callable[..., list[Tensor]], rows: list[float], cold: float):
    assert values(loss(QUERIES, PASSAGES, temperature=0.5)) == near(rows)
    precise = [[row.double() for row in side] for side in (QUERIES, PASSAGES)]
    assert mean(loss(*precise, temperature=0.02)) == near(cold, abs=2e-6 if cold > 0.1 else 2e-9)


def test_dot_products_of_a_retriever():
    queries = [torch.tensor(row) for row in ([2.0, 0.0], [0.0, 1.0])]
    found = [torch.tensor(row) for row in ([1.5, 0.5], [1.0, -1.0], [0.2, 2.0], [-0.5, 1.0])]
    rows = retrieval.infonce(queries, found, temperature=1.0, dot=True)
    assert values(rows) == near([0.378757, 0.495182])
    assert mean(rows) == near(0.436970)


@pytest.mark.parametrize(
    ("loss", "batch", "block", "expected"),
    [
        (retrieval.infonce, 64, 16, 6.931472),  # ln 1024
        (retrieval.simlm_paper, 64, 16, 7.624131),  # 1 + 2 * 1023 columns
        (retrieval.simlm_full, 64, 16, 7.100852),  # 1024 + 3 * 63 = 1213 columns
        (retrieval.simlm_full, 64, 24, 7.452982),  # 1536 + 3 * 63 = 1725 columns
        (retrieval.infonce, 128, 2, 5.545177),  # ln 256
    ],
)
def test_identical_vectors_of_a_retriever(loss: Callable, batch: int, block: int, expected: float):
    same = torch.tensor([0.6, 0.8])
    assert mean(loss([same] * batch, [same] * batch * block, temperature=0.02)) == near(expected, abs=2e-5)


# --- replaced tokens -----------------------------------------------------------------------------------------------


def test_a_sentence_of_four_tokens_to_tell_apart():
    # -ln .9, -ln .8, -ln(1 - .3), -ln .6; two pads at -ln .95 = .051293: (1.196005 + .102587) / 6 = .216432
    real = [found(0.9, 0), found(0.8, 0), found(0.3, 1), found(0.6, 0)]
    pads = [found(0.95, 0)] * 2
    assert values(real) == near([0.105361, 0.223144, 0.356675, 0.510826])
    assert reduced([real], [pads], reduction="sum").item() == near(1.196005)
    assert reduced([real], [pads], reduction="mean_valid").item() == near(0.299001)
    assert reduced([real], [pads], reduction="mean_all").item() == near(0.216432)
    assert reduced([real], [[]], reduction="mean_all").item() == near(0.299001)


def test_a_coin_toss_costs_ln_2_a_token():
    tosses = [found(0.5, label % 2) for label in range(32)]
    assert mean(tosses) == near(0.693147)
    assert reduced([tosses], [[]], reduction="sum").item() == near(22.180710, abs=1e-5)
    assert binary_loss(torch.tensor(0.0), 1).item() == near(0.693147)


def test_one_logit_says_the_same_as_two():
    # sigmoid(logit) = .3 is "replaced"; 30 and -30 stay finite
    logit = torch.tensor(math.log(0.3 / 0.7))
    assert [binary_loss(logit, 1).item(), binary_loss(logit, 0).item()] == near([-math.log(0.3), -math.log(0.7)])
    assert binary_loss(torch.tensor(-100.0), 1).item() == near(100.0)
    assert binary_loss(torch.tensor(-100.0), 0).item() == near(0.0)


def test_a_sample_equal_to_the_original_is_not_replaced():
    assert difference_labels([2, 9, 8, 3], [2, 9, 7, 3]) == [0, 0, 1, 0]


def test_what_stands_behind_a_deletion_is_marked():
    # [CLS] a b c d e [SEP] less b and e (positions 2 and 5): [CLS] a c d [SEP]
    assert deletion_labels(7, [2, 5]) == [0, 0, 1, 0, 1]
    assert deletion_labels(5, [1, 2]) == [0, 1, 0]  # two removed in a row mark one


def test_insertions_are_counted_and_marked():
    assert insertion_count(10) == 2  # round(1.5), half to even
    assert insertion_labels(6, [2, 4]) == [0, 0, 1, 0, 1, 0]


def test_the_copy_gate_shares_its_probability_out():
    # gate 3/4, softmax (1/2, 1/4, 1/4): shown and wanted 3/4 + 1/8 = 7/8; another one wanted: 1/4 * 1/4 = 1/16
    logits, gate = torch.tensor([0.5, 0.25, 0.25]).log(), torch.tensor(0.75)
    assert copied_or_said(logits, gate, shown=0, target=0).item() == near(-math.log(7 / 8))
    assert copied_or_said(logits, gate, shown=0, target=1).item() == near(math.log(16))
    # over all three tokens: 7/8 + 1/16 + 1/16 = 1
    shares = [torch.exp(-copied_or_said(logits, gate, shown=0, target=token)) for token in range(3)]
    assert sum(shares).item() == near(1.0)


# --- shapes --------------------------------------------------------------------------------------------------------


def test_a_causal_window_of_three():
    assert window(6, width=3) == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 2, 3, 4], [0, 3, 4, 5]]


def test_extra_modules_of_bert_base_have_the_parameters_of_the_papers():
    with torch.device("meta"):
        layer = sum(weight.numel() for weight in BertLayer(BertConfig()).parameters())
    assert layer == 7_087_872
    assert 2 * layer == 14_175_744  # SimLM, Condenser, CoT-MAE
    assert 5 * 2 * layer == 70_878_720  # MASTER
    projector = sum(weight.numel() for module in projector_modules(768) for weight in module.parameters())
    assert projector == 2_362_368  # 768 * 1536 + 2 * 1536 + 1536 * 768
    assert sum(weight.numel() for weight in torch.nn.Linear(768, 2).parameters()) == 1_538
    assert sum(weight.numel() for weight in torch.nn.Linear(768, 1).parameters()) == 769

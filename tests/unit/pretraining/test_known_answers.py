"""Known answers of the methods (sections 5 and 11) through the shipped presets: slots, weights and reductions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.pretraining_setup import PretrainingFiles, PretrainingSetup, compute_gradients, make_slot, set_predictions


def compute_values(stage: PretrainingSetup, batch: Any) -> dict[str, float]:
    with torch.no_grad():
        return {name: value.item() for name, value in stage.terms(batch).items()}


@pytest.mark.parametrize(
    ("preset", "num_losses"),
    [
        ("simlm", 2),  # 2 ln 30522 = 20.652406
        ("simlm-ae", 1),  # the encoder has no loss
        ("master", 8),  # 3 masked LMs + 5 decoders
        ("master-printed", 6),  # 1 masked LM + 5 decoders
        ("condenser", 2),
        ("qac-cotmae-released", 2),
        ("retromae", 2),
    ],
)
def test_token_loss_of_uniform_logits_is_ln_vocabulary(preset: str, num_losses: int, files: PretrainingFiles):
    stage = files.prepare(preset)
    head = stage.network.head
    head.own_weight, head.bias = nn.Parameter(torch.zeros(30522, 16)), nn.Parameter(torch.zeros(30522))
    values = compute_values(stage, stage.batch())
    assert values.pop("total") == pytest.approx(num_losses * math.log(30522), abs=1e-5)
    assert list(values.values()) == [pytest.approx(math.log(30522), abs=2e-5)] * num_losses


def test_edit_detection_with_zero_logits_is_ln_2_per_token(files: PretrainingFiles):
    stage = files.prepare("simlm-rtd")
    for token_loss in stage.network.recoveries.values():
        for weight in token_loss.target.head.parameters():
            nn.init.zeros_(weight)
    values = compute_values(stage, stage.batch())
    assert list(values.values()) == pytest.approx([math.log(2), math.log(2), 2 * math.log(2)], abs=5e-6)


FIVE_TOKENS = make_slot(5, masked=[[2]], changed=[[2]])


@pytest.mark.parametrize(
    ("preset", "term", "probabilities", "batch", "expected"),
    [
        # all tokens but special ones: -ln of .7 .2 .5 and of .6 .1 .4, a mean each: .886420 + 1.243234
        (
            "simlm",
            "total",
            [[0.7, 0.2, 0.5], [0.6, 0.1, 0.4]],
            {"encoder": FIVE_TOKENS, "decoder": FIVE_TOKENS},
            2.129654,
        ),
        (
            "simlm-mlm",
            "total",
            [[0.2], [0.1]],
            {"encoder": FIVE_TOKENS, "decoder": FIVE_TOKENS},
            3.912023,
        ),  # masked only
        # losses 1, 2, 3 and 6 of two texts: the mean over tokens is 3; the mean of means would be 4
        (
            "mlm",
            "mlm",
            [[math.exp(-x) for x in (1, 2, 3, 6)]],
            {"passage": make_slot(7, 4, masked=[[1, 3, 5], [2]])},
            3.0,
        ),
        # 2.0 over 10 tokens and 1.0 over 30: a mean of each loss, 3.0 in total; one mean would be 1.25
        (
            "simlm-mlm",
            "total",
            [[math.exp(-2)] * 10, [math.exp(-1)] * 30],
            {
                "encoder": make_slot(22, 12, masked=[[*range(1, 11)], []]),
                "decoder": make_slot(22, 12, masked=[[*range(1, 21)], [*range(1, 11)]]),
            },
            3.0,
        ),
        # one loss on two slots, 3 tokens of loss 2.0 and one of 1.0: one mean
        (
            "corom",
            "mlm",
            [[math.exp(-2)] * 3, [math.exp(-1)]],
            {"a": make_slot(6, 6, masked=[[1, 2], [4]]), "b": make_slot(5, 5, masked=[[], [1]])},
            1.75,
        ),
    ],
)
def test_token_losses_have_known_values(
    preset: str, term: str, probabilities: Any, batch: Any, expected: float, files: PretrainingFiles
):
    stage = files.prepare(preset)
    set_predictions(stage, *probabilities)
    assert compute_values(stage, batch)[term] == pytest.approx(expected, abs=1e-5)


def test_extension_and_complement_use_the_mask_of_another_slot(files: PretrainingFiles):
    equal = files.prepare("simlm", "slots.decoder.rate=0.3").batch()
    assert bool((equal["encoder"].masked == equal["decoder"].masked).all())
    wider = files.prepare("simlm").batch()
    assert bool((~wider["encoder"].masked | wider["decoder"].masked).all())
    assert int(wider["decoder"].masked.sum()) > int(wider["encoder"].masked.sum())
    everything = files.prepare("simlm", "slots.decoder.rate=1.0").batch()["decoder"]
    assert bool((everything.masked == everything.content).all())
    master = files.prepare("master").batch()
    assert bool(((master["half"].masked ^ master["complement"].masked) == master["half"].content).all())
    assert int(master["half"].masked.sum()) > 0


def test_generator_with_scope_all_keeps_only_the_first_token(files: PretrainingFiles):
    """As in DiffCSE's released code: argmax at all other positions, [SEP] too; the generator's input is 80/10/10."""
    stage = files.prepare("diffcse-sts-bert", "slots.changed_one.rate=0.9").randomize_weights()
    batch = stage.batch(*range(12))
    slot, ids = batch["changed_one"], stage.views(batch).get_ids("changed_one")
    assert bool((ids[:, 0] == slot.original_ids[:, 0]).all())
    last = slot.attention.sum(dim=1) - 1
    assert bool((ids[torch.arange(len(ids)), last] != stage.tokenizer.sep_token_id).any())
    masked = slot.input_ids[slot.masked] == stage.tokenizer.mask_token_id
    assert 0.7 < float(masked.float().mean()) < 0.9


def test_simlm_generator_samples_independently_per_slot(files: PretrainingFiles):
    stage = files.prepare("simlm").randomize_weights()
    batch = stage.batch(*range(12))
    views = stage.views(batch)
    both = batch["encoder"].masked & batch["decoder"].masked
    for name in ("encoder", "decoder"):
        slot = batch[name]
        assert bool((slot.input_ids[slot.masked] == stage.tokenizer.mask_token_id).all())
        assert bool((views.get_ids(name) == slot.original_ids)[~slot.masked].all())
    assert bool((views.get_ids("encoder")[both] != views.get_ids("decoder")[both]).any())


def test_no_gradient_flows_through_the_generator(files: PretrainingFiles):
    stage = files.prepare("simlm", "generator.mode=joint", "generator.slot=encoder").randomize_weights()
    terms = stage.terms(stage.batch())
    of_words = compute_gradients(stage, terms["encoder"] + terms["decoder"])
    own = compute_gradients(stage, terms["generator"])
    for name in of_words:
        if name.startswith("generator."):
            assert float(of_words[name].abs().sum()) == 0, name
        else:
            assert float(own[name].abs().sum()) == 0, name
    assert sum(float(slope.abs().sum()) for slope in own.values()) > 0

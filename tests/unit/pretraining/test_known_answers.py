"""Known answers of the methods (sections 5 and 11) through the shipped presets: slots, weights and reductions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.pretraining_setup import PretrainingFiles, PretrainingSetup, compute_gradients, make_slot, set_predictions

LN_V = math.log(30522)  # 10.326203


def compute_values(stage: PretrainingSetup, batch: Any) -> dict[str, float]:
    with torch.no_grad():
        return {name: value.item() for name, value in stage.terms(batch).items()}


def with_uniform_head(stage: PretrainingSetup) -> PretrainingSetup:
    """Give it a head of BERT's size whose logits are all 0."""
    head = stage.network.head
    head.own_weight = nn.Parameter(torch.zeros(30522, 16))
    head.bias = nn.Parameter(torch.zeros(30522))
    return stage


def close(value: float) -> Any:
    return pytest.approx(value, abs=5e-6, rel=2e-6)


@pytest.mark.parametrize(
    ("preset", "total"),
    [
        ("simlm", 20.652406),  # 2 ln 30522
        ("simlm-ae", 10.326203),  # the encoder has no loss of its own
        ("master", 82.609624),  # 3 masked LMs + 5 decoders
        ("master-printed", 61.957218),  # 1 masked LM + 5 decoders
        ("condenser", 2 * LN_V),
        ("qac-cotmae-released", 2 * LN_V),
        ("retromae", 2 * LN_V),
    ],
)
def test_token_loss_of_uniform_logits_is_ln_vocabulary(preset: str, total: float, world: PretrainingFiles):
    stage = with_uniform_head(world.prepare(preset))
    found = compute_values(stage, stage.batch())
    assert found.pop("total") == pytest.approx(total, abs=1e-5)
    assert list(found.values()) == [close(LN_V)] * len(found)


def test_joint_generator_loss_has_weight_0_2(world: PretrainingFiles):
    stage = with_uniform_head(world.prepare("simlm", "generator.mode=joint", "generator.slot=encoder"))
    head = stage.network.generator.head
    with torch.no_grad():
        head.norm.weight.zero_()
        head.norm.bias.zero_()
        head.bias.zero_()
    found, own = compute_values(stage, stage.batch()), math.log(len(head.weight))
    assert found["generator"] == close(own)
    assert found["total"] == pytest.approx(2 * LN_V + 0.2 * own, abs=1e-5)


def zero_logits(stage: PretrainingSetup, term: str) -> None:
    """Set the logits of a term's head to 0."""
    for weight in stage.network.recoveries[term].target.head.parameters():
        nn.init.zeros_(weight)


def test_edit_detection_with_zero_logits_is_ln_2_per_token(world: PretrainingFiles):
    stage = world.prepare("simlm-rtd")
    for term in ("encoder", "decoder"):
        zero_logits(stage, term)
    assert compute_values(stage, stage.batch()) == {
        "encoder": close(math.log(2)),
        "decoder": close(math.log(2)),
        "total": close(2 * math.log(2)),
    }
    stage = world.prepare("diffcse-sts-bert", "objective.2.reduction=sum")
    zero_logits(stage, "difference")
    batch = {
        "one": make_slot(6, 6),
        "two": make_slot(6, 6),
        "changed_one": make_slot(20, 12),
        "changed_two": make_slot(9, 9, missing=[0, 1]),
    }
    found = compute_values(stage, batch)
    assert found["difference"] == pytest.approx(22.180710, abs=1e-5)  # 32 tokens
    assert found["total"] == pytest.approx(found["contrast"] + 0.005 * 22.180710, abs=1e-5)


@pytest.mark.parametrize(("preset", "symmetric"), [("cocondenser", True), ("qac-cocondenser", True), ("simcse", False)])
def test_contrastive_loss_of_equal_vectors_is_log_of_candidates(preset: str, symmetric: bool, world: PretrainingFiles):
    stage = world.prepare(preset)
    with torch.no_grad():
        norm = stage.network.backbone.encoder.layer[-1].output.LayerNorm
        norm.weight.zero_()
        norm.bias.fill_(0.5)
    batch = stage.batch(*range(9))
    (contrast,) = [each for each in stage.network.composition.objectives if each.name == "contrast"]
    pairs = int((batch[contrast.a].present & batch[contrast.b].present).sum())
    assert pairs > 2
    assert compute_values(stage, batch)["contrast"] == close(math.log(2 * pairs - 1 if symmetric else pairs))


def test_simlm_labels_all_but_special_tokens(world: PretrainingFiles):
    """-ln of .7 .2 .5 and of .6 .1 .4, a mean each: .886420 + 1.243234; the changed token alone would give 3.912023."""
    stage = world.prepare("simlm")
    set_predictions(stage, [0.7, 0.2, 0.5], [0.6, 0.1, 0.4])
    seen = make_slot(5, hidden=[[2]], changed=[[2]])
    assert compute_values(stage, {"encoder": seen, "decoder": seen}) == {
        "encoder": pytest.approx(0.886420, abs=1e-5),
        "decoder": pytest.approx(1.243234, abs=1e-5),
        "total": pytest.approx(2.129654, abs=1e-5),
    }
    set_predictions(stage, [0.2], [0.1])
    masked = world.prepare("simlm-mlm")
    set_predictions(masked, [0.2], [0.1])
    assert compute_values(masked, {"encoder": seen, "decoder": seen})["total"] == pytest.approx(3.912023, abs=1e-5)


def test_token_loss_is_mean_over_the_batch_not_per_text(world: PretrainingFiles):
    """Losses 1, 2, 3 and 6: 3.0; the mean of means would be 4.0."""
    stage = world.prepare("mlm")
    set_predictions(stage, [math.exp(-1), math.exp(-2), math.exp(-3), math.exp(-6)])
    batch = {"passage": make_slot(7, 4, hidden=[[1, 3, 5], [2]])}
    assert compute_values(stage, batch)["mlm"] == pytest.approx(3.0, abs=1e-5)


def test_losses_are_separate_means(world: PretrainingFiles):
    """2.0 over 10 tokens and 1.0 over 30: 3.0; pooled it would be 1.25."""
    stage = world.prepare("simlm-mlm")
    set_predictions(stage, [math.exp(-2)] * 10, [math.exp(-1)] * 30)
    batch = {
        "encoder": make_slot(22, 12, hidden=[[*range(1, 11)], []]),
        "decoder": make_slot(22, 12, hidden=[[*range(1, 21)], [*range(1, 11)]]),
    }
    assert compute_values(stage, batch)["total"] == pytest.approx(3.0, abs=1e-5)


def test_loss_on_two_slots_is_one_mean(world: PretrainingFiles):
    """3 tokens of loss 2.0 and one of 1.0: 1.75, neither the sum of two means (3.0) nor theirs (1.5)."""
    stage = world.prepare("corom")
    set_predictions(stage, [math.exp(-2)] * 3, [math.exp(-1)])
    batch = {"a": make_slot(6, 6, hidden=[[1, 2], [4]]), "b": make_slot(5, 5, hidden=[[], [1]])}
    assert compute_values(stage, batch)["mlm"] == pytest.approx(1.75, abs=1e-5)


def test_changing_the_context_changes_only_its_loss(world: PretrainingFiles):
    stage = world.prepare("cotmae").randomize_weights()
    rows = [row for row in range(20) if stage.get_examples(row)[0].slots["context"].present][:6]
    batch = stage.batch(*rows)
    before, after = (
        compute_values(stage, batch),
        compute_values(stage, batch | {"context": stage.batch(*rows[::-1])["context"]}),
    )
    assert after["mlm"] == before["mlm"]
    assert abs(after["context"] - before["context"]) > 1e-3


def test_extension_and_complement_use_the_mask_of_another_slot(world: PretrainingFiles):
    equal = world.prepare("simlm", "slots.decoder.rate=0.3").batch()
    assert bool((equal["encoder"].masked == equal["decoder"].masked).all())
    wider = world.prepare("simlm").batch()
    assert bool((~wider["encoder"].masked | wider["decoder"].masked).all())
    assert int(wider["decoder"].masked.sum()) > int(wider["encoder"].masked.sum())
    everything = world.prepare("simlm", "slots.decoder.rate=1.0").batch()["decoder"]
    assert bool((everything.masked == everything.content).all())
    master = world.prepare("master").batch()
    assert bool(((master["half"].masked ^ master["complement"].masked) == master["half"].content).all())
    assert int(master["half"].masked.sum()) > 0


def test_autoencoder_encodes_the_text_and_decodes_only_masks(world: PretrainingFiles):
    stage = world.prepare("simlm-ae")
    batch = stage.batch()
    assert bool((batch["encoder"].input_ids == batch["encoder"].original_ids).all())
    decoder = batch["decoder"]
    assert bool((decoder.input_ids[decoder.content] == stage.tokenizer.mask_token_id).all())
    special = decoder.attention.bool() & ~decoder.content
    assert bool((decoder.input_ids[special] == decoder.original_ids[special]).all())


def test_generator_with_scope_all_keeps_only_the_first_token(world: PretrainingFiles):
    """Released DiffCSE: argmax at every position, [SEP] too; what it reads is 80/10/10."""
    stage = world.prepare("diffcse-sts-bert", "slots.changed_one.rate=0.9").randomize_weights()
    batch = stage.batch(*range(12))
    slot, ids = batch["changed_one"], stage.views(batch).get_ids("changed_one")
    assert bool((ids[:, 0] == slot.original_ids[:, 0]).all())
    last = slot.attention.sum(dim=1) - 1
    assert bool((ids[torch.arange(len(ids)), last] != stage.tokenizer.sep_token_id).any())
    assert bool((ids == slot.input_ids)[~slot.attention.bool()].all())
    shown = slot.input_ids[slot.masked]
    masked = float((shown == stage.tokenizer.mask_token_id).float().mean())
    assert 0.7 < masked < 0.9
    assert bool((shown == slot.original_ids[slot.masked]).any())


def test_simlm_generator_samples_independently_per_slot(world: PretrainingFiles):
    stage = world.prepare("simlm").randomize_weights()
    batch = stage.batch(*range(12))
    views = stage.views(batch)
    both = batch["encoder"].masked & batch["decoder"].masked
    for name in ("encoder", "decoder"):
        slot = batch[name]
        assert bool((slot.input_ids[slot.masked] == stage.tokenizer.mask_token_id).all())
        assert bool((views.get_ids(name) == slot.original_ids)[~slot.masked].all())
    assert bool((views.get_ids("encoder")[both] != views.get_ids("decoder")[both]).any())


def test_no_gradient_flows_through_the_generator(world: PretrainingFiles):
    stage = world.prepare("simlm", "generator.mode=joint", "generator.slot=encoder").randomize_weights()
    terms = stage.terms(stage.batch())
    of_words = compute_gradients(stage, terms["encoder"] + terms["decoder"])
    own = compute_gradients(stage, terms["generator"])
    for name in of_words:
        if name.startswith("generator."):
            assert float(of_words[name].abs().sum()) == 0, name
        else:
            assert float(own[name].abs().sum()) == 0, name
    assert sum(float(slope.abs().sum()) for slope in own.values()) > 0

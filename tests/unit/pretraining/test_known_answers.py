"""Known answers of the methods (sections 5 and 11) through the shipped presets: slots, weights and reductions."""

from __future__ import annotations

import torch

from tests.pretraining_setup import PretrainingFiles, compute_gradients


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

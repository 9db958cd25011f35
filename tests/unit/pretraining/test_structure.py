"""Properties of presets: bottlenecks, initialization, masks and generators (docs/methods/decoders.md)."""

import pytest
import torch
from torch import Tensor

from tests.pretraining_setup import PretrainingFiles, compute_gradients

# One term for each kind of decoder and bottleneck.
TERMS = [("simlm", "decoder"), ("simlm-rtd", "decoder"), ("cotmae", "context"), ("qac-cotmae-released", "context")]
TERMS += [("retromae", "decoder"), ("cocondenser", "head"), ("master", "npr"), ("diffcse-sts-bert", "difference")]


def find_largest(slopes: dict[str, Tensor], beginning: str) -> float:
    return max((float(slope.abs().max()) for name, slope in slopes.items() if name.startswith(beginning)), default=0.0)


def get_layer_gradients(slopes: dict[str, Tensor]) -> list[float]:
    """Return the largest gradient in each of the four layers of the encoder."""
    return [find_largest(slopes, f"backbone.encoder.layer.{number}.") for number in range(4)]


@pytest.mark.parametrize(("preset", "term"), TERMS)
def test_bottleneck_loss_trains_all_layers_only_through_the_vector(preset: str, term: str, files: PretrainingFiles):
    stage = files.prepare(preset).randomize_weights()
    batch, token_loss = stage.batch(*range(8)), stage.network.recoveries[term]
    objective = token_loss.objective
    slopes = compute_gradients(stage, token_loss(stage.views(batch)))
    assert min(get_layer_gradients(slopes)) > 0
    encoded = stage.views(batch)
    for name in objective.source:  # cut the vectors off from the encoder
        encoded._vectors[name] = encoded.get_vectors(name).detach()
    if not objective.source:  # condenser's vector is the slot's own last state; the rest comes from layer 2 of 4
        for name in objective.slot:
            encoded.get_states(name)[-1] = encoded.get_states(name)[-1].detach()
    cut = compute_gradients(stage, token_loss(encoded))
    trained = [slope > 0 for slope in get_layer_gradients(cut)]
    assert trained == ([False] * 4 if objective.source else [True, True, False, False])
    shares_nothing = stage.network.composition.decoders[objective.decoder].use == "discriminator"
    assert (find_largest(cut, "backbone.embeddings.") > 0) is not shares_nothing
    assert (find_largest(cut, "head.") > 0) is (objective.target != "edited" and not shares_nothing)
    assert find_largest(cut, f"recoveries.{term}.") > 0


@pytest.mark.parametrize("preset", ["simlm", "condenser", "master"])
def test_decoder_init_copies_last_encoder_layers_or_is_random(preset: str, files: PretrainingFiles):
    network = files.prepare(preset).network
    own = [dict(layer.named_parameters()) for layer in network.adapter.layers]
    stacks = [list(each.reader.layers) for each in network.recoveries.values() if hasattr(each.reader, "layers")]
    assert stacks
    for layers in stacks:
        assert len(layers) == 2
        for layer, last in zip(layers, own[-2:], strict=True):
            for name, weight in layer.named_parameters():
                if preset == "simlm":
                    assert torch.equal(weight, last[name])
                elif weight.dim() == 2:  # biases and norms begin as 0 and 1 everywhere
                    assert not any(torch.equal(weight, each[name]) for each in own)


def test_frozen_generator_has_no_gradient_and_is_not_saved(files: PretrainingFiles):
    stage = files.prepare("simlm").randomize_weights()
    stage.network.train()
    assert not stage.network.generator.training
    stage.terms(stage.batch())["total"].backward()
    actual = {id(weight) for weight in stage.network.parameters()}
    for weight in stage.network.generator.parameters():
        assert weight.grad is None
        assert not weight.requires_grad
        assert id(weight) not in actual


def test_random_generator_has_the_shape_of_its_model(files: PretrainingFiles):
    joint = ("generator.mode=joint", "generator.slot=encoder", "generator.init=random")
    assert len(files.prepare("simlm", *joint).network.generator.backbone.encoder.layer) == 1  # the encoder has four


def test_extension_and_complement_use_the_mask_of_another_slot(files: PretrainingFiles):
    equal = files.prepare("simlm", "slots.decoder.rate=0.3").batch()
    assert torch.equal(equal["encoder"].masked, equal["decoder"].masked)
    wider = files.prepare("simlm").batch()
    assert bool((~wider["encoder"].masked | wider["decoder"].masked).all())
    assert int(wider["decoder"].masked.sum()) > int(wider["encoder"].masked.sum())
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

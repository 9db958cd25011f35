"""Properties of all objectives with a bottleneck (docs/methods/readers.md)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.pretraining_setup import PretrainingFiles, PretrainingSetup, compute_gradients

# One term for each kind of reader and bottleneck.
TERMS = [("simlm", "decoder"), ("simlm-rtd", "decoder"), ("cotmae", "context"), ("qac-cotmae-released", "context")]
TERMS += [("retromae", "decoder"), ("cocondenser", "head"), ("master", "npr"), ("diffcse-sts-bert", "difference")]


def get_layer_gradients(stage: PretrainingSetup, slopes: dict[str, Tensor]) -> list[float]:
    """Return the largest gradient in each layer of the encoder."""
    results = [0.0] * stage.network.adapter.depth
    for name, slope in slopes.items():
        if name.startswith("backbone.encoder.layer."):
            number = int(name.split(".")[3])
            results[number] = max(results[number], float(slope.abs().max()))
    return results


def find_largest(slopes: dict[str, Tensor], beginning: str) -> float:
    return max((float(slope.abs().max()) for name, slope in slopes.items() if name.startswith(beginning)), default=0.0)


@pytest.mark.parametrize(("preset", "term"), TERMS)
def test_bottleneck_loss_trains_all_layers_only_through_the_vector(preset: str, term: str, files: PretrainingFiles):
    stage = files.prepare(preset).randomize_weights()
    batch, token_loss = stage.batch(*range(8)), stage.network.recoveries[term]
    objective = token_loss.objective
    slopes = compute_gradients(stage, token_loss(stage.views(batch)))
    assert min(get_layer_gradients(stage, slopes)) > 0
    encoded = stage.views(batch)
    for name in objective.source:  # cut the vectors off from the encoder
        encoded._vectors[name] = encoded.get_vector(name).detach()
    if not objective.source:  # condenser's vector is the slot's own last state; the rest comes from layer 2 of 4
        for name in objective.slot:
            encoded.get_states(name)[-1] = encoded.get_states(name)[-1].detach()
    cut = compute_gradients(stage, token_loss(encoded))
    trained = [slope > 0 for slope in get_layer_gradients(stage, cut)]
    assert trained == ([False] * 4 if objective.source else [True, True, False, False])
    shares_nothing = stage.network.composition.readers[objective.reader].use == "discriminator"
    assert (find_largest(cut, "backbone.embeddings.") > 0) is not shares_nothing
    assert (find_largest(cut, "head.") > 0) is (objective.target != "edited" and not shares_nothing)
    assert find_largest(cut, f"recoveries.{term}.") > 0


COPIES = {"simlm", "mixture-example"}


@pytest.mark.parametrize("preset", ["simlm", "mixture-example", "condenser", "master"])
def test_decoder_init_copies_last_encoder_layers_or_is_random(preset: str, files: PretrainingFiles):
    network = files.prepare(preset).network
    own = [dict(layer.named_parameters()) for layer in network.adapter.layers]
    stacks = [list(each.reader.layers) for each in network.recoveries.values() if hasattr(each.reader, "layers")]
    assert stacks
    for layers in stacks:
        assert len(layers) == 2
        for layer, last in zip(layers, own[-2:], strict=True):
            for name, weight in layer.named_parameters():
                if preset in COPIES:
                    assert torch.equal(weight, last[name])
                elif weight.dim() == 2:  # biases and norms begin as 0 and 1 everywhere
                    assert not any(torch.equal(weight, each[name]) for each in own)


@pytest.mark.parametrize("preset", ["simlm", "diffcse-sts-bert"])
def test_frozen_generator_has_no_gradient_and_is_not_saved(preset: str, files: PretrainingFiles):
    stage = files.prepare(preset).randomize_weights()
    stage.network.train()
    assert not stage.network.generator.training
    stage.terms(stage.batch())["total"].backward()
    actual = {id(weight) for weight in stage.network.parameters()}
    for weight in stage.network.generator.parameters():
        assert weight.grad is None
        assert not weight.requires_grad
        assert id(weight) not in actual

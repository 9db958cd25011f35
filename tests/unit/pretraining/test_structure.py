"""What holds for every objective with a bottleneck (methods: section 5.0), for every shipped preset that has one."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drtk.config import load_preset
from drtk.pretraining.batch import Batch, SlotBatch
from drtk.pretraining.composition import Recover
from drtk.pretraining.encoded_batch import EncodedBatch
from tests.pretraining import Stage, World, gradients


def bottlenecked(preset: str) -> list[str]:
    """Terms of a preset that look through a vector."""
    content = load_preset(preset).content
    condensers = {name for name, reader in content.get("readers", {}).items() if reader["use"] == "condenser"}
    found = []
    for objective in content["objective"]:
        reader = objective.get("reader", "")
        use = reader["use"] if isinstance(reader, dict) else reader
        if "source" in objective or use in {"condenser", *condensers}:
            found.append(objective["name"])
    return found


# One preset for each kind of reader and bottleneck; the others differ in views, rates and maskings.
KINDS = ["simlm", "simlm-rtd", "cotmae", "qac-cotmae-released", "retromae", "cocondenser", "master", "diffcse-sts-bert"]
TERMS = [(preset, term) for preset in KINDS for term in bottlenecked(preset)]


def of_layers(stage: Stage, slopes: dict[str, Tensor]) -> list[float]:
    """The largest gradient in each layer of the encoder, first to last."""
    found = [0.0] * stage.network.anatomy.depth
    for name, slope in slopes.items():
        if name.startswith("backbone.encoder.layer."):
            number = int(name.split(".")[3])
            found[number] = max(found[number], float(slope.abs().max()))
    return found


def largest(slopes: dict[str, Tensor], beginning: str) -> float:
    return max((float(slope.abs().max()) for name, slope in slopes.items() if name.startswith(beginning)), default=0.0)


def wanted_of(stage: Stage, term: str) -> Recover:
    (found,) = [each for each in stage.network.composition.objectives if each.name == term]
    assert isinstance(found, Recover)
    return found


def without_gradient(stage: Stage, term: str, views: EncodedBatch) -> None:
    """Cut the vectors that a term looks through off from the encoder."""
    wanted = wanted_of(stage, term)
    for name in wanted.source:
        views._vectors[name] = views.vector(name).detach()
    if not wanted.source:  # condenser looks at the slot's own last state
        for name in wanted.slot:
            states = views.states(name)
            states[-1] = states[-1].detach()


@pytest.mark.parametrize(("preset", "term"), TERMS)
def test_a_term_behind_a_bottleneck_trains_all_layers_by_the_vector_alone(preset: str, term: str, world: World):
    stage = world.stage(preset).redrawn()
    batch = stage.batch(*range(8))
    recovery = stage.network.recoveries[term]
    slopes = gradients(stage, recovery(stage.views(batch)))
    assert min(of_layers(stage, slopes)) > 0
    views = stage.views(batch)
    without_gradient(stage, term, views)
    cut = gradients(stage, recovery(views))
    reads_words = wanted_of(stage, term).target != "edited"
    if wanted_of(stage, term).reader in stage.network.composition.readers and not wanted_of(stage, term).source:
        early, late = of_layers(stage, cut)[:2], of_layers(stage, cut)[2:]  # condenser takes the rest from layer 2 of 4
        assert min(early) > 0
        assert late == [0.0, 0.0]
    else:
        assert of_layers(stage, cut) == [0.0] * 4
    shares_nothing = stage.network.composition.readers[wanted_of(stage, term).reader].use == "discriminator"
    assert (largest(cut, "backbone.embeddings.") > 0) is not shares_nothing
    assert (largest(cut, "head.") > 0) is (reads_words and not shares_nothing)
    assert any(float(slope.abs().max()) > 0 for name, slope in cut.items() if name.startswith(f"recoveries.{term}."))


COPIES = {"simlm", "mixture-example"}


@pytest.mark.parametrize("preset", ["simlm", "mixture-example", "condenser", "master"])
def test_a_decoder_starts_from_the_encoders_last_layers_or_at_random(preset: str, world: World):
    network = world.stage(preset).network
    own = [dict(layer.named_parameters()) for layer in network.anatomy.layers]
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
def test_a_frozen_generator_has_no_gradient_and_is_no_part_of_the_model(preset: str, world: World):
    stage = world.stage(preset).redrawn()
    stage.network.train()
    assert not stage.network.generator.training
    stage.terms(stage.batch())["total"].backward()
    mine = {id(weight) for weight in stage.network.parameters()}
    for weight in stage.network.generator.parameters():
        assert weight.grad is None
        assert not weight.requires_grad
        assert id(weight) not in mine


def padded(slot: SlotBatch, *, more: int, junk: int) -> SlotBatch:
    """With `more` columns at the end, and all that lies behind a text made junk."""
    found = {}
    for item in fields(slot):
        value = getattr(slot, item.name)
        if value is not None and value.dim() == 2:
            value = F.pad(value, (0, more))
        found[item.name] = value
    if slot.visible is not None:
        found["visible"] = F.pad(slot.visible, (0, more, 0, more))
        found["visible"][:, :, 0] = True
    behind = found["attention"] == 0
    for name in ("clean", "given"):
        found[name] = found[name].masked_fill(behind, junk)
    return SlotBatch(**found)


def shuffled(batch: Batch, order: list[int]) -> Batch:
    """The examples in another order."""
    return {
        name: SlotBatch(
            **{
                item.name: None if getattr(slot, item.name) is None else getattr(slot, item.name)[order]
                for item in fields(slot)
            }
        )
        for name, slot in batch.items()
    }


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].item() == pytest.approx(expected[name].item(), abs=5e-5, rel=5e-5), name


@pytest.mark.parametrize("preset", KINDS)
def test_neither_padding_nor_the_order_of_a_batch_changes_a_loss(preset: str, world: World):
    changes = ["objective.2.reduction=mean"] if preset.startswith("diffcse") else []  # its mean_all counts padding
    stage = world.stage(preset, *changes).redrawn()
    batch = stage.batch()
    with torch.no_grad():
        before = stage.terms(batch)
        same(stage.terms({name: padded(slot, more=3, junk=17) for name, slot in batch.items()}), before)
        same(stage.terms(shuffled(batch, [3, 5, 0, 1, 4, 2])), before)


def test_diffcses_mean_counts_padding(world: World):
    stage = world.stage("diffcse-sts-bert").redrawn()
    batch = stage.batch()
    with torch.no_grad():
        before = stage.terms(batch)
        after = stage.terms({name: padded(slot, more=3, junk=0) for name, slot in batch.items()})
    assert after["contrast"].item() == pytest.approx(before["contrast"].item(), abs=1e-5)
    assert abs(after["difference"].item() - before["difference"].item()) > 1e-4

"""A step with micro-batches equals a step with one batch: gradients, counts and seeds (docs/methods/cocondenser.md)."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from drtk.errors import DrtkError
from drtk.models.packing import PACKED
from drtk.pretraining.network import compute_contrastive_losses
from drtk.pretraining.trainer import check_batch, uses_micro_batches
from tests.pretraining_setup import PretrainingFiles, PretrainingSetup
from tests.tiny_models import compute_max_difference

EXAMPLES = range(8)
CASES: dict[str, tuple[str, ...]] = {
    "cocondenser": (),
    "mixture-example": (),
    "diffcse-sts-bert": ("projectors.head.kind=tanh",),
    "master": (),
    "simlm-rtd": ("objective.1.reduction=sum", "objective.2.reduction=sum"),
}


@pytest.mark.parametrize("preset", CASES)
def test_cached_gradients_equal_those_of_the_whole_batch(preset: str, files: PretrainingFiles, tmp_path: Path):
    stage = files.prepare(preset, *CASES[preset], batch_size=8).disable_dropout()
    if stage.network.projectors:
        stage.randomize_weights()  # otherwise all vectors are nearly equal
    check_batch(replace(stage.data.settings, micro_batch_size=2), stage.network)
    trainer = stage.trainer(tmp_path)
    loss, whole = stage.step(trainer, EXAMPLES, micro=8)
    largest = max(float(gradient.abs().max()) for gradient in whole.values())
    assert largest > 0.1
    for micro in (1, 3):
        other_loss, gradients = stage.step(trainer, EXAMPLES, micro=micro)
        assert other_loss == pytest.approx(loss, abs=3e-5, rel=1e-5)
        assert compute_max_difference(gradients, whole) < 3e-5 * max(1.0, largest)


def test_cached_gradients_with_dropout_equal_those_of_one_graph(files: PretrainingFiles, tmp_path: Path):
    stage = files.prepare("mixture-example", batch_size=8)
    trainer = stage.trainer(tmp_path)
    loss, actual = stage.step(trainer, EXAMPLES, micro=3)
    _, parted = stage.step(trainer, EXAMPLES, micro=4)  # other parts, other dropout
    assert compute_max_difference(parted, actual) > 1e-3
    graph_loss, graph = compute_in_one_graph(stage, trainer, micro=3)
    assert graph_loss == pytest.approx(loss, abs=3e-5)
    assert compute_max_difference(actual, graph) < 3e-5
    trainer.state.global_step = 1  # and other dropout in another step
    assert compute_max_difference(stage.step(trainer, EXAMPLES, micro=3)[1], actual) > 1e-3


def compute_in_one_graph(stage: PretrainingSetup, trainer, *, micro: int) -> tuple[float, dict[str, Tensor]]:
    """Compute a step without gradient caching: all micro-batches with their seeds, then the contrastive losses."""
    network = stage.network
    network.zero_grad()
    parts = stage.data.build_collator(micro)(stage.get_examples(*EXAMPLES))["batches"].unpack()
    assert len(parts) == 3
    counts = {name: sum(network.count_labels(part)[name] for part in parts) for name in network.count_labels(parts[0])}
    outputs, seeds = [], set()
    for number, part in enumerate(parts):
        trainer.seed_part(number)
        seeds.add(torch.initial_seed())
        outputs.append(network(part, counts))
    assert len(seeds) == 3  # each part has dropout of its own
    terms = {name: torch.stack([each.losses[name] for each in outputs]).sum() for name in outputs[0].losses}
    vectors = {name: torch.cat([each.vectors[name] for each in outputs]) for name in outputs[0].vectors}
    present = {name: torch.cat([part[name].present for part in parts]) for name in vectors}
    terms |= compute_contrastive_losses(network.composition, vectors, present)
    loss = torch.stack([network.loss_weights[name] * value for name, value in terms.items()]).sum()
    loss.backward()
    slopes = {name: weight.grad.clone() for name, weight in network.named_parameters() if weight.grad is not None}
    return loss.item(), slopes


@pytest.mark.parametrize("micro", [8, 3])
def test_nan_loss_names_objective_and_passages(micro: int, files: PretrainingFiles, tmp_path: Path):
    stage = files.prepare("cocondenser", batch_size=8).disable_dropout()
    with torch.no_grad():
        stage.network.backbone.encoder.layer[-1].output.LayerNorm.bias[0] = 1e30  # dot products beyond float32
    with pytest.raises(DrtkError, match=r"the loss \(.*contrast.*\) is nan at step 1, on passages d\d+#0"):
        stage.step(stage.trainer(tmp_path), EXAMPLES, micro=micro)


def test_logged_shares_are_over_all_micro_batches(files: PretrainingFiles, tmp_path: Path):
    stage = files.prepare("simlm", batch_size=8)
    trainer = stage.trainer(tmp_path)
    stage.step(trainer, EXAMPLES, micro=8)
    whole = {name: value.tolist() for name, value in trainer._statistics.items()}
    trainer._statistics.clear()
    stage.step(trainer, EXAMPLES, micro=3)
    assert {name: value.tolist() for name, value in trainer._statistics.items()} == whole
    changed, of = whole["encoder_replaced"]
    slot = stage.batch(*EXAMPLES)["encoder"]
    assert of == int(slot.content.sum())
    assert 0 < changed <= int(slot.masked.sum())  # fewer where a draw is the original


def test_micro_batch_is_halved_unless_batch_norm_needs_the_whole_batch(files: PretrainingFiles, tmp_path: Path):
    for preset, micro, half in (("mlm", 6, 3), ("mlm", 5, 2), ("mlm", 1, None), ("diffcse-sts-bert", 8, None)):
        assert files.prepare(preset, batch_size=8).trainer(tmp_path, micro=micro).compute_smaller_micro_batch() == half


@pytest.mark.parametrize(
    ("preset", "packed", "device", "half", "expected"),
    [
        ("mlm", True, "cuda", True, False),
        ("mlm", False, "cuda", True, True),
        ("mlm", True, "cuda", False, True),  # float32 is not packed
        ("cocondenser", False, "cuda", False, False),  # gradient caching takes longer
        ("cocondenser", True, "cpu", False, True),
    ],
)
def test_by_default_a_gpu_splits_only_padded_batches_without_contrastive_losses(
    preset: str, packed: bool, device: str, half: bool, expected: bool, files: PretrainingFiles
):
    network = files.prepare(preset).network
    network.backbone.config._attn_implementation = PACKED if packed else "sdpa"
    arguments: Any = SimpleNamespace(device=torch.device(device), bf16=half, fp16=False)
    assert uses_micro_batches(network, arguments) is expected

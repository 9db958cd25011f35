"""Gradient caching: equal gradients, with the memory of one chunk (docs/methods/cocondenser.md)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drtk.errors import DrtkError
from drtk.models.checkpoint import load_masked_lm, save_lm_head
from drtk.training import grad_cache
from tests.pretraining_setup import randomize_weights
from tests.retriever_setup import TrainingSetup, load_settings
from tests.tiny_models import save_tiny_encoder

SIZE = {"batch_size": 8, "negatives": 2, "query_length": 16, "passage_length": 24}
LOSSES: dict[str, dict[str, Any]] = {
    # at .02 the scores of an untrained encoder's vectors, nearly alike, leave gradients of three digits in single precision
    "simlm": {"preset": "simlm-r1", "temperature": 0.2, "mask_false_negatives": True},
    "distill": {
        "preset": "simlm-distill",
        "temperature": 0.2,
        "contrastive": "infonce",
        "mask_duplicate_positives": True,
    },
    "untied": {"preset": "dpr-nq", "matryoshka": (8,)},
    "sparse": {"preset": None, "head": "sparse", "query_flops_weight": 0.05, "passage_flops_weight": 0.03},
    "diffcse": {"preset": "dpr-nq-roberta-shared", "aux": "diffcse", "aux_weight": 0.5},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("caching")
    save_tiny_encoder(folder / "model", pooling="cls")
    generator = save_tiny_encoder(folder / "generator", seed=5, layers=1)
    _, head, _ = load_masked_lm(generator)
    randomize_weights(head, seed=4)  # an untrained head says the same of every token
    save_lm_head(head, generator)
    return folder


def create_setup(data: Path, name: str, **changes: Any) -> TrainingSetup:
    given = dict(LOSSES[name])
    preset = given.pop("preset")
    if "aux" in given:
        given["aux_generator"] = str(data / "generator")
    dropout = changes.pop("dropout", False)
    model = data / ("generator" if given.get("head") == "sparse" else "model")
    return TrainingSetup.create(model, load_settings(preset, **SIZE | given | changes), dropout=dropout)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_the_whole_batch(data: Path, tmp_path: Path, name: str):
    stage = create_setup(data, name)
    inputs = stage.inputs(range(8))
    loss, expected = stage.step(stage.trainer(tmp_path / "a"), inputs)
    trainer = stage.trainer(tmp_path / "b", cache_chunk=3)
    cached, actual = stage.step(trainer, inputs)
    assert cached == pytest.approx(loss, rel=1e-5)
    if name == "diffcse":  # terms are logged and weighted
        terms = {term: float(value) for term, value in trainer._terms.items()}
        assert set(terms) == {"contrastive", "diffcse_query", "diffcse_passage"}
        total = terms["contrastive"] + 0.5 * (terms["diffcse_query"] + terms["diffcse_passage"])
        assert loss == pytest.approx(total, rel=1e-5)
    assert actual.keys() == expected.keys()
    assert sum(float(slope.abs().sum()) for slope in expected.values()) > 1e-3
    for weight, slope in expected.items():
        largest = max(1e-3, float(slope.abs().max()))
        assert float((actual[weight] - slope).abs().max()) < 3e-3 * largest, weight


def test_both_passes_see_the_same_dropout_and_steps_see_others(data: Path, tmp_path: Path, monkeypatch: Any):
    stage = create_setup(data, "simlm", dropout=True)
    seen: list[Tensor] = []
    seeds: list[int] = []
    usual = grad_cache.encode_chunk

    def record_output(*given: Any) -> Tensor:
        seeds.append(torch.initial_seed())
        seen.append(usual(*given))
        return seen[-1]

    monkeypatch.setattr(grad_cache, "encode_chunk", record_output)
    trainer = stage.trainer(tmp_path, cache_chunk=4)
    stage.step(trainer, stage.inputs(range(8)))
    chunks = len(seen) // 2
    assert chunks == 2 + 6  # 8 queries and 24 passages, 4 at a time
    for first, second in zip(seen[:chunks], seen[chunks:], strict=True):
        assert not first.requires_grad
        assert second.requires_grad
        torch.testing.assert_close(first, second.detach(), rtol=1e-5, atol=1e-6)
    assert seeds[:chunks] == seeds[chunks:]
    assert len(set(seeds)) == chunks  # each chunk has dropout of its own
    before = seen[0]
    seen.clear()
    trainer.state.global_step = 1
    stage.step(trainer, stage.inputs(range(8)))
    assert float((seen[0] - before).abs().max()) > 1e-3


def measure_saved_bytes(stage: TrainingSetup, trainer: Any, inputs: dict[str, Tensor]) -> int:
    """Return the peak size in bytes of the tensors saved by the graph of a step."""
    now = most = 0

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal now, most
            self.tensor = tensor.detach()  # or it would keep itself alive
            self.size = tensor.numel() * tensor.element_size()
            now += self.size
            most = max(most, now)

        def __del__(self) -> None:
            nonlocal now
            now -= self.size

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        stage.step(trainer, inputs)
    return most


def test_memory_depends_on_the_chunk_and_not_on_the_batch(data: Path, tmp_path: Path):
    kept: dict[tuple[int, int | None], int] = {}
    for batch in (4, 32):
        stage = TrainingSetup.create(data / "model", load_settings("qac-r1", **SIZE | {"batch_size": batch}), count=40)
        for chunk in (None, 8):
            trainer = stage.trainer(tmp_path / f"{batch}", cache_chunk=chunk)
            kept[batch, chunk] = measure_saved_bytes(stage, trainer, stage.inputs(range(batch)))
    assert kept[32, None] > 4 * kept[4, None]
    # a chunk of eight may be of longer texts in a larger batch; the vectors themselves are 32 wide
    assert kept[32, 8] < 1.5 * kept[4, 8]
    assert kept[32, 8] < kept[32, None] / 6


def test_the_temperature_of_a_step_warms_up(data: Path, tmp_path: Path):
    stage = create_setup(data, "simlm")
    trainer = stage.trainer(tmp_path, warm_up_temperature=True)  # warm-up of two steps
    actual = []
    for step in range(3):
        trainer.state.global_step = step
        actual.append(trainer.temperature)
    assert actual == pytest.approx([1.0, 1 / 2.5, 0.2])


@pytest.mark.parametrize("chunk", [None, 4])
def test_a_nan_loss_ends_the_step(data: Path, tmp_path: Path, chunk: int | None):
    stage = create_setup(data, "simlm")
    with torch.no_grad():
        next(stage.model.parameters())[:] = float("nan")
    with pytest.raises(DrtkError, match="the loss is nan at step 1; try a lower `learning_rate`"):
        stage.step(stage.trainer(tmp_path, cache_chunk=chunk), stage.inputs(range(8)))

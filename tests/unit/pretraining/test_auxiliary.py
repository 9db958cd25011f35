"""DiffCSE as an auxiliary loss of retriever training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from drtk.errors import MismatchError
from drtk.pretraining.auxiliary import BiEncoderWithDiffCSE, build_diffcse_network
from drtk.training.retriever import load_start_towers
from tests.pretraining_setup import randomize_weights, wrap_masked_lm
from tests.reference import finetuning as slow
from tests.reference.bert import hidden_states
from tests.reference.diffcse import Edited, difference_labels, generate, reduce_losses, rtd_losses
from tests.reference.finetuning import BatchQuery
from tests.reference.text import Text
from tests.retriever_setup import TrainingSetup, load_settings
from tests.tiny_models import save_tiny_encoder
from tests.unit.training.test_grad_cache import data

__all__ = ["data"]  # the fixture

SIZE = {"batch_size": 4, "negatives": 1, "passage_length": 14, "query_length": 8, "aux": "diffcse"}
PRESET = "dpr-nq-roberta-shared"


def create_setup(data: Path, **changes: Any) -> TrainingSetup:
    generator = {"aux_generator": str(data / "generator")}
    return TrainingSetup.create(data / "model", load_settings(PRESET, **SIZE | generator | changes))


def get_model(stage: TrainingSetup) -> BiEncoderWithDiffCSE:
    assert isinstance(stage.model, BiEncoderWithDiffCSE)
    return stage.model


def model_inputs(stage: TrainingSetup) -> dict[str, Tensor]:
    inputs = stage.inputs(range(4))
    inputs.pop("passage_indices")
    return inputs


def test_encoder_runs_once_per_text_and_discriminator_gets_its_vector(data: Path):
    stage = create_setup(data)
    calls = []
    encoder: Any = stage.towers["passage"].encoder
    encoder.backbone.register_forward_hook(lambda *given: calls.append(len(given[2].last_hidden_state)))
    queries, passages, terms = stage.model(**model_inputs(stage))
    assert sum(calls) == 4 + 8
    slopes = torch.autograd.grad(sum(terms.values()), [queries, passages], retain_graph=True)
    assert all(float(slope.abs().sum()) > 0 for slope in slopes)  # the gradient reaches the encoder through the vector
    inside = dict(get_model(stage).network.named_parameters())
    assert inside
    assert all(name.startswith("recoveries.") for name in inside)  # the generator is neither trained nor saved


def test_token_corruption_does_not_depend_on_the_batch(data: Path):
    stage = create_setup(data)
    whole, part = stage.inputs(range(4)), stage.inputs([2])
    for role, rows in (("query", slice(2, 3)), ("passage", slice(4, 6))):
        width = part[f"{role}_input_ids"].shape[1]
        for name in ("input_ids", "masked", "content"):
            torch.testing.assert_close(whole[f"aux_{role}_{name}"][rows, :width], part[f"aux_{role}_{name}"])
    slot = get_model(stage).build_slot(whole, "passage")
    assert 0.1 < slot.masked.sum().item() / slot.content.sum().item() < 0.5  # of 30%
    assert not bool((slot.masked & ~slot.content).any())
    again = stage.inputs(range(12, 16))["aux_query_masked"]  # another epoch: 12 examples in three batches of four
    assert not all(np.array_equal(a, b) for a, b in zip(again, whole["aux_query_masked"], strict=True))


def test_incompatible_encoders_and_generators_are_rejected(data: Path, tmp_path: Path):
    settings = load_settings(PRESET, **SIZE | {"aux_generator": str(data / "generator"), "pooling": "cls+mean"})
    message = "the passage encoder has vectors of 64 dimensions, but a hidden size of 32"
    with pytest.raises(MismatchError, match=message):
        build_diffcse_network(load_start_towers(str(data / "model"), settings), settings, seed=1)
    other = save_tiny_encoder(tmp_path / "other")
    with pytest.raises(MismatchError, match="no trained masked-LM head"):
        create_setup(data, aux_generator=str(other))


def build_texts(inputs: dict[str, Tensor], role: str) -> list[Text]:
    """Return the texts of a role as lists, with the masked copies that the generator reads."""
    results = []
    for row, size in enumerate(inputs[f"{role}_attention_mask"].sum(dim=1).tolist()):
        hidden = inputs[f"aux_{role}_masked"][row]
        names = (f"{role}_input_ids", f"aux_{role}_input_ids", f"{role}_token_type_ids")
        original, given, types = (inputs[name][row, :size].tolist() for name in names)
        results.append(Text(original, given, [at for at in range(size) if hidden[at]], [0, size - 1], types))
    return results


def compute_detection_loss(
    model: BiEncoderWithDiffCSE, role: str, inputs: dict[str, Tensor], *, scope: Any, reduction: Any
) -> Tensor:
    """Return the reference loss of replaced token detection, conditioned on the vector of the retriever."""
    token_loss: Any = model.network.recoveries[f"diffcse_{role}"]
    generator = wrap_masked_lm(model.network.generator.backbone, model.network.generator.head)
    length = inputs[f"{role}_input_ids"].shape[1]
    real, pads = [], []
    for text in build_texts(inputs, role):
        vector = hidden_states(model.pair.passage.backbone, text.original, text.types)[-1][0]
        proposed = generate(generator, text, scope=scope)
        edited = Edited(proposed, difference_labels(text.original, proposed), 0, 0, types=text.types)
        found = rtd_losses(token_loss.reader.encoder, token_loss.target.head, vector, edited, length=length, pad=0)
        real.append(found[0])
        pads.append(found[1])
    return reduce_losses(real, pads, reduction=reduction)


def compute_retrieval_loss(model: BiEncoderWithDiffCSE, inputs: dict[str, Tensor]) -> float:
    """Return the reference loss of DPR: inner products with all passages of the batch."""
    backbone = model.pair.passage.backbone
    vectors = {
        role: [hidden_states(backbone, text.original, text.types)[-1][0].tolist() for text in build_texts(inputs, role)]
        for role in ("query", "passage")
    }
    n = len(vectors["passage"]) // len(vectors["query"])
    blocks = [vectors["passage"][at * n : at * n + n] for at in range(len(vectors["query"]))]
    batch = [BatchQuery(query, block, [""] * n) for query, block in zip(vectors["query"], blocks, strict=True)]
    return slow.mean(slow.infonce(batch, temperature=1.0, similarity="dot"))


@pytest.mark.parametrize(("scope", "reduction", "weight"), [("masked", "mean", 0.1), ("all", "mean_all", 0.005)])
def test_training_step_minimizes_both_losses(data: Path, tmp_path: Path, scope: str, reduction: str, weight: float):
    changes = {"title": "segment"} if scope == "masked" else {}
    stage = create_setup(data, aux_scope=scope, aux_reduction=reduction, aux_weight=weight, **changes)
    model = get_model(stage)
    for seed, part in enumerate((stage.towers["passage"].encoder, model.network.recoveries)):
        randomize_weights(part, seed=seed)  # so that encoder and discriminator differ
    inputs = stage.inputs(range(4))
    assert bool(inputs["passage_token_type_ids"].any()) is ("title" in changes)
    how = {"scope": scope, "reduction": {"mean": "mean_valid"}.get(reduction, reduction)}
    with torch.no_grad():
        sides = [compute_detection_loss(model, role, inputs, **how).item() for role in ("query", "passage")]
        own = compute_retrieval_loss(model, inputs)
    loss, _ = stage.step(stage.trainer(tmp_path), inputs)
    assert loss == pytest.approx(slow.with_difference(own, *sides, weight=weight), rel=2e-5)
    with torch.no_grad():
        *_, terms = model(**{name: value for name, value in inputs.items() if name != "passage_indices"})
    assert [terms[f"diffcse_{role}"].item() for role in ("query", "passage")] == pytest.approx(sides, rel=2e-5)

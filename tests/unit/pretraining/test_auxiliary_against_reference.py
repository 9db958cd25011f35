"""DPR with DiffCSE's second task against a slow loop: what the generator proposes, what the discriminator says of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from drtk.models.lm_head import load_masked_lm, save_lm_head
from drtk.pretraining.auxiliary import WithAuxiliary
from tests.finetuning import Stage, settings_of
from tests.pretraining import widely
from tests.reference import finetuning as slow
from tests.reference.bert import hidden_states
from tests.reference.diffcse import Edited, difference_labels, generated, reduced, rtd_losses
from tests.reference.finetuning import Asked
from tests.reference.text import Text
from tests.tiny import tiny_model

SIZE = {"batch": 4, "negatives": 1, "passage_length": 14, "query_length": 8, "aux": "diffcse"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aux")
    tiny_model(folder / "model", pooling="cls")
    generator = tiny_model(folder / "generator", seed=5, layers=1)
    _, head, _ = load_masked_lm(generator)
    widely(head, seed=4)
    save_lm_head(head, generator)
    return folder


def stage_of(place: Path, **changes: Any) -> Stage:
    wanted = SIZE | {"aux_generator": str(place / "generator")} | changes
    stage = Stage.of(place / "model", settings_of("dpr-nq-roberta-shared", **wanted))
    for seed, part in enumerate((stage.towers["passage"].encoder, stage.model.network.recoveries)):
        widely(part, seed=seed)  # so that encoder and discriminator are no longer copies
    return stage


def masked_lm(generator: Any) -> Any:
    """A generator's modules where BertForMaskedLM has them."""
    head = generator.head
    transform = SimpleNamespace(dense=head.dense, transform_act_fn=head._act, LayerNorm=head.norm)
    decoder = SimpleNamespace(weight=head.weight, bias=head.bias)
    predictions = SimpleNamespace(transform=transform, decoder=decoder)
    return SimpleNamespace(bert=generator.backbone, cls=SimpleNamespace(predictions=predictions))


def texts(inputs: dict[str, Tensor], role: str) -> list[Text]:
    """The texts of a role as lists, with the masked copies that the generator reads."""
    found = []
    for row, size in enumerate(inputs[f"{role}_attention_mask"].sum(dim=1).tolist()):
        hidden = inputs[f"aux_{role}_hidden"][row]
        names = (f"{role}_input_ids", f"aux_{role}_given", f"{role}_token_type_ids")
        original, given, types = (inputs[name][row, :size].tolist() for name in names)
        found.append(Text(original, given, [at for at in range(size) if hidden[at]], [0, size - 1], types))
    return found


def detection(model: WithAuxiliary, role: str, inputs: dict[str, Tensor], *, scope: Any, reduction: Any) -> Tensor:
    """Cross-entropy of "replaced" and "as it was", told the vector that the retriever ranks by."""
    recovery: Any = model.network.recoveries[f"diffcse_{role}"]
    length = inputs[f"{role}_input_ids"].shape[1]
    real, pads = [], []
    for text in texts(inputs, role):
        vector = hidden_states(model.pair.passage.backbone, text.original, text.types)[-1][0]
        proposed = generated(masked_lm(model.network.generator), text, scope=scope)
        edited = Edited(proposed, difference_labels(text.original, proposed), 0, 0, types=text.types)
        found = rtd_losses(recovery.reader.encoder, recovery.target.head, vector, edited, length=length, pad=0)
        real.append(found[0])
        pads.append(found[1])
    return reduced(real, pads, reduction=reduction)


def retrieval(model: WithAuxiliary, inputs: dict[str, Tensor]) -> float:
    """DPR's own loss: inner products, all passages of the batch."""
    backbone = model.pair.passage.backbone
    vectors = {
        role: [hidden_states(backbone, text.original, text.types)[-1][0].tolist() for text in texts(inputs, role)]
        for role in ("query", "passage")
    }
    n = len(vectors["passage"]) // len(vectors["query"])
    blocks = [vectors["passage"][at * n : at * n + n] for at in range(len(vectors["query"]))]
    batch = [Asked(query, block, [""] * n) for query, block in zip(vectors["query"], blocks, strict=True)]
    return slow.mean(slow.infonce(batch, temperature=1.0, similarity="dot"))


@pytest.mark.parametrize(
    ("scope", "reduction", "weight"), [("all", "mean_all", None), ("masked", "mean", 0.1), ("all", "sum", 0.01)]
)
def test_a_step_minimises_both_tasks(place: Path, tmp_path: Path, scope: str, reduction: str, weight: float | None):
    changes = {} if weight is None else {"aux_weight": weight, "title": "segment"}
    stage = stage_of(place, aux_scope=scope, aux_reduction=reduction, **changes)
    assert isinstance(stage.model, WithAuxiliary)
    inputs = stage.inputs(range(4))
    assert bool(inputs["passage_token_type_ids"].any()) is ("title" in changes)
    named = {"mean": "mean_valid"}.get(reduction, reduction)
    with torch.no_grad():
        sides = [
            detection(stage.model, role, inputs, scope=scope, reduction=named).item() for role in ("query", "passage")
        ]
        own = retrieval(stage.model, inputs)
    loss, _ = stage.step(stage.trainer(tmp_path), inputs)
    assert loss == pytest.approx(slow.with_difference(own, *sides, weight=weight or 0.005), rel=2e-5)
    with torch.no_grad():
        *_, terms = stage.model(**{name: value for name, value in inputs.items() if name != "passage_numbers"})
    assert {name: term.item() for name, term in terms.items()} == {
        "diffcse_query": pytest.approx(sides[0], rel=2e-5),
        "diffcse_passage": pytest.approx(sides[1], rel=2e-5),
    }

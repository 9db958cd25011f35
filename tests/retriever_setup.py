"""Set up single training steps of a retriever, with shipped presets and a synthetic collection."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drtk.config import load_preset, merge_settings
from drtk.models.biencoder import BiEncoder
from drtk.models.checkpoint import TextEncoder
from drtk.pretraining.auxiliary import DiffCSE
from drtk.records import Example, Passage
from drtk.training.arguments import Schedule, build_training_arguments
from drtk.training.config import RetrieverConfig
from drtk.training.dataset import SampledExamples, collate
from drtk.training.examples import PackedExamples, TrainingData
from drtk.training.grad_cache import RetrieverTrainer
from drtk.training.retriever import load_start_towers
from drtk.training.retriever_loss import RetrieverLoss
from tests.tiny_models import make_collection

Q = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
P = torch.tensor([[0.8, 0.6], [0.6, -0.8], [0.28, 0.96], [-0.6, 0.8]])  # d1+, n1, d2+, n2 (docs/methods/fine-tuning.md)


def load_settings(preset: str | None = None, **changes: Any) -> RetrieverConfig:
    """Return the settings of a shipped preset, or the defaults, with changes."""
    return merge_settings(RetrieverConfig, load_preset(preset).settings if preset else {}, changes)


def compute_terms(settings: RetrieverConfig, queries: Tensor, passages: Tensor, **facts: Tensor) -> dict[str, float]:
    """Return the terms of the loss for given vectors, and "loss", their weighted sum."""
    loss = RetrieverLoss.from_config(settings, similarity=str(settings.similarity))
    terms = loss.compute_terms(queries, passages, {"passage_indices": torch.arange(len(passages))} | facts)
    found = {name: float(value) for name, value in terms.items()}
    return found | {"loss": sum(loss.weights.get(name, 1.0) * value for name, value in found.items())}


class MemoryCorpus:
    """The passages of the synthetic collection, in memory."""

    def __init__(self, count: int) -> None:
        self._rows = {row["_id"]: row for row in make_collection(count)[0]}

    def get_many(self, ids: Sequence[str]) -> list[Passage]:
        return [Passage(id, self._rows[id]["text"], self._rows[id]["title"]) for id in ids]

    def find_missing(self, ids: Sequence[str]) -> list[str]:
        return [id for id in ids if id not in self._rows]


def make_examples(count: int = 12, *, seed: int = 0) -> list[Example]:
    """Return examples with three negatives and teacher scores. Query q1 has two positives; d0 also answers q5."""
    draw = random.Random(seed)
    results = []
    for row in make_collection(count)[2]:
        number = int(row["query_id"][1:])
        positives = {1: ("d1", "d7"), 5: ("d0", "d5")}.get(number, (f"d{number}",))
        scores = {
            side: [draw.gauss(0, 2) for _ in range(n)] for side, n in (("positives", len(positives)), ("negatives", 3))
        }
        results.append(Example(row["query_id"], positives, tuple(row["negatives"]), scores))
    return results


@dataclass
class TrainingSetup:
    """A model, its settings and its training examples."""

    model: nn.Module
    towers: dict[str, TextEncoder]
    settings: RetrieverConfig
    draws: SampledExamples
    aux: DiffCSE | None

    @classmethod
    def create(
        cls, folder: Path, settings: RetrieverConfig, *, count: int = 12, dropout: bool = False
    ) -> TrainingSetup:
        """Load a model folder and the first `count` examples of the collection."""
        towers = load_start_towers(str(folder), settings)
        passage, query = towers["passage"], towers.get("query")
        model: nn.Module = BiEncoder(passage.encoder, query.encoder if query else None, group_overhead=4)
        aux = None
        if settings.aux == "diffcse":
            aux = DiffCSE(towers, settings, seed=3)
            model = aux.wrap(model, torch.device("cpu"))
        for part in model.modules():
            if isinstance(part, nn.Dropout) and not dropout:
                part.p = 0.0
        loss = RetrieverLoss.from_config(settings, similarity=str(passage.encoding.similarity))
        examples = PackedExamples(make_examples(count), scored=True)
        queries = {row["_id"]: row["text"] for row in make_collection(count)[1]}
        draws = SampledExamples(
            TrainingData("examples", examples, queries, MemoryCorpus(count)),
            batch=settings.batch_size,
            steps=4,
            negatives=settings.negatives,
            seed=7,
            negative_sampling=settings.negative_sampling,
            positive_sampling=settings.positive_sampling,
            with_positives=loss.excluded == "positives",
            with_scores=loss.distillation is not None,
        )
        return cls(model, towers, settings, draws, aux)

    def inputs(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        """Return a batch of examples, given by their position in the training order."""
        passage = self.towers["passage"]
        query = self.towers.get("query", passage)
        return collate(
            [self.draws[number] for number in numbers],
            query_tokenizer=query.get_tokenizer("query"),
            passage_tokenizer=passage.get_tokenizer("passage"),
            corrupt=self.aux and self.aux.corrupt,
        )

    def trainer(self, folder: Path, *, cache_chunk: int | None = None, **more: Any) -> RetrieverTrainer:
        """Return a trainer of the model, on the CPU."""
        settings = self.settings
        plain = {"learning_rate": 1e-3, "warmup": 2, "weight_decay": 0.0, "precision": "float32", "log_steps": 1}
        config, schedule = replace(settings, **plain, trainer=()), Schedule(settings.batch_size, 4, 1)
        arguments = build_training_arguments(config, schedule, folder, seed=7, device="cpu")
        loss = RetrieverLoss.from_config(settings, similarity=str(self.towers["passage"].encoding.similarity))
        weights = {**loss.weights, **(self.aux.weights if self.aux else {})}
        trainer = RetrieverTrainer(
            loss=loss,
            micro_batch=cache_chunk,
            weights=weights,
            log=folder / "log.jsonl",
            steps_per_epoch=1,
            model=self.model,
            args=arguments,
            **more,
        )
        trainer.current_gradient_accumulation_steps = 1  # otherwise set by its training loop
        return trainer

    def step(
        self, trainer: RetrieverTrainer, inputs: dict[str, Tensor], model: nn.Module | None = None
    ) -> tuple[float, dict[str, Tensor]]:
        """Return loss and gradients of one training step."""
        self.model.zero_grad()
        loss = trainer.training_step(model or self.model, dict(inputs))
        found = {name: weight.grad.clone() for name, weight in self.model.named_parameters() if weight.grad is not None}
        return float(loss), found

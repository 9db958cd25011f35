"""Training of a bi-encoder from examples."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from drtk.errors import DrtkError
from drtk.losses import RETRIEVER_LOSSES
from drtk.losses.contrastive import same_as_positive
from drtk.models.biencoder import BiEncoder, load_towers, save_towers
from drtk.models.checkpoint import TextEncoder
from drtk.records import Passage
from drtk.settings.finetuning import RetrieverSettings
from drtk.text.batching import Tokenizing
from drtk.training.distributed import gather, wait_for_all
from drtk.training.examples import PackedExamples
from drtk.training.sampling import negatives_of_epoch, order_of_epoch, positive_of_epoch
from drtk.training.schedule import Plan, planned
from drtk.training.trainer import (
    DrtkTrainer,
    Objective,
    ShowProgress,
    allow_checkpointing,
    training_arguments,
)

QUERY_LENGTH, PASSAGE_LENGTH = 32, 144  # methods, section 6.2
GROUP_TOKENS = 2048  # on a CPU: texts of like length go through the encoder together, which spares it the padding
LOG = "log.jsonl"


class Texts(Protocol):
    """Where passages are looked up; io.store.CorpusStore is one."""

    def many(self, ids: Sequence[str]) -> list[Passage]: ...


@dataclass(frozen=True)
class Drawn:
    """An example as one step sees it: the query, and numbers and texts of a positive and the negatives after it."""

    query: str
    numbers: list[int]
    passages: list[Passage]


class Draws(torch.utils.data.Dataset[Drawn]):
    """The examples of every step, in the order in which they are seen: item k is of step k // batch.

    Each epoch takes the examples in an order of its own and leaves out those that fill no batch.
    """

    def __init__(
        self,
        examples: PackedExamples,
        *,
        queries: dict[str, str],
        corpus: Texts,
        batch: int,
        steps: int,
        negatives: int,
        seed: int,
    ) -> None:
        self._examples, self._queries, self._corpus = examples, queries, corpus
        self._length, self._negatives, self._seed = steps * batch, negatives, seed
        self.epoch_length = len(examples) // batch * batch
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Drawn:
        epoch, place = divmod(index, self.epoch_length)
        if self._order[0] != epoch:
            self._order = (epoch, order_of_epoch(len(self._examples), epoch=epoch, seed=self._seed))
        example = int(self._order[1][place])
        numbers = [positive_of_epoch(self._examples.positives(example), epoch=epoch, seed=self._seed)]
        negatives = self._examples.negatives(example)
        numbers += negatives_of_epoch(negatives, self._negatives, epoch=epoch, seed=self._seed)
        passages = self._corpus.many([self._examples.passage_ids[number] for number in numbers])
        return Drawn(self._queries[self._examples.query_ids[example]], numbers, passages)


def collate(drawn: Sequence[Drawn], *, query: Tokenizing, passage: Tokenizing) -> dict[str, Tensor]:
    """The inputs of a step: those of BiEncoder, and `passage_numbers` (queries * n,)."""
    texts: dict[str, tuple[Tokenizing, list[Any]]] = {
        "query": (query, [item.query for item in drawn]),
        "passage": (passage, [text for item in drawn for text in item.passages]),
    }
    batch = {"passage_numbers": torch.tensor([number for item in drawn for number in item.numbers])}
    for role, (tokenizing, items) in texts.items():
        padded = tokenizing(items).padded(np.arange(len(items)), pad=tokenizing.pad, left=tokenizing.left)
        batch |= {f"{role}_{name}": torch.from_numpy(array) for name, array in padded.items()}
    return batch


def contrastive_terms(
    model: nn.Module,
    inputs: dict[str, Tensor],
    *,
    loss: Callable[..., Tensor],
    similarity: str,
    temperature: float,
    mask_duplicates: bool,
) -> dict[str, Tensor]:
    """{"contrastive": ()} of the batch of all processes together, in float32 whatever the model's precision."""
    inputs = dict(inputs)
    numbers = gather(inputs.pop("passage_numbers"))
    queries, passages = model(**inputs)
    with torch.autocast(queries.device.type, enabled=False):
        queries, passages = gather(queries.float()), gather(passages.float())
        barred = same_as_positive(numbers, len(queries)) if mask_duplicates else None
        value = loss(queries, passages, similarity=similarity, temperature=temperature, barred=barred)
    return {"contrastive": value}


def retriever_objective(settings: RetrieverSettings, *, similarity: str) -> Objective:
    """What training with these settings minimises: (model, inputs of a step) -> named terms."""
    return partial(
        contrastive_terms,
        loss=RETRIEVER_LOSSES.load(settings.loss),
        similarity=similarity,
        temperature=settings.temperature,
        mask_duplicates=settings.mask_duplicate_positives,
    )


def plan(examples: int, settings: RetrieverSettings) -> Plan:
    """The plan for so many examples. Raises DrtkError where they fill no batch, or devices cannot share one."""
    if settings.batch < 2 and settings.negatives == 0:
        raise DrtkError("--batch 1 with --negatives 0 leaves nothing to tell the positive from")
    return planned(examples, batch=settings.batch, epochs=settings.epochs, steps=settings.steps)


def start_towers(model: str, settings: RetrieverSettings) -> dict[str, TextEncoder]:
    """The towers to start from, their recipes as they shall be used and saved."""
    wishes = {
        "pooling": settings.pooling,
        "normalize": settings.normalize,
        "similarity": settings.similarity,
        "query_length": settings.query_length,
        "passage_length": settings.passage_length,
        "query_prompt": settings.query_prompt,
        "passage_prompt": settings.passage_prompt,
        "title": settings.title,
    }
    towers = load_towers(model, wishes=wishes, untied=settings.untied)
    for tower in towers.values():
        settled: dict[str, Any] = {"similarity": tower.recipe.similarity or "cosine"}
        if settings.query_length is None:
            settled["query_length"] = min(QUERY_LENGTH, tower.recipe.query_length)
        if settings.passage_length is None:
            settled["passage_length"] = min(PASSAGE_LENGTH, tower.recipe.passage_length)
        tower.recipe = tower.recipe.changed(settled, sealed=False, folder=model)
    return towers


def train_retriever(
    examples: PackedExamples,
    folder: Path,
    *,
    towers: dict[str, TextEncoder],
    queries: dict[str, str],
    corpus: Texts,
    settings: RetrieverSettings,
    seed: int = 42,
    device: str = "auto",
) -> dict[str, Any]:
    """Train, write the model into `folder` (rank zero), and return {"steps", "epochs"} of the run.

    folder: where checkpoints (taken away at the end), log.jsonl and the model go; where it holds a whole checkpoint,
            training goes on from there
    Raises DrtkError where the loss ceases to be a number.
    """
    schedule = plan(len(examples), settings)
    checkpoints = folder / "checkpoints"
    arguments = training_arguments(
        checkpoints,
        steps=schedule.steps,
        batch=schedule.batch,
        lr=settings.lr,
        warmup=settings.warmup,
        weight_decay=settings.weight_decay,
        seed=seed,
        device=device,
        precision=settings.precision,
        log_every=settings.log_every,
        save_every=settings.save_every,
        others=settings.trainer,
    )
    passage, query = towers["passage"], towers.get("query", towers["passage"])
    model = BiEncoder(
        passage.encoder,
        query.encoder if "query" in towers else None,
        prompt_lengths=(query.prompt_length("query"), passage.prompt_length("passage")),
        group_tokens=GROUP_TOKENS if arguments.device.type == "cpu" else None,
    )
    if settings.gradient_checkpointing:
        for tower in towers.values():
            allow_checkpointing(tower.encoder.backbone)
    draws = Draws(
        examples,
        queries=queries,
        corpus=corpus,
        batch=settings.batch,
        steps=schedule.steps,
        negatives=settings.negatives,
        seed=seed,
    )
    trainer = DrtkTrainer(
        objective=retriever_objective(settings, similarity=str(passage.recipe.similarity)),
        log=folder / LOG,
        steps_per_epoch=schedule.steps_per_epoch,
        model=model,
        args=arguments,
        train_dataset=draws,
        data_collator=partial(collate, query=query.tokenizing("query"), passage=passage.tokenizing("passage")),
        callbacks=[ShowProgress("train-retriever", schedule.steps)],
    )
    steps = trainer.go_on()
    if trainer.is_world_process_zero():
        for tower in towers.values():
            tower.encoder.cpu().eval()
        save_towers(towers, folder)
        shutil.rmtree(checkpoints, ignore_errors=True)
    wait_for_all()
    epochs = round(schedule.steps / schedule.steps_per_epoch, 4)
    return {"steps": steps, "epochs": epochs}

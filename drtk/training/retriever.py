"""Train a bi-encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from drtk.config import to_dict
from drtk.errors import MismatchError, UsageError
from drtk.models.biencoder import BiEncoder, load_towers, save_towers
from drtk.models.checkpoint import TextEncoder
from drtk.models.config import SPARSE_POOLING
from drtk.models.lora import add_adapters, import_peft, merge_adapters
from drtk.models.model_folder import EncodingConfig, resolve_model_folder
from drtk.models.packing import enable_packing
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.manifest import find_inputs
from drtk.runtime.progress import log
from drtk.training.arguments import CHECKPOINTS, build_training_arguments, plan_schedule
from drtk.training.best_checkpoint import ModelSelection
from drtk.training.config import RetrieverConfig
from drtk.training.dataset import SampledExamples, collate
from drtk.training.examples import TrainingData, load_examples
from drtk.training.fit import enable_gradient_checkpointing, fit
from drtk.training.grad_cache import RetrieverTrainer
from drtk.training.retriever_loss import RetrieverLoss, uses_teacher_scores

QUERY_LENGTH, PASSAGE_LENGTH = 32, 144  # docs/methods/fine-tuning.md
# Cost of one more group, in tokens, when texts are encoded in groups of similar length: the gradient of the word
# embeddings and the kernel launches. A GPU encodes thousands of tokens in that time.
GROUP_OVERHEAD = {"cpu": 64.0, "cuda": 4096.0}
SELECT_BY = "dev_nDCG@10"


class AuxiliaryTask(Protocol):
    """Protocol for an auxiliary task of retriever training, such as drtk.pretraining.auxiliary.DiffCSE."""

    @property
    def weights(self) -> Mapping[str, float]:
        """Weights of the task's losses by name."""

    def wrap(self, pair: BiEncoder, device: torch.device) -> nn.Module:
        """Return the model to train. Its `forward` returns (query vectors, passage vectors, losses of the task by name).

        pair: the BiEncoder, which the model contains as attribute `pair`
        For gradient caching, the model needs the methods `build_slot`, `count_labels` and `compute_loss` of
        drtk.pretraining.auxiliary.BiEncoderWithDiffCSE.
        """

    def corrupt(
        self, role: str, padded: Mapping[str, np.ndarray], keys: Sequence[tuple[Any, ...]]
    ) -> dict[str, np.ndarray]:
        """Return the task's inputs, arrays by name, for the queries or passages of a step.

        role: "query" or "passage"    padded: padded model inputs by name, (texts, tokens) each
        keys: seed of random numbers for each text
        """


def load_start_towers(model: str, config: RetrieverConfig) -> dict[str, TextEncoder]:
    """Load the encoders to train, {role: encoder} as in `load_towers`, with the encoding configuration for training.

    model: a folder or hub name
    Raises MismatchError for a `matryoshka` size that is not below the dimension and a sparse model without `head` sparse,
    UsageError for `temperature_warmup` with a temperature of 1 or more.
    """
    overrides = {field.name: getattr(config, field.name, None) for field in fields(EncodingConfig)}
    if config.head == "sparse":
        overrides |= {"pooling": SPARSE_POOLING, "normalize": False, "similarity": "dot"}
    towers = load_towers(model, overrides=overrides, untied=config.untied)
    if config.head == "dense" and any(tower.encoder.is_sparse for tower in towers.values()):
        raise MismatchError(f"{model}: is a sparse encoder; set `head` sparse, or another `pooling`")
    for tower in towers.values():
        changes: dict[str, Any] = {"similarity": tower.encoding.similarity or "cosine"}
        if config.query_length is None:
            changes["query_length"] = min(QUERY_LENGTH, tower.encoding.query_length)
        if config.passage_length is None:
            changes["passage_length"] = min(PASSAGE_LENGTH, tower.encoding.passage_length)
            if changes["passage_length"] < PASSAGE_LENGTH:
                log(f"passage length: {changes['passage_length']} tokens, the start model's maximum (--passage-length)")
        tower.encoding = tower.encoding.override(changes, strict=False, folder=model)
        dimension = tower.encoder.dimension
        if config.matryoshka and (size := max(config.matryoshka)) >= dimension:
            raise MismatchError(f"`matryoshka` {size}: must be below {dimension}, the dimension of {model}")
    temperature = RetrieverLoss.from_config(config, similarity=str(towers["passage"].encoding.similarity)).temperature
    if config.temperature_warmup and temperature >= 1:
        raise UsageError(f"`temperature_warmup` requires a `temperature` below 1, got {temperature:g}")
    return towers


def train_retriever(
    data: TrainingData,
    folder: Path,
    *,
    towers: dict[str, TextEncoder],
    config: RetrieverConfig,
    seed: int = 42,
    device: str = "auto",
    evaluate: Callable[[], dict[str, float]] | None = None,
    auxiliary: AuxiliaryTask | None = None,
) -> dict[str, Any]:
    """Train a retriever, write it into a folder (rank zero), and return the result of `drtk.training.fit.fit`.

    folder: output folder; training resumes from its last checkpoint
    towers: encoders by role, as `load_start_towers` returns them
    evaluate: function that evaluates the towers and returns metrics by name; the weights with the highest SELECT_BY are saved;
        None: the last weights are saved
    Raises the errors of `plan_schedule`, `build_training_arguments` and `drtk.training.fit.fit`.
    """
    schedule = plan_schedule(len(data.examples), config, source=data.source)
    passage, query = towers["passage"], towers.get("query", towers["passage"])
    loss = RetrieverLoss.from_config(
        config, similarity=str(passage.encoding.similarity), normalize=passage.encoding.normalize
    )
    if config.negative_sampling != "replacement":
        data.examples.warn_of_few_negatives(config.negatives)
    arguments = build_training_arguments(config, schedule, folder, seed=seed, device=device)
    pair = BiEncoder(
        passage.encoder,
        query.encoder if "query" in towers else None,
        prompt_lengths=(query.count_prompt_tokens("query"), passage.count_prompt_tokens("passage")),
        group_overhead=GROUP_OVERHEAD.get(arguments.device.type),
    )
    model: nn.Module = pair if auxiliary is None else auxiliary.wrap(pair, arguments.device)
    for number, tower in enumerate(towers.values()):
        if config.lora is not None:
            add_adapters(
                tower.encoder,
                rank=config.lora,
                alpha=config.lora_alpha,
                dropout=config.lora_dropout,
                targets=config.lora_target,
                seed=seed + number,
            )
        if config.packed:
            enable_packing(tower.encoder.backbone, arguments.device)
        if config.gradient_checkpointing:
            enable_gradient_checkpointing(tower.encoder.backbone)
    dataset = SampledExamples(
        data,
        batch=config.batch_size,
        steps=schedule.steps,
        negatives=config.negatives,
        seed=seed,
        negative_sampling=config.negative_sampling,
        positive_sampling=config.positive_sampling,
        with_positives=loss.excluded == "positives",
        with_scores=loss.distillation is not None,
    )
    selection = None
    if evaluate is not None:
        selection = ModelSelection(model, evaluate, folder / CHECKPOINTS, metric=SELECT_BY, config=config)

    def save() -> None:
        for tower in towers.values():
            if config.lora is not None:
                merge_adapters(tower.encoder)
            tower.encoder.cpu().eval()
        save_towers(towers, folder)

    return fit(
        model,
        dataset,
        partial(
            collate,
            query_tokenizer=query.get_tokenizer("query"),
            passage_tokenizer=passage.get_tokenizer("passage"),
            corrupt=None if auxiliary is None else auxiliary.corrupt,
        ),
        arguments=arguments,
        schedule=schedule,
        folder=folder,
        name="train-retriever",
        save=save,
        evaluator=selection,
        evaluate_first=True,
        micro_batch=config.grad_cache,
        trainer_class=RetrieverTrainer,
        loss=loss,
        weights={**loss.weights, **({} if auxiliary is None else auxiliary.weights)},
        warm_up_temperature=config.temperature_warmup,
        flops_warmup=config.flops_warmup,
    )


def train_from_files(
    examples: str,
    corpus: str,
    queries: str,
    model: str,
    config: RetrieverConfig,
    job: FolderJob,
    *,
    seed: int = 42,
    device: str = "auto",
    build_evaluator: Callable[[dict[str, TextEncoder], TrainingData], Callable[[], dict[str, float]]] | None = None,
    build_auxiliary: Callable[[dict[str, TextEncoder]], AuxiliaryTask] | None = None,
) -> None:
    """Train a retriever from files, and write the model into the folder of `job`.

    examples, corpus, queries: files    model: model to start from, a folder or hub name
    build_evaluator: function from (towers, data) to the argument `evaluate` of `train_retriever`; None: no evaluation
    build_auxiliary: function from the towers to the argument `auxiliary` of `train_retriever`; None: no auxiliary task
    Raises UsageError for contradictory settings, DrtkError for unusable examples, MissingDependency for `lora` without peft.
    """
    job.record(config, examples=examples, corpus=corpus, queries=queries, model=model, seed=seed, device=device)
    config.check()
    RetrieverLoss.from_config(config, similarity="cosine")  # checks the losses before anything is loaded
    if config.lora is not None:
        import_peft()
    data = load_examples(
        examples,
        queries=queries,
        corpus=corpus,
        tracker=job.tracker,
        negatives=config.negatives,
        scored=uses_teacher_scores(config.loss),
        fraction=config.train_fraction,
        seed=seed,
    )
    plan_schedule(len(data.examples), config, source=data.source)
    towers = load_start_towers(model, config)
    auxiliary = None if build_auxiliary is None else build_auxiliary(towers)  # before the folder is touched
    evaluate = None if build_evaluator is None else build_evaluator(towers, data)
    summary = train_retriever(
        data,
        job.begin(),
        towers=towers,
        config=config,
        seed=seed,
        device=device,
        evaluate=evaluate,
        auxiliary=auxiliary,
    )
    job.tracker.inputs += find_inputs(
        {"corpus": corpus, "model": str(resolve_model_folder(model)), "generator": config.aux_generator}
    )
    best = summary.pop("best", None)
    job.counts |= {"examples": len(data.examples), **summary}
    encoding = to_dict(towers["passage"].encoding)
    job.finish(encoding=encoding, towers=sorted(towers) if len(towers) > 1 else None, best=best)

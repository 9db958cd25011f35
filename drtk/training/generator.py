"""Train and evaluate text generators (T5, BART) on pairs of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.losses.language import IGNORE_INDEX, cross_entropy_sum
from drtk.models.checkpoint import save_pretrained_model
from drtk.models.config import GenerationSettings
from drtk.models.generation import generate_tokens
from drtk.models.generator_input import GeneratorInputFormat, get_max_input_length, load_input_format
from drtk.models.model_folder import resolve_model_folder
from drtk.models.seq2seq import GenerationModel, load_generation_model
from drtk.text.batching import iter_batches_by_length, tokenize_texts
from drtk.training.arguments import CHECKPOINTS, build_training_arguments, plan_schedule
from drtk.training.best_checkpoint import ModelSelection
from drtk.training.config import GeneratorConfig
from drtk.training.distributed import all_reduce_sum, gather_items, get_rank, get_world_size
from drtk.training.fit import enable_gradient_checkpointing, fit
from drtk.training.sampling import EpochDataset
from drtk.training.text_pairs import TextPair, TextPairs

Scorer = Callable[[Sequence[str], Sequence[str]], dict[str, float]]  # (generated texts, targets) -> metrics by name
Collate = Callable[[Sequence[TextPair]], dict[str, Tensor]]


class GenerationEvaluator:
    """Evaluator of a generator on held-out text pairs: "dev_loss", and metrics of greedily generated texts.

    The pairs are divided among the processes; all processes get the same metrics.
    """

    def __init__(
        self,
        generator: GenerationModel,
        pairs: Sequence[TextPair],
        *,
        collate: Collate,
        score: Scorer | None,
        batch_size: int,
        max_new_tokens: int,
    ) -> None:
        """score: (generated texts, targets) -> metrics by name; None: generate no texts    batch_size: pairs per batch"""
        self._generator, self._collate, self._score = generator, collate, score
        self._targets = [pair.target for pair in pairs]
        self._local_pairs = pairs[get_rank() :: get_world_size()]
        self._batch_size = batch_size
        self._settings = GenerationSettings(n=1, decode="greedy", max_new_tokens=max_new_tokens)

    @torch.inference_mode()
    def __call__(self) -> dict[str, float]:
        """Return the metrics by name. The training mode of the model is restored."""
        model = self._generator.model
        training = model.training
        model.eval()
        try:
            metrics = {"dev_loss": self._compute_loss()}
            if self._score is not None:
                metrics |= self._score(self._generate(), self._targets)
        finally:
            model.train(training)
        return metrics

    def _compute_loss(self) -> float:
        """Return the mean cross-entropy over the tokens of all targets, without label smoothing."""
        device = next(self._generator.model.parameters()).device
        loss, tokens = 0.0, 0
        for pairs in self._iter_batches():
            batch = {name: value.to(device) for name, value in self._collate(pairs).items()}
            loss += cross_entropy_sum(compute_logits(self._generator.model, batch), batch["labels"]).item()
            tokens += int((batch["labels"] != IGNORE_INDEX).sum())
        losses, counts = zip(*gather_items([(loss, tokens)]), strict=True)
        return sum(losses) / sum(counts)

    def _generate(self) -> list[str]:
        """Return the generated text for each held-out pair of all processes, in the order of the pairs."""
        device = next(self._generator.model.parameters()).device
        texts: dict[str, str] = {}  # by source; a source may have several targets
        for batch_pairs in self._iter_batches():
            if pairs := [*{pair.source: pair for pair in batch_pairs if pair.source not in texts}.values()]:
                batch = self._collate(pairs)
                ids, mask = (batch[name].to(device) for name in ("input_ids", "attention_mask"))
                generated = generate_tokens(self._generator, ids, mask, [""] * len(pairs), self._settings, seed=0)
                decoded = self._generator.tokenizer.batch_decode(
                    [tokens for (tokens,) in generated], skip_special_tokens=True
                )
                texts |= {pair.source: " ".join(text.split()) for pair, text in zip(pairs, decoded, strict=True)}
        return gather_items([texts[pair.source] for pair in self._local_pairs])

    def _iter_batches(self) -> Iterator[list[TextPair]]:
        characters = np.array([len(pair.source) for pair in self._local_pairs], dtype=np.int64)  # approximate tokens
        for rows in iter_batches_by_length(characters, budget=1 << 62, max_texts=self._batch_size):
            yield [self._local_pairs[row] for row in rows]


def compute_logits(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Return the logits of the target tokens with teacher forcing, (texts, target tokens, vocabulary).

    inputs: the result of `collate`
    """
    bare: Any = getattr(model, "module", model)  # inside DistributedDataParallel
    output = model(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        decoder_input_ids=bare.prepare_decoder_input_ids_from_labels(labels=inputs["labels"]),
        use_cache=False,
    )
    return output.logits


@dataclass
class StartModel:
    """A generation model to train, and its input format."""

    generator: GenerationModel
    input_format: GeneratorInputFormat

    @property
    def architecture(self) -> str:
        """The model type in transformers, such as t5 or bart."""
        config: Any = self.generator.model.config
        return str(config.model_type)


def load_start_model(model: str, config: GeneratorConfig) -> StartModel:
    """Load the generation model to train, and its input format with the overrides in `config`.

    model: a folder or hub name
    Raises MismatchError for a decoder-only model, UsageError for a prefix that leaves no tokens for the text.
    """
    folder = resolve_model_folder(model)
    overrides = {"prefix": config.prefix, "title": config.title, "max_length": config.max_length}
    input_format = load_input_format(folder, overrides, strict=False)
    generator = load_generation_model(folder)
    start = StartModel(generator, input_format)
    if not generator.is_encoder_decoder:
        raise MismatchError(
            f"{model}: is a decoder-only model ({start.architecture}); use an encoder-decoder such as T5 or BART"
        )
    get_max_input_length(generator, input_format)
    return start


def collate(
    pairs: Sequence[TextPair], *, generator: GenerationModel, max_length: int, target_length: int
) -> dict[str, Tensor]:
    """Return the inputs of a step: input_ids, attention_mask and labels, (pairs, tokens) each.

    labels: IGNORE_INDEX at padding    max_length, target_length: maximum lengths of source and target, in tokens
    """
    rows = np.arange(len(pairs))
    sources = tokenize_texts(generator.tokenizer, [pair.source for pair in pairs], max_length=max_length)
    targets = tokenize_texts(
        generator.tokenizer, [pair.target for pair in pairs], max_length=target_length, are_targets=True
    )
    batch = sources.pad(rows, pad=generator.pad)
    batch["labels"] = targets.pad(rows, pad=IGNORE_INDEX)["input_ids"]
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def compute_generator_terms(model: nn.Module, inputs: dict[str, Tensor], *, smoothing: float) -> dict[str, Tensor]:
    """Return {"cross_entropy": scalar}, averaged over the target tokens of the batch of all processes.

    The loss of each process is its sum, divided by the tokens of all processes and multiplied by the number of processes.
    The mean over processes then equals the loss of a single process with the whole batch.

    inputs: the result of `collate`    smoothing: label smoothing, in [0, 1)
    """
    logits, labels = compute_logits(model, inputs), inputs["labels"]
    with torch.autocast(logits.device.type, enabled=False):
        total = cross_entropy_sum(logits, labels, smoothing=smoothing)
    tokens = all_reduce_sum((labels != IGNORE_INDEX).sum())
    return {"cross_entropy": total * get_world_size() / tokens}


def train_generator(
    pairs: TextPairs,
    folder: Path,
    *,
    start: StartModel,
    config: GeneratorConfig,
    dev: Sequence[TextPair] = (),
    score: Scorer | None = None,
    seed: int = 42,
    device: str = "auto",
) -> dict[str, Any]:
    """Train a generator, write it into a folder (rank zero), and return the result of `drtk.training.fit.fit`.

    folder: output folder; training resumes from its last checkpoint    start: model to train
    dev: evaluation pairs, with which the best weights are selected; (): keep the last weights
    score: (generated texts, targets) -> metrics by name, including `config.best_by`; required with `dev` unless
        `best_by` is "loss"
    Raises the errors of `plan_schedule`, `build_training_arguments` and `drtk.training.fit.fit`.
    """
    generator = start.generator
    model: Any = generator.model
    schedule = plan_schedule(len(pairs), config, unit="pairs")
    arguments = build_training_arguments(
        config, schedule, folder, seed=seed, device=device, lr_schedule=config.schedule
    )
    use_cache = model.config.use_cache
    if config.gradient_checkpointing:
        enable_gradient_checkpointing(model)
    positions = getattr(model.config, "max_position_embeddings", None) or config.target_length
    target_length = min(config.target_length, positions)
    collate_pairs = partial(
        collate,
        generator=generator,
        max_length=get_max_input_length(generator, start.input_format),
        target_length=target_length,
    )
    selection = None
    if dev:
        by_loss = config.best_by == "loss"
        evaluation = GenerationEvaluator(
            generator,
            dev,
            collate=collate_pairs,
            score=None if by_loss else score,
            batch_size=schedule.batch,
            max_new_tokens=target_length,
        )
        metric = "dev_loss" if by_loss else config.best_by
        selection = ModelSelection(model, evaluation, folder / CHECKPOINTS, metric=metric, config=config)

    def save() -> None:
        model.config.use_cache = use_cache
        save_pretrained_model(model.cpu().eval(), generator.tokenizer, folder)

    return fit(
        model,
        EpochDataset(pairs, batch=config.batch_size, steps=schedule.steps, seed=seed),
        collate_pairs,
        objective=partial(compute_generator_terms, smoothing=config.label_smoothing),
        arguments=arguments,
        schedule=schedule,
        folder=folder,
        name="train-generator",
        save=save,
        evaluator=selection,
    )

"""Train generators (T5, BART) on pairs of texts and evaluate them."""

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
from drtk.models.config import GenerationSettings
from drtk.models.generation import generate_tokens
from drtk.models.generator_input import InputFormat, load_input_format, max_input_length, tokenize_texts
from drtk.models.model_folder import locate
from drtk.models.seq2seq import GenerationModel, load_generation_model, save_generation_model
from drtk.text.batching import iter_batches_by_length
from drtk.training.arguments import build_training_arguments, plan_schedule
from drtk.training.best_checkpoint import ModelSelection
from drtk.training.config import GeneratorConfig
from drtk.training.distributed import all_reduce_sum, gather_items, get_rank, get_world_size
from drtk.training.fit import enable_gradient_checkpointing, fit
from drtk.training.sampling import EpochDataset
from drtk.training.text_pairs import TextPair, TextPairs

Score = Callable[[Sequence[str], Sequence[str]], dict[str, float]]  # (generated, targets) -> figures by name
Collate = Callable[[Sequence[TextPair]], dict[str, Tensor]]


class GenerationEvaluator:
    """Figures of a model on held-out pairs: "dev_loss", and those of `score` for greedily generated texts.

    Processes share the pairs, and all get the same figures. score: None generates nothing
    """

    def __init__(
        self,
        writer: GenerationModel,
        pairs: Sequence[TextPair],
        *,
        collate: Collate,
        score: Score | None,
        rows: int,
        longest: int,
    ) -> None:
        """rows: pairs at once; longest: tokens to generate"""
        self._writer, self._collate, self._score = writer, collate, score
        self._targets = [pair.target for pair in pairs]
        self._mine = pairs[get_rank() :: get_world_size()]
        self._rows = rows
        self._settings = GenerationSettings(n=1, decode="greedy", max_new_tokens=longest)

    @torch.inference_mode()
    def __call__(self) -> dict[str, float]:
        """Return the figures now; the mode of the model is restored."""
        model = self._writer.model
        training = model.training
        model.eval()
        try:
            figures = {"dev_loss": self._loss()}
            if self._score is not None:
                figures |= self._score(self._generate(), self._targets)
        finally:
            model.train(training)
        return figures

    def _loss(self) -> float:
        """Return the mean of -log p over the tokens of all targets, without label smoothing."""
        device = next(self._writer.model.parameters()).device
        total = torch.zeros(2, dtype=torch.float64, device=device)
        for rows in self._batches():
            batch = {name: value.to(device) for name, value in self._collate([self._mine[row] for row in rows]).items()}
            loss = cross_entropy_sum(compute_logits(self._writer.model, batch), batch["labels"])
            total += torch.stack([loss.double(), (batch["labels"] != IGNORE_INDEX).sum().double()])
        loss, tokens = all_reduce_sum(total).tolist()
        return loss / tokens

    def _generate(self) -> list[str]:
        """Return a text for each of the sources of all processes."""
        device = next(self._writer.model.parameters()).device
        texts: dict[str, str] = {}  # by source, which may have several targets
        for rows in self._batches():
            new = [self._mine[row] for row in rows if self._mine[row].source not in texts]
            if pairs := [*{pair.source: pair for pair in new}.values()]:
                batch = self._collate(pairs)
                ids, mask = (batch[name].to(device) for name in ("input_ids", "attention_mask"))
                generated = generate_tokens(self._writer, ids, mask, [""] * len(pairs), self._settings, seed=0)
                decoded = self._writer.tokenizer.batch_decode([each for (each,) in generated], skip_special_tokens=True)
                texts |= {pair.source: " ".join(text.split()) for pair, text in zip(pairs, decoded, strict=True)}
        return gather_items([texts[pair.source] for pair in self._mine])

    def _batches(self) -> Iterator[np.ndarray]:
        lengths = np.array([len(pair.source) for pair in self._mine], dtype=np.int64)  # characters approximate tokens
        return iter_batches_by_length(lengths, budget=1 << 62, most=self._rows)


def compute_logits(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Return (texts, tokens, vocabulary): the logits of each target token given the source and the target before it.

    inputs: input_ids and attention_mask (texts, tokens) of the sources, labels of the targets
    """
    bare: Any = getattr(model, "module", model)  # inside DistributedDataParallel
    output = model(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        decoder_input_ids=bare.prepare_decoder_input_ids_from_labels(labels=inputs["labels"]),
        use_cache=False,
    )
    logits: Tensor = output.logits
    return logits


@dataclass
class StartModel:
    """The model that training starts from, and how its input is built."""

    writer: GenerationModel
    input_format: InputFormat

    @property
    def architecture(self) -> str:
        """transformers' name of the architecture: t5, bart."""
        config: Any = self.writer.model.config
        return str(config.model_type)


def load_start_model(model: str, config: GeneratorConfig) -> StartModel:
    """Load the model of a folder or hub name; its input is built as before, unless the configuration says otherwise.

    Raises MismatchError for a model without an encoder.
    """
    folder = locate(model)
    overrides = {"prefix": config.prefix, "title": config.title, "max_length": config.max_length}
    input_format = load_input_format(folder, overrides, strict=False)
    writer = load_generation_model(folder)
    start = StartModel(writer, input_format)
    if not writer.is_encoder_decoder:
        raise MismatchError(
            f"{model}: is a decoder-only model ({start.architecture}); use a model of encoder and decoder (T5, BART)"
        )
    max_input_length(writer, input_format)
    return start


def collate(
    pairs: Sequence[TextPair], *, writer: GenerationModel, max_length: int, target_length: int
) -> dict[str, Tensor]:
    """Return input_ids, attention_mask (pairs, tokens) of the sources, labels (pairs, tokens) of the targets, IGNORE_INDEX on padding."""
    rows = np.arange(len(pairs))
    sources = tokenize_texts([pair.source for pair in pairs], writer.tokenizer, max_length=max_length)
    targets = tokenize_texts(
        [pair.target for pair in pairs], writer.tokenizer, max_length=target_length, are_targets=True
    )
    batch = sources.pad(rows, pad=writer.pad)
    batch["labels"] = targets.pad(rows, pad=IGNORE_INDEX)["input_ids"]
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def compute_generator_terms(model: nn.Module, inputs: dict[str, Tensor], *, smoothing: float) -> dict[str, Tensor]:
    """Return {"cross_entropy": ()}: -log p of each target token, averaged over the tokens of the whole batch.

    With several processes the sum of each is divided by the tokens of all and multiplied by the number of processes, so that
    the average over processes equals the loss of a single process with the whole batch.
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
    score: Score | None = None,
    seed: int = 42,
    device: str = "auto",
) -> dict[str, Any]:
    """Train, write the model into `folder` (rank zero), and return "steps", "epochs" and, with `dev`, "best".

    folder: for checkpoints (deleted at the end), log.jsonl and the model; training continues from a checkpoint in it
    dev: pairs to evaluate with; the best weights are kept
    score: (texts generated for dev, targets) to figures, among them that of `config.best_by` unless it is loss
    Raises DrtkError if the pairs do not fill a batch, and what `drtk.training.fit.fit` raises.
    """
    writer = start.writer
    model: Any = writer.model
    schedule = plan_schedule(len(pairs), config, what="pairs")
    arguments = build_training_arguments(
        config, schedule, folder, seed=seed, device=device, lr_schedule=config.schedule
    )
    use_cache = model.config.use_cache
    if config.gradient_checkpointing:
        enable_gradient_checkpointing(model)
    positions = getattr(model.config, "max_position_embeddings", None) or config.target_length
    target_length = min(config.target_length, positions)
    collating = partial(
        collate, writer=writer, max_length=max_input_length(writer, start.input_format), target_length=target_length
    )
    selection = None
    if dev:
        by_loss = config.best_by == "loss"
        evaluation = GenerationEvaluator(
            writer,
            dev,
            collate=collating,
            score=None if by_loss else score,
            rows=schedule.batch,
            longest=target_length,
        )
        selection = ModelSelection(
            model,
            evaluation,
            folder / "checkpoints",
            metric="dev_loss" if by_loss else config.best_by,
            every=config.eval_steps,
            patience=config.patience,
        )

    def save() -> None:
        model.config.use_cache = use_cache
        save_generation_model(model.cpu().eval(), writer.tokenizer, folder)

    return fit(
        model,
        EpochDataset(pairs, batch=config.batch_size, steps=schedule.steps, seed=seed),
        collating,
        objective=partial(compute_generator_terms, smoothing=config.label_smoothing),
        arguments=arguments,
        schedule=schedule,
        folder=folder,
        name="train-generator",
        save=save,
        evaluator=selection,
    )

"""Train generators (T5, BART, GPT-2) and measure them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.losses.language import IGNORED, summed_cross_entropy
from drtk.models.config import GenerationSettings
from drtk.models.generation import answers
from drtk.models.generator_input import Reading, reading_of, room_for, tokens_of
from drtk.models.model_folder import locate
from drtk.models.seq2seq import Writer, load_writer, save_writer
from drtk.text.batching import batches_by_length
from drtk.training.arguments import Plan, arguments_of, planned
from drtk.training.best_checkpoint import Selection
from drtk.training.config import GeneratorSettings
from drtk.training.distributed import collected, rank, summed, world_size
from drtk.training.fit import DrtkTrainer, ShowProgress, allow_checkpointing, relief
from drtk.training.text_pairs import Pair, Pairs, PairsOfSteps

Score = Callable[[Sequence[str], Sequence[str]], dict[str, float]]  # (written, wanted) -> numbers by name
Collate = Callable[[Sequence[Pair]], dict[str, torch.Tensor]]


class WritingTest:
    """Numbers of a model on pairs held out: "dev_loss", and those of `score` on what it writes greedily.

    Processes share the pairs, and all get the same numbers. score: None writes nothing
    """

    def __init__(
        self, writer: Writer, pairs: Sequence[Pair], *, collate: Collate, score: Score | None, rows: int, longest: int
    ) -> None:
        """rows: pairs at once; longest: tokens to write"""
        self._writer, self._collate, self._score = writer, collate, score
        self._targets = [pair.target for pair in pairs]
        self._mine = pairs[rank() :: world_size()]
        self._rows = rows
        self._settings = GenerationSettings(n=1, decode="greedy", max_new_tokens=longest)

    @torch.inference_mode()
    def __call__(self) -> dict[str, float]:
        """The numbers now. The model is left as it was."""
        with _measured(self._writer.model):
            found = {"dev_loss": self._loss()}
            if self._score is not None:
                found |= self._score(self._written(), self._targets)
        return found

    def _loss(self) -> float:
        """Mean over the tokens of all targets of -log p, without label smoothing."""
        device = next(self._writer.model.parameters()).device
        total = torch.zeros(2, dtype=torch.float64, device=device)
        for rows in self._batches():
            batch = {name: value.to(device) for name, value in self._collate([self._mine[row] for row in rows]).items()}
            labels = batch["labels"]
            loss = summed_cross_entropy(logits_of(self._writer.model, batch), labels)
            total += torch.stack([loss.double(), (labels != IGNORED).sum().double()])
        loss, tokens = summed(total).tolist()
        return loss / tokens

    def _written(self) -> list[str]:
        """What the model writes for each of the sources of all processes."""
        device = next(self._writer.model.parameters()).device
        texts = [""] * len(self._mine)
        known: dict[str, str] = {}  # a source may have several targets
        for rows in self._batches():
            fresh = list({self._mine[row].source: row for row in rows if self._mine[row].source not in known}.values())
            if fresh:
                batch = self._collate([self._mine[row] for row in fresh])
                ids, mask = (batch[name].to(device) for name in ("input_ids", "attention_mask"))
                found = answers(self._writer, ids, mask, [""] * len(fresh), self._settings, seed=0)
                decoded = self._writer.tokenizer.batch_decode([each for (each,) in found], skip_special_tokens=True)
                known |= {
                    self._mine[row].source: " ".join(text.split()) for row, text in zip(fresh, decoded, strict=True)
                }
        for row, pair in enumerate(self._mine):
            texts[row] = known[pair.source]
        return collected(texts)

    def _batches(self) -> Iterator[np.ndarray]:
        lengths = np.array([len(pair.source) for pair in self._mine], dtype=np.int64)  # in characters: near enough
        return batches_by_length(lengths, budget=1 << 62, most=self._rows)


def logits_of(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """(texts, tokens, vocabulary): at each place of the target, given the source and the target before it.

    inputs: input_ids and attention_mask (texts, tokens) of the sources, labels of the targets
    """
    bare: Any = getattr(model, "module", model)  # as it is within DistributedDataParallel
    found = model(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        decoder_input_ids=bare.prepare_decoder_input_ids_from_labels(labels=inputs["labels"]),
        use_cache=False,
    )
    return found.logits


@contextmanager
def _measured(model: nn.Module) -> Iterator[None]:
    """The model without dropout, and as it was afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


LOG = "log.jsonl"


@dataclass
class Start:
    """The model that training begins with, and how passages are put before it."""

    writer: Writer
    reading: Reading

    @property
    def architecture(self) -> str:
        """transformers' name of its kind: t5, bart."""
        config: Any = self.writer.model.config
        return str(config.model_type)


def start_from(model: str, settings: GeneratorSettings) -> Start:
    """The model of a folder or hub name; it reads as it did before, unless the settings say otherwise.

    Raises MismatchError for a model without an encoder of its own.
    """
    folder = locate(model)
    wishes = {"prefix": settings.prefix, "title": settings.title, "max_length": settings.max_length}
    reading = reading_of(folder, wishes, sealed=False)
    writer = load_writer(folder)
    start = Start(writer, reading)
    if not writer.two_sided:
        raise MismatchError(
            f"{model}: goes on with a text ({start.architecture}); a model of encoder and decoder (T5, BART) is needed"
        )
    room_for(writer, reading)
    return start


def plan(pairs: int, settings: GeneratorSettings) -> Plan:
    """The plan for so many pairs. Raises DrtkError where they fill no batch, or devices cannot share one."""
    return planned(pairs, batch=settings.batch, epochs=settings.epochs, steps=settings.steps, what="pairs")


def collate(pairs: Sequence[Pair], *, writer: Writer, room: int, target_room: int) -> dict[str, Tensor]:
    """input_ids, attention_mask (pairs, tokens) of the sources, labels (pairs, tokens) of the targets, IGNORED on padding."""
    everything = np.arange(len(pairs))
    sources = tokens_of([pair.source for pair in pairs], writer.tokenizer, room=room)
    targets = tokens_of([pair.target for pair in pairs], writer.tokenizer, room=target_room, written=True)
    batch = sources.padded(everything, pad=writer.pad)
    batch["labels"] = targets.padded(everything, pad=IGNORED)["input_ids"]
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def teacher_forced(model: nn.Module, inputs: dict[str, Tensor], *, smoothing: float) -> dict[str, Tensor]:
    """{"cross_entropy": ()}: -log p of each target token given those before it, averaged over the tokens of the whole batch.

    With several processes the sum of each is divided by the tokens of all and multiplied by their number, so that the average
    over processes, of the losses and of their gradients, is the one of a single process that has the whole batch.
    """
    logits, labels = logits_of(model, inputs), inputs["labels"]
    with torch.autocast(logits.device.type, enabled=False):
        total = summed_cross_entropy(logits, labels, smoothing=smoothing)
    tokens = summed((labels != IGNORED).sum())
    return {"cross_entropy": total * world_size() / tokens}


def train_generator(
    pairs: Pairs,
    folder: Path,
    *,
    start: Start,
    settings: GeneratorSettings,
    dev: Sequence[Pair] = (),
    score: Score | None = None,
    seed: int = 42,
    device: str = "auto",
) -> dict[str, Any]:
    """Train, write the model into `folder` (rank zero), and return "steps", "epochs" and, with `dev`, "best" of the run.

    folder: where checkpoints (taken away at the end), log.jsonl and the model go; where it holds a whole checkpoint,
            training goes on from there
    dev: pairs to measure with every so many steps; the best weights are the result. Without: the last ones
    score: (texts written for dev, targets) -> numbers, among them the one of settings.best_by unless that is loss
    Raises DrtkError where the loss ceases to be a number, or memory is too small.
    """
    writer = start.writer
    model: Any = writer.model
    schedule = plan(len(pairs), settings)
    checkpoints = folder / "checkpoints"
    arguments = arguments_of(
        settings,
        checkpoints,
        plan=schedule,
        seed=seed,
        device=device,
        schedule=settings.schedule,
    )
    use_cache = model.config.use_cache
    if settings.gradient_checkpointing:
        allow_checkpointing(model)
    positions = getattr(model.config, "max_position_embeddings", None) or settings.target_length
    target_length = min(settings.target_length, positions)
    collating = partial(collate, writer=writer, room=room_for(writer, start.reading), target_room=target_length)
    selection = None
    if dev:
        test = WritingTest(
            writer,
            dev,
            collate=collating,
            score=None if settings.best_by == "loss" else score,
            rows=schedule.batch,
            longest=target_length,
        )
        by = "dev_loss" if settings.best_by == "loss" else settings.best_by
        selection = Selection(model, test, checkpoints, by=by, every=settings.eval_every, patience=settings.patience)
    trainer = DrtkTrainer(
        objective=partial(teacher_forced, smoothing=settings.label_smoothing),
        log=folder / LOG,
        steps_per_epoch=schedule.steps_per_epoch,
        probe=selection,
        model=model,
        args=arguments,
        train_dataset=PairsOfSteps(pairs, batch=settings.batch, steps=schedule.steps, seed=seed),
        data_collator=collating,
        callbacks=[ShowProgress("train-generator", schedule.steps)],
    )
    trainer.relief = relief(anew="a smaller --batch or more devices", checkpointing=settings.gradient_checkpointing)

    def save() -> None:
        model.config.use_cache = use_cache
        save_writer(model.cpu().eval(), writer.tokenizer, folder)

    return trainer.finish(save)

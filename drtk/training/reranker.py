"""Training of a cross-encoder that re-ranks, from examples (methods, sections 6.7 and 7.10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from drtk.errors import DrtkError
from drtk.losses.ranking import binary, hardest, listwise, r_drop
from drtk.models.cross_encoder import CrossEncoder, PairScorer, save_crossencoder
from drtk.models.generator_input import text_of
from drtk.text.batching import PairTokenizing, Tokens, batches_by_length
from drtk.training.arguments import Plan, arguments_of, planned
from drtk.training.best_checkpoint import Selection
from drtk.training.config import RerankerSettings
from drtk.training.distributed import collected, rank, world_size
from drtk.training.example_order import Drawn, Draws, JudgedPair, JudgedPairs, Texts, pair_count
from drtk.training.examples import PackedExamples
from drtk.training.fit import DrtkTrainer, MeasureTheStart, Objective, ShowProgress, allow_checkpointing, relief

LENGTH = 192  # tokens of a pair (methods, section 6.7)
GROUP_TOKENS = 2048  # on a CPU: pairs of like length go through the model together, which spares it the padding
GPU_TOKENS = 65536  # of pairs measured at once
LOG = "log.jsonl"


class Probe(Protocol):
    """Candidates to measure with, and what their scores say; evaluation.probes.RerankingProbe is one."""

    candidates: list[tuple[str, list[str]]]

    def __call__(self, scores: np.ndarray) -> dict[str, float]: ...


def plan(examples: PackedExamples, settings: RerankerSettings, *, source: str = "examples") -> Plan:
    """The plan for these examples of the file `source`.

    Raises DrtkError where there are none, where they fill no batch, or a batch cannot be shared out.
    """
    pairs = settings.loss == "bce"
    count = pair_count(examples) if pairs else len(examples)
    found = planned(
        count,
        batch=settings.batch,
        epochs=settings.epochs,
        steps=settings.steps,
        what="pairs" if pairs else "examples",
        source=source,
    )
    if found.batch % (settings.micro_batch or found.batch):
        raise DrtkError(f"--micro-batch {settings.micro_batch}: does not divide the {found.batch} of a device")
    return found


def collate_lists(drawn: Sequence[Drawn], *, tokenizing: PairTokenizing, title: str) -> dict[str, Tensor]:
    """The model's inputs, (queries * n, tokens) each: in blocks of n passages of a query, the positive first."""
    pairs = ((item.query, text_of(passage, title)) for item in drawn for passage in item.passages)
    return _padded(tokenizing(pairs), tokenizing)


def collate_pairs(drawn: Sequence[JudgedPair], *, tokenizing: PairTokenizing, title: str) -> dict[str, Tensor]:
    """The model's inputs, (pairs, tokens) each, and `labels` (pairs,), 1 where the passage is a positive."""
    tokens = tokenizing((item.query, text_of(item.passage, title)) for item in drawn)
    return _padded(tokens, tokenizing) | {"labels": torch.tensor([float(item.right) for item in drawn])}


def _padded(tokens: Tokens, tokenizing: PairTokenizing) -> dict[str, Tensor]:
    found = tokens.padded(np.arange(len(tokens)), pad=tokenizing.pad, left=tokenizing.left)
    return {name: torch.from_numpy(array) for name, array in found.items()}


def listwise_terms(
    model: nn.Module, inputs: Mapping[str, Tensor], *, passages: int, backward: int | None, twice: bool
) -> dict[str, Tensor]:
    """{"cross_entropy": ()} of a batch of lists, and with `twice` {"r_drop": ()}; together what SimLM minimises.

    inputs: (queries * passages, tokens) each
    backward: passages of a query that are trained on, chosen by scores without dropout and gradients
    """
    if backward is not None and backward < passages:
        inputs = _cut(inputs, hardest(_as_it_is(model, inputs).view(-1, passages), backward), passages)
        passages = backward
    if not twice:
        return {"cross_entropy": listwise(model(**inputs).view(-1, passages))}
    both = model(**{name: torch.cat([each, each]) for name, each in inputs.items()})  # dropout differs in the halves
    first, second = both.view(2, -1, passages)
    cross_entropy, apart = r_drop(first, second)
    return {"cross_entropy": cross_entropy, "r_drop": apart}


@torch.no_grad()
def _as_it_is(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """The logits without dropout, (pairs,); the model is left as it was."""
    bare: nn.Module = getattr(model, "module", model)  # type: ignore[assignment]  # as within DistributedDataParallel
    training = bare.training
    bare.eval()
    try:
        logits: Tensor = bare(**inputs)
        return logits
    finally:
        bare.train(training)


def _cut(inputs: Mapping[str, Tensor], columns: Tensor, passages: int) -> dict[str, Tensor]:
    """The inputs of some passages of each query; columns: (queries, kept)."""
    starts = torch.arange(len(columns), device=columns.device).unsqueeze(1) * passages
    rows = (columns + starts).flatten()  # (queries * kept,)
    return {name: each[rows] for name, each in inputs.items()}


def binary_terms(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """{"cross_entropy": ()} of a batch of pairs that are right or wrong."""
    given = dict(inputs)
    labels = given.pop("labels")
    return {"cross_entropy": binary(model(**given), labels)}


def reranker_objective(settings: RerankerSettings) -> Objective:
    """What training with these settings minimises: (model, inputs of a step) -> named terms."""
    if settings.loss == "bce":
        return binary_terms
    return partial(
        listwise_terms, passages=settings.negatives_in_a_step + 1, backward=settings.backward, twice=settings.r_drop
    )


class Measuring:
    """A model in training, measured with the candidates of a probe; each process scores its share of them."""

    def __init__(
        self,
        model: PairScorer,
        probe: Probe,
        *,
        queries: Mapping[str, str],
        corpus: Texts,
        tokenizing: PairTokenizing,
        title: str,
        budget: int,
    ) -> None:
        """budget: tokens of pairs at once, padding included"""
        self._model, self._probe, self._tokenizing, self._budget = model, probe, tokenizing, budget
        pairs = [(query, id) for query, ids in probe.candidates for id in ids]
        mine = pairs[rank() :: world_size()]
        passages = corpus.many([id for _, id in mine])
        self._tokens = tokenizing(
            (queries[query], text_of(passage, title)) for (query, _), passage in zip(mine, passages, strict=True)
        )

    def __call__(self) -> dict[str, float]:
        """The numbers now; the model is left as it was."""
        scores = np.empty(len(self._tokens), dtype=np.float32)
        device = next(self._model.parameters()).device
        for rows in batches_by_length(self._tokens.lengths, budget=self._budget):
            batch = self._tokens.padded(rows, pad=self._tokenizing.pad, left=self._tokenizing.left)
            inputs = {name: torch.from_numpy(array).to(device) for name, array in batch.items()}
            scores[rows] = _as_it_is(self._model, inputs).cpu().numpy()
        return self._probe(np.array(collected(scores.tolist()), dtype=np.float32))


def train_reranker(
    examples: PackedExamples,
    folder: Path,
    *,
    start: CrossEncoder,
    title: str,
    queries: Mapping[str, str],
    corpus: Texts,
    settings: RerankerSettings,
    measuring: Callable[[PairScorer, PairTokenizing], Measuring] | None = None,
    seed: int = 42,
    device: str = "auto",
) -> dict[str, Any]:
    """Train, write the model into `folder` (rank zero), and return "steps", "epochs" and, where it is measured, "best".

    folder: where checkpoints (taken away at the end), log.jsonl and the model go; where it holds a whole checkpoint,
            training goes on from there
    measuring: makes what measures the model now and then; the best weights are the result, be they
            those of the start. Without: the last ones
    Raises DrtkError where the loss ceases to be a number, or memory is too small.
    """
    schedule = plan(examples, settings)
    examples.warn_of_short("train-reranker", settings.negatives_in_a_step)
    checkpoints = folder / "checkpoints"
    micro = settings.micro_batch or schedule.batch
    arguments = arguments_of(
        settings, checkpoints, plan=schedule, seed=seed, device=device, parts=schedule.batch // micro
    )
    if settings.gradient_checkpointing:
        allow_checkpointing(start.model)
    model = PairScorer(start.model, group_tokens=GROUP_TOKENS if arguments.device.type == "cpu" else None)
    tokenizing = PairTokenizing(start.tokenizer, max_length=start.max_length)
    selection = None
    if measuring is not None:
        selection = Selection(
            model,
            measuring(model.to(arguments.device), tokenizing),
            checkpoints,
            by=settings.select,
            every=settings.eval_every,
            patience=settings.patience,
        )
    given: dict[str, Any] = {"queries": queries, "corpus": corpus, "batch": settings.batch, "steps": schedule.steps}
    draws: Dataset[Any]
    if settings.loss == "bce":
        draws, collate = JudgedPairs(examples, seed=seed, **given), collate_pairs
    else:
        draws = Draws(examples, seed=seed, negatives=settings.negatives_in_a_step, **given)
        collate = collate_lists  # type: ignore[assignment]
    trainer = DrtkTrainer(
        objective=reranker_objective(settings),
        log=folder / LOG,
        steps_per_epoch=schedule.steps_per_epoch,
        probe=selection,
        model=model,
        args=arguments,
        train_dataset=draws,
        data_collator=partial(collate, tokenizing=tokenizing, title=title),
        callbacks=[ShowProgress("train-reranker", schedule.steps)],
    )
    if selection is not None:
        trainer.add_callback(MeasureTheStart(trainer))
    fewer = "" if settings.loss == "bce" else "fewer --negatives or "
    trainer.relief = relief(
        anew=f"{fewer}a shorter --max-length", micro=micro, checkpointing=settings.gradient_checkpointing
    )

    def save() -> None:
        start.model.cpu().eval()
        save_crossencoder(start, folder)

    return trainer.finish(save)

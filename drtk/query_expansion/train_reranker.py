"""Train a query reranker from labeled candidates (EAR; docs/methods/ear.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.losses.ranking import pairwise_margin_loss
from drtk.models.cross_encoder import (
    CrossEncoder,
    PairClassifier,
    init_cross_encoder,
    is_classifier,
    save_cross_encoder,
)
from drtk.models.model_folder import resolve_model_folder, resolve_tower_folder
from drtk.query_expansion.config import DEFAULT_EPOCHS, QueryRerankerConfig
from drtk.query_expansion.labeled_candidates import LabeledCandidates, LabeledList
from drtk.query_expansion.query_reranker_input import CandidateTokenizer, InputFormat, read_input_format
from drtk.runtime.progress import log, warn
from drtk.training.arguments import CHECKPOINTS, Schedule, build_training_arguments, plan_schedule
from drtk.training.best_checkpoint import ModelSelection
from drtk.training.dataset import pad_tokens
from drtk.training.distributed import get_rank, get_world_size
from drtk.training.fit import Objective, enable_gradient_checkpointing, fit
from drtk.training.reranker import GROUP_TOKENS, score_tokenized_pairs
from drtk.training.sampling import EpochDataset

MEASURE = "mean rank"  # of the selected candidates; lower is better
HIGH_LEARNING_RATE = 5e-4  # above, training destroys a pre-trained encoder


def init_query_reranker(model: str, input_format: InputFormat, *, max_length: int | None, seed: int) -> CrossEncoder:
    """Return the model to train: an encoder with a new head, or a cross-encoder.

    The head of a cross-encoder is negated, unless it is a query reranker, whose lower scores are better.
    max_length: maximum input length; None uses the length of `input_format`, or the model's maximum if it is shorter
    Raises the errors of `init_cross_encoder`, MismatchError for a cross-encoder without a linear layer with one output.
    """
    start = init_cross_encoder(model, max_length=max_length, seed=seed, default_length=input_format.max_length)
    folder: Path = resolve_tower_folder(resolve_model_folder(model), "passage")
    if is_classifier(folder) and read_input_format(folder) is None:
        _negate_head(start.model, model)
    return start


@torch.no_grad()
def _negate_head(classifier: Any, model: str) -> None:
    linear = [layer for layer in classifier.modules() if isinstance(layer, nn.Linear) and layer.out_features == 1]
    if not linear:
        raise MismatchError(
            f"{model}: has no linear layer with one output, which is required to negate the score; use another model"
        )
    for weights in linear[-1].parameters():
        weights.neg_()
    log(f"{model}: the head is negated, because lower scores of a query reranker are better")


def compute_inverse_sqrt_factor(step: int, *, warmup: float) -> float:
    """Return the learning-rate factor min(t^-.5, t * warmup^-1.5) of step t, counted from 1 (docs/methods/ear.md).

    It rises to 1 / sqrt(warmup) at t = warmup and then falls. With 10,000 warmup steps, `max_lr` 2e-3 peaks at 2e-5.
    """
    return float(min(step**-0.5, step * warmup**-1.5))


def make_learning_rate_factor(settings: QueryRerankerConfig) -> Callable[[int], float] | None:
    """Return a function from a 1-based step to its learning-rate factor; None for schedules of transformers."""
    return partial(compute_inverse_sqrt_factor, warmup=settings.warmup) if settings.schedule == "inverse-sqrt" else None


def plan_training(num_lists: int, config: QueryRerankerConfig) -> Schedule:
    """Return the training schedule for `num_lists` candidate lists. Raises the errors of `plan_schedule`."""
    epochs = DEFAULT_EPOCHS[config.variant] if config.epochs is None else config.epochs
    planned = replace(config, epochs=epochs)
    return plan_schedule(num_lists, planned, unit="lists of candidates", micro_batch=config.micro_batch_size)


def collate(lists: Sequence[LabeledList], *, tokenizer: CandidateTokenizer) -> dict[str, Tensor]:
    """Return the model inputs of all candidates, (candidates, tokens) each, and the tensors "ranks" and "present".

    ranks: (lists, n), padded to the size n of the longest list
    present: (lists, n), False for padding
    """
    tokens = tokenizer(candidate for labeled in lists for candidate in labeled.candidates)
    counts = torch.tensor([len(labeled.ranks) for labeled in lists])
    present = torch.arange(int(counts.max())) < counts.unsqueeze(1)  # (lists, n)
    ranks = torch.zeros(present.shape, dtype=torch.long)
    ranks[present] = torch.from_numpy(np.concatenate([labeled.ranks for labeled in lists]))
    return pad_tokens(tokens, tokenizer) | {"ranks": ranks, "present": present}


def make_objective(settings: QueryRerankerConfig) -> Objective:
    """Return the objective, a function from the model and the inputs of a step to {"margin": loss}."""
    options: dict[str, Any] = {
        "alpha": settings.rank_margin,
        "weight": settings.pair_weight,
        "skip_ties": settings.skip_ties,
    }

    def compute_terms(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        model_inputs = dict(inputs)
        ranks, present = model_inputs.pop("ranks"), model_inputs.pop("present")
        scores = model(**model_inputs)  # (candidates,)
        padded = torch.zeros(present.shape, dtype=scores.dtype, device=scores.device).masked_scatter(present, scores)
        return {"margin": pairwise_margin_loss(padded, ranks, present, **options)}

    return compute_terms


class MeanRank:
    """Evaluator: mean rank of the first passage with an answer, over the candidates that the model selects.

    Each process scores a share of the candidates.
    indices: indices in `labeled` of the candidate lists to evaluate on
    kind: kind of the candidates, if kinds are evaluated separately
    """

    def __init__(
        self,
        model: nn.Module,
        labeled: LabeledCandidates,
        indices: Sequence[int],
        *,
        tokenizer: CandidateTokenizer,
        kind: str = "",
    ) -> None:
        self.name = f"{MEASURE} ({kind})" if kind else MEASURE
        self._model, self._tokenizer = model, tokenizer
        self._ranks = [labeled.get_ranks(index) for index in indices]
        candidates = (candidate for index in indices for candidate in labeled[index].candidates)
        self._tokens = tokenizer(
            candidate for index, candidate in enumerate(candidates) if index % get_world_size() == get_rank()
        )
        first, best = np.mean([ranks[0] for ranks in self._ranks]), np.mean([ranks.min() for ranks in self._ranks])
        if get_rank() == 0:
            log(
                f"`dev`: {len(indices):,} candidate lists; {self.name} of the first candidates {first:.2f}, of the best {best:.2f}"
            )

    def __call__(self) -> float:
        """Select a candidate of each list; return the mean rank of the first passage with an answer."""
        scores = score_tokenized_pairs(self._model, self._tokens, self._tokenizer)
        ends = np.cumsum([len(ranks) for ranks in self._ranks])[:-1]
        by_list = zip(self._ranks, np.split(scores, ends), strict=True)
        return float(np.mean([ranks[list_scores.argmin()] for ranks, list_scores in by_list]))


def train_query_reranker(
    labeled: LabeledCandidates,
    folder: Path,
    *,
    start: CrossEncoder,
    input_format: InputFormat,
    settings: QueryRerankerConfig,
    dev: Mapping[str, LabeledCandidates],
    seed: int = 42,
    device: str = "auto",
) -> dict[str, Any]:
    """Train a query reranker, and write it into `folder` (on rank 0); return "steps", "epochs" and, with `dev`, "best".

    folder: folder for the model, log.jsonl, and checkpoints (deleted at the end); training resumes from a checkpoint
    dev: candidates to evaluate with, by kind; the model with the lowest mean rank is kept. With key "", all kinds are
         evaluated together; otherwise the best model of each kind is written into a subfolder, and "best" is by kind
    Raises the errors of `plan_training` and `drtk.training.fit.fit`.
    """
    schedule = plan_training(len(labeled), settings)
    factor = make_learning_rate_factor(settings)
    arguments = build_training_arguments(
        settings,
        schedule,
        folder,
        seed=seed,
        device=device,
        learning_rate=settings.max_lr,
        warmup=0 if factor else None,
        defaults=["max_grad_norm=0.0"],  # no clipping
    )
    if get_rank() == 0:
        _log_learning_rate(settings, schedule.steps)
    if settings.gradient_checkpointing:
        enable_gradient_checkpointing(start.model)
    model = PairClassifier(start.model, group_tokens=GROUP_TOKENS[arguments.device.type])
    tokenizer = CandidateTokenizer(start.tokenizer, input_format)

    def make_measure(kind: str, candidates: LabeledCandidates) -> MeanRank:
        count = min(len(candidates), settings.dev_questions or len(candidates))
        indices = [index * len(candidates) // count for index in range(count)]  # evenly spaced
        return MeanRank(model, candidates, indices, tokenizer=tokenizer, kind=kind)

    selection = None
    if dev:
        model.to(arguments.device)
        measures = {kind: make_measure(kind, candidates) for kind, candidates in dev.items()}
        selection = ModelSelection(
            model,
            lambda: {measure.name: measure() for measure in measures.values()},
            folder / CHECKPOINTS,
            metric={kind: measure.name for kind, measure in measures.items()},
            config=settings,
            lower_is_better=True,
        )

    def save(kind: str = "") -> None:
        start.model.cpu().eval()
        (folder / kind).mkdir(exist_ok=True)
        save_cross_encoder(start, folder / kind)

    return fit(
        model,
        EpochDataset(labeled, batch=settings.batch_size, steps=schedule.steps, seed=seed),
        partial(collate, tokenizer=tokenizer),
        objective=make_objective(settings),
        arguments=arguments,
        schedule=schedule,
        folder=folder,
        name="rerank-queries train",
        save=save,
        evaluator=selection,
        micro_batch=settings.micro_batch_size or schedule.batch,
        lr_factor=factor,
    )


def _log_learning_rate(settings: QueryRerankerConfig, steps: int) -> None:
    """With schedule inverse-sqrt, log the peak learning rate, which is not `max_lr`; warn if the peak is too high."""
    factor = make_learning_rate_factor(settings)
    peak = settings.max_lr
    if factor is not None:
        peak_step = min(steps, round(settings.warmup))
        peak, last_rate = settings.max_lr * factor(peak_step), settings.max_lr * factor(steps)
        log(f"learning rate: peak {peak:.2g} at step {peak_step:,}, {last_rate:.2g} at the last step, {steps:,}")
        if steps < settings.warmup:
            warn(f"training ends after {steps:,} of {settings.warmup:,.0f} steps of `warmup`")
    if peak > HIGH_LEARNING_RATE:
        warn(
            f"a learning rate of {peak:.2g} is too high for a pre-trained encoder; lower `max_lr` (the peak learning rate with "
            "`schedule=linear`)"
        )

"""Train a query re-ranker from labelled candidates (EAR; docs/methods/ear.md)."""

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
from drtk.models.model_folder import locate, resolve_tower_folder
from drtk.query_expansion.config import EPOCHS, QueryRerankerConfig
from drtk.query_expansion.labelled import LabelledCandidates, LabelledList
from drtk.query_expansion.query_reranker_input import CandidateTokenizer, InputFormat, read_input_format
from drtk.runtime.progress import log, warn
from drtk.training.arguments import Schedule, build_training_arguments, plan_schedule
from drtk.training.best_checkpoint import ModelSelection, ModelSelections, get_selection_folder
from drtk.training.dataset import pad_tokens
from drtk.training.distributed import get_rank, get_world_size
from drtk.training.fit import Objective, enable_gradient_checkpointing, fit
from drtk.training.reranker import GROUP_TOKENS, score_tokens
from drtk.training.sampling import EpochDataset

MEASURE = "mean rank"  # of the chosen candidate; lower is better
HIGH = 5e-4  # a learning rate that destroys a pre-trained encoder


def start_query_reranker(model: str, reading: InputFormat, *, max_length: int | None, seed: int) -> CrossEncoder:
    """Return the model to start from: an encoder with a new head, or a classifier.

    The head of a cross-encoder, whose higher scores are better, changes its sign.
    max_length: None: that of `reading`, or the longest input of the model if that is less
    Raises what `start_crossencoder` raises.
    """
    start = init_cross_encoder(model, max_length=max_length, seed=seed, default=reading.max_length)
    folder: Path = resolve_tower_folder(locate(model), "passage")
    if is_classifier(folder) and read_input_format(folder) is None:
        _negate_head(start.model, model)
    return start


@torch.no_grad()
def _negate_head(classifier: Any, model: str) -> None:
    linear = [layer for layer in classifier.modules() if isinstance(layer, nn.Linear) and layer.out_features == 1]
    if not linear:
        raise MismatchError(f"{model}: does not end with a linear layer, whose sign could be changed")
    for weights in linear[-1].parameters():
        weights.neg_()
    log(f"{model}: gives higher scores to better pairs; the sign of its head is changed, as lower is better here")


def compute_inverse_sqrt(step: int, *, warmup: float) -> float:
    """Return min(t^-.5, t * warmup^-1.5) for step t, counted from 1: the factor of the learning rate (docs/methods/ear.md).

    It rises to 1 / sqrt(warmup) at t = warmup and falls from there: 2e-3 peaks at 2e-5 with 10,000 steps.
    """
    return float(min(step**-0.5, step * warmup**-1.5))


def make_learning_rate_factor(settings: QueryRerankerConfig) -> Callable[[int], float] | None:
    """Return the factor of `max_lr` by step, counted from 1; None for a schedule of transformers."""
    return partial(compute_inverse_sqrt, warmup=settings.warmup) if settings.schedule == "inverse-sqrt" else None


def plan(lists: int, config: QueryRerankerConfig) -> Schedule:
    """Return the schedule for a number of lists of candidates. Raises what `plan_schedule` raises."""
    epochs = EPOCHS[config.variant] if config.epochs is None else config.epochs
    return plan_schedule(lists, replace(config, epochs=epochs), what="lists of candidates")


def collate(lists: Sequence[LabelledList], *, tokenizing: CandidateTokenizer) -> dict[str, Tensor]:
    """Return the model's inputs, (candidates, tokens) each, list after list; ranks and present, (lists, n) each.

    n: the largest number of candidates in a list; present: False where a list has fewer
    """
    tokens = tokenizing(candidate for each in lists for candidate in each.candidates)
    counts = torch.tensor([len(each.ranks) for each in lists])
    present = torch.arange(int(counts.max())) < counts.unsqueeze(1)  # (lists, n)
    ranks = torch.zeros(present.shape, dtype=torch.long)
    ranks[present] = torch.from_numpy(np.concatenate([each.ranks for each in lists]))
    return pad_tokens(tokens, tokenizing) | {"ranks": ranks, "present": present}


def make_objective(settings: QueryRerankerConfig) -> Objective:
    """Return the objective: (model, inputs of a step) -> {"margin": ()}."""
    how: dict[str, Any] = {
        "alpha": settings.rank_margin,
        "weight": settings.pair_weight,
        "skip_ties": settings.skip_ties,
    }

    def compute_terms(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        given = dict(inputs)
        ranks, present = given.pop("ranks"), given.pop("present")
        scores = model(**given)  # (candidates,)
        table = torch.zeros(present.shape, dtype=scores.dtype, device=scores.device).masked_scatter(present, scores)
        return {"margin": pairwise_margin_loss(table, ranks, present, **how)}

    return compute_terms


class MeanRank:
    """Mean rank of the candidate that a model in training chooses; each process scores its share of the candidates."""

    def __init__(
        self,
        model: nn.Module,
        labelled: LabelledCandidates,
        numbers: Sequence[int],
        *,
        tokenizing: CandidateTokenizer,
        kind: str = "",
    ) -> None:
        """numbers: the lists to evaluate with; kind: of the candidates, if there are several evaluations"""
        self.name = f"{MEASURE} ({kind})" if kind else MEASURE
        self._model, self._tokenizing = model, tokenizing
        self._ranks = [labelled.ranks(number) for number in numbers]
        candidates = (candidate for number in numbers for candidate in labelled[number].candidates)
        self._tokens = tokenizing(
            each for place, each in enumerate(candidates) if place % get_world_size() == get_rank()
        )
        first, best = np.mean([ranks[0] for ranks in self._ranks]), np.mean([ranks.min() for ranks in self._ranks])
        if get_rank() == 0:
            log(
                f"`dev`: {len(numbers):,} lists of candidates; {self.name} {first:.2f} of the first candidates, {best:.2f} of the best"
            )

    def __call__(self) -> dict[str, float]:
        """Return the figure by its name; the mode of the model is restored."""
        scores = score_tokens(self._model, self._tokens, self._tokenizing)
        ends = np.cumsum([len(ranks) for ranks in self._ranks])[:-1]
        chosen = [ranks[each.argmin()] for ranks, each in zip(self._ranks, np.split(scores, ends), strict=True)]
        return {self.name: float(np.mean(chosen))}


def train_query_reranker(
    labelled: LabelledCandidates,
    folder: Path,
    *,
    start: CrossEncoder,
    reading: InputFormat,
    settings: QueryRerankerConfig,
    dev: Mapping[str, LabelledCandidates],
    seed: int = 42,
    device: str = "auto",
) -> dict[str, Any]:
    """Train, write the model into `folder` (rank zero), and return "steps", "epochs" and, with `dev`, "best".

    folder: for checkpoints (deleted at the end), log.jsonl and the model; training continues from a checkpoint in it
    dev: candidates by kind to evaluate with; the weights of the lowest mean rank are kept. "" is for all kinds together;
         otherwise the best weights for each kind go into a subfolder of its name, and "best" is by kind
    Raises what `plan` and `drtk.training.fit.fit` raise.
    """
    schedule = plan(len(labelled), settings)
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
    model = PairClassifier(start.model, group_tokens=GROUP_TOKENS if arguments.device.type == "cpu" else None)
    tokenizing = CandidateTokenizer(start.tokenizer, reading)

    def select(candidates: LabelledCandidates, place: Path, kind: str = "") -> ModelSelection:
        number = min(len(candidates), settings.dev_questions or len(candidates))
        numbers = [at * len(candidates) // number for at in range(number)]  # evenly spaced
        measure = MeanRank(model.to(arguments.device), candidates, numbers, tokenizing=tokenizing, kind=kind)
        often, patience = settings.eval_steps, settings.patience
        return ModelSelection(
            model, measure, place, metric=measure.name, every=often, patience=patience, lower_is_better=True
        )

    checkpoints = folder / "checkpoints"
    selection: ModelSelection | ModelSelections | None = None
    if "" in dev:
        selection = select(dev[""], checkpoints)
    elif dev:
        selection = ModelSelections(
            {kind: select(each, get_selection_folder(checkpoints, kind), kind) for kind, each in dev.items()}
        )

    def save(kind: str = "") -> None:
        start.model.cpu().eval()
        (folder / kind).mkdir(exist_ok=True)
        save_cross_encoder(start, folder / kind)

    return fit(
        model,
        EpochDataset(labelled, batch=settings.batch_size, steps=schedule.steps, seed=seed),
        partial(collate, tokenizing=tokenizing),
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
    """Log the highest learning rate, which `max_lr` alone does not show."""
    factor = make_learning_rate_factor(settings)
    peak = settings.max_lr
    if factor is not None:
        top = min(steps, round(settings.warmup))
        peak, last = settings.max_lr * factor(top), settings.max_lr * factor(steps)
        log(f"learning rate: {peak:.2g} at its highest, in step {top:,}; {last:.2g} in the last, {steps:,}")
        if steps < settings.warmup:
            warn(f"training ends after {steps:,} of {settings.warmup:,.0f} steps of `warmup`")
    if peak > HIGH:
        warn(f"a learning rate of {peak:.2g} destroys an encoder; with `schedule` linear, `max_lr` is the rate itself")

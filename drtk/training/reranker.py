"""Train a cross-encoder re-ranker from examples (docs/methods/re-ranker.md, docs/methods/passage-reranking.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from drtk.losses.ranking import binary_cross_entropy, listwise_cross_entropy, r_drop_losses, select_hardest
from drtk.models.cross_encoder import CrossEncoder, PairClassifier, save_cross_encoder
from drtk.models.generator_input import format_passage
from drtk.text.batching import PairTokenizer, TokenizedTexts, iter_batches_by_length
from drtk.training.arguments import Schedule, build_training_arguments, plan_schedule
from drtk.training.best_checkpoint import ModelSelection
from drtk.training.config import RerankerConfig
from drtk.training.dataset import (
    CorpusTexts,
    JudgedPair,
    JudgedPairs,
    SampledExample,
    SampledExamples,
    count_pairs,
    pad_tokens,
)
from drtk.training.distributed import gather_items, get_rank, get_world_size
from drtk.training.examples import PackedExamples, TrainingData
from drtk.training.fit import Objective, enable_gradient_checkpointing, fit
from drtk.training.sampling import EpochDataset

LENGTH = 192  # tokens of a pair (docs/methods/re-ranker.md)
GROUP_TOKENS = 2048  # on a CPU: pairs of similar length go through the model together, without the others' padding
GPU_TOKENS = 65536  # of pairs evaluated at once


class DevCandidates(Protocol):
    """Candidates to evaluate with, and the figures of their scores; drtk.evaluation.probes.RerankingProbe is one."""

    candidates: list[tuple[str, list[str]]]

    def __call__(self, scores: np.ndarray) -> dict[str, float]: ...


def plan_reranker_schedule(examples: PackedExamples, config: RerankerConfig, *, source: str = "examples") -> Schedule:
    """Return the schedule for the examples of the file `source`. Raises what `plan_schedule` raises."""
    if config.loss == "bce":
        return plan_schedule(sum(count_pairs(examples)), config, what="pairs", source=source)
    return plan_schedule(len(examples), config, source=source)


def collate_lists(items: Sequence[SampledExample], *, tokenizing: PairTokenizer, title: str) -> dict[str, Tensor]:
    """Return the model's inputs, (queries * n, tokens) each: in blocks of n passages per query, the positive first."""
    pairs = ((item.query, format_passage(passage, title)) for item in items for passage in item.passages)
    return pad_tokens(tokenizing(pairs), tokenizing)


def collate_pairs(items: Sequence[JudgedPair], *, tokenizing: PairTokenizer, title: str) -> dict[str, Tensor]:
    """Return the model's inputs, (pairs, tokens) each, and `labels` (pairs,), 1 for positives."""
    tokens = tokenizing((item.query, format_passage(item.passage, title)) for item in items)
    return pad_tokens(tokens, tokenizing) | {"labels": torch.tensor([float(item.relevant) for item in items])}


def compute_listwise_terms(
    model: nn.Module, inputs: Mapping[str, Tensor], *, passages: int, backward: int | None, twice: bool
) -> dict[str, Tensor]:
    """Return {"cross_entropy": ()} of a batch of lists, and with `twice` {"r_drop": ()}; SimLM minimizes their sum.

    inputs: (queries * passages, tokens) each
    backward: passages per query to train on, chosen by scores without dropout and gradients
    """
    if backward is not None and backward < passages:
        columns = select_hardest(
            score_without_dropout(model, inputs).view(-1, passages), backward
        )  # (queries, backward)
        rows = (columns + torch.arange(len(columns), device=columns.device).unsqueeze(1) * passages).flatten()
        inputs, passages = {name: each[rows] for name, each in inputs.items()}, backward
    if not twice:
        return {"cross_entropy": listwise_cross_entropy(model(**inputs).view(-1, passages))}
    both = model(**{name: torch.cat([each, each]) for name, each in inputs.items()})  # dropout differs in the halves
    first, second = both.view(2, -1, passages)
    cross_entropy, divergence = r_drop_losses(first, second)
    return {"cross_entropy": cross_entropy, "r_drop": divergence}


@torch.no_grad()
def score_without_dropout(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the logits in evaluation mode, (pairs,); the mode of the model is restored."""
    bare: nn.Module = getattr(model, "module", model)  # type: ignore[assignment]  # inside DistributedDataParallel
    training = bare.training
    bare.eval()
    try:
        logits: Tensor = bare(**inputs)
        return logits
    finally:
        bare.train(training)


def compute_binary_terms(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return {"cross_entropy": ()} of a batch of labeled pairs."""
    pairs = {name: each for name, each in inputs.items() if name != "labels"}
    return {"cross_entropy": binary_cross_entropy(model(**pairs), inputs["labels"])}


def build_reranker_objective(config: RerankerConfig) -> Objective:
    """Return what training minimizes: (model, inputs of a step) to named terms."""
    if config.loss == "bce":
        return compute_binary_terms
    return partial(
        compute_listwise_terms, passages=config.negatives_in_a_step + 1, backward=config.backward, twice=config.r_drop
    )


def score_tokens(model: nn.Module, tokens: TokenizedTexts, tokenizing: Any) -> np.ndarray:
    """Return the scores of the tokenized pairs of all processes in order, (pairs,); each process has every n-th."""
    device = next(model.parameters()).device
    scores = np.empty(len(tokens), dtype=np.float32)
    for rows in iter_batches_by_length(tokens.lengths, budget=GROUP_TOKENS if device.type == "cpu" else GPU_TOKENS):
        inputs = {name: each.to(device) for name, each in pad_tokens(tokens, tokenizing, rows).items()}
        scores[rows] = score_without_dropout(model, inputs).cpu().numpy()
    return np.array(gather_items(scores.tolist()), dtype=np.float32)


class PairEvaluator:
    """Evaluates a model in training on candidates; each process scores its share of them."""

    def __init__(
        self,
        model: PairClassifier,
        candidates: DevCandidates,
        *,
        queries: Mapping[str, str],
        corpus: CorpusTexts,
        tokenizing: PairTokenizer,
        title: str,
    ) -> None:
        self._model, self._candidates, self._tokenizing = model, candidates, tokenizing
        pairs = [(query, id) for query, ids in candidates.candidates for id in ids][get_rank() :: get_world_size()]
        passages = corpus.get_many([id for _, id in pairs])
        self._tokens = tokenizing(
            (queries[query], format_passage(passage, title))
            for (query, _), passage in zip(pairs, passages, strict=True)
        )

    def __call__(self) -> dict[str, float]:
        """Return the figures now."""
        return self._candidates(score_tokens(self._model, self._tokens, self._tokenizing))


def train_reranker(
    data: TrainingData,
    folder: Path,
    *,
    start: CrossEncoder,
    title: str,
    config: RerankerConfig,
    evaluation: Callable[[PairClassifier, PairTokenizer], PairEvaluator] | None = None,
    seed: int = 42,
    device: str = "auto",
) -> dict[str, Any]:
    """Train, write the model into `folder` (rank zero), and return "steps", "epochs" and, with `evaluation`, "best".

    folder: for checkpoints (deleted at the end), log.jsonl and the model; training continues from a checkpoint in it
    evaluation: builds the evaluation of the model; the best weights are kept, perhaps those of the start
    Raises what `plan` and `drtk.training.fit.fit` raise.
    """
    schedule = plan_reranker_schedule(data.examples, config, source=data.source)
    data.examples.warn_of_few_negatives(config.negatives_in_a_step)
    arguments = build_training_arguments(config, schedule, folder, seed=seed, device=device)
    if config.gradient_checkpointing:
        enable_gradient_checkpointing(start.model)
    model = PairClassifier(start.model, group_tokens=GROUP_TOKENS if arguments.device.type == "cpu" else None)
    tokenizing = PairTokenizer(start.tokenizer, max_length=start.max_length)
    selection = None
    if evaluation is not None:
        selection = ModelSelection(
            model,
            evaluation(model.to(arguments.device), tokenizing),
            folder / "checkpoints",
            metric=config.dev_measure,
            every=config.eval_steps,
            patience=config.patience,
        )
    length: dict[str, Any] = {"batch": config.batch_size, "steps": schedule.steps, "seed": seed}
    dataset: EpochDataset[Any]
    if config.loss == "bce":
        dataset = EpochDataset(JudgedPairs(data.examples, queries=data.queries, corpus=data.corpus), **length)
    else:
        dataset = SampledExamples(
            data.examples, queries=data.queries, corpus=data.corpus, negatives=config.negatives_in_a_step, **length
        )

    def save() -> None:
        start.model.cpu().eval()
        save_cross_encoder(start, folder)

    return fit(
        model,
        dataset,
        partial(collate_pairs if config.loss == "bce" else collate_lists, tokenizing=tokenizing, title=title),
        objective=build_reranker_objective(config),
        arguments=arguments,
        schedule=schedule,
        folder=folder,
        name="train-reranker",
        save=save,
        evaluator=selection,
        evaluate_first=True,
        micro_batch=config.micro_batch_size or schedule.batch,
    )

"""Train a cross-encoder reranker (docs/methods/re-ranker.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from drtk.data.corpus_store import CorpusStore
from drtk.losses.ranking import binary_cross_entropy, listwise_cross_entropy, r_drop_losses, select_hardest
from drtk.models.cross_encoder import CrossEncoder, PairClassifier, save_cross_encoder
from drtk.models.device import copy_to_device
from drtk.models.generator_input import format_passage
from drtk.models.packing import enable_packing
from drtk.text.batching import PairTokenizer, TokenizedTexts, iter_batches_by_length
from drtk.training.arguments import CHECKPOINTS, Schedule, build_training_arguments, plan_schedule
from drtk.training.best_checkpoint import ModelSelection
from drtk.training.config import RerankerConfig
from drtk.training.dataset import JudgedPair, JudgedPairs, SampledExample, SampledExamples, count_pairs, pad_tokens
from drtk.training.distributed import gather_items, get_rank, get_world_size
from drtk.training.examples import PackedExamples, TrainingData
from drtk.training.fit import Objective, enable_gradient_checkpointing, fit
from drtk.training.sampling import EpochDataset

MAX_LENGTH = 192  # default maximum length of a pair in tokens (docs/methods/re-ranker.md)
GROUP_TOKENS = {"cpu": 2048, "cuda": 16384, "mps": 16384}  # tokens per group of pairs of similar length, in training
GPU_TOKENS = 65536  # tokens of pairs evaluated at once on a GPU


class DevCandidates(Protocol):
    """Protocol for the candidates of an evaluation; implemented by drtk.evaluation.dev_evaluation.RerankingEvaluator.

    candidates: (query id, passage ids) of each query
    A call with the scores of all candidates in this order, (candidates,), returns the metrics by name.
    """

    candidates: list[tuple[str, list[str]]]

    def __call__(self, scores: np.ndarray) -> dict[str, float]: ...


def plan_reranker_schedule(examples: PackedExamples, config: RerankerConfig, *, source: str = "examples") -> Schedule:
    """Return the training schedule. source: file of the examples, for errors    Raises the errors of `plan_schedule`."""
    count, unit = (sum(count_pairs(examples)), "pairs") if config.loss == "bce" else (len(examples), "examples")
    return plan_schedule(count, config, unit=unit, source=source, micro_batch=config.micro_batch_size)


def collate_lists(items: Sequence[SampledExample], *, tokenizer: PairTokenizer, title: str) -> dict[str, Tensor]:
    """Return the model inputs by name, (queries * n, tokens) each: n passages per query, the positive first.

    title: title format, see `format_passage`
    """
    pairs = ((item.query, format_passage(passage, title)) for item in items for passage in item.passages)
    return pad_tokens(tokenizer(pairs), tokenizer)


def collate_pairs(items: Sequence[JudgedPair], *, tokenizer: PairTokenizer, title: str) -> dict[str, Tensor]:
    """Return the model inputs by name, (pairs, tokens) each, and `labels` (pairs,), 1 for relevant pairs, else 0.

    title: title format, see `format_passage`
    """
    tokens = tokenizer((item.query, format_passage(item.passage, title)) for item in items)
    return pad_tokens(tokens, tokenizer) | {"labels": torch.tensor([float(item.is_relevant) for item in items])}


def compute_listwise_terms(
    model: nn.Module, inputs: Mapping[str, Tensor], *, num_passages: int, backward: int | None, use_r_drop: bool
) -> dict[str, Tensor]:
    """Return the listwise losses, scalars by name: "cross_entropy", and with R-Drop also "r_drop".

    inputs: the result of `collate_lists`, (queries * num_passages, tokens) each    num_passages: passages per query
    backward: number of passages per query to train on, the positive and the highest-scored negatives; None: all
    use_r_drop: run the model twice with different dropout, and add the divergence of the two softmax distributions
    """
    if backward is not None and backward < num_passages:
        scores = score_without_dropout(model, inputs).view(-1, num_passages)
        columns = select_hardest(scores, backward)  # (queries, backward)
        rows = (columns + torch.arange(len(columns), device=columns.device).unsqueeze(1) * num_passages).flatten()
        inputs, num_passages = {name: value[rows] for name, value in inputs.items()}, backward
    if not use_r_drop:
        return {"cross_entropy": listwise_cross_entropy(model(**inputs).view(-1, num_passages))}
    doubled = {name: torch.cat([value, value]) for name, value in inputs.items()}
    first, second = model(**doubled).view(2, -1, num_passages)  # dropout differs in the halves
    cross_entropy, divergence = r_drop_losses(first, second)
    return {"cross_entropy": cross_entropy, "r_drop": divergence}


@torch.no_grad()
def score_without_dropout(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the logits of pairs in evaluation mode, (pairs,). The training mode of the model is restored."""
    bare: nn.Module = getattr(model, "module", model)  # type: ignore[assignment]  # inside DistributedDataParallel
    training = bare.training
    bare.eval()
    try:
        return bare(**inputs)
    finally:
        bare.train(training)


def compute_bce_terms(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the binary loss of labeled pairs, {"cross_entropy": scalar}. inputs: the result of `collate_pairs`"""
    pairs = {name: value for name, value in inputs.items() if name != "labels"}
    return {"cross_entropy": binary_cross_entropy(model(**pairs), inputs["labels"])}


def build_reranker_objective(config: RerankerConfig) -> Objective:
    """Return the training objective of a configuration, a function from (model, inputs of a step) to losses by name."""
    if config.loss == "bce":
        return compute_bce_terms
    return partial(
        compute_listwise_terms,
        num_passages=config.negatives_per_step + 1,
        backward=config.backward,
        use_r_drop=config.r_drop,
    )


def score_tokenized_pairs(model: nn.Module, tokens: TokenizedTexts, tokenizer: Any) -> np.ndarray:
    """Score tokenized pairs that are divided among the processes; return the scores of the pairs of all processes, (pairs,).

    tokens: the pairs r, r + n, r + 2 n, … in process r of n
    """
    device = next(model.parameters()).device
    scores = np.empty(len(tokens), dtype=np.float32)
    for rows in iter_batches_by_length(
        tokens.lengths, budget=GROUP_TOKENS["cpu"] if device.type == "cpu" else GPU_TOKENS
    ):
        inputs = copy_to_device(tokens.pad(rows, pad=tokenizer.pad, left=tokenizer.left), device)
        scores[rows] = score_without_dropout(model, inputs).cpu().numpy()
    return np.array(gather_items(scores.tolist()), dtype=np.float32)


def train_reranker(
    data: TrainingData,
    folder: Path,
    *,
    start: CrossEncoder,
    title: str,
    config: RerankerConfig,
    dev: DevCandidates | None = None,
    dev_queries: Mapping[str, str] | None = None,
    dev_corpus: CorpusStore | None = None,
    seed: int = 42,
    device: str = "auto",
) -> dict[str, Any]:
    """Train a cross-encoder, write it into a folder (rank zero), and return the result of `drtk.training.fit.fit`.

    folder: output folder; training resumes from its last checkpoint    start: model to train
    title: title format of passages, see `format_passage`
    dev: candidates to rerank, with which the best weights are selected; None: keep the last weights
    dev_queries, dev_corpus: query texts by id and the passages of `dev`; None: those of `data`
    Raises the errors of `plan_reranker_schedule`, `build_training_arguments` and `drtk.training.fit.fit`.
    """
    schedule = plan_reranker_schedule(data.examples, config, source=data.source)
    data.examples.warn_of_few_negatives(config.negatives_per_step)
    arguments = build_training_arguments(config, schedule, folder, seed=seed, device=device)
    if config.packed:
        enable_packing(start.model.base_model, arguments.device)
    if config.gradient_checkpointing:
        enable_gradient_checkpointing(start.model)
    model = PairClassifier(start.model, group_tokens=GROUP_TOKENS[arguments.device.type])
    tokenizer = PairTokenizer(start.tokenizer, max_length=start.max_length)
    selection = None
    if dev is not None:
        pairs = [(query, id) for query, ids in dev.candidates for id in ids][get_rank() :: get_world_size()]
        texts, passages = dev_queries or data.queries, (dev_corpus or data.corpus).get_many([id for _, id in pairs])
        tokens = tokenizer(
            (texts[query], format_passage(passage, title)) for (query, _), passage in zip(pairs, passages, strict=True)
        )

        def evaluate() -> dict[str, float]:
            return dev(score_tokenized_pairs(model, tokens, tokenizer))

        model.to(arguments.device)
        selection = ModelSelection(model, evaluate, folder / CHECKPOINTS, metric=config.dev_measure, config=config)
    schedule_options: dict[str, Any] = {"batch": config.batch_size, "steps": schedule.steps, "seed": seed}
    dataset: EpochDataset
    if config.loss == "bce":
        dataset = EpochDataset(JudgedPairs(data), **schedule_options)
    else:
        dataset = SampledExamples(data, negatives=config.negatives_per_step, **schedule_options)

    def save() -> None:
        start.model.cpu().eval()
        save_cross_encoder(start, folder)

    return fit(
        model,
        dataset,
        partial(collate_pairs if config.loss == "bce" else collate_lists, tokenizer=tokenizer, title=title),
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

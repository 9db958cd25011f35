"""The loss of a retriever's training step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from drtk.errors import UsageError
from drtk.losses import RETRIEVER_LOSSES
from drtk.losses.contrastive import get_positive_columns, mask_duplicate_positives, mask_labeled_positives
from drtk.losses.sparsity import flops
from drtk.training.config import RetrieverConfig
from drtk.training.distributed import gather_rows, get_rank

CONTRASTIVE, DISTILLATION = "contrastive", "distillation"
FLOPS_TERMS = QUERY_FLOPS, PASSAGE_FLOPS = "query_flops", "passage_flops"
_TEMPERATURE = {"cosine": 0.02, "dot": 1.0}  # SimLM, Table 12; query-as-context and DPR (docs/methods/fine-tuning.md)
_ALPHA = {"kl": 0.2}  # SimLM, Table 12; 0 for other distillation losses
LOSS_INPUTS = ("passage_indices", "positives", "teacher")  # inputs of a step for the loss, not the model


def learns_from_teacher(loss: str) -> bool:
    """Return whether the registered loss named `loss` uses teacher scores. Raises UsageError for an unknown name."""
    return "teacher" in inspect.signature(RETRIEVER_LOSSES.load(loss)).parameters


@dataclass(frozen=True)
class RetrieverLoss:
    """Contrastive and distillation loss over the whole batch of all processes, in float32.

    contrastive, distillation: functions of RETRIEVER_LOSSES, or None
    excluded: passages that are not used as in-batch negatives of a query: "none", "duplicates" (of the positive of the
        example) or "positives" (all labeled positives of the query)
    dimensions: also apply the losses to the first N dimensions of the vectors, for each N (Matryoshka)
    normalize: normalize the truncated vectors
    is_sparse: add the FLOPS of queries and passages, whose weights the trainer ramps up
    weights: weights of the losses by name, 1 for losses not listed
    """

    similarity: str
    temperature: float
    contrastive: Callable[..., Tensor] | None = None
    distillation: Callable[..., Tensor] | None = None
    teacher_temperature: float = 1.0
    excluded: Literal["none", "duplicates", "positives"] = "none"
    dimensions: tuple[int, ...] = ()
    normalize: bool = False
    is_sparse: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_config(cls, config: RetrieverConfig, *, similarity: str, normalize: bool = False) -> RetrieverLoss:
        """Build the loss of a configuration. similarity: "cosine" or "dot"

        Raises UsageError for an unknown loss, or a distillation loss as `contrastive`.
        """
        main = RETRIEVER_LOSSES.load(config.loss)
        contrastive, distillation, alpha = main, None, 1.0
        if learns_from_teacher(config.loss):
            if config.negatives == 0:
                raise UsageError(
                    f"`loss` {config.loss} requires `negatives` above 0, because it compares the passages of a query"
                )
            distillation = main
            alpha = _ALPHA.get(config.loss, 0.0) if config.contrastive_weight is None else config.contrastive_weight
            if learns_from_teacher(config.contrastive):
                raise UsageError(
                    f"`contrastive` {config.contrastive}: is a distillation loss; choose a contrastive one"
                )
            contrastive = RETRIEVER_LOSSES.load(config.contrastive) if alpha else None
        names = [CONTRASTIVE, *(f"{CONTRASTIVE}_{size}" for size in config.matryoshka)]
        return cls(
            similarity,
            _TEMPERATURE[similarity] if config.temperature is None else config.temperature,
            contrastive,
            distillation,
            config.teacher_temperature,
            "positives" if config.mask_false_negatives else "duplicates" if config.mask_duplicate_positives else "none",
            config.matryoshka,
            normalize,
            config.head == "sparse",
            dict.fromkeys(names, alpha)
            | {QUERY_FLOPS: config.query_flops_weight, PASSAGE_FLOPS: config.passage_flops_weight},
        )

    def compute_terms(
        self, queries: Tensor, passages: Tensor, inputs: Mapping[str, Tensor], *, temperature: float | None = None
    ) -> dict[str, Tensor]:
        """Return the unweighted scalar losses of the batch of all processes: "contrastive", "distillation", ….

        queries: (b, H), passages: (b * n, H), vectors of this process
        inputs: `passage_indices` (b * n,), and if needed `positives` (b, max positives) and `teacher` (b, n)
        temperature: temperature during its warm-up; None: the configured one
        """
        with torch.autocast(queries.device.type, enabled=False):
            mask = self._build_mask(inputs, len(queries)) if self.contrastive is not None else None
            queries, passages = gather_rows(queries.float()), gather_rows(passages.float())
            teacher = gather_rows(inputs["teacher"]) if self.distillation is not None else None
            options = {"similarity": self.similarity, "temperature": temperature or self.temperature}
            terms = {}
            for size in (None, *self.dimensions):
                vectors = self._truncate(queries, size), self._truncate(passages, size)
                suffix = "" if size is None else f"_{size}"
                if self.distillation is not None:
                    terms[DISTILLATION + suffix] = self.distillation(
                        *vectors, teacher=teacher, teacher_temperature=self.teacher_temperature, **options
                    )
                if self.contrastive is not None:
                    terms[CONTRASTIVE + suffix] = self.contrastive(*vectors, mask=mask, **options)
            if self.is_sparse:
                terms |= {QUERY_FLOPS: flops(queries), PASSAGE_FLOPS: flops(passages)}
        return terms

    def _truncate(self, vectors: Tensor, size: int | None) -> Tensor:
        """Return the first `size` dimensions, normalized if `normalize`, (rows, size). size: None: return `vectors` unchanged"""
        if size is None:
            return vectors
        return F.normalize(vectors[:, :size], dim=-1) if self.normalize else vectors[:, :size]

    def _build_mask(self, inputs: Mapping[str, Tensor], queries: int) -> Tensor | None:
        """Return the mask of the excluded passages over the whole batch, (B, B * n) bool; None if `excluded` is "none"."""
        if self.excluded == "none":
            return None
        passages = gather_rows(inputs["passage_indices"])
        local = len(inputs["passage_indices"])
        if self.excluded == "duplicates":
            return mask_duplicate_positives(passages, len(passages) // (local // queries))
        own = get_positive_columns(inputs["positives"], inputs["passage_indices"]) + get_rank() * local
        mask = mask_labeled_positives(passages, inputs["positives"], own=own)
        return gather_rows(mask.to(torch.uint8)).bool()  # not every backend gathers booleans


def compute_warmup_temperature(step: int, *, final: float, warmup_steps: int) -> float:
    """Return the temperature at a step of the warm-up: its inverse rises linearly from 1 to 1 / final.

    final: temperature after the warm-up    Source: SimLM's released code for NQ.
    """
    if step >= warmup_steps or final >= 1:
        return final
    return 1 / max(1.0, step / warmup_steps / final)

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


def uses_teacher_scores(loss: str) -> bool:
    """Return whether a loss of RETRIEVER_LOSSES uses teacher scores. loss: its name

    Raises UsageError for an unknown name.
    """
    return "teacher" in inspect.signature(RETRIEVER_LOSSES.load(loss)).parameters


@dataclass(frozen=True)
class RetrieverLoss:
    """Contrastive and distillation loss over the whole batch of all processes, in float32.

    contrastive, distillation: functions of RETRIEVER_LOSSES; None: not used    similarity: "cosine" or "dot"
    excluded: passages that are not used as in-batch negatives of a query: "none"; "duplicates" of its positive in the batch;
        or "positives", all passages that are labeled as positives of the query
    dimensions: also apply the losses to the first N dimensions of the vectors, for each of these N (Matryoshka)
    normalize: normalize the truncated vectors
    is_sparse: add the FLOPS of queries and passages, whose weights the trainer ramps up
    weights: weights of the losses by name; the default weight is 1
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
        """Build the loss of a configuration.

        similarity: "cosine" or "dot"    normalize: normalize the truncated vectors (Matryoshka)
        Raises UsageError for an unknown loss, a distillation loss as `contrastive`, or a distillation loss without negatives.
        """
        main = RETRIEVER_LOSSES.load(config.loss)
        contrastive, distillation, alpha = main, None, 1.0
        if uses_teacher_scores(config.loss):
            if config.negatives == 0:
                raise UsageError(
                    f"`loss` {config.loss} requires `negatives` above 0, because it compares the passages of a query"
                )
            distillation = main
            alpha = _ALPHA.get(config.loss, 0.0) if config.contrastive_weight is None else config.contrastive_weight
            if uses_teacher_scores(config.contrastive):
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
        """Return the losses of the batch of all processes, unweighted scalars by name.

        The names are "contrastive" and "distillation", with suffix _N for the first N dimensions, and for sparse vectors
        "query_flops" and "passage_flops".
        queries: (b, H), passages: (b * n, H), vectors of this process
        inputs: `passage_indices` (b * n,), and if needed `positives` (b, max positives) and `teacher` (b, n), see `collate`
        temperature: temperature to use instead of the configured one, during its warm-up; None: the configured one
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
        """Return the first `size` dimensions, (rows, size), normalized if `self.normalize`; `size` None: `vectors` unchanged."""
        if size is None:
            return vectors
        return F.normalize(vectors[:, :size], dim=-1) if self.normalize else vectors[:, :size]

    def _build_mask(self, inputs: Mapping[str, Tensor], num_queries: int) -> Tensor | None:
        """Return a mask of the excluded passages of all processes, (B, B * n) bool; None if `excluded` is "none".

        num_queries: number of queries of this process; B: of all processes
        """
        if self.excluded == "none":
            return None
        passages = gather_rows(inputs["passage_indices"])
        local = len(inputs["passage_indices"])
        if self.excluded == "duplicates":
            return mask_duplicate_positives(passages, len(passages) // (local // num_queries))
        own = get_positive_columns(inputs["positives"], inputs["passage_indices"]) + get_rank() * local
        mask = mask_labeled_positives(passages, inputs["positives"], own=own)
        return gather_rows(mask.to(torch.uint8)).bool()  # not every backend gathers booleans


def compute_warmup_temperature(step: int, *, final: float, warmup_steps: int) -> float:
    """Return the temperature at a step of the warm-up: 1 / temperature rises linearly to 1 / final, and is at least 1.

    final: temperature after the warm-up; 1 or more: returned at every step    Source: SimLM's released code for NQ.
    """
    if step >= warmup_steps or final >= 1:
        return final
    return 1 / max(1.0, step / warmup_steps / final)

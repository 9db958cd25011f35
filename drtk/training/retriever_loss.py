"""The loss of a retriever's training step, given the vectors of the batch."""

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
from drtk.training.config import RetrieverConfig
from drtk.training.distributed import gather_rows, get_rank

CONTRASTIVE, DISTILLATION = "contrastive", "distillation"
_TEMPERATURE = {"cosine": 0.02, "dot": 1.0}  # SimLM, Table 12; query-as-context and DPR (docs/methods/fine-tuning.md)
_ALPHA = {"kl": 0.2}  # SimLM, Table 12; other distillation has no contrastive loss beside it
LOSS_INPUTS = ("passage_numbers", "positives", "teacher")  # inputs of a step that the model does not take


def learns_from_teacher(loss: str) -> bool:
    """Return whether a registered loss takes a teacher's scores. Raises UsageError for an unknown name."""
    return "teacher" in inspect.signature(RETRIEVER_LOSSES.load(loss)).parameters


@dataclass(frozen=True)
class RetrieverLoss:
    """The terms of the loss, as pure functions of the vectors of the whole batch, in float32.

    contrastive, distillation: functions of RETRIEVER_LOSSES, or None; weights: of the terms, 1 for those not listed
    masked: passages of the batch that are no negatives: none, duplicates of a query's own positive, all its positives
    dimensions: sizes of prefixes of the vectors that are trained to be used alone (Matryoshka)
    normalize: vectors and their prefixes are scaled to length 1
    """

    similarity: str
    temperature: float
    contrastive: Callable[..., Tensor] | None = None
    distillation: Callable[..., Tensor] | None = None
    teacher_temperature: float = 1.0
    masked: Literal["none", "duplicates", "positives"] = "none"
    dimensions: tuple[int, ...] = ()
    normalize: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, config: RetrieverConfig, *, similarity: str, normalize: bool = False) -> RetrieverLoss:
        """Return the loss of a configuration, for vectors compared by "cosine" or "dot".

        Raises UsageError for a loss that is unknown or in the wrong place.
        """
        main = RETRIEVER_LOSSES.load(config.loss)
        contrastive, distillation, alpha = main, None, 1.0
        if learns_from_teacher(config.loss):
            if config.negatives == 0:
                raise UsageError(
                    f"`loss` {config.loss} needs `negatives` above 0: a teacher compares the passages of one query"
                )
            distillation = main
            alpha = _ALPHA.get(config.loss, 0.0) if config.contrastive_weight is None else config.contrastive_weight
            if learns_from_teacher(config.contrastive):
                raise UsageError(f"`contrastive` {config.contrastive}: learns from a teacher; name a contrastive loss")
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
            dict.fromkeys(names, alpha),
        )

    def terms(
        self, queries: Tensor, passages: Tensor, inputs: Mapping[str, Tensor], *, temperature: float | None = None
    ) -> dict[str, Tensor]:
        """Return {"contrastive": (), "distillation": (), …} of the batch of all processes together, unweighted.

        queries: (b, H), passages: (b * n, H), of this process
        inputs: `passage_numbers` (b * n,), and if needed `positives` (b, most) and `teacher` (b, n)
        temperature: in place of the loss's own, during its warm-up
        """
        with torch.autocast(queries.device.type, enabled=False):
            mask = self._mask(inputs, len(queries)) if self.contrastive is not None else None
            queries, passages = gather_rows(queries.float()), gather_rows(passages.float())
            teacher = gather_rows(inputs["teacher"]) if self.distillation is not None else None
            options = {"similarity": self.similarity, "temperature": temperature or self.temperature}
            terms = {}
            for size in (None, *self.dimensions):
                vectors = self._prefix(queries, size), self._prefix(passages, size)
                ending = "" if size is None else f"_{size}"
                if self.distillation is not None:
                    terms[DISTILLATION + ending] = self.distillation(
                        *vectors, teacher=teacher, teacher_temperature=self.teacher_temperature, **options
                    )
                if self.contrastive is not None:
                    terms[CONTRASTIVE + ending] = self.contrastive(*vectors, mask=mask, **options)
        return terms

    def _prefix(self, vectors: Tensor, size: int | None) -> Tensor:
        """Return the first dimensions of vectors as they would be used, (rows, size); None: all."""
        if size is None:
            return vectors
        return F.normalize(vectors[:, :size], dim=-1) if self.normalize else vectors[:, :size]

    def _mask(self, inputs: Mapping[str, Tensor], queries: int) -> Tensor | None:
        """(B, B * n), True if a passage of the whole batch is no negative of a query."""
        if self.masked == "none":
            return None
        numbers = gather_rows(inputs["passage_numbers"])
        local = len(inputs["passage_numbers"])
        if self.masked == "duplicates":
            return mask_duplicate_positives(numbers, len(numbers) // (local // queries))
        own = get_positive_columns(inputs["positives"], inputs["passage_numbers"]) + get_rank() * local
        mask = mask_labeled_positives(numbers, inputs["positives"], own=own)
        return gather_rows(mask.to(torch.uint8)).bool()  # not every backend gathers booleans


def compute_warmup_temperature(step: int, *, last: float, steps: int) -> float:
    """Return the temperature after so many steps: its inverse rises linearly to 1 / last, and is 1 at least (SimLM's code, NQ).

    steps: of the warm-up
    """
    if step >= steps or last >= 1:
        return last
    return 1 / max(1.0, step / steps / last)

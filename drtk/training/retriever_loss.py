"""What a step of a retriever's training minimises, given the vectors of the batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from drtk.errors import UsageError
from drtk.losses import RETRIEVER_LOSSES
from drtk.losses.contrastive import known_positives, positive_columns, same_as_positive
from drtk.training.config import RetrieverSettings
from drtk.training.distributed import gather, rank

CONTRASTIVE, DISTILLATION = "contrastive", "distillation"
_TEMPERATURE = {"cosine": 0.02, "dot": 1.0}  # SimLM, Table 12; query-as-context and DPR (methods, section 6.3)
_ALPHA = {"kl": 0.2}  # SimLM, Table 12; other distillation stands alone
OF_GOAL = ("passage_numbers", "answers", "teacher")  # inputs of a step that are no inputs of the model


def learns_from_teacher(loss: str) -> bool:
    """Whether a registered loss takes a teacher's scores. Raises UsageError for a name that is not registered."""
    return "teacher" in inspect.signature(RETRIEVER_LOSSES.load(loss)).parameters


@dataclass(frozen=True)
class Goal:
    """The terms of the loss, as pure functions of the vectors of the whole batch, in float32.

    contrastive, distilling: functions of RETRIEVER_LOSSES, or None; weights: what each term counts, 1 where nothing is said
    masked: which passages of the batch are no negatives of a query: none, duplicates of its own positive, all its answers
    dimensions: the first numbers of the vectors that must serve alone as well (Matryoshka)
    normalize: the vectors are used at length 1, and so are their first numbers
    """

    similarity: str
    temperature: float
    contrastive: Callable[..., Tensor] | None = None
    distilling: Callable[..., Tensor] | None = None
    teacher_temperature: float = 1.0
    masked: Literal["none", "duplicates", "answers"] = "none"
    dimensions: tuple[int, ...] = ()
    normalize: bool = False
    weights: Mapping[str, float] | None = None

    @classmethod
    def of(cls, settings: RetrieverSettings, *, similarity: str, normalize: bool = False) -> Goal:
        """That of `settings`, for vectors compared by "cosine" or "dot", and at length 1 where they are normalised.

        Raises UsageError for a loss that is unknown, or stands where it cannot.
        """
        main = RETRIEVER_LOSSES.load(settings.loss)
        contrastive, distilling, alpha = main, None, 1.0
        if learns_from_teacher(settings.loss):
            distilling = main
            alpha = _ALPHA.get(settings.loss, 0.0) if settings.alpha is None else settings.alpha
            if learns_from_teacher(settings.contrastive):
                raise UsageError(
                    f"--contrastive {settings.contrastive}: learns from a teacher; name a contrastive loss"
                )
            contrastive = RETRIEVER_LOSSES.load(settings.contrastive) if alpha else None
        elif settings.alpha is not None:
            raise UsageError(
                "--alpha weighs the contrastive loss beside kl or margin-mse; choose one of them with --loss"
            )
        names = [CONTRASTIVE, *(f"{CONTRASTIVE}_{size}" for size in settings.matryoshka)]
        return cls(
            similarity,
            _TEMPERATURE[similarity] if settings.temperature is None else settings.temperature,
            contrastive,
            distilling,
            settings.teacher_temperature,
            "answers"
            if settings.mask_false_negatives
            else "duplicates"
            if settings.mask_duplicate_positives
            else "none",
            settings.matryoshka,
            normalize,
            dict.fromkeys(names, alpha),
        )

    def terms(
        self, queries: Tensor, passages: Tensor, facts: Mapping[str, Tensor], *, temperature: float | None = None
    ) -> dict[str, Tensor]:
        """{"contrastive": (), "distillation": (), …} of the batch of all processes together, unweighted.

        queries: (b, H), passages: (b * n, H), of this process
        facts: `passage_numbers` (b * n,), and `answers` (b, most) and `teacher` (b, n) where they are needed
        temperature: another one than the goal's own, while it warms up
        """
        with torch.autocast(queries.device.type, enabled=False):
            barred = self._barred(facts, len(queries)) if self.contrastive is not None else None
            queries, passages = gather(queries.float()), gather(passages.float())
            teacher = gather(facts["teacher"]) if self.distilling is not None else None
            found = {}
            given: dict[str, Any] = {"similarity": self.similarity, "temperature": temperature or self.temperature}
            for size in (None, *self.dimensions):
                ours, theirs = self._first(queries, size), self._first(passages, size)
                ending = "" if size is None else f"_{size}"
                if self.distilling is not None:
                    found[DISTILLATION + ending] = self.distilling(
                        ours, theirs, teacher=teacher, teacher_temperature=self.teacher_temperature, **given
                    )
                if self.contrastive is not None:
                    found[CONTRASTIVE + ending] = self.contrastive(ours, theirs, barred=barred, **given)
        return found

    def _first(self, vectors: Tensor, size: int | None) -> Tensor:
        """The first numbers of vectors as they would be used, (rows, size); None: the vectors."""
        if size is None:
            return vectors
        return F.normalize(vectors[:, :size], dim=-1) if self.normalize else vectors[:, :size]

    def _barred(self, facts: Mapping[str, Tensor], queries: int) -> Tensor | None:
        """(B, B * n), True where a passage of the whole batch is no negative of a query."""
        if self.masked == "none":
            return None
        numbers = gather(facts["passage_numbers"])
        n = len(facts["passage_numbers"]) // queries
        if self.masked == "duplicates":
            return same_as_positive(numbers, len(numbers) // n)
        own = positive_columns(facts["answers"], facts["passage_numbers"]) + rank() * len(facts["passage_numbers"])
        found = known_positives(numbers, facts["answers"], own=own)
        return gather(found.to(torch.uint8)).bool()  # not every backend gathers truth values


def temperature_at(step: int, *, last: float, steps: int) -> float:
    """The temperature after so many steps: its inverse rises in a line to 1 / last, and is 1 at least (SimLM's code, for NQ).

    steps: those of the warm-up
    """
    if step >= steps or last >= 1:
        return last
    return 1 / max(1.0, step / steps / last)

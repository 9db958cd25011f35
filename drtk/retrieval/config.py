"""How runs are fused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import By, option
from drtk.errors import UsageError

# Methods of one's own may look at all of them.
_NOT_LOOKED_AT = {
    "weights": ("round-robin",),
    "rrf_k": ("weighted", "linear", "zscore", "round-robin"),
    "normalize": ("rrf", "linear", "zscore", "round-robin"),
}


@dataclass(frozen=True)
class FuseSettings:
    """drtk fuse."""

    method: str = option(
        "rrf",
        "rrf: sum of reciprocal ranks; weighted: weighted sum of scores; linear: of scores as they are (DPR); "
        "zscore: of scores in standard deviations; round-robin: rank by rank in turn.",
    )
    weights: str = option(
        "", "rrf, weighted, linear, zscore: weights of the runs in order, such as 1,1.1; by default all are 1."
    )
    rrf_k: int = option(60, "rrf: the constant added to every rank.", at_least=0)
    normalize: Literal["none", "minmax", "zscore"] = option(
        "minmax", "weighted: what makes scores of different runs comparable, query by query; none leaves them."
    )
    depth: int | None = option(
        None,
        "Take only the first N of each ranking; the scale of a re-ranked run is that of what was scored.",
        at_least=1,
    )
    top: int = option(1000, "Documents written for each query.", at_least=1)
    sweep: bool = option(False, "Find the weights that are best on --qrels, and fuse with them.")
    step: float = option(0.1, "Distance of the weights tried by --sweep.", at_least=0.001, at_most=1)
    measure: str = option("nDCG@10", "What --sweep maximises: one measure, as drtk eval takes it.")
    by: By = option("passage", "What --sweep scores: passage, or source: a document by its best passage.")
    tag: str = option("drtk", "Last column of the run.", one_word=True)

    def check(self) -> None:
        """Raise UsageError for a choice other than its default that --method does not look at."""
        usual = type(self)
        for name, without in _NOT_LOOKED_AT.items():
            if self.method in without and getattr(self, name) != getattr(usual, name):
                raise UsageError(f"--{name.replace('_', '-')}: not with --method {self.method}")
        for name in ("step", "measure", "by"):
            if not self.sweep and getattr(self, name) != getattr(usual, name):
                raise UsageError(f"--{name}: only with --sweep")

"""Options of scoring, reranking and fusion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import NoEffect, ScoringUnit, option, setting
from drtk.models.config import CrossEncoderSettings, PairTitle


@dataclass(frozen=True)
class ScoreSettings(CrossEncoderSettings):
    """drtk score."""

    title: PairTitle | None = setting(
        None, "Titles as title: text, title text, or none. [default: as trained, or join]"
    )
    logits: bool = setting(False, "Write logits, without the activation function.")


@dataclass(frozen=True)
class RerankSettings(ScoreSettings):
    """drtk rerank (docs/methods/re-ranker.md, docs/methods/hlatr.md)."""

    depth: int | None = option(None, "Documents per query to score. [default: 200, HLATR: as trained]", at_least=1)
    vector_dtype: Literal["float32", "float16"] = setting("float16", "vectors: data type of the stored vectors.")
    tag: str = setting("drtk", "Run name, the last column.", one_word=True)


def _not_with(*methods: str) -> tuple[NoEffect, ...]:
    return tuple(NoEffect(f"has no effect with --method {method}", {"method": (method,)}) for method in methods)


_WITH_SWEEP = (NoEffect("needs --sweep", {"sweep": (False,)}),)


@dataclass(frozen=True)
class FuseSettings:
    """drtk fuse."""

    method: str = option(
        "rrf", "rrf, weighted (normalized scores), linear (raw scores), zscore or round-robin.", metavar="NAME"
    )
    weights: str = option(
        "", "Weights of the runs, such as 1,1.1. [default: all 1]", no_effect=_not_with("round-robin"), metavar="X,X…"
    )
    rrf_k: int = option(
        60,
        "rrf: constant added to each rank.",
        at_least=0,
        no_effect=_not_with("weighted", "linear", "zscore", "round-robin"),
    )
    norm: Literal["none", "minmax", "zscore"] = option(
        "minmax",
        "weighted: normalization of each run's scores per query.",
        no_effect=_not_with("rrf", "linear", "zscore", "round-robin"),
    )
    depth: int | None = option(None, "Documents per query to read of each run. [default: all]", at_least=1)
    top: int = option(1000, "Documents per query to write.", at_least=1)
    sweep: bool = option(False, "Fuse with the weights that are best on --qrels.")
    step: float = setting(
        0.1, "sweep: step between weights, 0.001 to 1.", at_least=0.001, at_most=1, no_effect=_WITH_SWEEP
    )
    measure: str = option("nDCG@10", "sweep: measure to maximize.", no_effect=_WITH_SWEEP, metavar="NAME")
    by: ScoringUnit = option("passage", "sweep: score passages, or source documents (MaxP).", no_effect=_WITH_SWEEP)
    tag: str = setting("drtk", "Run name, the last column.", one_word=True)

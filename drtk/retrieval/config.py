"""Options of scoring, reranking and fusion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import By, NoEffect, option
from drtk.models.config import PairTitle, ScoringSettings


@dataclass(frozen=True)
class ScoreSettings(ScoringSettings):
    """drtk score."""

    title: PairTitle | None = option(
        None, "Passage titles: colon (title: text), join (title text) or none. [default: as trained, or join]"
    )
    logits: bool = option(
        False, "Scores before the activation function (often a sigmoid) that the model's folder names."
    )


@dataclass(frozen=True)
class RerankSettings(ScoreSettings):
    """drtk rerank (docs/methods/re-ranker.md, docs/methods/hlatr.md)."""

    depth: int | None = option(
        None, "Documents of each query that are scored. [default: 200, or as many as a list model reads]", at_least=1
    )
    vector_dtype: Literal["float32", "float16"] = option("float16", "--vectors: numbers to store.")
    tag: str = option("drtk", "Last column of the run.", one_word=True)


def _not_with(*methods: str) -> tuple[NoEffect, ...]:
    return tuple(NoEffect(f"has no effect with --method {method}", {"method": (method,)}) for method in methods)


_WITH_SWEEP = (NoEffect("goes with --sweep", {"sweep": (False,)}),)


@dataclass(frozen=True)
class FuseSettings:
    """drtk fuse."""

    method: str = option(
        "rrf",
        "rrf: sum of reciprocal ranks; weighted: weighted sum of normalized scores; linear: of raw scores (DPR); "
        "zscore: of z-scores; round-robin: one document of each run in turn.",
    )
    weights: str = option(
        "",
        "rrf, weighted, linear, zscore: weights of the runs in order, such as 1,1.1. [default: all 1]",
        no_effect=_not_with("round-robin"),
    )
    rrf_k: int = option(
        60,
        "rrf: constant added to each rank.",
        at_least=0,
        no_effect=_not_with("weighted", "linear", "zscore", "round-robin"),
    )
    norm: Literal["none", "minmax", "zscore"] = option(
        "minmax",
        "weighted: how scores of each run are normalized per query.",
        no_effect=_not_with("rrf", "linear", "zscore", "round-robin"),
    )
    depth: int | None = option(
        None,
        "Documents of each ranking that are fused.",
        at_least=1,
    )
    top: int = option(1000, "Documents written per query.", at_least=1)
    sweep: bool = option(False, "Fuse with the weights that are best on --qrels.")
    step: float = option(0.1, "Step between the weights of --sweep.", at_least=0.001, at_most=1, no_effect=_WITH_SWEEP)
    measure: str = option("nDCG@10", "Measure that --sweep maximizes, as in drtk eval.", no_effect=_WITH_SWEEP)
    by: By = option(
        "passage",
        "Unit that --sweep scores: passage, or source (a document by its best passage).",
        no_effect=_WITH_SWEEP,
    )
    tag: str = option("drtk", "Last column of the run.", one_word=True)

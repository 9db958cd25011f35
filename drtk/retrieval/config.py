"""Options of scoring, reranking and fusion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import NoEffect, ScoringUnit, option, setting
from drtk.models.config import CrossEncoderSettings, PairTitle


@dataclass(frozen=True)
class ScoreSettings(CrossEncoderSettings):
    """Settings of `drtk score`."""

    title: PairTitle | None = setting(
        None, 'Passage text: colon "title: text", join "title text", or none. [default: as trained, or join]'
    )
    logits: bool = setting(False, "Write logits, without the activation function.")


@dataclass(frozen=True)
class RerankSettings(ScoreSettings):
    """Settings of `drtk rerank` (docs/methods/re-ranker.md, docs/methods/hlatr.md)."""

    depth: int | None = option(None, "Top documents per query to score. [default: 200; HLATR: as trained]", at_least=1)
    vector_dtype: Literal["float32", "float16"] = setting(
        "float16", "Data type of the vectors written to --save-vectors."
    )
    tag: str = setting("drtk", "Run name, the last column of the run.", one_word=True)


def _exclude_methods(*methods: str) -> tuple[NoEffect, ...]:
    return tuple(NoEffect(f"has no effect with --method {method}", {"method": (method,)}) for method in methods)


_WITH_SWEEP = (NoEffect("requires --sweep", {"sweep": (False,)}),)


@dataclass(frozen=True)
class FuseSettings:
    """Settings of `drtk fuse`."""

    method: str = option(
        "rrf",
        "Fusion: rrf, weighted (scaled scores), linear (raw scores), zscore, max or round-robin.",
        metavar="NAME",
    )
    weights: str = option(
        "",
        "Weights of the runs in their order, such as 1,1.1. [default: 1 for each run]",
        no_effect=_exclude_methods("max", "round-robin"),
        metavar="X,X…",
    )
    rrf_k: int = option(
        60,
        "Constant k that is added to each rank (rrf).",
        at_least=0,
        no_effect=_exclude_methods("weighted", "linear", "zscore", "max", "round-robin"),
    )
    depth: int | None = option(None, "Top documents per query to use from each run. [default: all]", at_least=1)
    top: int = option(1000, "Maximum number of documents per query to write.", at_least=1)
    sweep: bool = option(False, "Choose the weights that maximize --measure on --qrels.")
    step: float = setting(
        0.1,
        "Step between the weights to try, 0.001 to 1 (--sweep only).",
        at_least=0.001,
        at_most=1,
        no_effect=_WITH_SWEEP,
    )
    measure: str = option("nDCG@10", "Measure to maximize (--sweep only).", no_effect=_WITH_SWEEP, metavar="NAME")
    by: ScoringUnit = option(
        "passage", "Score passages, or source documents by their best passage (--sweep only).", no_effect=_WITH_SWEEP
    )
    tag: str = setting("drtk", "Run name, the last column of the run.", one_word=True)

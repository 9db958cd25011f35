"""Which of the queries written for a passage are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import knob
from drtk.settings.reranking import PairTitle


@dataclass(frozen=True)
class KeepSettings:
    """doc2query-- : queries are scored against their passage, and the lowest go. All of drtk keep-queries, a part of doc2query."""

    scorer: str = knob("", "Folder or hub name of a cross-encoder that scores each query against its passage.")
    keep: float | None = knob(
        None,
        "Keep this share of the queries of the whole input, the best by score: 0.7 drops the lowest 30%.",
        at_least=0,
        at_most=1,
    )
    min_score: float | None = knob(None, "Keep the queries with at least this score.")
    scores: bool = knob(False, 'Write "query_scores" beside "queries".')
    scorer_title: PairTitle | None = knob(
        None, "scorer: titles: colon (title: text), join (title text) or none. [default: as trained, or join]"
    )
    scorer_logits: bool = knob(
        False, "scorer: scores before the activation function (often a sigmoid) that its folder names."
    )
    scorer_batch_tokens: int | None = knob(
        None, "Tokens of pairs at once, padding included. [default: 2,048 on a CPU, 65,536 on a GPU]", at_least=1
    )
    scorer_dtype: Literal["auto", "float32", "float16", "bfloat16"] = knob(
        "auto", "Numbers the scorer computes with: auto is float32 on a CPU, half precision on a GPU."
    )

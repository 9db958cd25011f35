"""Which of the queries written for a passage are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import knob


@dataclass(frozen=True)
class KeepSettings:
    """doc2query-- : queries are scored against their passage, and the lowest go."""

    scorer: str = knob("", "Folder or hub name of a cross-encoder that scores each query against its passage.")
    keep: float | None = knob(
        None,
        "Keep this share of the queries of the whole input, the best by score: 0.7 drops the lowest 30%.",
        at_least=0,
        at_most=1,
    )
    min_score: float | None = knob(None, "Keep the queries with at least this score.")
    scores: bool = knob(False, 'Write "query_scores" beside "queries".')
    scorer_batch_tokens: int | None = knob(
        None, "Tokens of pairs at once, padding included. [default: 2,048 on a CPU, 65,536 on a GPU]", at_least=1
    )
    scorer_dtype: Literal["auto", "float32", "float16", "bfloat16"] = knob(
        "auto", "Numbers the scorer computes with: auto is float32 on a CPU, half precision on a GPU."
    )


@dataclass(frozen=True)
class KeepQueriesSettings(KeepSettings):
    """drtk keep-queries: the same for queries that were written before."""

    title: Literal["join", "none"] = knob("join", "A passage's title: join (before its text) or none.")

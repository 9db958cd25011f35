"""How passages are read for an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import knob


@dataclass(frozen=True)
class ReadSettings:
    """drtk read (methods: section 7.11). The figures are those of the released large readers."""

    depth: int = knob(100, "Passages of each question that are read, the first of its ranking.", at_least=1)
    order: Literal["score", "rank"] = knob("rank", "What orders a ranking: rank, that column of the run, or score.")
    max_length: int = knob(250, "Longest passage with its question and title, in tokens; the text is cut.", at_least=2)
    max_new_tokens: int = knob(50, "Longest answer, in tokens.", at_least=1)
    batch_tokens: int | None = knob(
        None,
        "Tokens of passages that are answered from at once, at least one question's. [default: 32,768 on a CPU, 131,072 on a GPU]",
        at_least=1,
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = knob(
        "auto", "Numbers the model computes with: auto is float32 on a CPU, bfloat16 on a GPU."
    )

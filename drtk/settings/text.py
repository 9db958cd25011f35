"""How documents become passages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import knob


@dataclass(frozen=True)
class ChunkSettings:
    """drtk chunk (methods: section 1)."""

    policy: Literal["greedy", "condenser", "cotmae", "words"] = knob("greedy", "How sentences are grouped.")
    max_words: int = knob(100, "Longest chunk, in words, where no --tokenizer is given.", at_least=1)

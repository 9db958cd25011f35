"""How pairs of texts are scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import knob


@dataclass(frozen=True)
class ScoringSettings:
    """A cross-encoder over pairs of texts. What is None is taken from the model folder."""

    max_length: int | None = knob(None, "Longest pair, in tokens; by default the model's.", at_least=4)
    batch_tokens: int | None = knob(
        None, "Tokens in one batch, padding included; by default 2048 on a CPU, 65536 on a GPU.", at_least=1
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = knob(
        "auto", "Numbers to compute with; auto is float32 on a CPU, half precision on a GPU."
    )

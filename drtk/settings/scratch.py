"""How a model begins that nobody has trained yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import knob
from drtk.settings.encoding import Similarity


@dataclass(frozen=True)
class ScratchSettings:
    """drtk init-model. The default size is that of MiniLM-L6."""

    arch: Literal["bert", "t5", "gpt2"] = knob(
        "bert",
        "What is made: bert (an encoder), t5 (encoder and decoder: writes), gpt2 (decoder: goes on with a text).",
    )
    vocab_size: int = knob(30522, "Word pieces, at most; a small corpus gives fewer.", at_least=10)
    lowercase: bool = knob(True, "Read upper and lower case alike, and letters without their accents.")
    min_frequency: int = knob(2, "Word pieces seen less often are left out.", at_least=1)
    layers: int = knob(6, "Layers.", at_least=1)
    hidden: int = knob(384, "Width of the token vectors.", at_least=1)
    heads: int = knob(12, "Attention heads; their number divides the width.", at_least=1)
    intermediate: int | None = knob(None, "Width inside the layers; by default four times --hidden.", at_least=1)
    max_length: int = knob(512, "Longest input, in tokens.", at_least=8)
    pooling: str = knob("cls", "cls, mean, max, mean_sqrt_len_tokens, weightedmean or lasttoken.")
    normalize: bool = knob(False, "Give vectors of length 1.")
    similarity: Similarity = knob("cosine", "How vectors are compared.")
    language: Literal["any", "chinese"] = knob("any", "chinese puts every Chinese character in a token of its own.")

"""How texts become vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import knob

Similarity = Literal["cosine", "dot"]
Title = Literal["join", "sep", "segment", "none"]


@dataclass(frozen=True)
class EncodeSettings:
    """drtk encode. What is None is taken from the model folder."""

    pooling: str | None = knob(
        None, "cls, mean, max, mean_sqrt_len_tokens, weightedmean or lasttoken; by default the model's own, or cls."
    )
    normalize: bool | None = knob(None, "Give vectors of length 1; by default as the model folder says.")
    similarity: Similarity | None = knob(None, "How vectors are compared; by default as the model folder says.")
    max_length: int | None = knob(None, "Longest input, in tokens; by default the model's.", at_least=3)
    prompt: str | None = knob(None, "Text put before each input; by default the model's for this role.")
    title: Title | None = knob(
        None,
        "Passage titles: join (title, space, text), sep (a separator token between them), segment (a pair) or none; "
        "by default the model's, or join.",
    )
    dimensions: int | None = knob(
        None,
        "Keep the first N numbers of each vector, for a model trained so (train-retriever --matryoshka).",
        at_least=1,
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = knob(
        "auto", "Numbers to compute with; auto is float32 on a CPU, half precision on a GPU."
    )
    store: Literal["float32", "float16"] = knob("float32", "Numbers to store.")
    batch_tokens: int | None = knob(
        None, "Tokens in one batch, padding included; by default 2048 on a CPU, 65536 on a GPU.", at_least=1
    )
    shard_size: int = knob(
        16384, "Texts in a shard: what is sorted by length together, and lost by a crash.", at_least=1
    )

"""Options of encoding, generation, scoring and model initialization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import NoEffect, check_effects, option
from drtk.errors import UsageError

Similarity = Literal["cosine", "dot"]
Title = Literal["join", "sep", "segment", "none"]
PairTitle = Literal["colon", "join", "none"]


@dataclass(frozen=True)
class EncodeSettings:
    """drtk encode; None means as in the model folder."""

    pooling: str | None = option(
        None, "cls, mean, max, mean_sqrt_len_tokens, weightedmean or lasttoken; by default the model's own, or cls."
    )
    normalize: bool | None = option(None, "Scale vectors to length 1; by default as the model folder says.")
    similarity: Similarity | None = option(None, "How vectors are compared; by default as the model folder says.")
    max_length: int | None = option(None, "Longest input, in tokens; by default the model's.", at_least=3)
    prompt: str | None = option(None, "Text put before each input; by default the model's for this role.")
    title: Title | None = option(
        None,
        "Passage titles: join (title, space, text), sep (a separator token between them), segment (a pair) or none; "
        "by default the model's, or join.",
    )
    dimensions: int | None = option(
        None,
        "Keep the first N numbers of each vector, for a model trained so (train-retriever --matryoshka).",
        at_least=1,
    )
    precision: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "Compute dtype; auto is float32 on a CPU, half precision on a GPU."
    )
    vector_dtype: Literal["float32", "float16"] = option("float32", "Stored dtype.")
    batch_tokens: int | None = option(
        None, "Tokens in one batch, padding included; by default 2048 on a CPU, 65536 on a GPU.", at_least=1
    )
    shard_size: int = option(16384, "Texts in a shard, the unit of sorting by length and of resuming.", at_least=1)


NOT_SAMPLING = (NoEffect("only with --decode sample", {"decode": ("greedy", "beam")}),)
NOT_BEAM = (NoEffect("only with --decode beam", {"decode": (None, "sample", "greedy", "greedy+sample")}),)


@dataclass(frozen=True)
class GenerationSettings:
    """drtk doc2query; the defaults are those of query-as-context pre-training."""

    n: int = option(5, "Texts to generate per passage.", at_least=1, flag="--n")
    decode: Literal["sample", "greedy", "beam", "greedy+sample"] = option(
        "sample",
        "Decoding: sample, greedy (one text), beam (the n best), or greedy+sample (one greedy text, then samples).",
    )
    top_k: int = option(25, "Sample from the K most likely tokens; 0: from all.", at_least=0, no_effect=NOT_SAMPLING)
    top_p: float = option(
        0.95,
        "Of these, sample from the most likely with this total probability.",
        at_least=1e-6,
        at_most=1,
        no_effect=NOT_SAMPLING,
    )
    temperature: float = option(1.0, "Sampling temperature.", at_least=1e-6, no_effect=NOT_SAMPLING)
    beams: int = option(4, "Beams of --decode beam; at least --n.", at_least=1, no_effect=NOT_BEAM)
    max_new_tokens: int = option(64, "Longest text to generate, in tokens.", at_least=1)
    title: Literal["join", "none"] | None = option(
        None, "Passage titles: join (before the text) or none. [default: as the model was trained, or join]"
    )
    prefix: str | None = option(
        None,
        "Text before every input, followed by a space (all-with_prefix-t5-base-v1: text2query:). "
        "[default: as the model was trained, or nothing]",
    )
    max_length: int | None = option(
        None,
        "Longest input in tokens; the text is cut, never the prefix. [default: as the model was trained, or 512]",
        at_least=2,
    )
    batch_tokens: int | None = option(
        None, "Tokens of input and output per batch. [default: 16,384 on a CPU, 131,072 on a GPU]", at_least=1
    )
    precision: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "Compute dtype; auto is float32 on a CPU, bfloat16 on a GPU."
    )

    def check(self) -> None:
        """Raise UsageError for options without effect, and for several greedy texts."""
        check_effects(self)
        if self.decode == "greedy" and self.n not in (1, type(self).n):
            raise UsageError(f"`n` {self.n}: `decode` greedy generates one text")


@dataclass(frozen=True)
class ContinuationSettings(GenerationSettings):
    """drtk continue-text; MASTER's paper gives no values, these are those of docs/methods/master.md."""

    n: int = option(1, "Continuations to generate per passage.", at_least=1, flag="--n")
    top_k: int = option(50, "Sample from the K most likely tokens; 0: from all.", at_least=0, no_effect=NOT_SAMPLING)
    max_new_tokens: int = option(128, "Longest continuation, in tokens.", at_least=1)


@dataclass(frozen=True)
class ScoringSettings:
    """Options of a cross-encoder; None means as in the model folder."""

    max_length: int | None = option(None, "Longest pair, in tokens; by default the model's.", at_least=4)
    batch_tokens: int | None = option(
        None, "Tokens in one batch, padding included; by default 2048 on a CPU, 65536 on a GPU.", at_least=1
    )
    precision: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "Compute dtype; auto is float32 on a CPU, half precision on a GPU."
    )


@dataclass(frozen=True)
class InitModelSettings:
    """drtk init-model. The default size is that of MiniLM-L6."""

    arch: Literal["bert", "t5", "gpt2"] = option(
        "bert",
        "Architecture: bert (encoder), t5 (encoder-decoder) or gpt2 (decoder-only).",
    )
    vocab_size: int = option(30522, "Word pieces at most; a small corpus has fewer.", at_least=10)
    lowercase: bool = option(True, "Lowercase texts and remove accents.")
    min_frequency: int = option(2, "Least occurrences of a word piece.", at_least=1)
    layers: int = option(6, "Layers.", at_least=1)
    hidden: int = option(384, "Width of the token vectors.", at_least=1)
    heads: int = option(12, "Attention heads; must divide --hidden.", at_least=1)
    intermediate: int | None = option(
        None, "Width of the feed-forward layers; by default four times --hidden.", at_least=1
    )
    max_length: int = option(512, "Longest input, in tokens.", at_least=8)
    pooling: str = option("cls", "cls, mean, max, mean_sqrt_len_tokens, weightedmean or lasttoken.")
    normalize: bool = option(False, "Scale vectors to length 1.")
    similarity: Similarity = option("cosine", "How vectors are compared.")
    language: Literal["any", "chinese"] = option("any", "chinese makes every Chinese character a token.")

    def check(self) -> None:
        """Raise UsageError if the heads do not divide the width."""
        if self.hidden % self.heads:
            raise UsageError(f"`heads` {self.heads} does not divide `hidden` {self.hidden}")

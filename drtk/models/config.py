"""Settings of encoding, generation, scoring and model initialization."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from drtk.config import HARDWARE, INPUT, NoEffect, check_effects, option, redeclare, setting
from drtk.errors import UsageError

Similarity = Literal["cosine", "dot"]
Title = Literal["join", "sep", "segment", "none"]
PairTitle = Literal["colon", "join", "none"]
Precision = Literal["auto", "float32", "float16", "bfloat16"]
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
SPARSE_POOLING = ("splade",)  # of sparse encoders, which pool the logits of their masked-LM head

PRECISION = "Compute dtype; auto: float32 on a CPU, half precision on a GPU."
BATCH_TOKENS = "Maximum tokens per batch. [default: 2048 on a CPU, 65536 on a GPU]"
PACKED = "Pack texts (no padding) on a GPU in 16-bit precision, if supported."


def check_pooling(text: str | None, *, allow_sparse: bool = False) -> None:
    """Raise UsageError if a pooling, such as "cls+mean", has a mode that is not in POOLINGS. None is valid.

    allow_sparse: also accept SPARSE_POOLING, "splade"
    """
    if text is None or (allow_sparse and text == "+".join(SPARSE_POOLING)):
        return
    for mode in text.split("+"):
        if mode not in POOLINGS:
            names = (*POOLINGS, *SPARSE_POOLING * allow_sparse)
            raise UsageError(f"unknown pooling '{mode}'; choose from {', '.join(names)}, or combine as cls+mean")


def check_device_name(name: str) -> None:
    """Raise UsageError for a name that is not a device; whether the device is available is checked by torch."""
    if not re.fullmatch(r"auto|cpu|mps|(cuda|xpu)(:\d+)?", name):
        raise UsageError(f"`device` {name}: use auto, cpu, cuda, cuda:1, mps or xpu")


_NO_MODEL = (NoEffect("requires --model", {"model": (None,)}),)


@dataclass(frozen=True)
class VectorSettings:
    """Settings that define the vectors of an encoder; None means the value in the model folder."""

    pooling: str | None = option(
        None,
        "Pooling: cls, mean, max, mean_sqrt_len_tokens, weightedmean, lasttoken, splade (sparse). [default: the model's, else "
        "cls, or lasttoken with causal attention]",
        metavar="NAME",
    )
    normalize: bool | None = option(None, "Normalize vectors to unit length. [default: the model's]")
    similarity: Similarity | None = setting(None, "Similarity function of the vectors. [default: the model's]")
    dimensions: int | None = setting(
        None, "Truncate vectors to this number of dimensions (Matryoshka models).", at_least=1
    )

    def check(self) -> None:
        """Raise UsageError for an unknown pooling."""
        check_pooling(self.pooling, allow_sparse=True)


@redeclare("pooling", "normalize", "similarity", "dimensions", advanced=True, no_effect=_NO_MODEL)
@dataclass(frozen=True)
class ImportedVectorSettings(VectorSettings):
    """Encoder of vectors that another program computed (`convert --as embeddings`, `index --ids`)."""

    model: str | None = option(
        None, "Encoder that computed the vectors; recorded for search and serve.", metavar="MODEL", panel=INPUT
    )


@dataclass(frozen=True)
class EncodeSettings(VectorSettings):
    """Settings of `drtk encode`; None means the value in the model folder, or the default in the option's help."""

    max_length: int | None = option(None, "Maximum input length in tokens. [default: the model's]", at_least=3)
    prompt: str | None = option(None, "Text to put before each input. [default: the model's prompt for --role]")
    title: Title | None = setting(
        None, "Join titles by a space, separator token or segment, or ignore them. [default: the model's, or join]"
    )
    max_active_dims: int | None = setting(
        None, "Keep the N largest term weights of each text (sparse models). [default: all]", at_least=1
    )
    model_file: str | None = setting(
        None, "ONNX or OpenVINO file in the model folder to run instead of the weights, such as onnx/model.onnx."
    )
    precision: Precision = option("auto", PRECISION, panel=HARDWARE)
    vector_dtype: Literal["float32", "float16"] = option("float32", "Data type of the stored vectors.")
    batch_tokens: int | None = setting(None, BATCH_TOKENS, at_least=1)
    packed: bool = setting(True, PACKED)
    shard_size: int = setting(16384, "Texts per shard file; an interrupted run resumes at the last shard.", at_least=1)


@dataclass(frozen=True)
class ExportSettings:
    """Settings of `drtk export`."""

    format: Literal["onnx", "openvino"] = option("onnx", "Format of the exported file.")
    quantize: Literal["int8", "none"] = option("int8", "Quantize linear layers and embeddings to int8, or not.")
    dev_queries: int = setting(500, "Maximum number of queries of --dev, sampled at random.", at_least=1)
    dev_pool: int = setting(
        5000, "Passages of --dev to search: all relevant ones, filled up with random ones.", at_least=1
    )


NOT_SAMPLING = (NoEffect("requires --decode sample", {"decode": ("greedy", "beam")}),)
NOT_BEAM = (NoEffect("requires --decode beam", {"decode": (None, "sample", "greedy", "greedy+sample")}),)


@dataclass(frozen=True)
class GenerationSettings:
    """Settings of `drtk doc2query`, by default those of query-as-context pre-training."""

    engine: ClassVar[str] = "transformers"
    n: int = option(5, "Queries to generate per passage.", at_least=1, flag="--n")
    decode: Literal["sample", "greedy", "beam", "greedy+sample"] = option(
        "sample", "Decoding method; greedy: one text, beam: the --n best, greedy+sample: one greedy, others sampled."
    )
    top_k: int = option(25, "Sample from the N most likely tokens; 0: all.", at_least=0, no_effect=NOT_SAMPLING)
    top_p: float = option(
        0.95,
        "Top-p (nucleus) sampling: cumulative probability, above 0, at most 1.",
        at_least=1e-6,
        at_most=1,
        no_effect=NOT_SAMPLING,
    )
    temperature: float = setting(1.0, "Sampling temperature, above 0.", at_least=1e-6, no_effect=NOT_SAMPLING)
    beams: int = setting(4, "Beams, at least --n (--decode beam).", at_least=1, no_effect=NOT_BEAM)
    max_new_tokens: int = option(64, "Maximum output length in tokens.", at_least=1)
    title: Literal["join", "none"] | None = setting(
        None, "Join titles to texts, or ignore them. [default: as trained, or join]"
    )
    prefix: str | None = option(None, "Text to put before each input. [default: as trained, or none]")
    max_length: int | None = setting(None, "Maximum input length in tokens. [default: as trained, or 512]", at_least=2)
    batch_tokens: int | None = setting(
        None, "Input and output tokens in memory. [default: 16384 on a CPU, half of a GPU's free memory]", at_least=1
    )
    precision: Precision = option("auto", PRECISION, panel=HARDWARE)

    def check(self) -> None:
        """Raise UsageError for settings that cannot be combined, such as greedy decoding and an `n` other than 1.

        The default `n` is always accepted.
        """
        check_effects(self)
        if self.engine == "vllm" and self.decode == "beam":
            raise UsageError("`engine` vllm cannot be combined with `decode` beam; use `engine` transformers")
        if self.engine == "vllm" and self.temperature > 2:
            raise UsageError(f"`temperature` {self.temperature}: must be at most 2 with `engine` vllm")
        if self.decode == "greedy" and self.n not in (1, type(self).n):
            raise UsageError(f"`n` {self.n}: cannot be combined with `decode` greedy, which generates one text")


NOT_VLLM = (NoEffect("has no effect with --engine vllm", {"engine": ("vllm",)}),)


@redeclare("batch_tokens", no_effect=NOT_VLLM)
@dataclass(frozen=True)
class ContinuationSettings(GenerationSettings):
    """Settings of `drtk continue-text`, by default those of docs/methods/master.md (MASTER's paper gives none)."""

    n: int = option(1, "Continuations to generate per passage.", at_least=1, flag="--n")
    top_k: int = option(50, "Sample from the N most likely tokens; 0: all.", at_least=0, no_effect=NOT_SAMPLING)
    max_new_tokens: int = option(128, "Maximum continuation length in tokens.", at_least=1)
    engine: Literal["transformers", "vllm"] = option(  # type: ignore[misc]
        "transformers",
        "Generation engine; vllm requires the vllm extra, a GPU and a decoder-only model.",
        panel=HARDWARE,
    )


@dataclass(frozen=True)
class CrossEncoderSettings:
    """Settings for running a cross-encoder; None means the model's value, or a default by device."""

    max_length: int | None = option(None, "Maximum pair length in tokens. [default: the model's]", at_least=4)
    batch_tokens: int | None = setting(None, BATCH_TOKENS, at_least=1)
    precision: Precision = option("auto", PRECISION, panel=HARDWARE)
    packed: bool = setting(True, PACKED)


_NO_SCORER = (NoEffect("requires --scorer", {"scorer": ("",)}),)


@dataclass(frozen=True)
class ScorerSettings:
    """Settings of the cross-encoder `scorer` of commands other than `drtk score`, such as mine-negatives."""

    scorer_title: PairTitle | None = setting(
        None,
        'Passage text for the scorer: colon "title: text", join "title text", or none. [default: as trained, or join]',
        no_effect=_NO_SCORER,
    )
    scorer_logits: bool = setting(
        False, "Use the scorer's logits, without its activation function.", no_effect=_NO_SCORER
    )
    scorer_batch_tokens: int | None = setting(
        None,
        "Maximum tokens per batch of the scorer. [default: 2048 on a CPU, 65536 on a GPU]",
        at_least=1,
        no_effect=_NO_SCORER,
    )
    scorer_precision: Precision = setting(
        "auto", "Compute dtype of the scorer; auto: float32 on a CPU, half precision on a GPU.", no_effect=_NO_SCORER
    )


@dataclass(frozen=True)
class InitModelSettings:
    """Settings of `drtk init-model`, by default with the size of MiniLM-L6."""

    arch: Literal["bert", "t5", "gpt2"] = option(
        "bert", "Architecture: encoder (bert), encoder-decoder (t5) or decoder (gpt2)."
    )
    vocab_size: int = option(30522, "Maximum vocabulary size.", at_least=10)
    lowercase: bool = option(True, "Lowercase texts and strip accents.")
    min_frequency: int = setting(2, "Minimum frequency of a word piece in the corpus.", at_least=1)
    layers: int = option(6, "Transformer layers.", at_least=1)
    hidden: int = option(384, "Hidden size.", at_least=1)
    heads: int = option(12, "Attention heads; must divide the hidden size.", at_least=1)
    intermediate: int | None = setting(None, "Feed-forward size. [default: 4 x hidden size]", at_least=1)
    max_length: int = option(512, "Maximum input length in tokens.", at_least=8)
    pooling: str = option(
        "cls", "Pooling: cls, mean, max, mean_sqrt_len_tokens, weightedmean or lasttoken.", metavar="NAME"
    )
    normalize: bool = option(False, "Normalize vectors to unit length.")
    similarity: Similarity = option("cosine", "Similarity function of the vectors.")
    language: Literal["any", "chinese"] = option(
        "any", "Pre-tokenization: any (white space and punctuation), or chinese (also splits Chinese characters)."
    )

    def check(self) -> None:
        """Raise UsageError for an unknown pooling, or if the hidden size is not a multiple of the number of heads."""
        check_pooling(self.pooling)
        if self.hidden % self.heads:
            raise UsageError(f"`hidden` {self.hidden}: must be a multiple of `heads` {self.heads}")

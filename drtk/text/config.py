"""Options of chunk and sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import CONTROL, HARDWARE, INPUT, NoEffect, option, setting

_WORDS = (NoEffect("has no effect with --policy words", {"policy": ("words",)}),)
_NO_TOKENIZER = (NoEffect("requires --tokenizer; use --max-words", {"tokenizer": (None,)}),)
_NO_OVERLAP = (NoEffect("requires --policy greedy or words", {"policy": ("condenser", "cotmae")}),)


@dataclass(frozen=True)
class ChunkSettings:
    """Settings of `drtk chunk`."""

    policy: Literal["greedy", "condenser", "cotmae", "words"] = option(
        "greedy", "Split at sentence ends (greedy, condenser, cotmae), or at any word."
    )
    tokenizer: str | None = option(
        None, "Measure length in tokens of this model's tokenizer, instead of words.", no_effect=_WORDS, metavar="MODEL"
    )
    max_tokens: int | None = option(
        None,
        "Maximum passage length in tokens; condenser and cotmae may exceed it. [default: 144]",
        at_least=1,
        no_effect=_NO_TOKENIZER,
    )
    max_words: int | None = option(
        None, "Maximum passage length in words; condenser and cotmae may exceed it. [default: 100]", at_least=1
    )
    reserve_special: bool = setting(
        False, "Count the model's special tokens in the maximum length.", no_effect=_NO_TOKENIZER
    )
    overlap: int = option(
        0, "Overlap of consecutive passages in sentences (--policy words: words).", at_least=0, no_effect=_NO_OVERLAP
    )
    short_prob: float = setting(
        0.0,
        "Probability of a smaller random maximum length per passage, 0 to 1 (Condenser uses 0.1, CoT-MAE 0.15).",
        at_least=0,
        at_most=1,
        no_effect=_WORDS,
    )
    paragraphs: bool | None = option(
        None,
        "Also end sentences at blank lines and before rows of Markdown tables. [default: only if the document has headings]",
        no_effect=_WORDS,
    )
    keep_whitespace: bool = setting(False, "Keep white space unchanged.")
    sentences: bool = option(True, "Write sentence spans to metadata.sentences.")
    language: str = option(
        "english", "Language of NLTK's sentence splitter: a name or code, such as german or de.", metavar="NAME"
    )
    punkt_model: str | None = option(None, "Sentence splitter, written by --save-punkt.", metavar="FILE", panel=INPUT)
    punkt_mb: float = setting(2.0, "Megabytes of input to train a sentence splitter on.", at_least=0.001, at_most=1e6)
    save_punkt: str | None = option(
        None, "Train a sentence splitter on the input, and save it.", metavar="FILE", panel=INPUT
    )
    num_workers: int = option(0, "Worker processes; 0: one per core.", at_least=0, panel=HARDWARE)
    seed: int = option(42, "Random seed.", panel=CONTROL)


@dataclass(frozen=True)
class SampleSettings:
    """Settings of `drtk sample`."""

    packages: tuple[str, ...] = option(
        ("stdlib", "numpy", "torch", "transformers", "nltk"),
        "Python package to read, or stdlib for the standard library; repeatable.",
        metavar="NAME",
    )
    limit: int | None = option(
        None, "Maximum number of pairs; smaller samples are subsets of larger ones. [default: all]", at_least=2
    )
    test_percent: int = option(20, "Percentage of queries in the test split.", at_least=1, at_most=99)
    min_words: int = option(20, "Minimum document length in words.", at_least=1)
    num_workers: int = option(0, "Worker processes; 0: one per core.", at_least=0, panel=HARDWARE)

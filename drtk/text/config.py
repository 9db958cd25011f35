"""Options of chunk and sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import NoEffect, option

_WORDS = (NoEffect("has no effect with --policy words", {"policy": ("words",)}),)
_NO_TOKENIZER = (NoEffect("needs a --tokenizer; the cap in words is --max-words", {"tokenizer": (None,)}),)
_NO_OVERLAP = (NoEffect("goes with --policy greedy or words", {"policy": ("condenser", "cotmae")}),)


@dataclass(frozen=True)
class ChunkSettings:
    """drtk chunk (docs/commands/chunk.md)."""

    policy: Literal["greedy", "condenser", "cotmae", "words"] = option(
        "greedy",
        "How to group sentences: greedy never exceeds the cap; condenser and cotmae exceed it as their released code does; "
        "words cuts blocks of words at any place in a sentence.",
    )
    tokenizer: str | None = option(
        None, "Count word pieces of this tokenizer: a model folder, or a hub name[@revision].", no_effect=_WORDS
    )
    max_tokens: int | None = option(
        None,
        "Longest passage in word pieces, without special tokens. [default: 144 with --tokenizer]",
        at_least=1,
        no_effect=_NO_TOKENIZER,
    )
    max_words: int | None = option(None, "Longest passage in words. [default: 100 without --tokenizer]", at_least=1)
    reserve_special: bool = option(
        False, "Subtract the special tokens of the model (two for BERT) from --max-tokens.", no_effect=_NO_TOKENIZER
    )
    overlap: int = option(
        0,
        "Sentences (with --policy words: words) at the end of a passage that are repeated at the start of the next.",
        at_least=0,
        no_effect=_NO_OVERLAP,
    )
    short_prob: float = option(
        0.0,
        "Probability that a passage gets a random shorter cap (0.1 in condenser, 0.15 in cotmae).",
        at_least=0,
        at_most=1,
        no_effect=_WORDS,
    )
    short_min: int | None = option(
        None, "Smallest random cap of --short-prob. [default: 2 with --policy cotmae, otherwise 1]", at_least=1
    )
    paragraphs: bool = option(
        False, "End a sentence at each blank line, so that headings, lists and code do not run on.", no_effect=_WORDS
    )
    keep_whitespace: bool = option(False, "Keep white space unchanged, instead of one space for every run of it.")
    sentences: bool = option(True, "Write the spans of the sentences of a passage to metadata.sentences.")
    language: str = option("english", "Language of nltk's Punkt sentence model, if it is installed.")
    punkt_model: str | None = option(None, "Sentence model to use: a file made by --save-punkt.")
    punkt_mb: float = option(
        2.0,
        "Megabytes at the start of the input that train a sentence model if none is installed.",
        at_least=0.001,
        at_most=1e6,
    )
    save_punkt: str | None = option(None, "Write the trained sentence model to this file, for --punkt-model.")
    num_workers: int = option(0, "Number of worker processes; 0: one for each core.", at_least=0)
    seed: int = option(0, "Random seed of --short-prob.")


@dataclass(frozen=True)
class SampleSettings:
    """drtk sample."""

    packages: tuple[str, ...] = option(
        ("stdlib", "numpy", "torch", "transformers", "nltk"),
        "Package whose documentation is read; repeatable. stdlib is Python's own library.",
    )
    limit: int | None = option(
        None, "Write only this many pairs; a smaller sample is part of a larger one.", at_least=2
    )
    test_percent: int = option(
        20, "Percentage of the queries that are judged in test.tsv, by a hash of the name.", at_least=1, at_most=99
    )
    min_words: int = option(20, "Shortest document, in words.", at_least=1)
    num_workers: int = option(0, "Number of worker processes; 0: one for each core.", at_least=0)

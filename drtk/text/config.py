"""How documents become passages, and what goes into the sample collection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import option


@dataclass(frozen=True)
class ChunkSettings:
    """drtk chunk (methods: section 1)."""

    policy: Literal["greedy", "condenser", "cotmae", "words"] = option(
        "greedy",
        "How sentences are grouped: greedy never exceeds the cap; condenser and cotmae do as the released code of these "
        "methods does; words cuts blocks of words and looks at no sentences.",
    )
    tokenizer: str | None = option(
        None, "Count word pieces of this tokenizer: a model folder, or a hub name[@revision]."
    )
    max_tokens: int | None = option(
        None, "Longest passage in word pieces, special tokens apart; 144 where --tokenizer is given.", at_least=1
    )
    max_words: int | None = option(None, "Longest passage in words; 100 where no --tokenizer is given.", at_least=1)
    reserve_special: bool = option(False, "Take the special tokens a model adds (two for BERT) off --max-tokens.")
    overlap: int = option(
        0,
        "Sentences (with --policy words: words) at the end of a passage that are repeated at the start of the next.",
        at_least=0,
    )
    short_prob: float = option(
        0.0,
        "Chance that a passage gets a random shorter cap (0.1 in condenser, 0.15 in cotmae).",
        at_least=0,
        at_most=1,
    )
    short_min: int | None = option(
        None, "Smallest cap drawn with --short-prob; 2 with --policy cotmae, otherwise 1.", at_least=1
    )
    paragraphs: bool = option(False, "A blank line ends a sentence: headings, lists and code do not run on.")
    keep_whitespace: bool = option(False, "Leave white space as it is; otherwise every run of it becomes one space.")
    sentences: bool = option(True, "Note in metadata.sentences where each sentence of a passage lies.")
    language: str = option(
        "english", "Language of the Punkt sentence model among nltk's data, where that is installed."
    )
    punkt_model: str | None = option(None, "Sentence model to use: a file made by --save-punkt.")
    punkt_mb: float = option(
        2.0,
        "Megabytes at the start of the input that train a sentence model where none is installed.",
        at_least=0.001,
        at_most=1e6,
    )
    save_punkt: str | None = option(None, "Write the trained sentence model to this file, for --punkt-model.")
    workers: int = option(0, "Processes that work at the same time; 0: one for each core.", at_least=0)
    seed: int = option(0, "Seed of the draws of --short-prob.")


@dataclass(frozen=True)
class SampleSettings:
    """drtk sample (architecture: section 9)."""

    packages: tuple[str, ...] = option(
        ("stdlib", "numpy", "torch", "transformers", "nltk"),
        "Package whose documentation is read; repeatable. stdlib is Python's own library.",
    )
    limit: int | None = option(
        None, "Take only this many pairs, the same ones each time; a smaller sample is part of a larger.", at_least=2
    )
    test_percent: int = option(
        20, "Share of the queries judged in test.tsv, by a hash of the name.", at_least=1, at_most=99
    )
    min_words: int = option(20, "Shortest document, in words.", at_least=1)
    workers: int = option(0, "Processes that work at the same time; 0: one for each core.", at_least=0)

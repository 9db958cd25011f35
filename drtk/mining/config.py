"""Options of mine-negatives."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from drtk.config import NoEffect, option
from drtk.indexing.config import BM25SearchSettings, DenseSearchSettings, SearchSettings
from drtk.models.config import PairTitle

ENCODER_OPTIONS = ("prompt", "max_length")
SCORE_LIMITS = ("max_score", "min_score", "margin", "max_share")
_NEEDS_SCORER = (NoEffect("goes with --scorer MODEL", {"scorer": ("",)}),)
_NEEDS_LIMIT = (NoEffect("goes with --margin or --max-share", {"margin": ((),), "max_share": ((),)}),)


@dataclass(frozen=True)
class MiningInputs:
    """The files and folders of a run.

    sources: TREC runs, index folders and training examples, `NAME=PATH` or `PATH`. query_vectors: embeddings folder that
    dense indexes are searched with. vectors: embeddings folder of the passages. model: place of an index's encoder.
    skip_corpus_check: allow sources made from another corpus with the same ids.
    """

    sources: tuple[str, ...]
    qrels: str | None = None
    corpus: str | None = None
    queries: str | None = None
    query_vectors: str | None = None
    vectors: str | None = None
    model: str | None = None
    skip_corpus_check: bool = False


@dataclass(frozen=True)
class MinedIndexSettings(DenseSearchSettings, BM25SearchSettings):
    """Options of the search, if an index is a source."""

    batch_size: int = option(1000, "Index: queries searched together.", at_least=1)
    prompt: str | None = option(None, "Index: text put before each query; by default the model's.")
    max_length: int | None = option(None, "Index: longest query, in tokens; by default the model's.", at_least=3)
    threads: int = option(0, "CPU threads to use; 0 takes every core.", at_least=0)
    device: str = option("auto", "Index and scorer: auto, cpu, cuda, cuda:1 …")

    def search_settings(self) -> SearchSettings:
        """Return these options as those of a search."""
        own = {item.name for item in fields(MinedIndexSettings)}
        return SearchSettings(
            **{name: getattr(self, name) for name in (one.name for one in fields(SearchSettings)) if name in own}
        )


INDEX_OPTIONS = [item.name for item in fields(MinedIndexSettings) if item.name not in ("threads", "device")]


@dataclass(frozen=True)
class MinedFilterSettings:
    """Options of the filters, which reject candidates that may be unjudged positives."""

    from_rank: int = option(1, "Leave out the ranks before this one in each source.", at_least=1)
    max_score: tuple[str, ...] = option(
        (), "Drop what has more than this score: X, or of one source NAME=X; repeatable."
    )
    min_score: tuple[str, ...] = option(
        (), "Drop what has less than this score: X, or of one source NAME=X; repeatable."
    )
    margin: tuple[str, ...] = option(
        (), "Drop what does not score at least this much below the positive: X, or of one source NAME=X; repeatable."
    )
    max_share: tuple[str, ...] = option(
        (), "Drop what has more than this share of the positive's score (0.95: 95%): X or NAME=X; repeatable."
    )
    unretrieved: Literal["drop", "keep"] = option(
        "drop",
        "margin, max-share: what to do where a source has not found the positive, and all it has stands above it.",
        no_effect=_NEEDS_LIMIT,
    )
    ce_margin: float | None = option(
        None, "Drop what a cross-encoder does not score at least this much below the positive; sbert: 3."
    )
    ce_max: float | None = option(None, "Drop what a cross-encoder gives more than this score.")
    max_overlap: float | None = option(
        None,
        "Drop what shares this part (0 to 1) or more of its runs of three words with a positive; 1: the same words alone.",
        at_least=0,
        at_most=1,
    )
    max_cosine: float | None = option(
        None, "Drop what has this cosine or more with a positive, by --vectors.", at_least=-1, at_most=1
    )


@dataclass(frozen=True)
class MineSettings(MinedIndexSettings, MinedFilterSettings):  # help lists the last base first
    """All options of mine-negatives."""

    policy: str = option(
        "msmarco",
        "msmarco: keep 200 and fill up to 210 with random passages; tevatron: keep 128, fill nothing; nq: all of 100 without "
        "an answer, those with one are positives; sbert: 5 of each system, 3 below the positives by cross-encoder.",
    )
    depth: int | None = option(
        None, "Ranks of each source that are looked at; by default the policy's: 200, nq 100, sbert all.", at_least=1
    )
    negatives: int | None = option(
        None, "Mined negatives kept for a query (sbert: of each source); by default the policy's.", at_least=0
    )
    min_negatives: int | None = option(
        None, "Fewest negatives of a query; random passages of --corpus make up for those that lack.", at_least=0
    )
    positives: Literal["passage", "source"] = option(
        "passage", "What judgments name: passage, or source: a document, whose best-ranked passage is the positive."
    )
    rel: int = option(1, "The grade from which on a judged document is a positive.")
    source_name: str = option(
        "", "What the negatives of a single source are called in `sources`; by default the file's or folder's name."
    )
    match: Literal["tokens", "regex"] = option(
        "tokens", "nq: how answers are looked for: tokens (DPR's matching), or regex (answers are patterns)."
    )
    match_title: bool = option(False, "nq: look for answers in titles too, not in texts alone.")
    scorer: str = option(
        "", "Folder or hub name of a cross-encoder that scores positives and candidates; scores are kept."
    )
    scorer_title: PairTitle | None = option(
        None,
        "scorer: titles: colon (title: text), join (title text) or none. [default: as trained, or join]",
        no_effect=_NEEDS_SCORER,
    )
    scorer_logits: bool = option(
        False,
        "scorer: scores before the activation function (often a sigmoid) that its folder names.",
        no_effect=_NEEDS_SCORER,
    )
    scorer_batch_tokens: int | None = option(
        None,
        "Tokens of pairs at once, padding included. [default: 2,048 on a CPU, 65,536 on a GPU]",
        at_least=1,
        no_effect=_NEEDS_SCORER,
    )
    scorer_precision: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto",
        "Numbers the scorer computes with: auto is float32 on a CPU, half precision on a GPU.",
        no_effect=_NEEDS_SCORER,
    )

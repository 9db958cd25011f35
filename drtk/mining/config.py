"""Options of mine-negatives."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from drtk.config import NoEffect, ScoringUnit, option, redeclare, setting
from drtk.indexing.config import BM25SearchSettings, DenseSearchSettings, SearchSettings
from drtk.models.config import ScorerSettings

ENCODER_OPTIONS = ("prompt", "max_length")
SCORE_LIMITS = ("max_score", "min_score", "margin", "max_share")
_NEEDS_LIMIT = (NoEffect("requires --margin or --max-share", {"margin": ((),), "max_share": ((),)}),)


@dataclass(frozen=True)
class MiningInputs:
    """Files and folders that mine-negatives reads.

    sources: TREC runs, index folders and files of training examples, each `NAME=PATH` or `PATH`
    query_vectors: embeddings folder of the queries, to search dense indexes without an encoder
    vectors: embeddings folder of the passages, for the cosine similarity of candidates and positives
    model: folder or hub name of the query encoder; None uses the encoder recorded in the index
    skip_corpus_check: allow sources and `vectors` that were made from another corpus with the same ids
    """

    sources: tuple[str, ...]
    qrels: str | None = None
    corpus: str | None = None
    queries: str | None = None
    query_vectors: str | None = None
    vectors: str | None = None
    model: str | None = None
    skip_corpus_check: bool = False


@redeclare(
    *("k1", "b", "rm3", "fb_docs", "fb_terms", "fb_weight", "threads", "rescore", "ef_search", "nprobe"), advanced=True
)
@dataclass(frozen=True)
class IndexSourceSettings(DenseSearchSettings, BM25SearchSettings):
    """Options for searching the sources that are indexes."""

    batch_size: int | None = setting(
        None, "Queries per batch (index sources). [default: as in search, at most 2^21 hits per batch]", at_least=1
    )
    prompt: str | None = setting(None, "Text to put before each query (dense index). [default: the model's prompt]")
    max_length: int | None = setting(
        None, "Maximum query length in tokens (dense index). [default: the model's]", at_least=3
    )

    def to_search_settings(self) -> SearchSettings:
        """Return the search options as SearchSettings, the class that `IndexGroup` takes."""
        shared = {item.name for item in fields(IndexSourceSettings)} & {item.name for item in fields(SearchSettings)}
        return SearchSettings(**{name: getattr(self, name) for name in shared})


INDEX_OPTIONS = [item.name for item in fields(IndexSourceSettings) if item.name not in ("threads", "device")]


@dataclass(frozen=True)
class CandidateFilterSettings:
    """Options of the filters that reject candidates, such as passages that may be unjudged positives."""

    from_rank: int = setting(1, "First rank to use; passages ranked better in any source are dropped.", at_least=1)
    max_score: tuple[str, ...] = setting(
        (), "Drop candidates with a retrieval score above X; NAME=X for one source; repeatable.", metavar="X"
    )
    min_score: tuple[str, ...] = setting(
        (), "Drop candidates with a retrieval score below X; NAME=X for one source; repeatable.", metavar="X"
    )
    margin: tuple[str, ...] = option(
        (), "Drop candidates that score above the positive minus X; NAME=X for one source; repeatable.", metavar="X"
    )
    max_share: tuple[str, ...] = option(
        (), "Drop candidates that score above X times the positive, such as 0.95; repeatable.", metavar="X"
    )
    unretrieved: Literal["drop", "keep"] = setting(
        "drop",
        "Candidates of a source that did not retrieve the positive (margin, max_share): drop or keep.",
        no_effect=_NEEDS_LIMIT,
    )
    ce_margin: float | None = setting(
        None,
        "Drop candidates with a cross-encoder score above the positive's minus this. [default: sbert 3, else none]",
    )
    ce_max: float | None = setting(None, "Drop candidates with a cross-encoder score above this.")
    max_overlap: float | None = setting(
        None,
        "Drop candidates with at least this Jaccard similarity of word trigrams to a positive, 0 to 1.",
        at_least=0,
        at_most=1,
    )
    max_cosine: float | None = setting(
        None,
        "Drop candidates with at least this cosine similarity to a positive; requires --vectors.",
        at_least=-1,
        at_most=1,
    )


@dataclass(frozen=True)
class MineSettings(ScorerSettings, IndexSourceSettings, CandidateFilterSettings):  # help lists the last base first
    """Options of mine-negatives, except inputs, outputs and seed."""

    policy: str = option(
        "tevatron",
        "Mining recipe: msmarco, tevatron, nq or sbert (see docs/methods/hard-negatives.md).",
        metavar="NAME",
    )
    depth: int | None = option(
        None, "Top candidates per query and source. [default: 200; nq: 100; sbert: all]", at_least=1
    )
    negatives: int | None = option(
        None, "Negatives per query (with --policy sbert: per query and source). [default: by --policy]", at_least=0
    )
    min_negatives: int | None = setting(
        None,
        "Add random passages up to this number of negatives. [default: 0; msmarco 210, at most --negatives]",
        at_least=0,
    )
    by: ScoringUnit = option(
        "passage", "Unit of the judgments: passages, or source documents (positive: the best passage)."
    )
    rel: int = option(1, "Minimum relevance grade of a positive.")
    match: Literal["tokens", "regex"] = setting(
        "tokens", "Match answers by tokens (as in DPR) or as regular expressions (policy nq)."
    )
    match_title: bool = setting(False, "Also search passage titles for answers (policy nq).")
    scorer: str = option("", "Cross-encoder that scores positives and candidates.", metavar="MODEL")

"""Settings of building and searching indexes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import CONTROL, HARDWARE, INPUT, NoEffect, option, setting

INDEX_KIND = "index"  # of manifests
_SPARSE, _VECTORS = ("bm25", "bm25s", "impact"), ("exact", "flat", "hnsw", "ivf")
_ENCODED = (*_VECTORS, "impact")  # searched with queries that a model encodes


def _require_types(*types: str, key: str = "kind") -> tuple[NoEffect, ...]:
    """Return the rule that an option is only valid for the index types `types`. Types not in `INDEXES` are not checked.

    key: field with the index type: "kind" (index to build) or "index_type" (index to search)
    """
    others = tuple(name for name in (*_SPARSE, *_VECTORS) if name not in types)
    return (NoEffect(f"is only valid for indexes of type {', '.join(types)}", {key: others}),)


RUN_DEPTH = 1000  # passages per query in a run, by default


@dataclass(frozen=True)
class DenseIndexSettings:
    """Settings of building a dense index."""

    vector_dtype: Literal["float32", "float16", "int8"] | None = option(
        None,
        "Data type of the stored vectors. [default: for exact, that of the embeddings; else float32]",
        no_effect=_require_types(*_VECTORS),
    )
    full: bool = setting(
        True, "Also store exact vectors in lossy indexes, for rescoring.", no_effect=_require_types(*_VECTORS)
    )
    hnsw_m: int = option(32, "Links per node (hnsw).", at_least=2, no_effect=_require_types("hnsw"))
    ef_construction: int = option(
        200, "Candidate neighbors per node during construction (hnsw).", at_least=1, no_effect=_require_types("hnsw")
    )
    nlist: int = option(
        0, "Clusters (ivf); 0: 4 sqrt(vectors), at most 1 per 39 vectors.", at_least=0, no_effect=_require_types("ivf")
    )
    train_sample: int = setting(
        200_000,
        "Maximum number of vectors sampled to train clusters and quantizers.",
        at_least=1,
        no_effect=_require_types("ivf"),
    )
    seed: int = option(42, "Random seed.", at_least=0, panel=CONTROL, no_effect=_require_types("ivf"))
    threads: int = option(0, "CPU threads; 0: all cores.", at_least=0, panel=HARDWARE)
    device: str = option(
        "auto", "Device: auto, cpu, cuda, cuda:1 …", panel=HARDWARE, metavar="NAME", no_effect=_require_types(*_VECTORS)
    )


@dataclass(frozen=True)
class DenseSearchSettings:
    """Settings of searching a dense index."""

    rescore: int = option(
        4,
        "Rescore the top N x depth hits with exact vectors (lossy indexes); 0: none.",
        at_least=0,
        no_effect=_require_types(*_VECTORS, key="index_type"),
    )
    ef_search: int = option(
        0,
        "Candidates per query (hnsw); 0: 2 x depth, at least 128.",
        at_least=0,
        no_effect=_require_types("hnsw", key="index_type"),
    )
    nprobe: int = option(
        0,
        "Clusters to search per query (ivf); 0: 1/16 of all, at least 8.",
        at_least=0,
        no_effect=_require_types("ivf", key="index_type"),
    )
    threads: int = option(0, "CPU threads; 0: all cores.", at_least=0, panel=HARDWARE)
    device: str = option(
        "auto",
        "Device: auto, cpu, cuda, cuda:1 …",
        panel=HARDWARE,
        metavar="NAME",
        no_effect=_require_types(*_ENCODED, key="index_type"),
    )
    block: int = setting(
        4096,
        "Vectors scored per block, to limit memory (exact; GPUs use larger blocks).",
        at_least=1,
        no_effect=_require_types("exact", key="index_type"),
    )


@dataclass(frozen=True)
class BM25IndexSettings:
    """Settings of building a sparse index of type bm25 (Lucene), bm25s or impact."""

    language: str = option(
        "en",
        "Language for stemming and stop words: a code or name, such as de or german; any disables both.",
        metavar="NAME",
        no_effect=_require_types(*_SPARSE),
    )
    stemmer: Literal["default", "porter", "krovetz", "snowball", "none"] = option(
        "default",
        "Stemmer: porter, krovetz (bm25), snowball (bm25s) or none. [default: bm25: porter, or that of another "
        "language; bm25s: none]",
        metavar="NAME",
        no_effect=_require_types(*_SPARSE),
    )
    stopwords: str = option(
        "default",
        "Stop words: lucene, none, or a file. [default: bm25: lucene, or those of another language; bm25s: none; "
        "impact: function words, if English]",
        metavar="NAME",
        no_effect=_require_types(*_SPARSE),
    )
    term_vectors: bool = option(
        False, "Store term vectors, required by search --rm3 (bm25).", no_effect=_require_types("bm25")
    )
    threads: int = option(0, "CPU threads; 0: all cores.", at_least=0, panel=HARDWARE)


@dataclass(frozen=True)
class BM25SearchSettings:
    """Settings of searching a sparse index; k1, b and RM3 are for BM25 only (docs/commands/search.md)."""

    k1: float | None = option(
        None,
        "BM25 k1, term-frequency saturation. [default: the index's, else 0.9]",
        at_least=0,
        no_effect=_require_types("bm25", "bm25s", key="index_type"),
    )
    b: float | None = option(
        None,
        "BM25 b, length normalization, 0 to 1. [default: the index's, else 0.4]",
        at_least=0,
        at_most=1,
        no_effect=_require_types("bm25", "bm25s", key="index_type"),
    )
    rm3: bool = option(
        False,
        "Expand queries by RM3 pseudo-relevance feedback (bm25).",
        no_effect=_require_types("bm25", key="index_type"),
    )
    fb_docs: int = setting(10, "Feedback passages (RM3).", at_least=1)
    fb_terms: int = setting(10, "Feedback terms (RM3).", at_least=1)
    fb_weight: float = setting(0.5, "Weight of the original query, 0 to 1 (RM3).", at_least=0, at_most=1)
    language: str | None = setting(
        None,
        "Language of the analyzer of a Lucene index of another program. [default: en]",
        no_effect=_require_types("bm25", key="index_type"),
    )
    threads: int = option(0, "CPU threads; 0: all cores.", at_least=0, panel=HARDWARE)

    def get_parameters(self) -> tuple[float, float]:
        """Return k1 and b; by default 0.9 and 0.4, as in Anserini."""
        return 0.9 if self.k1 is None else self.k1, 0.4 if self.b is None else self.b


_WITHOUT_WEIGHTS = (NoEffect("requires --term-weights", {"term_weights": (False,)}),)


@dataclass(frozen=True)
class IndexedTextSettings:
    """Settings of the passage text that a sparse index contains (drtk/indexing/indexed_text.py)."""

    expand: tuple[str, ...] = option(
        (), "Also index the texts in this field, such as queries (bm25, bm25s); repeatable.", metavar="FIELD"
    )
    term_weights: bool = option(False, "Index term weights as term frequencies, as in DeepCT (bm25, bm25s).")
    weight_scale: Literal["linear", "sqrt"] = setting(
        "linear", "Term frequency: 100 x weight (linear) or 100 x sqrt(weight) (sqrt).", no_effect=_WITHOUT_WEIGHTS
    )
    tokenizer: str = setting(
        "", "Tokenizer of the term weights. [default: as recorded with the passages]", no_effect=_WITHOUT_WEIGHTS
    )


@dataclass(frozen=True)
class IndexSettings(DenseIndexSettings, BM25IndexSettings, IndexedTextSettings):
    """Settings of `drtk index`, for all index types."""

    ids: str | None = option(
        None,
        "File with the ids of the vectors, one per line, if SOURCE is a faiss index of another program.",
        metavar="FILE",
        panel=INPUT,
    )


@dataclass(frozen=True)
class RunSettings:
    """Depth and batch size of a search."""

    depth: int | None = option(None, "Passages per query. [default: 1000; 5 with --query]", at_least=1)
    batch_size: int | None = option(
        None,
        "Queries per batch. [default: 1000; exact: 1024, or 2^25 / depth on a GPU or if memory is small]",
        at_least=1,
        panel=HARDWARE,
    )


@dataclass(frozen=True)
class SearchSettings(DenseSearchSettings, BM25SearchSettings, RunSettings):  # help lists the last base first
    """Settings of `drtk search`, for all index types."""

    prompt: str | None = option(
        None,
        "Text to put before each query. [default: the model's prompt]",
        no_effect=_require_types(*_ENCODED, key="index_type"),
    )
    max_length: int | None = setting(
        None,
        "Maximum query length in tokens. [default: the model's]",
        at_least=3,
        no_effect=_require_types(*_ENCODED, key="index_type"),
    )
    grid: str = setting(
        "k1=0.6,0.82,0.9,1.2,1.6 b=0.2,0.4,0.55,0.68,0.75,0.9", "Grid of BM25 k1 and b to evaluate (tune)."
    )
    tag: str = setting("drtk", "Run name, the last column of the run.", one_word=True)
    measure: str = setting("RR@10", "Measure to maximize (tune).")

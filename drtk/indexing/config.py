"""Settings of building and searching indexes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import NoEffect, option

INDEX_KIND = "index"  # of manifests
RUN_DEPTH = 1000  # passages per query in a run, by default


@dataclass(frozen=True)
class DenseIndexSettings:
    """drtk index over vectors."""

    vector_dtype: Literal["float32", "float16", "int8"] | None = option(
        None,
        "Type of the stored numbers. [default: exact: as encoded; faiss: float32]",
    )
    full: bool = option(True, "Keep the exact vectors beside lossy ones, for --rescore.")
    hnsw_m: int = option(32, "hnsw: links per node.", at_least=2)
    ef_construction: int = option(200, "hnsw: candidates per node while building.", at_least=1)
    nlist: int = option(0, "ivf: number of clusters; 0: 4 times the square root of the number of vectors.", at_least=0)
    train_sample: int = option(200_000, "Vectors sampled to train clusters and quantizers.", at_least=1)
    seed: int = option(0, "Seed of the sample to train on.", at_least=0)
    threads: int = option(0, "CPU threads; 0: all cores.", at_least=0)
    device: str = option("auto", "Device to train and add on: auto (GPUs if faiss supports them), cpu, cuda, cuda:1 …")


@dataclass(frozen=True)
class DenseSearchSettings:
    """drtk search over vectors."""

    rescore: int = option(
        4, "Rescore N times k candidates of a lossy index with the exact vectors; 0: none.", at_least=0
    )
    ef_search: int = option(0, "hnsw: candidates per search; 0: twice k, at least 128.", at_least=0)
    nprobe: int = option(0, "ivf: clusters searched; 0: a sixteenth of them, at least 8.", at_least=0)
    threads: int = option(0, "CPU threads; 0: all cores.", at_least=0)
    device: str = option("auto", "auto, cpu, cuda, cuda:1 …")
    block: int = option(16_384, "exact: vectors scored at once.", at_least=1)


@dataclass(frozen=True)
class BM25IndexSettings:
    """drtk index over words: --type bm25 (Lucene), bm25s and impact."""

    language: str = option(
        "en", "Language code of the passages; any: words of every alphabet, without stemming and stop words."
    )
    stemmer: Literal["default", "porter", "krovetz", "snowball", "none"] = option(
        "default",
        "Lucene: porter (its default) or krovetz for English, else the analyzer's own; bm25s: none (its default), porter "
        "for English, snowball for 15 languages.",
    )
    stopwords: str = option(
        "default",
        "English: lucene (33 words), none, or a file with one word per line. default: lucene for bm25, none for bm25s; "
        "for impact, drtk's own list, used on queries only.",
    )
    term_vectors: bool = option(
        False, "Lucene: store term vectors, which --rm3 needs; the index grows two- to fourfold."
    )
    threads: int = option(0, "Lucene: indexing threads; 0: all cores.", at_least=0)


@dataclass(frozen=True)
class BM25SearchSettings:
    """drtk search over words (docs/commands/index.md)."""

    k1: float | None = option(
        None,
        "BM25 k1, term-frequency saturation. [default: the index's (--term-weights), else 0.9]",
        at_least=0,
    )
    b: float | None = option(
        None,
        "BM25 b, length normalization. [default: the index's (--term-weights), else 0.4]",
        at_least=0,
        at_most=1,
    )
    rm3: bool = option(False, "Lucene: expand each query with words of its best passages (RM3).")
    fb_docs: int = option(10, "rm3: feedback passages.", at_least=1)
    fb_terms: int = option(10, "rm3: feedback words.", at_least=1)
    fb_weight: float = option(0.5, "rm3: weight of the original query, 0 to 1.", at_least=0, at_most=1)
    threads: int = option(0, "Lucene: search threads; 0: all cores.", at_least=0)

    def parameters(self) -> tuple[float, float]:
        """Return k1 and b; Anserini's defaults are 0.9 and 0.4."""
        return 0.9 if self.k1 is None else self.k1, 0.4 if self.b is None else self.b


_WITHOUT_WEIGHTS = (NoEffect("goes with --term-weights", {"term_weights": (False,)}),)


@dataclass(frozen=True)
class IndexedTextSettings:
    """drtk index over words: which text of a passage is indexed (drtk/indexing/indexed_text.py)."""

    expand: tuple[str, ...] = option(
        (),
        "bm25, bm25s: field whose strings are indexed after title and text (queries, continuations); repeatable.",
    )
    term_weights: bool = option(False, "bm25, bm25s: index term weights as term frequencies (DeepCT).")
    weight_scale: Literal["linear", "sqrt"] = option(
        "linear",
        "weights: a frequency is 100 times the weight, or 100 times its square root.",
        no_effect=_WITHOUT_WEIGHTS,
    )
    tokenizer: str = option(
        "",
        "weights: their tokenizer, if it has moved from the place that the passages name.",
        no_effect=_WITHOUT_WEIGHTS,
    )


@dataclass(frozen=True)
class IndexSettings(DenseIndexSettings, BM25IndexSettings, IndexedTextSettings):
    """drtk index: settings of all types of index."""


@dataclass(frozen=True)
class SearchDepthSettings:
    """Depth and batch size of a search."""

    depth: int | None = option(None, "Passages per query. [default: 1000; with --query 5]", at_least=1)
    batch_size: int = option(1000, "Queries per batch.", at_least=1)


@dataclass(frozen=True)
class SearchSettings(DenseSearchSettings, BM25SearchSettings, SearchDepthSettings):  # help lists the last base first
    """drtk search: settings of all types of index."""

    prompt: str | None = option(None, "Text put before each query. [default: the model's]")
    max_length: int | None = option(None, "Maximum query length in tokens. [default: the model's]", at_least=3)
    grid: str = option(
        "k1=0.6,0.82,0.9,1.2,1.6 b=0.2,0.4,0.55,0.68,0.75,0.9", "tune: values of k1 and b; every pair is evaluated."
    )
    tag: str = option("drtk", "Last column of the run.", one_word=True)
    measure: str = option("RR@10", "tune: measure to maximize, as in drtk eval.")

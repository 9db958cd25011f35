"""Settings of building and searching indexes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import NoEffect, option

RUN_DEPTH = 1000  # passages per query in a run, by default


@dataclass(frozen=True)
class DenseIndexSettings:
    """drtk index over vectors."""

    dtype: Literal["float32", "float16", "int8"] | None = option(
        None,
        "How numbers are stored for searching: float32, float16 or int8. By default exact: as encoded; faiss: float32.",
    )
    full: bool = option(True, "Where vectors are stored with loss, keep the exact ones too, for --rescore.")
    hnsw_m: int = option(32, "hnsw: links of a node.", at_least=2)
    ef_construction: int = option(200, "hnsw: candidates looked at for each node's links.", at_least=1)
    nlist: int = option(
        0, "ivf: number of clusters; 0 takes 4 times the square root of the number of vectors.", at_least=0
    )
    train_sample: int = option(200_000, "Vectors drawn to train clusters and quantisers.", at_least=1)
    seed: int = option(0, "Seed of the draw of vectors to train on.", at_least=0)
    threads: int = option(0, "CPU threads to use; 0 takes all cores.", at_least=0)
    device: str = option("auto", "Where to train and add: auto takes GPUs where faiss has them; cpu, cuda, cuda:1 …")


@dataclass(frozen=True)
class DenseSearchSettings:
    """drtk search over vectors."""

    rescore: int = option(
        4, "Score N times k candidates again with the exact vectors, where they are lossy; 0: do not.", at_least=0
    )
    ef_search: int = option(
        0, "hnsw: candidates kept while walking the graph; 0 takes twice k, at least 128.", at_least=0
    )
    nprobe: int = option(0, "ivf: clusters looked into; 0 takes a sixteenth of them, at least 8.", at_least=0)
    threads: int = option(0, "CPU threads to use; 0 takes all cores.", at_least=0)
    device: str = option("auto", "auto, cpu, cuda, cuda:1 …")
    block: int = option(16_384, "exact: vectors scored at a time.", at_least=1)


@dataclass(frozen=True)
class BM25IndexSettings:
    """drtk index over words: --type bm25 (Lucene), bm25s and impact."""

    language: str = option(
        "en", "Language of the passages, two letters; 'any' for words of every alphabet, neither stemmed nor stopped."
    )
    stemmer: Literal["default", "porter", "krovetz", "snowball", "none"] = option(
        "default",
        "How words are cut to stems. Lucene: porter (its default) or krovetz for English, the analyzer's own otherwise; "
        "bm25s: none (its default), porter for English, snowball for 15 languages.",
    )
    stopwords: str = option(
        "default",
        "English: lucene (33 words), none, or a file of one word a line. default: lucene with Lucene, none with bm25s; "
        "impact: drtk's own list, of questions alone.",
    )
    term_vectors: bool = option(False, "Lucene: store what --rm3 needs; the index grows two- to fourfold.")
    threads: int = option(0, "Lucene: indexing threads; 0 takes every core.", at_least=0)


@dataclass(frozen=True)
class BM25SearchSettings:
    """drtk search over words (methods: section 8.1)."""

    k1: float | None = option(
        None,
        "How slowly further occurrences of a word stop counting; by default as the index advises (--weights), "
        "otherwise 0.9.",
        at_least=0,
    )
    b: float | None = option(
        None,
        "How much long passages are held back, 0 to 1; by default as the index advises (--weights), otherwise 0.4.",
        at_least=0,
        at_most=1,
    )
    rm3: bool = option(False, "Lucene: widen each query with words of its best passages (RM3).")
    fb_docs: int = option(10, "rm3: passages the words are taken from.", at_least=1)
    fb_terms: int = option(10, "rm3: words added.", at_least=1)
    fb_weight: float = option(0.5, "rm3: weight of the original query, 0 to 1.", at_least=0, at_most=1)
    threads: int = option(0, "Lucene: searching threads of the process; 0 takes every core.", at_least=0)

    def parameters(self) -> tuple[float, float]:
        """Return k1 and b; Anserini's defaults are 0.9 and 0.4."""
        return 0.9 if self.k1 is None else self.k1, 0.4 if self.b is None else self.b


_WITHOUT_WEIGHTS = (NoEffect("goes with --weights", {"weights": (False,)}),)


@dataclass(frozen=True)
class IndexedTextSettings:
    """drtk index over words: which text of a passage is indexed (drtk/indexing/indexed_text.py)."""

    expand: tuple[str, ...] = option(
        (),
        "bm25, bm25s: index the strings of this field too, after title and text (queries, continuations); repeatable.",
    )
    weights: bool = option(False, "bm25, bm25s: index the passages' weights as frequencies of their words (DeepCT).")
    weight_scale: Literal["linear", "sqrt"] = option(
        "linear",
        "weights: a frequency is 100 times the weight, or 100 times its square root.",
        no_effect=_WITHOUT_WEIGHTS,
    )
    tokenizer: str = option(
        "",
        "weights: whose word pieces they are, where that is no longer found by the name that the passages hold.",
        no_effect=_WITHOUT_WEIGHTS,
    )


@dataclass(frozen=True)
class IndexSettings(DenseIndexSettings, BM25IndexSettings, IndexedTextSettings):
    """drtk index: settings of all types of index."""

    threads: int = option(0, "CPU threads to use; 0 takes every core.", at_least=0)


@dataclass(frozen=True)
class RunSettings:
    """Depth and batch size of a search."""

    k: int | None = option(None, "Passages per query; by default 1000, with --query 5.", at_least=1, flag="-k")
    batch: int = option(1000, "Queries searched together.", at_least=1)


@dataclass(frozen=True)
class SearchSettings(DenseSearchSettings, BM25SearchSettings, RunSettings):  # help lists the last base first
    """drtk search: settings of all types of index."""

    prompt: str | None = option(None, "Text put before each query; by default the model's.")
    max_length: int | None = option(None, "Longest query, in tokens; by default the model's.", at_least=3)
    grid: str = option(
        "k1=0.6,0.82,0.9,1.2,1.6 b=0.2,0.4,0.55,0.68,0.75,0.9", "tune: values of k1 and b; every pair is tried."
    )
    tag: str = option("drtk", "Last column of the run.", one_word=True)
    measure: str = option("RR@10", "tune: what is judged by, named as in drtk eval.")
    threads: int = option(0, "CPU threads to use; 0 takes every core.", at_least=0)

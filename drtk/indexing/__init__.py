"""Index types by name; the class of a type is imported at its first use."""

from __future__ import annotations

from drtk.registry import Registry

INDEXES = Registry(
    "index type",
    {
        "bm25": ("drtk.indexing.lucene.index:LuceneIndex", "BM25 by Lucene"),
        "bm25s": ("drtk.indexing.bm25s:Bm25sIndex", "BM25 by the bm25s library, without Java"),
        "impact": (
            "drtk.indexing.lucene.index:ImpactIndex",
            "learned term impacts, summed by Lucene (DeepImpact, SPLADE)",
        ),
        "exact": ("drtk.indexing.exact:ExactIndex", "exact inner products, by torch on CPU or CUDA"),
        "flat": ("drtk.indexing.faiss_index:FaissIndex", "exact inner products, by faiss"),
        "hnsw": ("drtk.indexing.faiss_index:FaissIndex", "HNSW graph, by faiss"),
        "ivf": (
            "drtk.indexing.faiss_index:FaissIndex",
            "inverted file (only the nearest clusters are searched), by faiss",
        ),
    },
)
FAISS_CLASS = "drtk.indexing.faiss_index:FaissIndex"  # of other types: hnsw48, ivf4096, faiss factory strings

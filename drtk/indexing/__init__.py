"""Index types by name; each is loaded when used."""

from __future__ import annotations

from drtk.registry import Registry

INDEXES = Registry(
    "index type",
    {
        "bm25": (
            "drtk.indexing.lucene.index:LuceneIndex",
            "BM25 by Lucene: an inverted index over the words of passages",
        ),
        "bm25s": ("drtk.indexing.bm25s:Bm25sIndex", "BM25 by the bm25s library: no Java"),
        "impact": ("drtk.indexing.lucene.index:ImpactIndex", "learned impacts of words, summed by Lucene"),
        "exact": ("drtk.indexing.exact:ExactIndex", "all inner products, in torch on CPU or CUDA"),
        "flat": ("drtk.indexing.faiss_index:FaissIndex", "all inner products, by faiss"),
        "hnsw": ("drtk.indexing.faiss_index:FaissIndex", "a graph of nearest neighbors, by faiss"),
        "ivf": (
            "drtk.indexing.faiss_index:FaissIndex",
            "vectors in clusters, of which a few are searched, by faiss",
        ),
    },
)
FACTORY = "drtk.indexing.faiss_index:FaissIndex"  # builds all other faiss factory strings

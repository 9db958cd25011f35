"""Indexes by name; each loads when used."""

from drtk.registry import Registry

INDEXES = Registry(
    "index type",
    {
        "bm25": ("drtk.retrieval.lucene:LuceneIndex", "BM25 by Lucene: an inverted index over the words of passages"),
        "bm25s": ("drtk.retrieval.bm25s:Bm25sIndex", "BM25 by the bm25s library: no Java"),
        "impact": ("drtk.retrieval.lucene_impact:ImpactIndex", "learned impacts of words, summed up by Lucene"),
        "exact": ("drtk.retrieval.dense_exact:ExactIndex", "all inner products, in torch on CPU or CUDA"),
        "flat": ("drtk.retrieval.dense_faiss:FaissIndex", "all inner products, by faiss"),
        "hnsw": ("drtk.retrieval.dense_faiss:FaissIndex", "a navigable graph of near neighbours, by faiss"),
        "ivf": (
            "drtk.retrieval.dense_faiss:FaissIndex",
            "vectors in clusters of which a few are looked into, by faiss",
        ),
    },
)
FACTORY = "drtk.retrieval.dense_faiss:FaissIndex"  # what any other faiss factory string is built by

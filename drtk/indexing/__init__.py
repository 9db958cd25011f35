"""Index types by name; the class of a type is imported at its first use."""

from __future__ import annotations

from drtk.registry import Registry

# An index is a class with the attribute `reads`, the methods `search` and `__len__`, and two class methods:
#   open(folder, settings) returns the index in a folder.
#   build(…) writes the index into an existing folder. With `reads` "passages", its arguments are (passages, folder, settings),
#   and it returns the number of indexed passages; `tunable` (False without it) says whether k1 and b affect the scores. With `reads` "vectors",
#   its arguments are (vectors, folder, settings, *, kind), with vectors a `Vectors`, and it returns entries for the manifest;
#   check_vectors(vectors, settings, *, kind) raises UsageError if it cannot be built.
# search(queries, k) returns the top k (id, score) of each query, a text or a row of a matrix (queries, dimension), by score,
# then by descending id.
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

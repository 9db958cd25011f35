"""Exact search equals a full sort for random scores, ties and depths."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drtk.data.embeddings import read_shards
from drtk.indexing.base import sort_hits
from drtk.indexing.config import DenseIndexSettings, DenseSearchSettings
from drtk.indexing.exact import ExactIndex, pack_sort_keys
from drtk.indexing.vectors import Vectors
from tests.embedding_folders import write_embeddings

SINGLE = st.floats(width=32, allow_nan=False, allow_infinity=False)
ID = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=4)


@st.composite
def collections(draw):
    """Draw ids, vectors and queries with few integer values, so that scores are exact and ties frequent."""
    ids = draw(st.lists(ID.filter(lambda text: text.split() == [text]), min_size=1, max_size=150, unique=True))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    largest, dimension = draw(st.integers(0, 3)), draw(st.integers(1, 5))
    vectors = random.integers(-largest, largest + 1, (len(ids), dimension))
    return ids, vectors, random.integers(-3, 4, (draw(st.integers(1, 40)), dimension)).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(collection=collections(), k=st.integers(1, 200), block=st.sampled_from([1, 64, 100, 10_000]))
def test_exact_search_equals_a_full_sort(collection, k, block):
    ids, vectors, queries = collection
    with TemporaryDirectory() as name:
        folder = Path(name, "i")
        folder.mkdir()
        rows = Vectors(read_shards(write_embeddings(Path(name, "v"), vectors, ids, shard_size=37)))
        ExactIndex.build(rows, folder, DenseIndexSettings())
        hits = ExactIndex.open(folder, DenseSearchSettings(block=block)).search(queries, k)
    assert hits == [sort_hits(ids, scores, k) for scores in (queries @ vectors.T).tolist()]


@given(st.lists(st.tuples(SINGLE, st.integers(0, 2**32 - 1)), min_size=2, max_size=50))
def test_keys_sort_like_pairs_of_score_and_rank(pairs):
    keys = pack_sort_keys(torch.tensor([score for score, _ in pairs]), torch.tensor([rank for _, rank in pairs]))
    by_key = [pairs[place] for place in keys.argsort(stable=True)]
    assert [(score, rank) for score, rank in by_key] == sorted(pairs)

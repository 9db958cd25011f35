"""faiss indexes: order of ties, errors, and exact rescoring of lossy indexes."""

import numpy as np
import pytest

from drtk.data.embeddings import read_shards
from drtk.errors import DrtkError, UsageError
from drtk.indexing.config import DenseIndexSettings, DenseSearchSettings
from drtk.indexing.exact import ExactIndex
from drtk.indexing.vectors import Vectors
from tests.embedding_folders import write_embeddings

faiss = pytest.importorskip("faiss", reason="faiss is an extra")
from drtk.indexing.faiss_index import FaissIndex, make_factory_string  # noqa: E402

RANDOM = np.random.default_rng(11)
VECTORS = RANDOM.standard_normal((600, 16)).astype(np.float32)
QUERIES = RANDOM.standard_normal((25, 16)).astype(np.float32)


def build(tmp_path, vectors, kind, *, ids=None, index=None, **search):
    source = write_embeddings(tmp_path / f"v-{kind}", vectors, ids)
    folder = tmp_path / f"index-{kind}"
    folder.mkdir(parents=True)
    facts = FaissIndex.build(Vectors(read_shards(source)), folder, index or DenseIndexSettings(), kind=kind)
    return FaissIndex.open(folder, DenseSearchSettings(**search)), facts


def exact(tmp_path, vectors):
    source = write_embeddings(tmp_path / "v-exact", vectors)
    (tmp_path / "exact").mkdir()
    ExactIndex.build(Vectors(read_shards(source)), tmp_path / "exact", DenseIndexSettings())
    return ExactIndex.open(tmp_path / "exact", DenseSearchSettings())


def test_flat_equals_exact_where_scores_are_whole_numbers(tmp_path):
    # Small integers: products and sums are exact in float32, so the rankings must be equal, ties included.
    vectors, queries = RANDOM.integers(-2, 3, (500, 8)), RANDOM.integers(-2, 3, (40, 8)).astype(np.float32)
    flat, _ = build(tmp_path, vectors, "flat")
    assert flat.search(queries, 50) == exact(tmp_path, vectors).search(queries, 50)
    flat, _ = build(tmp_path / "ties", np.ones((300, 4)), "flat")
    assert flat.search(np.ones((2, 4), np.float32), 3) == [[("v99", 4.0), ("v98", 4.0), ("v97", 4.0)]] * 2


@pytest.mark.parametrize("kind", ["hnsw", "ivf12", "IVF8,Flat", "SQfp16", "HNSW8,SQ8", "PQ4x4"])
def test_each_kind_finds_nearly_what_exact_search_finds(tmp_path, kind):
    index, _ = build(tmp_path, VECTORS, kind, nprobe=15)
    wanted = exact(tmp_path, VECTORS).search(QUERIES, 10)
    pairs = zip(index.search(QUERIES, 10), wanted, strict=True)
    shared = [len(dict(one).keys() & dict(other).keys()) for one, other in pairs]
    # PQ4x4 keeps 16 bits of a vector: even with 40 of 600 candidates rescored it misses some.
    assert np.mean(shared) >= (5 if kind.startswith("PQ") else 9.9)


@pytest.mark.parametrize("kind", ["SQ8", "HNSW8,SQ8"])
def test_lossy_scores_are_replaced_by_exact_ones(tmp_path, kind):
    index, facts = build(tmp_path, VECTORS, kind)
    assert facts["full"]
    for query, ranking in zip(QUERIES, index.search(QUERIES, 10), strict=True):
        scores = [float(VECTORS[int(id[1:])] @ query) for id, _ in ranking]
        assert [score for _, score in ranking] == pytest.approx(scores, rel=1e-5)
    coarse = FaissIndex.open(tmp_path / f"index-{kind}", DenseSearchSettings(rescore=0))
    assert coarse.search(QUERIES, 10) != index.search(QUERIES, 10)


@pytest.mark.parametrize("kind", ["flat", "SQ8", "hnsw", "ivf4"])
def test_queries_and_vectors_with_infinite_scores_are_errors(tmp_path, kind):
    index, _ = build(tmp_path, np.abs(VECTORS), kind, rescore=0)
    index.search(QUERIES, 10)
    with pytest.raises(DrtkError, match=r"a query has NaN or infinite scores.* \(largest number 3e\+38\)"):
        index.search(np.concatenate([QUERIES, np.full((1, 16), -3e38, np.float32)]), 10)
    if kind == "flat":
        vectors = VECTORS.copy()
        vectors[3] = 3e38
        index, _ = build(tmp_path / "infinite", vectors, "flat")
        with pytest.raises(DrtkError, match="a query has NaN or infinite scores"):
            index.search(np.full((1, 16), -1, np.float32), len(vectors))


def test_k_above_the_number_of_vectors_and_a_query_of_zeros_are_no_errors(tmp_path):
    for kind in ("flat", "hnsw"):
        index, _ = build(tmp_path, [[1.0, 0], [2.0, 0]], kind)
        assert index.search(np.float32([[1, 0]]), 1000) == [[("v1", 2.0), ("v0", 1.0)]]
    index, _ = build(tmp_path, VECTORS, "PQ4x4fs", rescore=0)
    index.search(np.zeros((1, 16), np.float32), 5)  # faiss returns nothing
    index, _ = build(tmp_path, VECTORS, "IVF12,SQ8", nprobe=1)
    for ranking in index.search(QUERIES, 600):  # faiss fills up with -1
        assert len(ranking) == len(dict(ranking)) < 600


def test_names_become_factory_strings():
    half = DenseIndexSettings(vector_dtype="float16", hnsw_m=48)
    clusters = DenseIndexSettings(nlist=7, vector_dtype="int8")
    for kind, settings, count, factory in (
        ("flat", None, 10, "Flat"),
        ("flat", half, 10, "SQfp16"),
        ("hnsw", half, 10, "HNSW48,SQfp16"),
        ("hnsw16", None, 10, "HNSW16,Flat"),
        ("ivf", None, 1_000_000, "IVF4000,Flat"),  # 4 * sqrt(1,000,000)
        ("ivf", None, 390, "IVF10,Flat"),  # 39 vectors for each of 10
        ("ivf", clusters, 390, "IVF7,SQ8"),
        ("ivf64", None, 390, "IVF64,Flat"),
        ("OPQ16,IVF64,PQ16", None, 390, "OPQ16,IVF64,PQ16"),
    ):
        assert make_factory_string(kind, settings or DenseIndexSettings(), count) == factory
    with pytest.raises(UsageError, match="cannot be combined with factory string"):
        make_factory_string("IVF64,PQ16", half, 390)


def test_types_that_cannot_be_built_are_rejected(tmp_path):
    vectors = Vectors(read_shards(write_embeddings(tmp_path / "v", VECTORS)))
    for kind, problem in (
        ("bm26", r"unknown index type 'bm26'; did you mean bm25\? Choose from bm25, "),
        ("flat17", "unknown index type 'flat17'"),
        ("ivf0", "unknown index type 'ivf0'"),
        ("PQ7", "multiple of the number of subquantizers"),
        ("IVF601,Flat", "600 vectors are too few to train 601 clusters"),
    ):
        with pytest.raises(UsageError, match=problem):
            FaissIndex.check_vectors(vectors, DenseIndexSettings(), kind=kind)
    with pytest.raises(DrtkError, match="`device=cuda:9`: not among the"):
        build(tmp_path, VECTORS, "flat", device="cuda:9")
    with pytest.raises(UsageError, match="HNSW is only supported on the CPU"):
        build(tmp_path, VECTORS, "hnsw", device="cuda")


def test_training_is_the_same_each_time(tmp_path):
    settings = DenseIndexSettings(train_sample=300, seed=5)
    for name in "ab":
        (tmp_path / name).mkdir()
        build(tmp_path / name, VECTORS, "ivf8", index=settings)
    one, other = ((tmp_path / name / "index-ivf8" / "index.faiss").read_bytes() for name in "ab")
    assert one == other
    vectors = Vectors(read_shards(tmp_path / "a" / "v-ivf8"))
    assert (vectors.sample(300, seed=5) != vectors.sample(300, seed=6)).any()


def test_a_damaged_index_ids_of_another_and_a_full_disk_are_errors(tmp_path):
    build(tmp_path, VECTORS, "flat")
    build(tmp_path, VECTORS[:5], "Flat")
    folder = tmp_path / "index-flat"
    for name in ("ids.txt", "ranks.npy"):
        (folder / name).write_bytes((tmp_path / "index-Flat" / name).read_bytes())
    with pytest.raises(DrtkError, match="600 vectors for 5 ids"):
        FaissIndex.open(folder, DenseSearchSettings())
    (folder / "index.faiss").write_bytes(b"torn")
    with pytest.raises(DrtkError, match="the index is damaged"):
        FaissIndex.open(folder, DenseSearchSettings())
    (folder / "index.faiss").unlink()
    (folder / "index.faiss").symlink_to("/dev/full")
    with pytest.raises(DrtkError, match=r"index.faiss: cannot be written: .*No space left on device"):
        FaissIndex.build(Vectors(read_shards(str(tmp_path / "v-flat"))), folder, DenseIndexSettings())


def use_small_gpu(monkeypatch, capacity):
    """Replace copies on the GPU by indexes on the CPU that run out of memory above `capacity` vectors."""

    def copy_to_gpu(index, _device):
        copy = faiss.clone_index(index)
        add = copy.add

        def add_if_it_fits(block):
            if copy.ntotal + len(block) > capacity:
                raise RuntimeError("Error in allocMemory: alloc fail (cudaMalloc error out of memory [2])")
            add(block)

        copy.add = add_if_it_fits
        return copy

    monkeypatch.setattr("drtk.indexing.faiss_index._copy_to_gpu", copy_to_gpu)
    monkeypatch.setattr(faiss, "index_gpu_to_cpu", faiss.clone_index, raising=False)


@pytest.mark.parametrize("capacity", [100, 10_000])
def test_an_index_larger_than_the_gpu_is_built_on_the_cpu(capacity, tmp_path, monkeypatch, caplog):
    build(tmp_path / "cpu", VECTORS, "ivf4")
    use_small_gpu(monkeypatch, capacity)
    build(tmp_path / "gpu", VECTORS, "ivf4")
    one, other = ((tmp_path / name / "index-ivf4" / "index.faiss").read_bytes() for name in ("cpu", "gpu"))
    assert one == other
    assert ("out of GPU memory; building the index on the CPU" in caplog.text) == (capacity == 100)
    if capacity == 100:
        with pytest.raises(DrtkError, match="IVF4,Flat: out of memory on `device=cuda`; use `device=cpu`"):
            build(tmp_path / "cuda", VECTORS, "ivf4", index=DenseIndexSettings(device="cuda"))


def test_search_warns_if_the_gpu_cannot_hold_the_index(tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("Error in allocMemory: out of memory")

    build(tmp_path, VECTORS, "flat")
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", fail, raising=False)
    index = FaissIndex.open(tmp_path / "index-flat", DenseSearchSettings())
    assert "faiss cannot use the GPU for this index and uses the CPU" in caplog.text
    assert len(index.search(QUERIES, 3)) == len(QUERIES)
    with pytest.raises(DrtkError, match="`device=cuda`: not supported by faiss for this index"):
        FaissIndex.open(tmp_path / "index-flat", DenseSearchSettings(device="cuda"))


@pytest.mark.parametrize(("kind", "trained"), [("flat", []), ("SQfp16", []), ("ivf4", [False, True])])
def test_only_types_to_train_are_copied_to_gpus_which_get_the_same_clusters(kind, trained, tmp_path, monkeypatch):
    copies = []

    def copy_to_gpu(index, _device):
        copies.append(index.is_trained)
        return faiss.clone_index(index)

    monkeypatch.setattr("drtk.indexing.faiss_index._copy_to_gpu", copy_to_gpu)
    monkeypatch.setattr(faiss, "index_gpu_to_cpu", faiss.clone_index, raising=False)
    vectors = Vectors(read_shards(write_embeddings(tmp_path / "v", VECTORS)))
    FaissIndex.build(vectors, tmp_path, DenseIndexSettings(), kind=kind)
    assert copies == trained


def test_searches_beyond_the_limits_of_faiss_on_a_gpu_use_the_cpu(tmp_path, monkeypatch, caplog):
    build(tmp_path, VECTORS, "ivf4")
    folder = tmp_path / "index-ivf4"
    expected = FaissIndex.open(folder, DenseSearchSettings(nprobe=4)).search(QUERIES, 20)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", lambda *_: object(), raising=False)  # cannot search
    monkeypatch.setattr("drtk.indexing.faiss_index.GPU_DEPTH", 4)
    assert FaissIndex.open(folder, DenseSearchSettings(nprobe=4)).search(QUERIES, 20) == expected
    assert "faiss finds at most 4 hits on a GPU; depth 20 is searched on the CPU" in caplog.text
    assert len(FaissIndex.open(folder, DenseSearchSettings(nprobe=5)).search(QUERIES, 3)) == len(QUERIES)
    assert "`nprobe` 5: faiss searches at most 4 clusters on a GPU; using the CPU" in caplog.text
    with pytest.raises(UsageError, match="use `device=cpu` or a lower `nprobe`"):
        FaissIndex.open(folder, DenseSearchSettings(nprobe=5, device="cuda"))


@pytest.mark.gpu
def test_faiss_on_a_gpu_finds_what_it_finds_on_the_cpu(tmp_path):
    build(tmp_path, VECTORS, "flat")
    if not faiss.get_num_gpus():
        pytest.skip("this faiss has no GPUs")
    on = {name: FaissIndex.open(tmp_path / "index-flat", DenseSearchSettings(device=name)) for name in ("cpu", "cuda")}
    for one, other in zip(on["cpu"].search(QUERIES, 20), on["cuda"].search(QUERIES, 20), strict=True):
        assert [id for id, _ in one] == [id for id, _ in other]

"""Exact search with torch: scores and ties for all storage formats."""

import numpy as np
import pytest
import torch

from drtk.data.embeddings import read_shards
from drtk.errors import DrtkError, MismatchError
from drtk.indexing import exact
from drtk.indexing.config import DenseIndexSettings, DenseSearchSettings
from drtk.indexing.exact import ExactIndex, pack_sort_keys, unpack_ranks, unpack_scores
from drtk.indexing.vectors import Vectors
from tests.embedding_folders import write_embeddings


def build(tmp_path, vectors, ids=None, *, unit=False, index=None, folder=None, **search):
    source = write_embeddings(tmp_path / "v", vectors, ids, shard_size=7)
    folder = folder or tmp_path / "index"
    folder.mkdir(exist_ok=True)
    facts = ExactIndex.build(Vectors(read_shards(source), normalize=unit), folder, index or DenseIndexSettings())
    return ExactIndex.open(folder, DenseSearchSettings(**search)), facts


def test_scores_are_inner_products_best_first(tmp_path):
    index, facts = build(tmp_path, [[1, 0], [0, 2], [1, 1]])
    assert index.search(np.float32([[3, 1]]), 3) == [[("v2", 4.0), ("v0", 3.0), ("v1", 2.0)]]  # 3+1, 3, 2
    assert facts == {"dtype": "float32", "full": False}
    assert len(index) == 3
    # k above the number of rows
    assert index.search(np.float32([[1, 0]]), 1000) == [[("v2", 1.0), ("v0", 1.0), ("v1", 0.0)]]
    assert index.search(np.empty((0, 2), np.float32), 5) == []


@pytest.mark.parametrize("rows", [1, 65, 130])
def test_equal_vectors_get_equal_scores_in_every_row(tmp_path, rows):
    vector = np.random.default_rng(0).standard_normal(384)
    index, _ = build(tmp_path, np.tile(vector, (rows, 1)), block=64)
    for queries in (1, 5, 40):
        actual = index.search(np.random.default_rng(1).standard_normal((queries, 384)).astype(np.float32), rows)
        assert all(len({score for _, score in ranking}) == 1 for ranking in actual)


def test_a_query_scores_the_same_alone_and_among_others(tmp_path):
    random = np.random.default_rng(0)
    vectors = random.standard_normal((200, 48))
    index, _ = build(tmp_path, vectors, block=64)
    queries = random.standard_normal((70, 48)).astype(np.float32)
    together = index.search(queries, 20)
    best = (queries @ vectors.T).argmax(axis=1)  # in all four blocks
    assert [ranking[0][0] for ranking in together] == [f"v{row}" for row in best]
    assert [index.search(query[None], 20)[0] for query in queries] == together


def test_half_precision_is_rescored_exactly(tmp_path):
    # 1 and 1 + 2**-12 are the same float16, so only the exact vectors tell them apart.
    vectors = [[1.0], [1 + 2**-12], [0.5]]
    settings = DenseIndexSettings(vector_dtype="float16")
    index, facts = build(tmp_path, vectors, ["z", "a", "m"], index=settings)
    assert facts == {"dtype": "float16", "full": True}
    assert index.search(np.float32([[1]]), 2) == [[("a", 1 + 2**-12), ("z", 1.0)]]
    assert index.search(np.float32([[1]]), 1) == [[("a", 1 + 2**-12)]]  # more than k candidates are rescored
    coarse = ExactIndex.open(tmp_path / "index", DenseSearchSettings(rescore=0))
    assert coarse.search(np.float32([[1]]), 2) == [[("z", 1.0), ("a", 1.0)]]


def test_int8_has_a_scale_for_each_dimension(tmp_path):
    # Steps are 127/127 = 1 and 0.127/127 = 0.001: the small dimension keeps its two digits beside the large one.
    vectors = [[127, 0.05], [100, -0.127], [-3, 0.0]]
    index, facts = build(tmp_path, vectors, index=DenseIndexSettings(vector_dtype="int8", full=False))
    assert facts == {"dtype": "int8", "full": False}
    ((best, middle, worst),) = index.search(np.float32([[0, 1000]]), 3)
    assert [best[0], middle[0], worst[0]] == ["v0", "v2", "v1"]
    assert [best[1], middle[1], worst[1]] == pytest.approx([50, 0, -127], abs=1e-3)
    assert np.load(tmp_path / "index" / "vectors.npy").tolist() == [[127, 50], [100, -127], [-3, 0]]
    rescored, _ = build(tmp_path / "full", vectors, index=DenseIndexSettings(vector_dtype="int8"))
    (ranking,) = rescored.search(np.float32([[0, 1000]]), 3)
    assert [score for _, score in ranking] == pytest.approx([50, 0, -127], abs=1e-3)


def test_cosine_scales_vectors_to_length_one_and_keeps_zeros(tmp_path):
    index, _ = build(tmp_path, [[3, 4], [0, 0], [10, 0]], unit=True)
    ((first, second, third),) = index.search(np.float32([[1, 0]]), 3)
    assert (first, third) == (("v2", 1.0), ("v1", 0.0))
    assert second == ("v0", pytest.approx(0.6))  # 3/5


def test_a_vector_with_nan_is_reported_with_its_id(tmp_path):
    source = write_embeddings(tmp_path / "v", [[1.0], [2.0]])
    np.save(tmp_path / "v" / "00000.npy", np.float32([[1], [np.nan]]))
    (tmp_path / "i").mkdir()
    with pytest.raises(DrtkError, match=r"00000\.npy: row 1: the vector of 'v1' contains NaN or infinity"):
        ExactIndex.build(Vectors(read_shards(source)), tmp_path / "i", DenseIndexSettings())


def test_a_full_disk_and_a_damaged_index_are_errors(tmp_path):
    build(tmp_path, [[1.0], [2.0]])
    (tmp_path / "index" / "vectors.npy").write_bytes(b"torn")
    with pytest.raises(DrtkError, match=r"vectors\.npy: is damaged; rebuild the folder"):
        ExactIndex.open(tmp_path / "index", DenseSearchSettings())
    (tmp_path / "index" / "vectors.npy").unlink()
    (tmp_path / "index" / "vectors.npy").symlink_to("/dev/full")
    with pytest.raises(DrtkError, match=r"vectors.npy: No space left on device"):
        build(tmp_path / "more", np.ones((7, 10_000)), folder=tmp_path / "index")


def test_different_dimensions_and_no_vectors_are_rejected(tmp_path):
    folders = [write_embeddings(tmp_path / "a", [[1.0]]), write_embeddings(tmp_path / "b", [[1.0, 2.0]])]
    shards = [shard for folder in folders for shard in read_shards(folder)]
    with pytest.raises(MismatchError, match="has vectors of dimension 2"):
        Vectors(shards)
    with pytest.raises(DrtkError, match="no vectors"):
        Vectors([])
    with pytest.raises(DrtkError, match="too large for float16"):
        build(tmp_path, [[1e6]], index=DenseIndexSettings(vector_dtype="float16"))


def test_keys_hold_score_and_rank():
    scores = torch.tensor([-torch.inf, -3.5, -1e-40, -0.0, 0.0, 1e-40, 2.0, 2.0 + 2**-22])
    keys = pack_sort_keys(scores, torch.tensor(7))
    assert keys[3] == keys[4]  # -0.0 is 0.0
    assert (keys.diff() >= 0).all()
    assert pack_sort_keys(scores[6:7], torch.tensor(2**32 - 1)) < pack_sort_keys(scores[7:], torch.tensor(0))
    assert (unpack_scores(keys) == scores).all()
    assert (unpack_ranks(keys) == 7).all()
    assert pack_sort_keys(scores[0], torch.tensor(0)) == exact.EMPTY_KEY


@pytest.mark.parametrize(("rows", "k"), [(150, 20), (150, 150), (2, 2), (1, 1)])
def test_several_devices_give_the_hits_of_one(tmp_path, monkeypatch, rows, k):
    random = np.random.default_rng(4)
    vectors, queries = random.integers(-1, 2, (rows, 3)), random.integers(-2, 3, (9, 3)).astype(np.float32)
    one, _ = build(tmp_path, vectors, [f"v{row}" for row in random.permutation(rows)], block=16, device="cpu")
    expected = one.search(queries, k)
    for count in (2, 3):
        monkeypatch.setattr(exact, "list_devices", lambda name, count=count: [torch.device("cpu")] * count)
        several = ExactIndex.open(tmp_path / "index", DenseSearchSettings(block=1))
        assert len(several._shards) == min(count, rows)
        assert several.search(queries, k) == expected
    assert len(ExactIndex.open(tmp_path / "index", DenseSearchSettings(block=150))._shards) == 1


def test_one_pass_over_the_vectors_serves_many_queries_and_rankings_are_made_in_groups(tmp_path, monkeypatch):
    random = np.random.default_rng(6)
    index, _ = build(tmp_path, random.integers(-2, 3, (90, 4)), device="cpu")
    queries = random.integers(-2, 3, (40, 4)).astype(np.float32)
    expected = index.search(queries, 20)
    passes, groups = [], []
    monkeypatch.setattr(exact, "HITS_AT_A_TIME", 100)
    monkeypatch.setattr(exact, "_BUFFER", 10)
    monkeypatch.setattr(exact, "_KEYS_PER_PASS", 1500)
    index._group_size = 8
    search_pass, make_rankings = index._find_top_keys, index.ids.make_rankings
    monkeypatch.setattr(index, "_find_top_keys", lambda *args: [passes.append(len(args[0])), search_pass(*args)][1])
    monkeypatch.setattr(
        index.ids, "make_rankings", lambda *args: [groups.append(len(args[0])), make_rankings(*args)][1]
    )
    rankings = index.iter_rankings(queries, 20)
    assert next(rankings) == expected[0]
    assert (passes, groups) == ([30], [5])  # 1500 / (20 + 30) queries, 100 / 20 rankings
    assert [*rankings] == expected[1:]
    assert (passes, groups) == ([30, 10], [5] * 8)


def test_batches_are_passes_unless_a_cpu_has_all_vectors_in_memory(tmp_path, monkeypatch):
    half = DenseIndexSettings(vector_dtype="float16")
    index, _ = build(tmp_path, np.ones((300, 2)), index=half, device="cpu")
    assert index.get_batch_size(100) == 1024
    monkeypatch.setattr(exact.os, "sysconf", lambda name: 32)  # 1,024 bytes; the vectors have 1,200
    # 4 candidates per result, at most all; a buffer of as many and 256 more
    assert index.get_batch_size(100) == index.get_batch_size(1000) == 2**26 // (300 + 556)
    assert index.get_batch_size(10) == 2**26 // (40 + 296)


def test_auto_and_cuda_search_on_all_gpus_of_nvidia(monkeypatch):
    monkeypatch.setattr(exact, "choose_device", lambda name: torch.device("cuda" if name == "auto" else name))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert exact.list_devices("auto") == exact.list_devices("cuda") == [torch.device("cuda", at) for at in range(3)]
    assert exact.list_devices("cuda:1") == [torch.device("cuda:1")]
    # Apple's GPU encodes queries, but the CPU searches.
    monkeypatch.setattr(exact, "choose_device", lambda _: torch.device("mps"))
    assert exact.list_devices("auto") == exact.list_devices("mps") == [torch.device("cpu")]


def test_smaller_blocks_are_used_if_gpu_memory_runs_out(tmp_path, monkeypatch):
    random = np.random.default_rng(4)
    index, _ = build(tmp_path, random.integers(-1, 2, (300, 3)), block=256)
    queries = random.integers(-2, 3, (9, 3)).astype(np.float32)
    expected, sizes, most = index.search(queries, 20), [], 100
    iter_blocks = exact._iter_blocks

    def run_out(shard, size):
        sizes.append(size)
        if size > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return iter_blocks(shard, size)

    monkeypatch.setattr(exact, "_iter_blocks", run_out)
    monkeypatch.setattr(exact, "_MIN_BLOCK", 32)
    assert index.search(queries, 20) == index.search(queries, 20) == expected
    assert sizes == [256, 128, 64, 64]
    most = 10
    with pytest.raises(DrtkError, match="cpu: out of memory; lower `block`"):
        index.search(queries, 20)


def test_a_query_with_equal_scores_does_not_need_memory_for_all_queries(monkeypatch):
    monkeypatch.setattr(exact, "_BUFFER", 50)
    shapes, take_largest = [], exact._take_largest
    monkeypatch.setattr(exact, "_take_largest", lambda *args: [shapes.append(args[0].shape), take_largest(*args)][1])
    top = exact.TopKeys(2, 5, torch.device("cpu"))
    candidates = pack_sort_keys(torch.ones(503), torch.randperm(503))
    top.add(torch.tensor([0] * 3 + [1] * 500), candidates)
    keys = top.get_keys().sort(descending=True).values
    assert keys[0].tolist() == [*candidates[:3].sort(descending=True).values, exact.EMPTY_KEY, exact.EMPTY_KEY]
    assert keys[1].tolist() == candidates[3:].sort(descending=True).values[:5].tolist()
    assert {*shapes} == {(2, 60)}


@pytest.mark.parametrize("block", [1, 7, 50, 400])
def test_top_keys_of_blocks_equal_top_keys_of_all_scores(block, monkeypatch):
    monkeypatch.setattr(exact, "_BUFFER", 3)
    scores = torch.randint(0, 60, (20, 400), generator=torch.Generator().manual_seed(0)).float()  # with ties
    scores[0] = scores[0].sort().values  # each block is better than those before
    top, ranks = exact.TopKeys(20, 30, torch.device("cpu")), torch.arange(400)
    for start in range(0, 400, block):
        top.add_scores(scores[:, start : start + block], ranks[start : start + block])
    expected = pack_sort_keys(scores, ranks.expand(20, 400)).topk(30).values
    assert top.get_keys().sort(descending=True).values.equal(expected)


def test_candidates_of_several_blocks_are_merged_at_once(monkeypatch):
    merges, merge = [], exact.TopKeys._merge
    monkeypatch.setattr(exact.TopKeys, "_merge", lambda self: [merges.append(1), merge(self)][1])
    top = exact.TopKeys(5, 10, torch.device("cpu"))
    scores = torch.rand(5, 4000, generator=torch.Generator().manual_seed(0))
    for number, block in enumerate(scores.split(100, dim=1)):
        top.add_scores(block, torch.arange(number * 100, number * 100 + 100))
        assert top.has_floor
        assert top.floor.isfinite().all()
    assert len(merges) < 10  # 40 blocks


def test_a_zero_query_and_zero_vectors_are_ties_in_half_precision(tmp_path, monkeypatch):
    index, _ = build(tmp_path, np.zeros((100, 4)), block=16)
    queries = np.zeros((2, 4), dtype=np.float32)
    expected = index.search(queries, 5)
    use_half_precision(index, monkeypatch)
    assert index.search(queries, 5) == expected


def use_half_precision(index, monkeypatch):
    """Let an index on the CPU select candidates in float16, as on a GPU; return a list of the numbers of pairs scored."""
    index._product_dtype, numbers, sum_products = torch.float16, [], torch.Tensor.sum
    monkeypatch.setattr(
        torch.Tensor, "sum", lambda self, **args: [numbers.append(len(self)), sum_products(self, **args)][1]
    )
    return numbers


def list_hits(rankings):
    return [[hit for hit, _ in ranking] for ranking in rankings]


def test_pairs_are_scored_in_whole_tiles(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    index, _ = build(tmp_path, random.standard_normal((300, 8)), block=64)
    queries = random.standard_normal((3, 8)).astype(np.float32)
    expected, numbers = index.search(queries, 5), use_half_precision(index, monkeypatch)
    assert list_hits(index.search(queries, 5)) == list_hits(expected)
    assert numbers
    assert all(number % 64 == 0 for number in numbers)


def test_a_common_part_of_all_vectors_adds_no_candidates(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    spread, part = random.standard_normal((2000, 24)), 40 * random.standard_normal(24)
    queries = (random.standard_normal((32, 24)) + part).astype(np.float32)
    totals = []
    for vectors in (spread, spread + part):
        index, _ = build(tmp_path / str(len(totals)), vectors, block=2048)
        expected, numbers = index.search(queries, 10), use_half_precision(index, monkeypatch)
        assert list_hits(index.search(queries, 10)) == list_hits(expected)
        totals.append(sum(numbers))
        monkeypatch.undo()
    assert totals[0] < 2 * 10 * 32  # results and queries
    assert totals[1] < 1.5 * totals[0]


@pytest.mark.gpu
def test_equal_vectors_get_equal_scores_on_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(exact, "_GPU_BLOCK", 512)
    random = np.random.default_rng(8)
    vectors = random.standard_normal((5000, 384))
    vectors[::97] = vectors[0]
    index, _ = build(tmp_path, vectors, block=512, device="cuda")
    for queries in (vectors[:1], vectors[:40]):
        ranking = index.search(queries.astype(np.float32), 60)[0]
        assert len({score for _, score in ranking[:52]}) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])  # whole numbers are exact in both
def test_gpus_give_the_ranking_of_the_cpu_ties_included(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(exact, "_GPU_BLOCK", 512)
    random = np.random.default_rng(8)
    vectors, queries = random.integers(-3, 4, (5000, 24)), random.integers(-3, 4, (50, 24)).astype(np.float32)
    settings = DenseIndexSettings(vector_dtype=dtype)
    cpu, _ = build(tmp_path, vectors, index=settings, device="cpu")
    gpu = ExactIndex.open(tmp_path / "index", DenseSearchSettings(device="cuda", block=512))
    assert gpu.search(queries, 100) == cpu.search(queries, 100)


@pytest.mark.parametrize("spread", [1.0, 0.01, 1e-5])  # at the last, float16 tells no passages apart
def test_products_in_half_precision_select_the_same_passages(tmp_path, monkeypatch, spread):
    random = np.random.default_rng(0)
    vectors = 50 * (random.standard_normal(24) + spread * random.standard_normal((700, 24)))
    vectors[::7] = vectors[1::7]  # ties
    index, _ = build(tmp_path, vectors, block=128)
    queries = random.standard_normal((40, 24)).astype(np.float32)
    queries[3] = 0
    expected = index.search(queries, 30)
    index._product_dtype, index._group_size = torch.float16, 32
    monkeypatch.setattr(exact, "_PAIRS", 1024)
    monkeypatch.setattr(exact, "_BUFFER", 20)
    for ranking, other in zip(index.search(queries, 30), expected, strict=True):
        assert [score for _, score in ranking] == pytest.approx([score for _, score in other], rel=1e-5, abs=1e-3)
        assert spread < 1 or [hit for hit, _ in ranking] == [hit for hit, _ in other]
    index._vectors[600, 2] = np.nan
    with pytest.raises(DrtkError, match="v600"):
        index.search(queries, 30)


def test_passages_that_float16_rounds_down_stay_candidates(tmp_path, monkeypatch):
    # 1676 / 2048 is a number of float16. The cosines are up to 0.0002 above it and rise from block to block: rounded down, all are below earlier ones.
    parts = np.split(1676 / 2048 + np.linspace(1e-6, 2e-4, 32), 4)
    longest = np.tile([[0.0, 1.0], [0.0, -1.0]], (24, 1))
    blocks = [np.concatenate([np.outer(part, [1, 0]), np.outer(part, [-1, 0]), longest]) for part in parts]
    index, _ = build(tmp_path, np.concatenate(blocks), block=64)
    query = np.array([[1.0, 0.0]], dtype=np.float32)
    expected, numbers = index.search(query, 5), use_half_precision(index, monkeypatch)
    assert index.search(query, 5) == expected
    assert numbers

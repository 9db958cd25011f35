"""drtk index --ids: faiss indexes of other programs."""

import numpy as np
import pytest

from drtk.data.arrays import scale_to_unit_length
from drtk.data.checks import find_origins
from drtk.data.embeddings import read_shards
from drtk.errors import DrtkError, MismatchError
from drtk.runtime.integrity import read_json
from drtk.serving.systems import SearchSystem
from tests.embedding_folders import write_embeddings
from tests.run_commands import run_command
from tests.tiny_models import save_tiny_encoder, write_collection

faiss = pytest.importorskip("faiss")
VECTORS = np.random.default_rng(2).normal(size=(60, 8)).astype(np.float32)


def _write(folder, factory, metric, ids=None, vectors=VECTORS):
    """Write an index and its ids, by default d0, d1, …; return their paths."""
    index = faiss.index_factory(vectors.shape[1], factory, metric)
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(folder / "index"))
    ids = ids or [f"d{number}" for number in range(60)]
    (folder / "docid").write_text("".join(f"{id}\n" for id in ids))
    return folder / "index", folder / "docid"


L2, DOT = faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT


@pytest.mark.parametrize(("factory", "metric"), [("Flat", L2), ("HNSW16", L2), ("IVF2,Flat", DOT), ("SQ8", DOT)])
def test_hits_are_those_of_faiss(factory, metric, tmp_path, capfd):
    file, ids = _write(tmp_path, factory, metric)
    run_command(capfd, "index", file, "--ids", ids, "-o", tmp_path / "imported")
    assert find_origins(str(tmp_path / "imported")) == []  # the file is not a corpus
    queries = write_embeddings(tmp_path / "queries", VECTORS[:3] + 0.1, ["q0", "q1", "q2"], role="query", encoder=None)
    nprobe = ["--nprobe", "2"] if "IVF" in factory else []
    run_command(capfd, "search", tmp_path / "imported", queries, "-k", "5", *nprobe, "-o", tmp_path / "run")
    hits = [line.split() for line in (tmp_path / "run").read_text().splitlines()]
    index = faiss.read_index(str(file))
    if "IVF" in factory:
        index.nprobe = 2
    if "HNSW" in factory:
        index.hnsw.efSearch = 128
    scores, rows = index.search(VECTORS[:3] + np.float32(0.1), 5)
    sign = -1 if metric == L2 else 1
    assert [hit[2] for hit in hits] == [f"d{row}" for row in rows.ravel()]
    np.testing.assert_allclose([float(hit[4]) for hit in hits], sign * scores.ravel(), rtol=1e-4, atol=1e-5)


def test_indexes_that_would_give_wrong_results_are_rejected(tmp_path, capfd):
    out = tmp_path / "out"
    file, ids = _write(tmp_path, "Flat", DOT, ["d1"] * 60)
    with pytest.raises(DrtkError, match=r"none.faiss: no such file; expected a faiss index"):
        run_command(capfd, "index", "none.faiss", "--ids", ids, "-o", out)
    with pytest.raises(DrtkError, match=r"docid:2: the id 'd1' occurs twice"):
        run_command(capfd, "index", file, "--ids", ids, "-o", out)
    file, ids = _write(tmp_path, "Flat", DOT, ["d1"])
    with pytest.raises(MismatchError, match="has 1 ids for 60 vectors"):
        run_command(capfd, "index", file, "--ids", ids, "-o", out)
    file, ids = _write(tmp_path, "Flat", faiss.METRIC_L1)
    with pytest.raises(MismatchError, match="use inner product or L2"):
        run_command(capfd, "index", file, "--ids", ids, "-o", out)
    for factory in ("IDMap,Flat", "IVF2,Flat"):
        index = faiss.index_factory(8, factory)
        index.train(VECTORS)
        index.add_with_ids(VECTORS, np.arange(60)[::-1] + 7)
        faiss.write_index(index, str(file))
        with pytest.raises(MismatchError, match=r"is not supported|explicit ids"):
            run_command(capfd, "index", file, "--ids", ids, "-o", out)
    with pytest.raises(DrtkError, match="is not a faiss index"):
        run_command(capfd, "index", ids, "--ids", ids, "-o", out)
    file, ids = _write(tmp_path, "Flat", L2)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DrtkError, match="may be truncated, copy it again"):
        run_command(capfd, "index", file, "--ids", ids, "-o", out)
    assert not out.exists()


@pytest.mark.parametrize("factory", ["IVF2,Flat", "PQ16x4np"])
def test_an_index_of_a_given_model_is_searched_with_texts(factory, tmp_path, capfd):
    corpus, queries, _ = write_collection(tmp_path, 60)
    model = save_tiny_encoder(tmp_path / "model", similarity="cosine")
    run_command(capfd, "encode", corpus, "--model", model, "-o", tmp_path / "vectors")
    (shard,) = read_shards(tmp_path / "vectors")
    unit = scale_to_unit_length(shard.vectors)
    out = ("--model", model, "-o", tmp_path / "imported")
    file, ids = _write(tmp_path, factory, DOT, shard.ids, unit * 3)
    with pytest.raises(MismatchError, match="the vectors do not have unit length, but"):
        run_command(capfd, "index", file, "--ids", ids, *out)
    file, ids = _write(tmp_path, factory, DOT, shard.ids, unit)
    run_command(capfd, "index", file, "--ids", ids, *out)
    assert read_json(tmp_path / "imported" / "meta.json")["counts"] == {"passages": 60}
    assert SearchSystem("imported", str(tmp_path / "imported")).group.encoder["model"] == str(model)  # as drtk serve
    run_command(capfd, "encode", queries, "--model", model, "--role", "query", "-o", tmp_path / "queries")
    by_text = run_command(capfd, "search", tmp_path / "imported", queries, "-k", "3")
    assert by_text == run_command(capfd, "search", tmp_path / "imported", tmp_path / "queries", "-k", "3")
    assert run_command(capfd, "search", tmp_path / "imported", "--query", "river", "--corpus", corpus)


def test_an_index_of_another_dimension_than_the_model_is_rejected(tmp_path, capfd):
    file, ids = _write(tmp_path, "Flat", DOT)
    model = save_tiny_encoder(tmp_path / "model")
    with pytest.raises(MismatchError, match=r"has vectors of dimension 8, but those of .*model have 32"):
        run_command(capfd, "index", file, "--ids", ids, "--model", model, "-o", tmp_path / "out")

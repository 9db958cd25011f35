"""Search: document rankings, exclusion of the query's document, and several indexes."""

import numpy as np
import pytest

from drtk.cli.search import split_paths
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.indexing import exact
from drtk.indexing.base import get_index_class
from drtk.indexing.config import IndexSettings, SearchSettings
from drtk.indexing.vectors import open_embeddings
from drtk.records import Passage, Query, parse_document_id
from drtk.retrieval.search import (
    IndexGroup,
    QueryEncoder,
    RankingOptions,
    StoredQuerySearcher,
    TextQuerySearcher,
    iter_rankings,
    search_indexes,
)
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.folder_job import FolderJob
from tests.embedding_folders import ENCODER, write_embeddings


def dense(folder, vectors, ids, *, kind="exact", encoder=ENCODER):
    """Build an index folder as drtk index does; return its name."""
    source = write_embeddings(folder.with_name(folder.name + "-v"), vectors, ids, encoder=encoder)
    rows, facts = open_embeddings([source])
    job = FolderJob("index", "index", str(folder))
    facts |= get_index_class(kind).build(rows, job.begin(), IndexSettings(), kind=kind)
    job.finish(type=kind, **facts)
    return str(folder)


def words(folder, texts):
    passages = [Passage(id, text) for id, text in texts.items()]
    job = FolderJob("index", "index", str(folder))
    get_index_class("bm25s").build(passages, job.begin(), IndexSettings())
    job.finish(type="bm25s", encoder=None, corpus=None)
    return str(folder)


def open_group(*folders, **settings):
    return IndexGroup(list(map(str, folders)), SearchSettings(**settings))


def rank(folder, options, ids=("q",)):
    """Return the rankings of queries with the vector (1)."""
    return list(iter_rankings(open_group(folder), ids, np.ones((len(ids), 1), np.float32), options))


def test_a_document_scores_as_its_best_passage_and_the_search_goes_deeper_for_enough_documents(tmp_path):
    # Document a: passages of 3 and 9; b: 5; c: 5. So a 9, then c before b, for the id is larger.
    folder = dense(tmp_path / "i", [[3.0], [9.0], [5.0], [5.0]], ["a#0", "a#1", "b#0", "c#0"])
    assert rank(folder, RankingOptions(10, parse_document_id)) == [[("a", 9.0), ("c", 5.0), ("b", 5.0)]]
    # The best 30 passages are all of document a; the next are b's and c's.
    ids = [f"a#{n}" for n in range(30)] + ["b#0", "c#0"]
    folder = dense(tmp_path / "deep", [[100.0 - n] for n in range(30)] + [[2.0], [1.0]], ids)
    assert rank(folder, RankingOptions(2, parse_document_id)) == [[("a", 100.0), ("b", 2.0)]]


def test_documents_tied_at_the_cutoff_are_ordered_by_descending_id(tmp_path):
    # k = 2 of four documents of equal score, whatever the order of their passages in the index
    ids = ["a#9", "b#8", "c#7", "d#6"]
    index = dense(tmp_path / "i", np.ones((4, 1)), ids)
    other_documents = dict(zip(ids, ["z1", "z2", "z3", "a"], strict=True)).__getitem__
    for by, expected in ((parse_document_id, ["d", "c"]), (other_documents, ["z3", "z2"])):
        assert rank(index, RankingOptions(2, by)) == [[(id, 1.0) for id in expected]]


def test_the_querys_own_document_is_replaced_by_the_next(tmp_path):
    folder = dense(tmp_path / "i", [[3.0], [2.0], [1.0]], ["q1", "b", "c"])
    actual = rank(folder, RankingOptions(2, drop_same_id=True), ["q1", "q2"])
    assert actual == [[("b", 2.0), ("c", 1.0)], [("q1", 3.0), ("b", 2.0)]]


@pytest.mark.parametrize("kind", ["exact", "flat"])
def test_several_indexes_rank_as_one_index_of_everything(tmp_path, kind):
    if kind == "flat":
        pytest.importorskip("faiss")
    random = np.random.default_rng(2)
    vectors, queries = random.integers(-3, 4, (90, 6)), random.integers(-3, 4, (12, 6)).astype(np.float32)
    ids = [f"p{n}" for n in range(90)]
    whole = dense(tmp_path / "whole", vectors, ids, kind=kind)
    parts = [dense(tmp_path / f"part{n}", vectors[n::3], ids[n::3], kind=kind) for n in range(3)]
    assert open_group(*parts).search(queries, 20) == open_group(whole).search(queries, 20)
    assert len(open_group(*parts)) == 90


def test_a_passage_in_two_indexes_is_rejected(tmp_path):
    one, two = dense(tmp_path / "one", [[1.0], [2.0]], ["a", "b"]), dense(tmp_path / "two", [[3.0]], ["b"])
    with pytest.raises(MismatchError, match=r"passage 'b' is in .*one and in .*two"):
        open_group(one, two).search(np.float32([[1]]), 5)


def test_indexes_and_queries_that_do_not_fit_are_rejected(tmp_path):
    one = dense(tmp_path / "one", [[1.0]], ["a"])
    wider = dense(tmp_path / "w", [[1.0, 2.0]], ["c"])
    bm25 = words(tmp_path / "b", {"d": "word"})
    encoder = ENCODER | {"digest": "2" * 32}
    others = [dense(tmp_path / "e", [[1.0]], ["b"], encoder=encoder), wider, bm25]
    for other, problem in zip(others, ["another encoder", "dimension 2, not 1", "type bm25s, not exact"], strict=True):
        with pytest.raises(MismatchError, match=problem):
            open_group(one, other)
    with pytest.raises(MismatchError, match="dimension 2, but the query vectors have dimension 3"):
        open_group(wider).search(np.ones((1, 3), np.float32), 1)
    with pytest.raises(UsageError, match="does not record the encoder"):
        QueryEncoder(open_group(dense(tmp_path / "n", [[1.0]], ["a"], encoder=None)), SearchSettings())(["a query"])
    passages = write_embeddings(tmp_path / "p", [[1.0]])
    queries = write_embeddings(tmp_path / "o", [[1.0]], role="query", encoder=encoder)
    for index, source, problem in (
        (one, passages, "contains passage embeddings"),
        (one, queries, "the encoder differs"),
        (bm25, queries, "is a sparse index"),
    ):
        with pytest.raises(MismatchError, match=problem):
            StoredQuerySearcher(open_group(index), source)


def test_an_empty_query_finds_nothing(tmp_path):
    ask = TextQuerySearcher(open_group(words(tmp_path / "b", {"d1": "red wing", "d2": "blue wing"})), None)
    queries = [Query("q1", "red"), Query("q2", " \t"), Query("q3", "blue")]
    actual = dict(ask(queries, RankingOptions(1)))
    assert [actual[id][0][0] if actual[id] else None for id in ("q1", "q2", "q3")] == ["d1", None, "d2"]
    assert list(actual) == ["q1", "q2", "q3"]


def test_stored_vectors_are_queries(tmp_path):
    folder = dense(tmp_path / "i", [[1.0, 0], [0, 1]], ["a", "b"])
    source = write_embeddings(tmp_path / "q", [[2, 1], [0, 5]], ["q1", "q2"], role="query", shard_size=1)
    ask = StoredQuerySearcher(open_group(folder), source)
    assert dict(ask(list(ask), RankingOptions(2))) == {"q1": [("a", 2.0), ("b", 1.0)], "q2": [("b", 5.0), ("a", 0.0)]}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["exact", "flat"])
def test_non_finite_query_vectors_are_reported(tmp_path, kind, bad):
    folder = dense(tmp_path / "i", [[1.0, 0], [0, 1]], ["a", "b"], kind=kind)
    source = write_embeddings(tmp_path / "q", [[2, 1], [0, 5], [1, 1]], ["q1", "q2", "q3"], role="query", shard_size=2)
    np.save(tmp_path / "q" / "00000.npy", np.float32([[2, 1], [0, bad]]))
    ask = StoredQuerySearcher(open_group(folder), source)
    with pytest.raises(DrtkError, match="query 'q2': the vector contains NaN or infinity"):
        dict(ask(list(ask), RankingOptions(2)))
    with pytest.raises(DrtkError, match="query 'q2': the vector contains NaN or infinity"):
        list(iter_rankings(open_group(folder), ["q1", "q2"], np.float32([[1, 1], [0, bad]]), RankingOptions(2)))


def test_non_finite_scores_of_passages_are_reported(tmp_path):
    for kind in ("exact", "flat"):
        folder = dense(tmp_path / kind, [[1e30, 0], [0, 1]], ["a", "b"], kind=kind)
        with pytest.raises(DrtkError, match=rf"{kind}: the score of 'a' is NaN or infinite"):
            open_group(folder).search(np.float32([[1e30, 1]]), 1)  # overflows
    for bad in (np.nan, np.inf):
        np.save(tmp_path / "exact" / "vectors.npy", np.float32([[1, 0], [0, bad]]))
        with pytest.raises(DrtkError, match=r"exact: the score of 'b' is NaN or infinite"):
            open_group(tmp_path / "exact").search(np.float32([[1, 1]]), 1)


def test_queries_are_scaled_to_length_one_for_cosine(tmp_path):
    cosine = ENCODER | {"similarity": "cosine", "normalized": False}
    folder = dense(tmp_path / "i", [[10.0, 0], [3, 4]], ["a", "b"], encoder=cosine)
    ((first, second),) = open_group(folder).search(np.float32([[0, 7]]), 2)
    assert (first[0], first[1], second[1]) == ("b", pytest.approx(0.8), 0.0)  # 4/5


def test_the_batch_is_a_pass_over_the_vectors_unless_rankings_are_kept_in_memory(tmp_path, monkeypatch):
    index = dense(tmp_path / "i", np.eye(3), ["a#1", "b#1", "c#1"])
    queries = write_embeddings(tmp_path / "q", np.eye(3), ["x", "y", "z"], role="query", encoder=ENCODER)
    monkeypatch.setattr(exact.os, "sysconf", lambda name: 1)  # the vectors exceed the memory
    monkeypatch.setattr(exact, "_BUFFER", 0)

    def run(depth=2, by=None, **given):
        job = FilterJob("search", "run", str(tmp_path / "run"), force=True)
        search_indexes([index], queries, SearchSettings(depth=depth, **given), job, options=RankingOptions(depth, by))
        return job.batch_size

    assert (run(), run(batch_size=2)) == (2**24, 2)
    assert run(by=parse_document_id) == 2**20  # of 2**21 hits
    assert (tmp_path / "run").read_text().splitlines()[0] == "x Q0 a 1 1.0 drtk"
    monkeypatch.undo()
    assert run() == 1024
    group = open_group(words(tmp_path / "words", {"a": "b"}))
    assert group.get_batch_size(10, as_lists=False) == 1000


def test_an_interrupted_pass_is_repeated_by_resume(tmp_path, monkeypatch):
    index = dense(tmp_path / "i", np.eye(7), [f"p{n}" for n in range(7)])
    queries = write_embeddings(tmp_path / "q", np.eye(7), [f"q{n}" for n in range(7)], role="query", encoder=ENCODER)
    monkeypatch.setattr(exact.os, "sysconf", lambda name: 1)
    monkeypatch.setattr(exact, "_BUFFER", 0)
    monkeypatch.setattr(exact, "_KEYS_PER_PASS", 18)
    monkeypatch.setattr(exact, "_GROUP_SIZE", 1)
    passes = []
    find = exact.ExactIndex._find_top_keys

    def find_or_fail(self, vectors, depth):
        passes.append(len(vectors))
        if len(passes) == 2:
            raise KeyboardInterrupt
        return find(self, vectors, depth)

    monkeypatch.setattr(exact.ExactIndex, "_find_top_keys", find_or_fail)

    def run(name, **options):
        job = FilterJob("search", "run", str(tmp_path / name), **options)
        search_indexes([index], queries, SearchSettings(depth=3), job)

    with pytest.raises(KeyboardInterrupt):
        run("part")
    run("part", resume=True)
    assert passes == [3, 3, 3, 1]
    run("whole")
    assert (tmp_path / "part").read_bytes() == (tmp_path / "whole").read_bytes()


def test_an_index_is_made_of_passages_of_one_encoder_and_of_no_part_twice(tmp_path):
    one = write_embeddings(tmp_path / "one", [[1.0]], ["a"], part=(1, 2))
    for problem, more in {
        "is part 1 of 2, like": {"part": (1, 2)},
        "model or settings differ": {"encoder": ENCODER | {"digest": "2" * 32}},
        "contains vectors of queries; give passage embeddings": {"role": "query"},
    }.items():
        with pytest.raises(MismatchError, match=problem):
            open_embeddings([one, write_embeddings(tmp_path / problem[:8], [[1.0]], ["b"], **more)])
    vectors, facts = open_embeddings([one, write_embeddings(tmp_path / "two", [[2.0]], ["d"], part=(2, 2))])
    assert list(vectors.iter_ids()) == ["a", "d"]
    assert (facts["encoder"], facts["dimension"], facts["corpus"]) == (ENCODER, 1, None)


def test_paths_are_indexes_and_one_source_of_queries(tmp_path):
    index = dense(tmp_path / "i", [[1.0]], ["a"])
    vectors = write_embeddings(tmp_path / "q", [[1.0]], role="query")
    (tmp_path / "queries.jsonl").write_text("")
    file = str(tmp_path / "queries.jsonl")
    assert split_paths([index]) == ([index], None)
    for queries in (file, "-", vectors):
        assert split_paths([queries, index]) == ([index], queries)
    (tmp_path / "empty").mkdir()
    begun = FolderJob("index", "index", str(tmp_path / "begun")).begin()
    model = FolderJob("train-retriever", "model", str(tmp_path / "model"))
    model.begin()
    model.finish()
    for paths, error, problem in [
        ([file], UsageError, "not an index; make one with"),
        ([index, file, "-"], UsageError, "give only one query source"),
        ([index, index], UsageError, "given twice"),
        ([index, str(tmp_path / "nowhere")], DrtkError, "No such file or directory"),
        ([str(begun), file], MismatchError, "unfinished"),
        ([str(tmp_path / "begun"), file], MismatchError, "begun: is unfinished; run its command again with `force`"),
        ([str(tmp_path / "empty"), file], MismatchError, "not an index"),
        ([str(tmp_path / "model"), file], MismatchError, "is of kind 'model'; expected 'index'"),
    ]:
        with pytest.raises(error, match=problem):
            split_paths(paths)

"""Sentence measures by hand-computed values, and the protocol of the transfer tasks."""

import numpy as np
import pytest

from drtk.errors import DrtkError
from drtk.evaluation import transfer
from drtk.evaluation.sentences import (
    compute_alignment,
    compute_pair_cosines,
    compute_partner_ranks,
    compute_spearman,
    compute_uniformity,
)

THREE = np.array([[1, 0], [0.8, 0.6], [0, 1]], dtype=np.float32)


def test_uniformity_and_alignment(monkeypatch: pytest.MonkeyPatch) -> None:
    for predicted, rated in (([0.5], [1.0]), ([0.5, 0.5], [1, 2]), ([0.1, 0.2], [3, 3])):
        with pytest.raises(DrtkError, match=r"a correlation requires|the correlation is undefined"):
            compute_spearman(predicted, rated)
    with pytest.raises(DrtkError, match="a positive pair"):
        compute_alignment(THREE[:0], THREE[:0])
    with pytest.raises(DrtkError, match="two sentences"):
        compute_uniformity(THREE[:1])
    assert compute_uniformity(THREE) == pytest.approx(-1.499775, abs=2e-6)  # squared distances .4 2 .8
    assert compute_alignment(THREE[:1], 3 * THREE[1:2]) == pytest.approx(0.4, abs=2e-6)  # lengths do not matter
    vectors = np.random.default_rng(0).normal(size=(50, 4))
    whole = compute_uniformity(vectors)
    monkeypatch.setattr("drtk.evaluation.sentences._BLOCK", 7)
    assert compute_uniformity(vectors) == pytest.approx(whole, abs=1e-12)


def test_cosines_of_tiny_and_huge_vectors() -> None:
    # (3, 4) and (4, 3): 24 / 25
    for size in (1e-310, 3e-158, 1.0, 1e200):
        result = compute_pair_cosines(np.array([[3, 4]]) * size, np.array([[4, 3]]) * size)
        assert result == pytest.approx([0.96], abs=1e-12)


def test_partner_rank_excludes_copies_of_the_query() -> None:
    # cosines of sentence 0: with 1 .8, 2 0, 3 (a copy of 0) 1, 4 .6. Without its copy, 1 is first, 4 second, 2 third.
    # Cosines of sentence 2: with 1 .6, 4 .8, so 1 is second
    vectors = np.array([[1, 0], [0.8, 0.6], [0, 1], [1, 0], [0.6, 0.8]])
    texts = [0, 1, 2, 0, 3]
    assert compute_partner_ranks(vectors, texts, [0, 0, 0, 2], [1, 4, 2, 1]).tolist() == [1, 2, 3, 2]
    assert compute_partner_ranks(vectors, texts, [0], [3]).tolist() == [1]  # a partner of the same text
    equal = np.array([[1.0, 0], [0.8, 0.6], [0.8, -0.6]])  # a sentence as near as the partner does not push it down
    assert compute_partner_ranks(equal, [0, 1, 2], [0, 0], [1, 2]).tolist() == [1, 1]


def test_folds_are_disjoint_and_stratified() -> None:
    classes = np.array([0] * 25 + [1] * 15)
    tests = [test for _, test in transfer.split_folds(classes, 5, seed=1)]
    assert sorted(np.concatenate(tests).tolist()) == list(range(40))
    assert [int((classes[test] == 1).sum()) for test in tests] == [3] * 5
    assert [len(test) for test in tests] == [8] * 5
    for train, test in transfer.split_folds(classes, 5, seed=1):
        assert set(train) & set(test) == set()
    with pytest.raises(DrtkError, match="got 3"):
        list(transfer.split_folds(np.array([0] * 9 + [1] * 3), 5, seed=1))


def make_clouds(count: int, distance: float, seed: int = 0) -> transfer.LabeledVectors:
    """Return points of two classes, `distance` standard deviations apart."""
    rng = np.random.default_rng(seed)
    classes = np.arange(count) % 2
    vectors = rng.normal(size=(count, 4)).astype(np.float32)
    vectors[:, 0] += distance * (classes - 0.5)
    return transfer.LabeledVectors(vectors, classes.astype(np.int64))


def test_classifier_separates_separable_classes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FOLDS", 2), ("BATCH", 8), ("MAX_EPOCHS", 12), ("PENALTIES", (1e-5, 1e-2))):
        monkeypatch.setattr(transfer, name, value)  # enough steps for few examples
    train, dev, test = make_clouds(60, 12.0), make_clouds(40, 12.0, seed=2), make_clouds(40, 12.0, seed=1)
    separable = transfer.cross_validate(train, seed=1111)
    assert separable.accuracy > 0.95
    assert transfer.cross_validate(train, seed=1111) == separable
    assert 0.2 < transfer.cross_validate(make_clouds(60, 0.0), seed=1111).accuracy < 0.8
    assert transfer.evaluate_with_folds(train, test, seed=1111).accuracy > 0.95
    scores = transfer.evaluate_with_dev(train, dev, test, seed=1111)
    assert scores.accuracy > 0.95
    assert scores.f1 is not None
    assert scores.f1 > 0.95


def test_f1_of_class_one() -> None:
    # predicted 1: rows 0 1 2, of which 0 1 are right; class 1: rows 0 1 3 4. F1 = 2*2 / (3 + 4)
    assert transfer.compute_f1(np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 1, 1])) == pytest.approx(4 / 7)


def test_features_of_a_pair_are_difference_and_product() -> None:
    result = transfer.make_pair_features(np.array([[1.0, 2]]), np.array([[3.0, 1]]))
    assert result.tolist() == [[2, 1, 3, 2]]


def test_labels_have_the_same_numbers_in_all_splits() -> None:
    assert [part.tolist() for part in transfer.encode_labels([["1", "0"], ["0", "1", "1"]])] == [[1, 0], [0, 1, 1]]
    with pytest.raises(DrtkError, match="two classes"):
        transfer.encode_labels([["a", "a"]])

"""The contrastive term distribution of B-PROP, against the three documents worked out in methods, section 3.1."""

from __future__ import annotations

from math import exp, log2, sqrt

import pytest

from drtk.expansion.term_weights.bprop import contrasted, gathered, normalised, saturated, softmax

OCCURRENCES = [
    [("the", 0.02), ("heart", 0.06), ("disease", 0.04), ("of", 0.02), ("heart", 0.02)],
    [("the", 0.03), ("stock", 0.05), ("market", 0.04), ("of", 0.01)],
    [("the", 0.04), ("heart", 0.03), ("of", 0.02), ("stock", 0.01)],
]


def documents() -> list[dict[str, float]]:
    """Steps C and D of the three."""
    return [
        {word: saturated(value, "ratio") for word, value in gathered(occurrences).items()}
        for occurrences in OCCURRENCES
    ]


def collection() -> dict[str, float]:
    """Step F: sums over the documents, brought to a sum of 1."""
    sums: dict[str, float] = {}
    for document in documents():
        for word, value in document.items():
            sums[word] = sums.get(word, 0.0) + value
    return normalised(sums)


def scores(number: int) -> dict[str, float]:
    shares = collection()
    return contrasted(normalised(documents()[number]), shares, "cross-entropy", unseen=min(shares.values()))


def test_occurrences_add_up_or_the_largest_counts() -> None:
    assert gathered(OCCURRENCES[0])["heart"] == pytest.approx(0.08)
    assert gathered(OCCURRENCES[0], by="max")["heart"] == pytest.approx(0.06)


def test_attention_saturates() -> None:
    expected = {"the": 0.666667, "heart": 0.888889, "disease": 0.8, "of": 0.666667}
    assert documents()[0] == pytest.approx(expected, abs=2e-6)
    assert saturated(0.04, "sqrt") == pytest.approx(sqrt(0.04))
    assert saturated(0.03, "sigmoid") == pytest.approx(1 / (1 + exp(-2)))  # -200 (.03 - .02) = -2


def test_the_collection_gives_each_word_its_share() -> None:
    expected = {
        "the": 0.257088,
        "heart": 0.190077,
        "disease": 0.092784,
        "of": 0.212629,
        "stock": 0.154639,
        "market": 0.092784,
    }
    assert collection() == pytest.approx(expected, abs=2e-6)


def test_a_document_gives_each_word_its_share() -> None:
    expected = {"the": 0.220588, "heart": 0.294118, "disease": 0.264706, "of": 0.220588}
    assert normalised(documents()[0]) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, {"the": 0.432280, "heart": 0.704512, "disease": 0.907938, "of": 0.492704}),
        (1, {"the": 0.509740, "of": 0.387328, "stock": 0.778330, "market": 0.951673}),
        (2, {"the": 0.577080, "heart": 0.661291, "of": 0.548120, "stock": 0.495648}),
    ],
)
def test_scores_are_shares_times_the_information_of_the_collection(number: int, expected: dict[str, float]) -> None:
    assert scores(number) == pytest.approx(expected, abs=2e-6)


def test_the_softmax_of_the_scores_is_flat() -> None:
    expected = {"the": 0.200632, "heart": 0.263408, "disease": 0.322831, "of": 0.213129}
    assert softmax(scores(0), temperature=1.0) == pytest.approx(expected, abs=2e-6)


def test_scores_by_their_maximum() -> None:
    found = scores(0)
    expected = {"the": 0.476111, "heart": 0.775948, "disease": 1.0, "of": 0.542662}
    assert {word: value / max(found.values()) for word, value in found.items()} == pytest.approx(expected, abs=2e-6)


def test_the_difference_keeps_what_the_document_has_more_of() -> None:
    here, there = {"the": 0.2, "heart": 0.8}, {"the": 0.5, "heart": 0.5}
    assert contrasted(here, there, "difference", unseen=0.5) == pytest.approx({"the": 0.0, "heart": 0.3})


def test_a_word_the_collection_lacks_is_as_rare_as_its_rarest() -> None:
    assert contrasted({"new": 0.5}, {"old": 0.25}, "cross-entropy", unseen=0.25) == {"new": 0.5 * 2}  # -log2 .25 = 2


def test_words_with_other_signs_than_letters_weigh_nothing() -> None:
    found = contrasted({"b2": 0.5, "heart": 0.5}, {"b2": 0.5, "heart": 0.5}, "cross-entropy", unseen=0.5)
    assert found == {"b2": 0.0, "heart": 0.5}
    assert softmax(found | {"lung": 0.5}, temperature=1.0) == {"b2": 0.0, "heart": 0.5, "lung": 0.5}


def test_no_score_is_above_a_hundred() -> None:
    assert contrasted({"w": 1.0}, {"w": 1e-40}, "cross-entropy", unseen=1e-40) == {"w": 100.0}
    assert -log2(1e-40) > 100

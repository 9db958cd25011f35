"""Count-based term weights on the example corpora of docs/methods/term-weights.md and docs/commands/index.md."""

from math import log

import pytest

from drtk.expansion.config import WeightingSettings
from drtk.expansion.term_weights.base import CollectionStatistics, SplitPassage
from drtk.expansion.term_weights.count_based import Bm25, Idf, InverseFrequency, TfIdf, compute_idf, is_word
from drtk.records import Passage


def split_text(text: str) -> SplitPassage:
    words = text.split()
    return SplitPassage(Passage("p", text), [*range(len(words))], 0, words, [*range(len(words))])


def statistics(*texts: str) -> CollectionStatistics:
    results = CollectionStatistics("counts", {})
    for text in texts:
        words = text.split()
        results.add({word: [1, words.count(word)] for word in words}, length=sum(map(is_word, words)))
    return results


def weights(kind: type, collection: CollectionStatistics, text: str, **changes: float) -> list[float]:
    return kind(WeightingSettings(**changes), collection, None)([split_text(text)])[0]


CATS = statistics("the cat sat", "the dog sat", "the perveance beam")


def test_tf_idf_of_masters_paper_and_inverse_frequency_of_its_code():
    # the: 1/3 log(3/3) = 0; cat 1/3 log 3; sat 1/3 log(3/2)
    assert weights(TfIdf, CATS, "the cat sat") == pytest.approx([0, log(3) / 3, log(1.5) / 3])
    assert weights(InverseFrequency, CATS, "the cat sat") == pytest.approx([1 / 3, 1, 1 / 2])
    # A word that the collection lacks counts once.
    assert weights(InverseFrequency, CATS, "axolotl") == [1]
    assert weights(TfIdf, CATS, "axolotl cat") == pytest.approx([log(3) / 2, log(3) / 2])


def test_idf_of_lucene():
    assert compute_idf(4, 2) == pytest.approx(0.693147, abs=2e-6)
    assert compute_idf(4, 1) == pytest.approx(1.203973, abs=2e-6)
    collection = statistics(*DOCUMENTS)
    assert weights(Idf, collection, "a b b c")[1] == pytest.approx(log(2))  # 2 of 4 passages have b
    assert weights(Idf, collection, "b")[0] == pytest.approx(log(2))


DOCUMENTS = ("a b b c", "a c", "b d d", "c d e e e")


@pytest.mark.parametrize(
    ("k1", "b", "expected"),
    [(0.9, 0.4, [0.469703, 0, 0.861627, 0.337415]), (0.82, 0.68, [0.478089, 0, 0.904166, 0.336647])],
)
def test_weights_of_a_querys_words_add_up_to_its_bm25_score(k1, b, expected):
    collection = statistics(*DOCUMENTS)
    assert collection.length / collection.documents == 3.5
    actual = []
    for text in DOCUMENTS:
        of_words = dict(zip(text.split(), weights(Bm25, collection, text, k1=k1, b=b), strict=True))
        actual.append(sum(of_words.get(word, 0.0) for word in ("b", "d")))
    assert actual == pytest.approx(expected, abs=2e-6)


def test_punctuation_has_weight_0_except_for_inverse_frequency():
    collection = statistics("a , b", "a , ,")
    for kind in (TfIdf, Idf, Bm25):
        assert weights(kind, collection, "b ,")[1] == 0
        assert weights(kind, collection, "b ,")[0] > 0
    assert weights(InverseFrequency, collection, "b ,") == pytest.approx([1, 1 / 3])

"""BM25 by the bm25s library."""

import re
import shutil
from pathlib import Path

import pytest

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.indexing.bm25s import Bm25sIndex, load_stemmer
from drtk.indexing.config import BM25IndexSettings, BM25SearchSettings
from drtk.records import Passage
from tests.bm25_data import EXAMPLE_TEXTS, make_passages


def build(folder: Path, texts: dict[str, str], **settings: object) -> Path:
    folder.mkdir(exist_ok=True)
    assert Bm25sIndex.build(make_passages(texts), folder, BM25IndexSettings(**settings)) == len(texts)
    return folder


def open_index(folder: Path, **settings: object) -> Bm25sIndex:
    return Bm25sIndex.open(folder, BM25SearchSettings(**settings))


def test_scores_of_the_known_collection(tmp_path):
    # idf of b and d (2 of 4): ln(1 + 2.5/2.5) = .693147; d1 at k1 .9, b .4: .693147 * 2 / (2 + .9 (.6 + .4 * 4/3.5))
    # = .469703; d3 has both words, d2 none and so is not found
    queries = ["", " \n", "?!", "zzz", "\ud800"]
    index = open_index(build(tmp_path, EXAMPLE_TEXTS))
    ranking, once, twice, *nothing = index.search(["b d", "b", "b b", *queries], 10)
    assert [id for id, _ in ranking] == ["d3", "d1", "d4"]
    assert [score for _, score in ranking] == pytest.approx([0.861627, 0.469703, 0.337415], abs=2e-6)
    assert dict(twice) == pytest.approx({id: 2 * score for id, score in once})  # a repeated word counts twice
    assert nothing == [[]] * 5
    (other,) = open_index(tmp_path, k1=0.82, b=0.68).search(["b d"], 10)
    assert dict(other) == pytest.approx({"d1": 0.478089, "d3": 0.904166, "d4": 0.336647}, abs=2e-6)
    assert open_index(tmp_path).search(["b d"], 10) == [ranking]  # the index itself is unchanged


def test_equal_scores_come_by_descending_id_also_at_the_cut(tmp_path):
    texts = {f"p{number:02}": "same words" for number in range(30)} | {"z": "other"}
    index = open_index(build(tmp_path, texts))
    (ranking,) = index.search(["same"], 3)
    assert [id for id, _ in ranking] == ["p29", "p28", "p27"]
    assert len({score for _, score in ranking}) == 1
    assert [id for id, _ in index.search(["same"], 1000)[0]] == [f"p{number:02}" for number in reversed(range(30))]
    assert index.search(["same"], 0) == [[]]


def test_empty_passages_count_in_the_collection(tmp_path):
    # N = 2, df = 1: idf = ln(1 + 1.5/1.5) = .693147; avgdl = .5, so d = 1 / .5 = 2 average lengths:
    # .693147 * 1 / (1 + .9 (.6 + .4 * 2)) = .306702
    index = open_index(build(tmp_path, {"full": "word", "empty": ""}))
    assert len(index) == 2
    assert dict(index.search(["word"], 10)[0]) == pytest.approx({"full": 0.306702}, abs=2e-6)


@pytest.mark.parametrize(
    ("texts", "settings", "expected"),
    [
        ({"p": "Häuser", "q": "Большие дома"}, {"language": "any"}, {"häuser": ["p"], "дома_на": ["q"]}),
        ({"p": "Häuser", "q": "Baum"}, {"language": "German", "stemmer": "snowball"}, {"Haus Häusern": ["p"]}),
        ({"p": "running ponies", "q": "the"}, {"stemmer": "porter", "stopwords": "lucene"}, {"pony": ["p"], "the": []}),
    ],
)
def test_words_are_split_and_stemmed_and_stop_words_removed(tmp_path, texts, settings, expected):
    rankings = open_index(build(tmp_path, texts, **settings)).search(list(expected), 10)
    assert [[id for id, _ in ranking] for ranking in rankings] == list(expected.values())


def test_titles_are_indexed_and_stop_words_of_a_file_are_stored(tmp_path):
    words, folder = tmp_path / "stop.txt", tmp_path / "index"
    words.write_text("Alpha\n\n beta \n")
    folder.mkdir()
    Bm25sIndex.build([Passage("p", "alpha beta gamma", "Über Title")], folder, BM25IndexSettings(stopwords=str(words)))
    words.unlink()
    rankings = open_index(folder).search(["alpha", "beta", "gamma", "TITLE"], 10)
    assert [len(ranking) for ranking in rankings] == [0, 0, 1, 1]


def test_an_index_with_a_missing_or_other_file_is_rejected(tmp_path):
    folder, other = build(tmp_path / "a", EXAMPLE_TEXTS), build(tmp_path / "b", {"p": "b d"})
    for name in ("words.json", "data.csc.index.npy", "vocab.index.json", "ids.txt"):
        (folder / name).rename(tmp_path / "moved")
        with pytest.raises(DrtkError, match=re.escape(str(folder))):
            open_index(folder)
        (tmp_path / "moved").rename(folder / name)
    for name in ("ids.txt", "ranks.npy"):
        shutil.copy(other / name, folder / name)
    with pytest.raises(MismatchError, match="damaged"):
        open_index(folder)


def test_porter_is_that_of_lucene():
    # NLTK's own variant gives "sky" and "news" for the last two.
    stem = load_stemmer("porter", "en")
    assert [stem(word) for word in ("ponies", "relational", "skies", "news")] == ["poni", "relat", "ski", "new"]


@pytest.mark.parametrize(
    ("texts", "settings", "problem"),
    [
        ({"p": "... !"}, {}, "to index; check the corpus"),
        (EXAMPLE_TEXTS, {"stemmer": "krovetz"}, "krovetz"),
        (EXAMPLE_TEXTS, {"stemmer": "porter", "language": "de"}, "porter"),
        (EXAMPLE_TEXTS, {"stemmer": "snowball", "language": "zh"}, "zh"),
        (EXAMPLE_TEXTS, {"stopwords": "lucene", "language": "de"}, "English"),
        (EXAMPLE_TEXTS, {"stopwords": "nowhere.txt"}, r"nowhere\.txt"),
        (EXAMPLE_TEXTS, {"term_vectors": True}, "term_vectors"),
    ],
)
def test_rejected_inputs(tmp_path, texts, settings, problem):
    with pytest.raises(DrtkError, match=problem):
        Bm25sIndex.build(make_passages(texts), tmp_path, BM25IndexSettings(**settings))


def test_duplicate_ids_and_rm3_are_rejected(tmp_path):
    with pytest.raises(MismatchError, match="'p'"):
        Bm25sIndex.build([Passage(id="p", text="one"), Passage(id="p", text="two")], tmp_path, BM25IndexSettings())
    with pytest.raises(UsageError, match="rm3"):
        open_index(build(tmp_path, EXAMPLE_TEXTS), rm3=True)

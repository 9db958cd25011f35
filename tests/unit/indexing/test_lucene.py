"""BM25 and impacts by Lucene. One JVM serves all tests of a process."""

import random
import shutil
from pathlib import Path

import pytest

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.indexing.config import BM25IndexSettings, BM25SearchSettings
from drtk.indexing.lucene import search
from drtk.indexing.lucene.index import ImpactIndex, LuceneIndex
from drtk.indexing.lucene.jvm import load_class
from drtk.records import Passage
from tests.bm25_data import EXAMPLE_TEXTS, make_passages, run_anserini, skip_without_lucene
from tests.run_commands import run_command

PLAIN = {"stemmer": "none", "stopwords": "none"}


@pytest.fixture(autouse=True, scope="module")
def _lucene() -> None:
    skip_without_lucene()


@pytest.fixture(scope="module")
def known_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an index of KNOWN."""
    return build(tmp_path_factory.mktemp("known") / "i", EXAMPLE_TEXTS)


def build(folder: Path, texts: dict[str, str], **settings: object) -> Path:
    folder.mkdir(exist_ok=True)
    LuceneIndex.build(make_passages(texts), folder, BM25IndexSettings(threads=2, **settings))
    return folder


def open_index(folder: Path, **settings: object) -> LuceneIndex:
    return LuceneIndex.open(folder, BM25SearchSettings(**settings))


def ids_of(ranking: list[tuple[str, float]]) -> list[str]:
    return [id for id, _ in ranking]


def test_scores_of_the_known_collection(known_index):
    # docs/commands/index.md, as in test_bm25s: Lucene stores the lengths of short passages exactly
    queries = ["", " \n", "?!", "zzz", "\ud800", "\0", "the"]
    ranking, once, twice, *nothing = open_index(known_index).search(["b d", "b", "b b", *queries], 10)
    assert ids_of(ranking) == ["d3", "d1", "d4"]
    assert [score for _, score in ranking] == pytest.approx([0.861627, 0.469703, 0.337415], abs=2e-6)
    assert dict(twice) == pytest.approx({id: 2 * score for id, score in once})  # a repeated word counts twice
    assert nothing == [[]] * 7
    assert (open_index(known_index).search([], 10), open_index(known_index).search(["b"], 0)) == ([], [[]])
    (ranking,) = open_index(known_index, k1=0.82, b=0.68).search(["b d"], 10)
    assert dict(ranking) == pytest.approx({"d1": 0.478089, "d3": 0.904166, "d4": 0.336647}, abs=2e-6)


@pytest.mark.parametrize("threads", [1, 0])
def test_equal_scores_come_by_descending_id_also_at_the_cut(tmp_path, threads):
    numbers = list(range(300))
    random.Random(3).shuffle(numbers)
    index = open_index(build(tmp_path, {f"p{number:03}": "same words" for number in numbers}), threads=threads)
    (ranking,) = index.search(["same"], 3)
    assert ids_of(ranking) == ["p299", "p298", "p297"]
    assert len({score for _, score in ranking}) == 1
    assert ids_of(index.search(["same"], 1000)[0]) == [f"p{number:03}" for number in reversed(range(300))]


def test_any_number_of_words_in_a_query(tmp_path):
    # docs/methods/ear.md: Lucene stops at 1,024 distinct words unless told otherwise
    texts = {f"p{number}": f"word{number}" for number in range(3000)}
    (ranking,) = open_index(build(tmp_path, texts)).search([" ".join(texts.values())], 5000)
    assert sorted(ids_of(ranking)) == sorted(texts)


def test_ids_and_texts_of_every_alphabet_are_unchanged(tmp_path):
    texts = {"p/1?#": "plain", "é-ß": "café naïve", "日本": "東京タワー", '"quoted\\': "emoji 😀 face"}
    texts |= {"x" * 300: "long", "\ufeffbom": "mark"}
    index = open_index(build(tmp_path / "größe 索引", texts))
    actual = index.search(["plain", "CAFÉ", "東京", "😀", "long", "mark"], 10)
    assert [ids_of(ranking) for ranking in actual] == [[id] for id in texts]


def test_title_and_text_are_indexed_and_empty_passages_excluded(tmp_path, caplog):
    given = [Passage("p", "text\nline\0nul", "Title"), Passage("q", "other"), *make_passages({"a": "", "b": " \n\t"})]
    assert LuceneIndex.build(given, tmp_path, BM25IndexSettings()) == 2
    assert "2 empty passages" in caplog.text
    assert len(open_index(tmp_path)) == 2
    assert [ids_of(ranking) for ranking in open_index(tmp_path).search(["titles", "lines", "nul"], 10)] == [["p"]] * 3


def test_stemmer_and_stop_words_are_a_choice_for_english(tmp_path):
    listed = tmp_path / "stop.txt"
    listed.write_text("ponies\n")
    plain = open_index(build(tmp_path / "plain", {"p": "the ponies"}, **PLAIN))
    assert [len(ranking) for ranking in plain.search(["pony", "ponies", "the"], 10)] == [0, 1, 1]
    own = build(tmp_path / "own", {"p": "the ponies"}, stemmer="krovetz", stopwords=str(listed))
    listed.unlink()  # the index keeps its own copy
    assert [len(ranking) for ranking in open_index(own).search(["the", "ponies", "pony"], 10)] == [1, 0, 0]
    krovetz = open_index(build(tmp_path / "krovetz", {"p": "the ponies"}, stemmer="krovetz"))
    assert [len(ranking) for ranking in krovetz.search(["pony", "the"], 10)] == [1, 0]


def test_rm3_finds_passages_by_words_of_the_best_passages(tmp_path):
    # Anserini's feedback words occur in at most 10 % of the passages.
    filler = {f"f{number}": f"filler number{number}" for number in range(30)}
    texts = {"hit": "zebra savanna grass", "kin": "savanna grass plain", **filler}
    folder = build(tmp_path, texts, term_vectors=True)
    assert ids_of(open_index(folder).search(["zebra"], 10)[0]) == ["hit"]
    widened = open_index(folder, rm3=True, fb_docs=1).search(["zebra", "", "zzz"], 10)
    assert [ids_of(ranking) for ranking in widened] == [["hit", "kin"], [], []]
    # weight 1 for the query itself: the words added weigh nothing, so `zebra` alone decides
    (ranking,) = open_index(folder, rm3=True, fb_weight=1.0).search(["zebra"], 10)
    assert dict(ranking)["hit"] == pytest.approx(dict(open_index(folder).search(["zebra"], 10)[0])["hit"])


def test_rm3_scores_are_anserinis(tmp_path):
    draw = random.Random(2)
    vocabulary = [f"{first}{second}" for first in "bcdfglmnprst" for second in ("ab", "eg", "oth", "uck")]
    texts = {f"p{n:03}": " ".join(draw.choices(vocabulary, k=draw.randint(3, 20))) for n in range(400)}
    folder = build(tmp_path, texts, term_vectors=True)
    searcher = load_class("io.anserini.search.SimpleSearcher")(str(folder / "lucene"))
    searcher.set_bm25(0.9, 0.4)
    searcher.set_rm3(7, 5, 0.3)
    index = open_index(folder, rm3=True, fb_terms=7, fb_docs=5, fb_weight=0.3)
    for query in ("bab ceg", "duck foth moth"):
        (ranking,) = index.search([query], 10)
        theirs = [hit.score for hit in searcher.search(query, 10)]  # rounded to four places, ties spread by 1e-6
        assert [score for _, score in ranking] == pytest.approx(theirs, abs=2e-4)


def test_a_deleted_index_closes_only_its_own_reader(tmp_path):
    one = open_index(build(tmp_path / "1", {"p": "alpha"}))
    two = open_index(build(tmp_path / "2", {"q": "alpha beta"}))
    del one  # closes its reader, and no other
    assert ids_of(two.search(["alpha"], 5)[0]) == ["q"]


def test_the_language_chooses_the_analyzer(tmp_path):
    german = open_index(build(tmp_path / "de", {"p": "Die schönen Häuser", "q": "Der Baum"}, language="de"))
    assert [ids_of(ranking) for ranking in german.search(["schönes haus", "die"], 10)] == [["p"], []]
    chinese = open_index(build(tmp_path / "zh", {"p": "中华人民共和国", "q": "日本国"}, language="zh"))
    assert ids_of(chinese.search(["人民"], 10)[0]) == ["p"]
    build(tmp_path / "any", {"p": "the ponies Дома"}, language="any")
    load_class("io.anserini.analysis.AnalyzerMap").analyzerMap.remove("any")  # as in another process
    words = open_index(tmp_path / "any")
    assert [len(ranking) for ranking in words.search(["pony", "the", "дома", "дом"], 10)] == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("given", "settings", "problem"),
    [
        ([Passage("p", " ")], {}, "to index; check the corpus"),
        ([Passage("p", "one"), Passage("q", "two"), Passage("p", "three")], {}, "'p'"),
        ([Passage("p7", "\ud800")], {}, "'p7'"),
        # an id longer than a Lucene term may be (32,766 bytes)
        ([Passage("p", "one"), Passage("x" * 40_000, "two"), Passage("q", "three")], {}, r"indexed \d of 3 passages"),
        (make_passages(EXAMPLE_TEXTS), {"language": "xx"}, "no analyzer for 'xx'"),
        (make_passages(EXAMPLE_TEXTS), {"language": "de", "stemmer": "porter"}, "stemmer"),
        (make_passages(EXAMPLE_TEXTS), {"language": "de", "stopwords": "none"}, "stopwords"),
        (make_passages(EXAMPLE_TEXTS), {"stemmer": "snowball"}, "krovetz"),
    ],
)
def test_rejected_inputs(tmp_path, given, settings, problem):
    with pytest.raises(DrtkError, match=problem):
        LuceneIndex.build(given, tmp_path, BM25IndexSettings(threads=1, **settings))
    assert not (tmp_path / "passages.part").exists()


def test_damaged_folders_are_rejected(known_index, tmp_path):
    folder = shutil.copytree(known_index, tmp_path / "i")
    with pytest.raises(MismatchError, match="term_vectors"):
        open_index(folder, rm3=True)
    for part in ("analysis.json", "ids.txt", "lucene"):
        (folder / part).rename(tmp_path / "moved")
        with pytest.raises(DrtkError, match=str(tmp_path)):
            open_index(folder)
        (tmp_path / "moved").rename(folder / part)
    (folder / "ids.txt").write_text("p1\np2\n")
    with pytest.raises(MismatchError, match="different numbers of passages"):
        open_index(folder)


@pytest.fixture(scope="module")
def anserini_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a Lucene index of Anserini in two segments, with the passages in the field `raw`."""
    folder = tmp_path_factory.mktemp("anserini")
    draw = random.Random(5)
    words = [f"{first}{second}" for first in "bcdfglm" for second in ("ab", "eg", "oth")]
    stored = {"storeRaw": True, "storeDocvectors": True}
    for part in range(2):
        rows = [{"id": f"p{n}", "contents": f"T{n}\n" + " ".join(draw.choices(words, k=9))} for n in range(part, 40, 2)]
        run_anserini(folder, rows, collectionClass="JsonCollection", append=part == 1, **stored)
    return folder / "index"


def test_an_index_of_anserini_has_the_scores_of_its_searcher(anserini_index):
    searcher = load_class("io.anserini.search.SimpleSearcher")(str(anserini_index))
    searcher.set_bm25(1.2, 0.7)
    searcher.set_rm3(5, 3, 0.5)
    index = open_index(anserini_index, k1=1.2, b=0.7, rm3=True, fb_terms=5, fb_docs=3)
    (ranking,) = index.search(["bab moths fab"], 40)
    theirs = {hit.docid: hit.score for hit in searcher.search("bab moths fab", 40)}
    assert dict(ranking) == pytest.approx(theirs, abs=2e-4)


def test_an_index_of_anserini_shows_its_passages(anserini_index, capfd, monkeypatch):
    index = open_index(anserini_index)
    passage = index.get("p7")
    assert passage is not None
    assert (passage.id, passage.title, len(passage.text.split())) == ("p7", "T7", 9)
    with monkeypatch.context() as patch:
        patch.setattr(search, "JavaMap", None)  # the look-up is prepared once
        assert index.get("p77") is None
    ((hit,),) = index.search(["moth"], 1)
    assert f"T{hit[0][1:]}\n" in run_command(capfd, "search", anserini_index, "--query", "moth", "-k", "1")


def test_impacts_of_anserini_are_not_searched_with_bm25(tmp_path):
    rows = [{"id": f"p{n}", "contents": "", "vector": {"wind": n, "sun": 3}} for n in range(1, 250)]
    folder = run_anserini(tmp_path, rows, collectionClass="JsonVectorCollection", impact=True, pretokenized=True)
    with pytest.raises(MismatchError, match="contains learned impacts, which BM25 cannot search"):
        open_index(folder)


def test_the_language_of_an_index_of_anserini_is_a_choice(anserini_index, known_index):
    assert open_index(anserini_index).search(["moths"], 1) != [[]]
    assert open_index(anserini_index, language="any").search(["moths"], 1) == [[]]  # without stemming
    with pytest.raises(UsageError, match="records its analyzer"):
        open_index(known_index, language="de")


def impact_index(folder: Path, impacts: dict[str, dict[str, int]], **settings: object) -> ImpactIndex:
    folder.mkdir(exist_ok=True)
    given = [Passage(id, "unread", extra={"impacts": each}) for id, each in impacts.items()]
    ImpactIndex.build(given, folder, BM25IndexSettings(threads=2, **settings))
    return ImpactIndex.open(folder, BM25SearchSettings())


def test_a_score_is_the_sum_of_the_impacts_of_the_questions_words(tmp_path, caplog):
    impacts = {"d1": {"wing": 255, "bird": 3}, "d2": {"wing": 40, "craft": 200, "the": 90}}
    impacts |= {"d3": {"bird": 120, "cafe": 1, "東": 7}, "d4": {"sea": 5000}, "d5": {"sea": 5000}}
    impacts |= {"x": {}, "y": {}}
    index = impact_index(tmp_path, impacts)
    assert (len(index), "2 empty passages" in caplog.text) == (5, True)
    actual = index.search(["Wing of the BIRD", "wing wing crafts", "café 東京", "sea!", "the", "", "\ud800"], 10)
    assert actual[:4] == [
        [("d1", 258.0), ("d3", 120.0), ("d2", 40.0)],  # 255 + 3; `the` is a stop word
        [("d1", 255.0), ("d2", 40.0)],  # a repeated word counts once; `crafts` is another word than `craft`
        [("d3", 8.0)],  # 1 + 7
        [("d5", 5000.0), ("d4", 5000.0)],
    ]
    assert actual[4:] == [[], [], []]


def test_stop_words_are_a_choice_and_kept_with_the_index(tmp_path):
    own = tmp_path / "stop.txt"
    own.write_text("Wing\n")
    impacts = {"d": {"wing": 1, "the": 2, "would": 4}}
    for name, stopwords, score in (
        ("default", "default", 1.0),  # the and would are function words
        ("lucene", "lucene", 5.0),  # the alone is among Lucene's
        ("none", "none", 7.0),
        ("own", str(own), 6.0),
    ):
        index = impact_index(tmp_path / name, impacts, stopwords=stopwords)
        assert index.search(["the wing would"], 5) == [[("d", score)]]


def test_impact_indexes_reject_settings_of_bm25_and_damage(tmp_path):
    given = [Passage("p", "text", extra={"impacts": {"a": 1}})]
    for settings in ({"stemmer": "porter"}, {"term_vectors": True}):
        with pytest.raises(UsageError, match=next(iter(settings))):
            ImpactIndex.build(given, tmp_path, BM25IndexSettings(**settings))  # type: ignore[arg-type]
    (tmp_path / "words.json").write_text('{"stopwords": []}')
    for searching in ({"k1": 0.9}, {"b": 0.4}, {"rm3": True}):
        with pytest.raises(UsageError, match="has no effect"):
            ImpactIndex.open(tmp_path, BM25SearchSettings(**searching))  # type: ignore[arg-type]
    (tmp_path / "words.json").unlink()
    with pytest.raises(DrtkError, match=str(tmp_path)):
        ImpactIndex.open(tmp_path, BM25SearchSettings())

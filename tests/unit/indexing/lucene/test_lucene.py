"""BM25 by Lucene. One JVM serves all tests of a process."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.indexing.bm25s import Bm25sIndex
from drtk.indexing.config import BM25IndexSettings, BM25SearchSettings
from drtk.indexing.lucene.index import LuceneIndex
from drtk.indexing.words import LUCENE_STOPWORDS, stem_with
from drtk.records import Passage
from tests.bm25 import KNOWN, need_lucene, passages

PLAIN = {"stemmer": "none", "stopwords": "none"}


@pytest.fixture(autouse=True, scope="module")
def _lucene() -> None:
    need_lucene()


def built(folder: Path, texts: dict[str, str], **settings: object) -> Path:
    """A folder with an index of these texts."""
    folder.mkdir(exist_ok=True)
    LuceneIndex.build(passages(texts), folder, BM25IndexSettings(threads=2, **settings))
    return folder


def opened(folder: Path, **settings: object) -> LuceneIndex:
    return LuceneIndex.open(folder, BM25SearchSettings(**settings))


def ids_of(ranking: list[tuple[str, float]]) -> list[str]:
    return [id for id, _ in ranking]


def test_scores_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    # methods 8.1, as in test_bm25s; so short passages keep their lengths exactly
    folder = built(tmp_path, KNOWN)
    (ranking,) = opened(folder).search(["b d"], 10)
    assert ids_of(ranking) == ["d3", "d1", "d4"]
    assert [score for _, score in ranking] == pytest.approx([0.861627, 0.469703, 0.337415], abs=2e-6)
    (ranking,) = opened(folder, k1=0.82, b=0.68).search(["b d"], 10)
    assert dict(ranking) == pytest.approx({"d1": 0.478089, "d3": 0.904166, "d4": 0.336647}, abs=2e-6)


def test_a_word_twice_in_a_query_counts_twice(tmp_path: Path) -> None:
    once, twice = opened(built(tmp_path, KNOWN)).search(["b", "b b"], 10)
    assert [score for _, score in twice] == pytest.approx([2 * score for _, score in once])


def test_a_query_without_known_words_finds_nothing(tmp_path: Path) -> None:
    queries = ["", " \n", "?!", "zzz", "\ud800", "\0", "the"]
    assert opened(built(tmp_path, KNOWN)).search(queries, 10) == [[]] * 7
    assert opened(tmp_path).search([], 10) == []
    assert opened(tmp_path).search(["b"], 0) == [[]]


@pytest.mark.parametrize("threads", [1, 0])
def test_equal_scores_come_by_descending_id_also_at_the_cut(tmp_path: Path, threads: int) -> None:
    numbers = list(range(300))
    random.Random(3).shuffle(numbers)
    index = opened(built(tmp_path, {f"p{number:03}": "same words" for number in numbers}), threads=threads)
    (ranking,) = index.search(["same"], 3)
    assert ids_of(ranking) == ["p299", "p298", "p297"]
    assert len({score for _, score in ranking}) == 1
    assert ids_of(index.search(["same"], 1000)[0]) == [f"p{number:03}" for number in reversed(range(300))]


def test_the_first_k_of_all_results_are_the_results_of_k(tmp_path: Path) -> None:
    draw = random.Random(11)
    texts = {
        f"p{n}": " ".join(draw.choices(["ant", "bee", "cow", "dog", "elk"], k=draw.randint(1, 4))) for n in range(150)
    }
    index = opened(built(tmp_path, texts))
    queries = ["ant", "ant bee", "cow dog elk elk"]
    everything = index.search(queries, 1000)
    for k in (1, 2, 7, 40, 149):
        for query, whole, cut in zip(queries, everything, index.search(queries, k), strict=True):
            assert cut == whole[:k], (query, k)
    assert all(ranking == sorted(ranking, key=lambda hit: (hit[1], hit[0]), reverse=True) for ranking in everything)


def test_both_engines_agree_where_words_and_lengths_are_the_same(tmp_path: Path) -> None:
    # Passages of at most 39 words, whose lengths Lucene keeps exactly; words that both tokenizers cut alike.
    draw = random.Random(5)
    words = [
        "running",
        "runs",
        "ponies",
        "relational",
        "the",
        "of",
        "conditional",
        "hopping",
        "sky",
        "agreed",
        "plastered",
        "a2",
        "happiness",
    ]
    texts = {f"p{n:03}": " ".join(draw.choices(words, k=draw.randint(1, 39))) for n in range(120)}
    lucene = opened(built(tmp_path / "lucene", texts), k1=1.2, b=0.75)
    (tmp_path / "bm25s").mkdir()
    settings = BM25IndexSettings(stemmer="porter", stopwords="lucene")
    empty = {id for id, text in texts.items() if not set(text.split()) - LUCENE_STOPWORDS}
    kept = {id: text for id, text in texts.items() if id not in empty}  # without a word Lucene does not count them
    Bm25sIndex.build(passages(kept), tmp_path / "bm25s", settings)
    other = Bm25sIndex.open(tmp_path / "bm25s", BM25SearchSettings(k1=1.2, b=0.75))
    queries = ["run pony", "the relation of conditions", "happy sky sky", "a2"]
    for mine, theirs in zip(lucene.search(queries, 200), other.search(queries, 200), strict=True):
        assert len(mine) > 20
        assert dict(mine) == pytest.approx(dict(theirs), rel=1e-5)


def test_stems_and_stop_words_of_both_engines_are_the_same(tmp_path: Path) -> None:
    from drtk.indexing.lucene.jvm import java

    words = [
        "caresses",
        "ponies",
        "ties",
        "cats",
        "feed",
        "agreed",
        "plastered",
        "bled",
        "motoring",
        "sing",
        "conflated",
        "troubled",
        "sized",
        "hopping",
        "tanned",
        "falling",
        "hissing",
        "fizzed",
        "failing",
        "filing",
        "happy",
        "sky",
        "relational",
        "conditional",
        "rational",
        "valenci",
        "hesitanci",
        "digitizer",
        "conformabli",
        "radicalli",
        "vileli",
        "analogousli",
        "vietnamization",
        "predication",
        "operator",
        "feudalism",
        "decisiveness",
        "hopefulness",
        "callousness",
        "formaliti",
        "sensitiviti",
        "sensibiliti",
        "triplicate",
        "formative",
        "formalize",
        "electriciti",
        "electrical",
        "hopeful",
        "goodness",
        "revival",
        "allowance",
        "inference",
        "airliner",
        "gyroscopic",
        "adjustable",
        "defensible",
        "irritant",
        "replacement",
        "adjustment",
        "dependent",
        "adoption",
        "homologou",
        "communism",
        "activate",
        "angulariti",
        "homologous",
        "effective",
        "bowdlerize",
        "probate",
        "rate",
        "cease",
        "controll",
        "roll",
        "archaeology",
        "possibly",
        "as",
        "is",
    ]
    analyzer = java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
    analyze = java("io.anserini.analysis.AnalyzerUtils").analyze
    stem = stem_with("porter")
    for word in [*words, *sorted(LUCENE_STOPWORDS)]:
        expected = [] if word in LUCENE_STOPWORDS else [stem(word)]
        assert analyze(analyzer, word).toArray() == expected, word


def test_any_number_of_words_in_a_query(tmp_path: Path) -> None:
    # methods 7.9: Lucene stops at 1,024 distinct words unless told otherwise
    texts = {f"p{number}": f"word{number}" for number in range(3000)}
    (ranking,) = opened(built(tmp_path, texts)).search([" ".join(texts.values())], 5000)
    assert sorted(ids_of(ranking)) == sorted(texts)


def test_ids_and_texts_of_every_alphabet_arrive_unharmed(tmp_path: Path) -> None:
    texts = {
        "p/1?#": "plain",
        "é-ß": "café naïve",
        "日本": "東京タワー",
        '"quoted\\': "emoji 😀 face",
        "x" * 300: "long",
        "\ufeffbom": "mark",
    }
    index = opened(built(tmp_path, texts))
    found = index.search(["plain", "CAFÉ", "東京", "😀", "long", "mark"], 10)
    assert [ids_of(ranking) for ranking in found] == [[id] for id in texts]


def test_title_and_text_are_searched_as_one(tmp_path: Path) -> None:
    given = [Passage(id="p", title="Title", text="text\nline\0nul"), Passage(id="q", title="", text="other")]
    assert LuceneIndex.build(given, tmp_path, BM25IndexSettings()) == 2
    assert [ids_of(ranking) for ranking in opened(tmp_path).search(["titles", "lines", "nul"], 10)] == [["p"]] * 3


def test_empty_passages_are_left_out_and_counted_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = passages({"a": "", "b": " \n\t", "c": "word"})
    with caplog.at_level("WARNING", logger="drtk"):
        assert LuceneIndex.build(given, tmp_path, BM25IndexSettings()) == 1
    assert "2 empty passages" in caplog.text
    assert len(opened(tmp_path)) == 1


def test_nothing_to_index_is_an_error_and_leaves_no_spool(tmp_path: Path) -> None:
    for texts in ({}, {"p": " "}):
        with pytest.raises(DrtkError, match="nothing to index"):
            LuceneIndex.build(passages(texts), tmp_path, BM25IndexSettings())
    assert [path.name for path in tmp_path.iterdir()] == []


def test_an_id_given_twice_is_refused(tmp_path: Path) -> None:
    given = [Passage(id="p", text="one"), Passage(id="q", text="two"), Passage(id="p", text="three")]
    with pytest.raises(DrtkError, match="'p'"):
        LuceneIndex.build(given, tmp_path, BM25IndexSettings())


def test_half_a_surrogate_pair_names_its_passage(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="'p7'"):
        LuceneIndex.build(passages({"p7": "\ud800"}), tmp_path, BM25IndexSettings())


def test_passages_that_lucene_cannot_take_are_counted_not_lost(tmp_path: Path) -> None:
    # an id longer than a Lucene term may be (32,766 bytes) ends the file it stands in
    with pytest.raises(DrtkError, match=r"indexed \d of 3 passages"):
        LuceneIndex.build(
            passages({"p": "one", "x" * 40_000: "two", "q": "three"}), tmp_path, BM25IndexSettings(threads=1)
        )


def test_the_folders_name_may_be_of_any_alphabet(tmp_path: Path) -> None:
    folder = built(tmp_path / "größe 索引", KNOWN)
    assert len(opened(folder).search(["b"], 10)[0]) == 2
    assert not (folder / "passages.part").exists()


def test_german_is_stemmed_as_german(tmp_path: Path) -> None:
    index = opened(built(tmp_path, {"p": "Die schönen Häuser", "q": "Der Baum"}, language="de"))
    assert [ids_of(ranking) for ranking in index.search(["schönes haus", "die"], 10)] == [["p"], []]


def test_chinese_is_cut_into_pairs_of_characters(tmp_path: Path) -> None:
    index = opened(built(tmp_path, {"p": "中华人民共和国", "q": "日本国"}, language="zh"))
    assert ids_of(index.search(["人民"], 10)[0]) == ["p"]


def test_any_language_keeps_words_whole(tmp_path: Path) -> None:
    index = opened(built(tmp_path, {"p": "the ponies Дома"}, language="any"))
    assert [len(ranking) for ranking in index.search(["pony", "the", "дома", "дом"], 10)] == [0, 1, 1, 0]


def test_stemmer_and_stop_words_are_a_choice_for_english(tmp_path: Path) -> None:
    listed = tmp_path / "stop.txt"
    listed.write_text("ponies\n")
    plain = opened(built(tmp_path / "plain", {"p": "the ponies"}, **PLAIN))
    assert [len(ranking) for ranking in plain.search(["pony", "ponies", "the"], 10)] == [0, 1, 1]
    own = built(tmp_path / "own", {"p": "the ponies"}, stemmer="krovetz", stopwords=str(listed))
    listed.unlink()  # the index keeps its own copy
    assert [len(ranking) for ranking in opened(own).search(["the", "ponies", "pony"], 10)] == [1, 0, 0]
    krovetz = opened(built(tmp_path / "krovetz", {"p": "the ponies"}, stemmer="krovetz"))
    assert [len(ranking) for ranking in krovetz.search(["pony", "the"], 10)] == [1, 0]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"language": "xx"}, "no analyzer for 'xx'"),
        ({"language": "de", "stemmer": "porter"}, "--stemmer"),
        ({"language": "de", "stopwords": "none"}, "--stopwords"),
        ({"stemmer": "snowball"}, "krovetz"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path, settings: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        LuceneIndex.build(passages(KNOWN), tmp_path, BM25IndexSettings(**settings))


def test_rm3_finds_what_only_the_best_passages_words_lead_to(tmp_path: Path) -> None:
    filler = {
        f"f{number}": f"filler number{number}" for number in range(30)
    }  # feedback words must be rare (Anserini: 10 %)
    texts = {"hit": "zebra savanna grass", "kin": "savanna grass plain", **filler}
    folder = built(tmp_path, texts, term_vectors=True)
    assert ids_of(opened(folder).search(["zebra"], 10)[0]) == ["hit"]
    widened = opened(folder, rm3=True, fb_docs=1).search(["zebra", "", "zzz"], 10)
    assert [ids_of(ranking) for ranking in widened] == [["hit", "kin"], [], []]
    # weight 1 for the query itself: the words added weigh nothing, so `zebra` alone decides
    (ranking,) = opened(folder, rm3=True, fb_weight=1.0).search(["zebra"], 10)
    assert dict(ranking)["hit"] == pytest.approx(dict(opened(folder).search(["zebra"], 10)[0])["hit"])


def test_rm3_scores_are_anserinis(tmp_path: Path) -> None:
    from drtk.indexing.lucene.jvm import java

    draw = random.Random(2)
    vocabulary = [f"{first}{second}" for first in "bcdfglmnprst" for second in ("ab", "eg", "oth", "uck")]
    texts = {f"p{n:03}": " ".join(draw.choices(vocabulary, k=draw.randint(3, 20))) for n in range(400)}
    folder = built(tmp_path, texts, term_vectors=True)
    searcher = java("io.anserini.search.SimpleSearcher")(str(folder / "lucene"))
    searcher.set_bm25(0.9, 0.4)
    searcher.set_rm3(7, 5, 0.3)
    index = opened(folder, rm3=True, fb_terms=7, fb_docs=5, fb_weight=0.3)
    for query in ("bab ceg", "duck foth moth"):
        (ranking,) = index.search([query], 10)
        theirs = [hit.score for hit in searcher.search(query, 10)]  # rounded to four places, ties spread by 1e-6
        assert [score for _, score in ranking] == pytest.approx(theirs, abs=2e-4)


def test_rm3_without_term_vectors_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="--term-vectors"):
        opened(built(tmp_path, KNOWN), rm3=True)


@pytest.mark.parametrize("lost", ["analysis.json", "ids.txt", "lucene"])
def test_an_index_with_a_part_missing_is_refused(tmp_path: Path, lost: str) -> None:
    folder = built(tmp_path, KNOWN)
    part = folder / lost
    shutil.rmtree(part) if part.is_dir() else part.unlink()
    with pytest.raises(DrtkError, match=str(tmp_path)):
        opened(folder)


def test_ids_of_another_index_are_refused(tmp_path: Path) -> None:
    folder = built(tmp_path, KNOWN)
    (folder / "ids.txt").write_text("p1\np2\n")
    with pytest.raises(MismatchError, match="belong together"):
        opened(folder)


def test_many_indexes_can_be_open_at_once(tmp_path: Path) -> None:
    one = opened(built(tmp_path / "1", {"p": "alpha"}))
    two = opened(built(tmp_path / "2", {"q": "alpha beta"}), k1=1.2, b=0.75)
    assert [ids_of(index.search(["alpha"], 5)[0]) for index in (one, two, one)] == [["p"], ["q"], ["p"]]


def test_an_index_let_go_leaves_one_opened_after_it_alone(tmp_path: Path) -> None:
    one = opened(built(tmp_path / "1", {"p": "alpha"}))
    two = opened(built(tmp_path / "2", {"q": "alpha beta"}))
    del one  # closes its reader, and no other
    assert ids_of(two.search(["alpha"], 5)[0]) == ["q"]

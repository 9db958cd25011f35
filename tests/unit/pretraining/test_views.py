"""Views: which text of a corpus row they return, on passages of one-letter words."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from drtk.errors import MismatchError, UsageError
from drtk.pretraining.config import check_options
from drtk.pretraining.views import (
    VIEWS,
    ViewInput,
    join_texts,
    list_needed_fields,
    sample_other,
    sample_overlap,
    slice_text,
)
from drtk.text.rng import create_generator
from drtk.text.token_dataset import Text, TokenCorpus
from drtk.text.token_writer import FIELDS
from drtk.text.word_pieces import WordPieceTokenizer
from tests.unit.text.small_tokenizers import word_pieces

SEP = 3  # the id of [SEP]
ALL = {"queries", "continuations", "sentences", "documents", "weights"}


class Shelf:
    """A corpus of its own folder, and what its tokens are called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer = word_pieces(folder / "tokenizer")
        self._pieces = WordPieceTokenizer(self.tokenizer)

    def __call__(self, *rows: dict, fields=()) -> TokenCorpus:
        path = self.folder / "corpus.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return TokenCorpus.open(str(path), self.tokenizer, fields=fields)

    def decode(self, text: Text) -> str:
        return " ".join(self._pieces.tokenizer.convert_ids_to_tokens(text.ids.tolist()))


@pytest.fixture
def shelf(tmp_path, monkeypatch) -> Shelf:
    monkeypatch.setenv("DRTK_CACHE", str(tmp_path / "cache"))
    return Shelf(tmp_path)


def apply_view(name: str, corpus, row: int, *, seed: object = 0, max_tokens: int = 100, **options):
    return VIEWS.load(name)(ViewInput(corpus, row, create_generator(str(seed)), max_tokens, SEP), **options)


def make_passage(id: str, text: str = "a b c d", **more) -> dict:
    return {"_id": id, "text": text, **more}


def chunks(document: str, *texts: str) -> list[dict]:
    """Passages of one document, each of whose sentences ends with a full stop."""
    rows = []
    for number, text in enumerate(texts):
        spans, begin = [], 0
        for end in [at + 1 for at, letter in enumerate(text) if letter == "."]:
            spans.append([begin, end])
            begin = end + 1
        rows.append(make_passage(f"{document}#{number}", text, metadata={"sentences": spans}))
    return rows


def count_views(shelf: Shelf, name: str, corpus, row: int, part: str, times: int = 300, **options) -> Counter[str]:
    found = (apply_view(name, corpus, row, seed=seed, **options) for seed in range(times))
    return Counter(shelf.decode(parts[part]) for parts in found if parts is not None)


def make_text(*words: int, weights: list[float] | None = None) -> Text:
    ids = np.arange(10, 10 + len(words), dtype=np.int32)
    return Text(ids, np.array(words, np.int32), None if weights is None else np.array(weights, np.float32))


def test_slice_text_slices_weights_and_renumbers_words():
    found = slice_text(make_text(0, 1, 1, 2, -1, 3, weights=[0, 1, 2, 3, 4, 5]), 2, 6)
    assert found.ids.tolist() == [12, 13, 14, 15]
    assert found.words.tolist() == [0, 1, -1, 2]
    assert found.weights is not None
    assert found.weights.tolist() == [2, 3, 4, 5]


def test_join_texts_continues_word_indices_and_separator_has_none():
    found = join_texts(
        [make_text(0, 0, 1, weights=[1, 2, 3]), make_text(0, 1, weights=[4, 5]), make_text(0, weights=[6])], SEP
    )
    assert found.ids.tolist() == [10, 11, 12, SEP, 10, 11, SEP, 10]
    assert found.words.tolist() == [0, 0, 1, -1, 2, 3, -1, 4]
    assert found.weights is not None
    assert found.weights.tolist() == [1, 2, 3, 0, 4, 5, 0, 6]
    assert join_texts([make_text(0, weights=[1]), make_text(0)]).weights is None
    assert join_texts([make_text(0, 1), make_text(0)]).words.tolist() == [0, 1, 2]
    assert join_texts([]).ids.tolist() == []


def test_random_crop_starts_anywhere_and_short_text_is_unchanged():
    text = make_text(*range(6))
    views = [ViewInput(None, 0, create_generator(seed), 4) for seed in range(600)]  # type: ignore[arg-type]
    begins = Counter(int(each.crop(text, "random").ids[0]) - 10 for each in views)
    assert set(begins) == {0, 1, 2}
    assert all(abs(count - 200) < 60 for count in begins.values())  # 5 standard deviations: 5 * sqrt(600 * 2/9) = 58
    assert views[0].crop(text, "head").ids.tolist() == [10, 11, 12, 13]
    assert views[0].crop(text, "random", max_tokens=6) is text


def test_title_is_added_with_or_without_separator(shelf):
    corpus = shelf(make_passage("p", "a wording", title="b c"), make_passage("q", "d e f"))
    assert shelf.decode(apply_view("passage", corpus, 0)[""]) == "a word ##ing"
    assert shelf.decode(apply_view("passage", corpus, 0, title="join")[""]) == "b c a word ##ing"
    found = apply_view("passage", corpus, 0, title="segment")[""]
    assert shelf.decode(found) == "b c [SEP] a word ##ing"
    assert found.words.tolist() == [0, 1, -1, 2, 3, 3]
    assert found.types is not None
    assert found.types.tolist() == [0, 0, 0, 1, 1, 1]
    parted = apply_view("passage", corpus, 0, title="sep")[""]
    assert (shelf.decode(parted), parted.types) == ("b c [SEP] a word ##ing", None)
    bare = apply_view("passage", corpus, 1, title="segment")[""]
    assert (shelf.decode(bare), bare.types) == ("d e f", None)  # no title, no separator, one segment


def test_random_crop_of_a_pair_starts_with_token_type_0(shelf):
    corpus = shelf(make_passage("p", "a b c d", title="e f"))
    types = {"e f [SEP] a": [0, 0, 0, 1], "f [SEP] a b": [0, 0, 1, 1], "[SEP] a b c": [0, 1, 1, 1], "a b c d": [0] * 4}
    found = [
        apply_view("passage", corpus, 0, seed=n, max_tokens=4, title="segment", crop="random")[""] for n in range(40)
    ]
    assert {shelf.decode(each): each.types.tolist() for each in found} == types


def test_pair_is_truncated_longest_first(shelf):
    corpus = shelf(make_passage("p", "a b c d", title="e f"), make_passage("q", "a b c", title="d e f g h"))

    def decode_passage(row: int, max_tokens: int) -> str:
        return shelf.decode(apply_view("passage", corpus, row, max_tokens=max_tokens, title="segment")[""])

    assert [decode_passage(0, max_tokens) for max_tokens in (6, 5, 4)] == [
        "e f [SEP] a b c",
        "e f [SEP] a b",
        "e [SEP] a b",
    ]
    assert [decode_passage(1, max_tokens) for max_tokens in (8, 7, 6)] == [
        "d e f g [SEP] a b c",
        "d e f [SEP] a b c",
        "d e f [SEP] a b",
    ]


def test_weights_are_cropped_and_title_weights_prepended(shelf):
    row = make_passage("p", "a b c d", title="e f", weights=[1, 2, 3, 4], title_weights=[8, 9])
    corpus = shelf(row, fields={"weights"})
    value = dict(zip("abcdef", [1, 2, 3, 4, 8, 9], strict=True)) | {"[SEP]": 0}
    for seed in range(20):
        found = apply_view("passage", corpus, 0, seed=seed, max_tokens=3, title="segment", crop="random")[""]
        assert found.weights is not None
        assert found.weights.tolist() == [value[token] for token in shelf.decode(found).split()]


def test_title_without_weights_is_rejected_if_the_text_has_weights(shelf):
    corpus = shelf(make_passage("p", title="e", weights=[1, 2, 3, 4]), fields={"weights"})
    with pytest.raises(MismatchError, match=r"passage 'p' has weights but no 'title_weights'; run `drtk termweight`"):
        apply_view("passage", corpus, 0, title="join")
    assert apply_view("passage", corpus, 0)[""].weights.tolist() == [1, 2, 3, 4]


def test_next_view_is_the_following_passage_and_last_has_none(shelf):
    corpus = shelf(*chunks("A", "a b c.", "d e f.", "g h i."), make_passage("B", "j k l"), fields={"documents"})
    found = [apply_view("next", corpus, row) for row in range(4)]
    assert [None if parts is None else shelf.decode(parts[""]) for parts in found] == ["d e f .", "g h i .", None, None]


def test_halves_are_adjacent_and_second_has_the_odd_token(shelf):
    corpus = shelf(make_passage("p", "a b c d e", title="t"))
    found = apply_view("halves", corpus, 0)
    assert (shelf.decode(found["a"]), shelf.decode(found["b"])) == ("a b", "c d e")
    assert found["b"].words.tolist() == [0, 1, 2]
    found = apply_view("halves", corpus, 0, max_tokens=2)  # cropped to 4 tokens first
    assert (shelf.decode(found["a"]), shelf.decode(found["b"])) == ("a b", "c d")
    found = apply_view("halves", corpus, 0, title="segment")  # t [SEP] a b c d e
    assert (shelf.decode(found["a"]), shelf.decode(found["b"])) == ("t [SEP] a", "b c d e")


def test_random_pair_is_any_other_passage_of_the_document(shelf):
    corpus = shelf(*chunks("A", "a b c", "d e f", "g h i", "j k l"), make_passage("B"), fields={"documents"})
    found = count_views(shelf, "pair", corpus, 1, "b", spans="random")
    assert set(found) == {"a b c", "g h i", "j k l"}
    assert all(abs(count - 100) < 41 for count in found.values())  # 5 * sqrt(300 * 2/9)
    assert set(count_views(shelf, "pair", corpus, 1, "a", times=5, spans="random")) == {"d e f"}
    assert apply_view("pair", corpus, 4, spans="random") is None


def test_nearby_pair_is_previous_or_next_passage_uniformly(shelf):
    corpus = shelf(*chunks("A", "a b c", "d e f", "g h i"), fields={"documents"})
    found = count_views(shelf, "pair", corpus, 1, "b", spans="nearby")
    assert set(found) == {"a b c", "g h i"}
    assert abs(found["a b c"] - 150) < 44  # 5 * sqrt(300 / 4)
    assert set(count_views(shelf, "pair", corpus, 0, "b", times=10, spans="nearby")) == {"d e f"}
    assert set(count_views(shelf, "pair", corpus, 2, "b", times=10, spans="nearby")) == {"d e f"}


def test_passages_across_a_gap_are_not_nearby(shelf):
    corpus = shelf(make_passage("A#0", "a b c"), make_passage("A#2", "d e f"), fields={"documents"})
    assert apply_view("pair", corpus, 0, spans="nearby") is None
    assert shelf.decode(apply_view("pair", corpus, 0, spans="random")["b"]) == "d e f"


def test_overlap_starts_with_last_sentences_and_fills_max_length(shelf):
    corpus = shelf(*chunks("A", "a b. c d. e f. g h.", "i j. k l.", "m n."), fields={"documents", "sentences"})
    # sentences have 3 pieces; r is 1 or 2 of 4: from "g h ." or from "e f ."; at most 9 pieces are three sentences
    found = count_views(shelf, "pair", corpus, 0, "b", times=60, spans="overlap", max_tokens=9)
    assert set(found) == {"g h . i j . k l .", "e f . g h . i j ."}
    # with room for all, it goes to the end of the document
    found = count_views(shelf, "pair", corpus, 0, "b", times=60, spans="overlap")
    assert set(found) == {"g h . i j . k l . m n .", "e f . g h . i j . k l . m n ."}
    # r is 1 of 2
    assert set(count_views(shelf, "pair", corpus, 1, "b", times=20, spans="overlap", max_tokens=6)) == {"k l . m n ."}


def test_overlap_of_the_last_passage_extends_backwards(shelf):
    corpus = shelf(*chunks("A", "a b. c d.", "e f. g h.", "i j. k l. m n. o p."), fields={"documents", "sentences"})
    # r is 1 or 2 of 4: "i j ." or "i j . k l .", and what stands before, in reading order
    found = count_views(shelf, "pair", corpus, 2, "b", times=60, spans="overlap", max_tokens=9)
    assert set(found) == {"e f . g h . i j .", "g h . i j . k l ."}
    found = count_views(shelf, "pair", corpus, 2, "b", times=60, spans="overlap")
    assert set(found) == {"a b . c d . e f . g h . i j .", "a b . c d . e f . g h . i j . k l ."}


def test_overlap_has_weights_and_word_indices(shelf):
    rows = chunks("A", "ab a. b c.", "d. e f.")
    for row, values in zip(rows, ([1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12]), strict=True):
        row["weights"] = values
    corpus = shelf(*rows, fields={"documents", "sentences", "weights"})
    found = apply_view("pair", corpus, 0, spans="overlap")["b"]
    assert shelf.decode(found) == "b c . d . e f ."
    assert found.weights.tolist() == [5, 6, 7, 8, 9, 10, 11, 12]
    assert found.words.tolist() == list(range(8))


def test_mixed_pairs_sample_three_span_types_uniformly(shelf):
    rows = chunks("A", "a b. c d.", "e f. g h.", "i j. k l.", "m n. o p.")
    corpus = shelf(*rows, fields={"documents", "sentences"})
    found = count_views(shelf, "pair", corpus, 0, "b", times=600, spans="mixed", max_tokens=6)
    # overlap: "c d . e f ."; nearby: the second; random: the second, third or fourth
    assert set(found) == {"c d . e f .", "e f . g h .", "i j . k l .", "m n . o p ."}
    spread = 5 * (600 * 2 / 9) ** 0.5
    assert abs(found["c d . e f ."] - 200) < spread
    assert abs(found["e f . g h ."] - (200 + 200 / 3)) < spread
    parted = shelf(
        make_passage("A#0", "a b c"),
        make_passage("A#2", "d e. f"),
        *chunks("B", "a b. c."),
        fields=ALL & {"documents", "sentences"},
    )
    assert set(count_views(shelf, "pair", parted, 0, "b", times=20, spans="mixed")) == {"d e . f"}


def test_distinct_spans_are_sampled_without_replacement(shelf):
    corpus = shelf(*chunks("A", "a b c", "d e f", "g h i"), make_passage("B", "j k l"), fields={"documents"})
    pairs = Counter()
    for seed in range(600):
        found = apply_view("pair", corpus, 0, seed=seed, spans="distinct")
        pairs[shelf.decode(found["a"])[0] + shelf.decode(found["b"])[0]] += 1
    assert set(pairs) == {"ad", "ag", "da", "dg", "ga", "gd"}
    assert all(abs(count - 100) < 46 for count in pairs.values())  # 5 * sqrt(600 * 5/36)
    assert apply_view("pair", corpus, 1, spans="distinct") is None
    titled = shelf(*[row | {"title": "t"} for row in chunks("A", "a b c", "d e f")], fields={"documents"})
    found = apply_view("pair", titled, 0, title="segment", max_tokens=4)
    assert (shelf.decode(found["a"]), shelf.decode(found["b"])) == ("t [SEP] a b", "t [SEP] d e")


def test_query_is_sampled_uniformly_from_the_first_queries(shelf):
    corpus = shelf(make_passage("p", queries=["a", "b", "b", "c"]), make_passage("q", queries=[]), fields={"queries"})
    found = count_views(shelf, "query", corpus, 0, "", times=400)
    assert set(found) == {"a", "b", "c"}
    assert abs(found["b"] - 200) < 50  # written twice: 5 * sqrt(400 / 4)
    assert set(count_views(shelf, "query", corpus, 0, "", times=50, limit=1)) == {"a"}
    assert set(count_views(shelf, "query", corpus, 0, "", times=50, limit=9)) == {"a", "b", "c"}
    assert apply_view("query", corpus, 1) is None


def test_queries_are_joined_by_separators_and_cropped(shelf):
    rows = (
        make_passage("p", queries=["a wording", "b", "c d"]),
        make_passage("q", queries=[""]),
        make_passage("r", queries=[*"abcdefghijkl"]),
    )
    corpus = shelf(*rows, fields={"queries"})
    found = apply_view("queries", corpus, 0)[""]
    assert shelf.decode(found) == "a word ##ing [SEP] b [SEP] c d"
    assert found.words.tolist() == [0, 1, 1, -1, 2, -1, 3, 4]
    assert shelf.decode(apply_view("queries", corpus, 0, limit=2)[""]) == "a word ##ing [SEP] b"
    assert set(count_views(shelf, "queries", corpus, 0, "", max_tokens=7)) == {
        "a word ##ing [SEP] b [SEP] c",
        "word ##ing [SEP] b [SEP] c d",
    }
    assert apply_view("queries", corpus, 1) is None
    assert shelf.decode(apply_view("queries", corpus, 2)[""]) == " [SEP] ".join("abcdefghij")  # ten by default


def test_continuation_is_sampled_or_replaced_by_the_passage(shelf):
    rows = make_passage("p", continuations=["a b", "c"]), make_passage("q", "d e f", continuations=[" "])
    corpus = shelf(*rows, fields={"continuations"})
    assert set(count_views(shelf, "continuation", corpus, 0, "", times=40)) == {"a b", "c"}
    assert shelf.decode(apply_view("continuation", corpus, 0, limit=1)[""]) == "a b"
    assert shelf.decode(apply_view("continuation", corpus, 1)[""]) == "d e f"


def test_crops_have_5_to_50_percent_of_the_tokens(shelf):
    letters = "abcdefghijklmnopqrstuvwxyz0123456789abcd"  # 40 tokens: parts of 2 to 20
    corpus = shelf(make_passage("p", " ".join(letters)))
    lengths: Counter[int] = Counter()
    begins = set()
    for seed in range(2000):
        found = apply_view("crop", corpus, 0, seed=seed)[""]
        said = shelf.decode(found).replace(" ", "")
        assert said in letters
        lengths[len(said)] += 1
        begins.add(letters.index(said))
    assert (min(lengths), max(lengths)) == (2, 20)
    assert all(abs(count - 2000 / 19) < 50 for count in lengths.values())  # 5 * sqrt(2000 * 18/361) = 50
    assert {0, 20} <= begins
    assert set(count_views(shelf, "crop", corpus, 0, "", times=9, shortest=1.0, longest=1.0)) == {" ".join(letters)}
    assert all(len(apply_view("crop", corpus, 0, seed=seed, max_tokens=5)[""].ids) <= 5 for seed in range(50))
    short = shelf(make_passage("p", "a b c"))  # at least one token
    assert set(count_views(shelf, "crop", short, 0, "")) == {"a", "b", "c"}


def test_two_crops_are_independent(shelf):
    corpus = shelf(make_passage("p", " ".join("abcdefghijklmnopqrst")))
    found = [apply_view("crop-pair", corpus, 0, seed=seed) for seed in range(2000)]
    a, b = (np.array([len(parts[name].ids) for parts in found], float) for name in ("a", "b"))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.112  # 5 / sqrt(2000)
    assert any(shelf.decode(parts["a"]) != shelf.decode(parts["b"]) for parts in found)


def test_ict_removes_the_sentence_with_probability_0_9(shelf):
    corpus = shelf(*chunks("A", "a b. ab. c d."), make_passage("q", "x y z"), fields={"sentences"})
    whole = "a b . a ##b . c d ."
    kept = 0
    queries: Counter[str] = Counter()
    for seed in range(1000):
        found = apply_view("ict", corpus, 0, seed=seed)
        query, context = shelf.decode(found["query"]), shelf.decode(found["context"])
        queries[query] += 1
        kept += context == whole
        assert context in (whole, " ".join(whole.replace(query, "").split()))
    assert set(queries) == {"a b .", "a ##b .", "c d ."}
    assert all(abs(count - 1000 / 3) < 75 for count in queries.values())  # 5 * sqrt(1000 * 2/9)
    assert abs(kept - 100) < 48  # 5 * sqrt(1000 * .1 * .9)
    assert apply_view("ict", corpus, 1) is None  # one sentence: nothing would be left
    context = apply_view("ict", corpus, 0, remove=1.0)["context"]
    assert context.words.tolist() in ([0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 3, 4])


@pytest.fixture
def rich(shelf) -> TokenCorpus:
    rows = []
    for document in "ABC":
        texts = ["a wording b. c d e. f", "g h. i j word. k l m. n", "wording wording. o p.", "q r s."]
        for row in chunks(document, *texts):
            pieces = len(WordPieceTokenizer(shelf.tokenizer)([row["text"]])[0].ids)
            more = {"queries": ["a b c d e f", "wording"], "continuations": ["t u v w x y z"]}
            rows.append(row | more | {"weights": list(range(pieces)), "title": "t", "title_weights": [1]})
    return shelf(*rows, fields=ALL)


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_satisfies_the_interface(shelf, rich, name):
    """Room, word numbers, special tokens, determinism, and the fields it needs."""
    for max_tokens in (1, 5, 100):
        for row in range(len(rich)):
            parts, again = (apply_view(name, rich, row, seed=row, max_tokens=max_tokens) for _ in range(2))
            for part, text in (parts or {}).items():
                assert 1 <= len(text.ids) <= max_tokens
                assert text.ids.tolist() == again[part].ids.tolist()
                assert (text.ids.dtype, text.words.dtype, len(text.words)) == (np.int32, np.int32, len(text.ids))
                inside = text.words[text.words >= 0]
                assert inside[:1].tolist() in ([], [0])
                assert set(np.diff(inside).tolist()) <= {0, 1}
                assert ((text.ids == SEP) == (text.words == -1)).all()
                assert text.weights is None or (text.weights.dtype, len(text.weights)) == (np.float32, len(text.ids))
    needs = list_needed_fields(VIEWS.load(name), {})
    assert needs <= set(FIELDS)
    with_these = TokenCorpus.open(str(shelf.folder / "corpus.jsonl"), shelf.tokenizer, fields=needs)
    assert any(apply_view(name, with_these, row) is not None for row in range(len(with_these)))


def test_needed_fields_depend_on_the_options():
    assert list_needed_fields(VIEWS.load("passage"), {"title": "join"}) == set()
    assert list_needed_fields(VIEWS.load("pair"), {"spans": "random"}) == {"documents"}
    assert list_needed_fields(VIEWS.load("pair"), {"spans": "mixed"}) == {"documents", "sentences"}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pair", {"span": "random"}, "view 'pair' has no option 'span'; choose from spans, title, crop"),
        ("pair", {"spans": "far"}, "spans = 'far' is not one of random, nearby, overlap, mixed, distinct"),
        ("query", {"limit": True}, "limit = True is not a whole number of 1 or more or nothing"),
        ("crop", {"longest": 5}, "longest = 5 is not a number from 0.0 to 1.0"),
    ],
)
def test_unknown_view_options_are_rejected(name, options, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        check_options(f"view '{name}'", VIEWS.load(name), options)


@pytest.mark.parametrize("cap", [1, 5])
def test_overlap_has_one_sentence_even_above_max_length(cap):
    assert sample_overlap(0, [[9], [9]], cap, rng=np.random.default_rng(0)) == [(0, 0)]


def test_random_pair_is_within_max_distance() -> None:
    rng = np.random.default_rng(5)
    others = {sample_other(150, 1000, rng=rng) for _ in range(2000)}
    assert (min(others), max(others), 150 in others) == (50, 250, False)  # type: ignore[type-var]

"""Views: which text of a corpus row they return, on passages of one-letter words."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from drtk.errors import MismatchError
from drtk.pretraining.config import list_needed_fields
from drtk.pretraining.views import VIEWS, ViewInput, sample_other_passage
from drtk.text.rng import create_generator
from drtk.text.token_dataset import TokenCorpus, TokenizedText
from drtk.text.token_writer import FIELDS
from drtk.text.word_pieces import WordPieceTokenizer
from tests.unit.text.small_tokenizers import word_pieces

SEP = 3  # the id of [SEP]
ALL = {"queries", "continuations", "sentences", "documents", "weights"}


class Shelf:
    """Writer of corpora in a folder, and decoder of their tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer = word_pieces(folder / "tokenizer")
        self._pieces = WordPieceTokenizer(self.tokenizer)

    def __call__(self, *rows: dict, fields=()) -> TokenCorpus:
        path = self.folder / "corpus.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return TokenCorpus.open(str(path), self.tokenizer, fields=fields)

    def decode(self, text: TokenizedText) -> str:
        return " ".join(self._pieces.tokenizer.convert_ids_to_tokens(text.ids.tolist()))


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("views"))


def apply_view(name: str, corpus, row: int, *, seed: object = 0, max_tokens: int = 100, **options):
    return VIEWS.load(name)(ViewInput(corpus, row, create_generator(str(seed)), max_tokens, SEP), **options)


def make_passage(id: str, text: str = "a b c d", **more) -> dict:
    return {"_id": id, "text": text, **more}


def chunks(document: str, *texts: str) -> list[dict]:
    """Return the passages of a document; sentences end with a full stop."""
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


def make_text(*words: int, weights: list[float] | None = None) -> TokenizedText:
    ids = np.arange(10, 10 + len(words), dtype=np.int32)
    return TokenizedText(ids, np.array(words, np.int32), None if weights is None else np.array(weights, np.float32))


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
    actual = apply_view("passage", corpus, 0, title="segment")[""]
    assert shelf.decode(actual) == "b c [SEP] a word ##ing"
    assert actual.words.tolist() == [0, 1, -1, 2, 3, 3]
    assert actual.types is not None
    assert actual.types.tolist() == [0, 0, 0, 1, 1, 1]
    parted = apply_view("passage", corpus, 0, title="sep")[""]
    assert (shelf.decode(parted), parted.types) == ("b c [SEP] a word ##ing", None)
    bare = apply_view("passage", corpus, 1, title="segment")[""]
    assert (shelf.decode(bare), bare.types) == ("d e f", None)  # no title, no separator, one segment


def test_random_crop_of_a_pair_starts_with_token_type_0(shelf):
    corpus = shelf(make_passage("p", "a b c d", title="e f"))
    types = {"e f [SEP] a": [0, 0, 0, 1], "f [SEP] a b": [0, 0, 1, 1], "[SEP] a b c": [0, 1, 1, 1], "a b c d": [0] * 4}
    options = {"max_tokens": 4, "title": "segment", "crop": "random"}
    actual = [apply_view("passage", corpus, 0, seed=seed, **options)[""] for seed in range(40)]
    assert {shelf.decode(each): each.types.tolist() for each in actual} == types


def test_pair_is_truncated_longest_first(shelf):
    corpus = shelf(make_passage("p", "a b c d", title="e f"), make_passage("q", "a b c", title="d e f g h"))

    def decode_passage(row: int, max_tokens: int) -> str:
        return shelf.decode(apply_view("passage", corpus, row, max_tokens=max_tokens, title="segment")[""])

    expected = ["e f [SEP] a b c", "e f [SEP] a b", "e [SEP] a b"]
    assert [decode_passage(0, max_tokens) for max_tokens in (6, 5, 4)] == expected
    expected = ["d e f g [SEP] a b c", "d e f [SEP] a b c", "d e f [SEP] a b"]
    assert [decode_passage(1, max_tokens) for max_tokens in (8, 7, 6)] == expected


def test_weights_are_cropped_and_title_weights_prepended(shelf):
    row = make_passage("p", "a b c d", title="e f", weights=[1, 2, 3, 4], title_weights=[8, 9])
    corpus = shelf(row, fields={"weights"})
    value = dict(zip("abcdef", [1, 2, 3, 4, 8, 9], strict=True)) | {"[SEP]": 0}
    for seed in range(20):
        actual = apply_view("passage", corpus, 0, seed=seed, max_tokens=3, title="segment", crop="random")[""]
        assert actual.weights is not None
        assert actual.weights.tolist() == [value[token] for token in shelf.decode(actual).split()]


def test_title_without_weights_is_rejected_if_the_text_has_weights(shelf):
    corpus = shelf(make_passage("p", title="e", weights=[1, 2, 3, 4]), fields={"weights"})
    message = "passage 'p' has weights but no 'title_weights'; run `drtk termweight --set title=join`"
    with pytest.raises(MismatchError, match=message):
        apply_view("passage", corpus, 0, title="join")
    assert apply_view("passage", corpus, 0)[""].weights.tolist() == [1, 2, 3, 4]


CORPORA = {
    "abc": [*chunks("A", "a b c.", "d e f.", "g h i.", "j k l."), *chunks("B", "m. n.")],
    "gap": [make_passage("A#0", "a b c"), make_passage("A#2", "d e. f"), *chunks("B", "a b. c.")],
    "queries": [make_passage("p", queries=["a", "b", "b", "c"]), make_passage("q", queries=[""])],
    "long": [make_passage("p", queries=["a wording", "b", "c d"]), make_passage("q", queries=[*"abcdefghijkl"])],
    "continuations": [make_passage("p", continuations=["a b", "c"]), make_passage("q", "d e f", continuations=[" "])],
    "first": chunks("A", "a b. c d. e f. g h.", "i j. k l.", "m n."),
    "last": chunks("A", "a b. c d.", "e f. g h.", "i j. k l. m n. o p."),
    "three": [make_passage("p", "a b c")],
}
FIELDS_OF = {"queries": {"queries"}, "long": {"queries"}, "continuations": {"continuations"}, "three": set()}


@pytest.mark.parametrize(
    ("corpus", "view", "row", "options", "expected"),
    [
        ("abc", "next", 0, {}, {"d e f ."}),
        ("abc", "next", 3, {}, set()),  # the last passage of a document has no text
        ("abc", "pair.a", 1, {"spans": "random"}, {"d e f ."}),
        ("abc", "pair.b", 1, {"spans": "random"}, {"a b c .", "g h i .", "j k l ."}),
        ("abc", "pair.b", 4, {"spans": "random"}, set()),
        ("abc", "pair.b", 0, {"spans": "nearby"}, {"d e f ."}),
        ("abc", "pair.b", 1, {"spans": "nearby"}, {"a b c .", "g h i ."}),
        ("abc", "pair.b", 3, {"spans": "nearby"}, {"g h i ."}),
        ("gap", "pair.b", 0, {"spans": "nearby"}, set()),
        ("gap", "pair.b", 0, {"spans": "random"}, {"d e . f"}),
        ("gap", "pair.b", 0, {"spans": "mixed"}, {"d e . f"}),
        # sentences have 3 tokens; the text begins 1 or 2 of 4 sentences before the end, with at most 9 tokens
        ("first", "pair.b", 0, {"spans": "overlap", "max_tokens": 9}, {"g h . i j . k l .", "e f . g h . i j ."}),
        ("first", "pair.b", 0, {"spans": "overlap"}, {"g h . i j . k l . m n .", "e f . g h . i j . k l . m n ."}),
        ("first", "pair.b", 1, {"spans": "overlap", "max_tokens": 6}, {"k l . m n ."}),  # 1 of 2
        ("first", "pair.b", 1, {"spans": "overlap", "max_tokens": 1}, {"k"}),
        ("last", "pair.b", 2, {"spans": "overlap", "max_tokens": 9}, {"e f . g h . i j .", "g h . i j . k l ."}),
        ("last", "pair.b", 2, {"spans": "overlap"}, {"a b . c d . e f . g h . i j .", "a b . c d . e f . g h . i j . k l ."}),
        ("queries", "query", 0, {}, {"a", "b", "c"}),
        ("queries", "query", 0, {"limit": 1}, {"a"}),
        ("queries", "query", 1, {}, set()),
        ("queries", "queries", 1, {}, set()),
        ("long", "queries", 0, {"limit": 2}, {"a word ##ing [SEP] b"}),
        ("long", "queries", 0, {"max_tokens": 7}, {"a word ##ing [SEP] b [SEP] c", "word ##ing [SEP] b [SEP] c d"}),
        ("long", "queries", 1, {}, {" [SEP] ".join("abcdefghij")}),  # 10 by default
        ("continuations", "continuation", 0, {}, {"a b", "c"}),
        ("continuations", "continuation", 0, {"limit": 1}, {"a b"}),
        ("continuations", "continuation", 1, {}, {"d e f"}),  # the passage, without a continuation
        ("three", "crop", 0, {}, {"a", "b", "c"}),  # at least one token
        ("three", "crop", 0, {"shortest": 1.0, "longest": 1.0}, {"a b c"}),
    ],
)  # fmt: skip
def test_views_return_the_texts_of_their_rows(shelf, corpus, view, row, options, expected):
    rows = shelf(*CORPORA[corpus], fields=FIELDS_OF.get(corpus, {"documents", "sentences"}))
    name, _, part = view.partition(".")
    assert set(count_views(shelf, name, rows, row, part, times=60, **options)) == expected


def test_halves_are_adjacent_and_second_has_the_odd_token(shelf):
    corpus = shelf(make_passage("p", "a b c d e", title="t"))
    for options, expected in (
        ({}, ["a b", "c d e"]),
        ({"max_tokens": 2}, ["a b", "c d"]),  # cropped to 4 tokens first
        ({"title": "segment"}, ["t [SEP] a", "b c d e"]),
    ):
        texts = apply_view("halves", corpus, 0, **options)
        assert [shelf.decode(texts[part]) for part in "ab"] == expected
    assert apply_view("halves", corpus, 0)["b"].words.tolist() == [0, 1, 2]


def test_samples_of_views_are_uniform(shelf):
    corpus = shelf(*CORPORA["abc"], fields={"documents"})
    counts = count_views(shelf, "pair", corpus, 1, "b", spans="random")
    assert all(abs(count - 100) < 41 for count in counts.values())  # 5 * sqrt(300 * 2/9)
    counts = count_views(shelf, "pair", corpus, 1, "b", spans="nearby")
    assert abs(counts["a b c ."] - 150) < 44  # 5 * sqrt(300 / 4)
    counts = count_views(shelf, "query", shelf(*CORPORA["queries"], fields={"queries"}), 0, "", times=400)
    assert abs(counts["b"] - 200) < 50  # written twice: 5 * sqrt(400 / 4)


def test_mixed_pairs_sample_three_span_types_uniformly(shelf):
    rows = chunks("A", "a b. c d.", "e f. g h.", "i j. k l.", "m n. o p.")
    corpus = shelf(*rows, fields={"documents", "sentences"})
    counts = count_views(shelf, "pair", corpus, 0, "b", times=600, spans="mixed", max_tokens=6)
    # overlap: "c d . e f ."; nearby: the second; random: the second, third or fourth
    assert set(counts) == {"c d . e f .", "e f . g h .", "i j . k l .", "m n . o p ."}
    spread = 5 * (600 * 2 / 9) ** 0.5
    assert abs(counts["c d . e f ."] - 200) < spread
    assert abs(counts["e f . g h ."] - (200 + 200 / 3)) < spread
    corpus = shelf(*CORPORA["gap"], fields={"documents", "sentences"})  # other span types need a neighbor
    assert count_views(shelf, "pair", corpus, 0, "b", times=60, spans="mixed").total() == 60
    corpus = shelf(*chunks("A", "a b. c d.", "e f. g h."), fields={"documents", "sentences"})  # one neighbor is enough
    assert "c d . e f ." in count_views(shelf, "pair", corpus, 0, "b", times=60, spans="mixed", max_tokens=6)


def test_distinct_spans_are_sampled_without_replacement(shelf):
    corpus = shelf(*chunks("A", "a b c", "d e f", "g h i"), make_passage("B", "j k l"), fields={"documents"})
    samples = [apply_view("pair", corpus, 0, seed=seed, spans="distinct") for seed in range(600)]
    pairs = Counter(shelf.decode(texts["a"])[0] + shelf.decode(texts["b"])[0] for texts in samples)
    assert set(pairs) == {"ad", "ag", "da", "dg", "ga", "gd"}
    assert all(abs(count - 100) < 46 for count in pairs.values())  # 5 * sqrt(600 * 5/36)
    assert apply_view("pair", corpus, 1, spans="distinct") is None


def test_crops_have_5_to_50_percent_of_the_tokens(shelf):
    letters = "abcdefghijklmnopqrstuvwxyz0123456789abcd"  # 40 tokens: spans of 2 to 20
    corpus = shelf(make_passage("p", " ".join(letters)))
    spans = [shelf.decode(apply_view("crop", corpus, 0, seed=seed)[""]).replace(" ", "") for seed in range(2000)]
    assert all(span in letters for span in spans)
    lengths = Counter(map(len, spans))
    assert (min(lengths), max(lengths)) == (2, 20)
    assert all(abs(count - 2000 / 19) < 50 for count in lengths.values())  # 5 * sqrt(2000 * 18/361) = 50
    assert {0, 20} <= {letters.index(span) for span in spans}
    pairs = [apply_view("crop-pair", corpus, 0, seed=seed) for seed in range(2000)]
    a, b = (np.array([len(texts[name].ids) for texts in pairs], float) for name in "ab")
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.112  # independent lengths: 5 / sqrt(2000)


def test_ict_removes_the_sentence_with_probability_0_9(shelf):
    corpus = shelf(*chunks("A", "a b. ab. c d."), make_passage("q", "x y z"), fields={"sentences"})
    whole = "a b . a ##b . c d ."
    num_kept = 0
    queries: Counter[str] = Counter()
    for seed in range(1000):
        texts = apply_view("ict", corpus, 0, seed=seed)
        query, context = shelf.decode(texts["query"]), shelf.decode(texts["context"])
        queries[query] += 1
        num_kept += context == whole
        assert context in (whole, " ".join(whole.replace(query, "").split()))
    assert set(queries) == {"a b .", "a ##b .", "c d ."}
    assert all(abs(count - 1000 / 3) < 75 for count in queries.values())  # 5 * sqrt(1000 * 2/9)
    assert abs(num_kept - 100) < 48  # 5 * sqrt(1000 * .1 * .9)
    assert apply_view("ict", corpus, 1) is None  # one sentence


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


def test_random_pair_is_within_max_distance() -> None:
    rng = np.random.default_rng(5)
    others = {sample_other_passage(150, 1000, rng=rng) for _ in range(2000)}
    assert (min(others), max(others), 150 in others) == (50, 250, False)  # type: ignore[type-var]

"""Tokenized corpora: their content, errors, and cache."""

import gzip
import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from transformers import AutoTokenizer

from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.runtime import integrity
from drtk.runtime.inputs import InputTracker
from drtk.text.token_dataset import TokenCorpus
from drtk.text.word_pieces import WordPieceTokenizer
from tests.tiny_models import find_minilm
from tests.unit.text import small_tokenizers


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DRTK_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    """Return folders of three kinds of tokenizers; "words" splits 'wording' into 'word' '##ing', 'ab' into 'a' '##b'."""
    folder = tmp_path_factory.mktemp("tokenizers")
    return {
        "words": small_tokenizers.word_pieces(folder / "words"),
        "bytes": small_tokenizers.byte_pieces(folder / "bytes"),
        "sentences": small_tokenizers.sentence_pieces(folder / "sentences"),
    }


@pytest.fixture
def pieces(folders) -> str:
    return folders["words"]


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """Return a list that collects the number of texts in each call of the tokenizer."""
    sizes: list[int] = []
    encode = WordPieceTokenizer.encode

    def count(self, texts):
        sizes.append(len(texts))
        return encode(self, texts)

    monkeypatch.setattr(WordPieceTokenizer, "encode", count)
    return sizes


@pytest.fixture
def open_corpus(tmp_path, pieces):
    """Open a corpus of rows."""

    def open_rows(*rows, name=None, **arguments):
        return TokenCorpus.open(write(tmp_path / "c.jsonl", *rows), name or pieces, **arguments)

    return open_rows


def write(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def passage(id: str, text: str = "a b c d", **more) -> dict:
    return {"_id": id, "text": text, **more}


def tokens(tokenizer: str, text) -> str:
    return " ".join(WordPieceTokenizer(tokenizer).tokenizer.convert_ids_to_tokens(text.ids.tolist()))


def test_texts_and_titles(open_corpus, pieces, monkeypatch):
    rows = (passage("p1", "a wording b", title="ab"), passage("p2"))
    for largest in (60, 1 << 15):  # the first id that two bytes with a flag cannot hold
        monkeypatch.setattr(WordPieceTokenizer, "max_id", largest)
        monkeypatch.setenv("DRTK_CACHE", os.environ["DRTK_CACHE"] + str(largest))
        corpus = open_corpus(*rows)
        assert [corpus.get_id(row) for row in range(len(corpus))] == ["p1", "p2"]
        text = corpus.get_text(0)
        assert tokens(pieces, text) == "a word ##ing b"
        assert text.words.tolist() == [0, 1, 1, 2]
        assert (text.ids.dtype, text.words.dtype, text.weights) == (np.int32, np.int32, None)
        assert tokens(pieces, corpus.get_title(0)) == "a ##b"
        assert corpus.get_title(0).words.tolist() == [0, 0]
        assert corpus.get_title(1).ids.tolist() == []
        assert corpus.lengths.tolist() == [4, 4]
        assert corpus.counts == {"passages": 2, "short": 0, "tokens": 8}
    packed = pickle.dumps(corpus)
    assert len(packed) < 1000
    assert pickle.loads(packed).get_text(0).ids.tolist() == corpus.get_text(0).ids.tolist()


@pytest.mark.parametrize("kind", ["words", "sentences"])
def test_pieces_and_words_are_those_of_the_tokenizer(open_corpus, folders, kind):
    texts = ["the cat sat on unbelievable mats", "naïve ones: 10,000 €!", "there  \n there, there"]
    corpus = open_corpus(*(passage(f"p{n}", text) for n, text in enumerate(texts)), name=folders[kind])
    for row, expected in enumerate(WordPieceTokenizer(folders[kind])(texts)):
        assert corpus.get_text(row).ids.tolist() == expected.ids
        numbers = list(dict.fromkeys(expected.words))
        assert corpus.get_text(row).words.tolist() == [numbers.index(word) for word in expected.words]


def test_byte_level_words_begin_at_the_space_marker(open_corpus, folders):
    name = folders["bytes"]
    text = "the cat, (the mat). naïve\nones: 10,000 €! </s>there"
    row = passage("p", text, metadata={"sentences": [[0, 19], [20, 51]]})
    corpus = open_corpus(row, name=name, fields={"sentences"})
    text = corpus.get_text(0)
    pieces = WordPieceTokenizer(name).tokenizer.convert_ids_to_tokens(text.ids.tolist())
    words: dict[int, str] = {}
    for piece, word in zip(pieces, text.words.tolist(), strict=True):
        words[word] = words.get(word, "") + piece
    assert words.pop(-1) == "</s>"
    # Ġ is a space and Ċ a new line; a character of several bytes has several pieces.
    expected = ["the", "Ġcat,", "Ġ(the", "Ġmat).", "ĠnaÃ¯ve", "Ċones:", "Ġ10,000", "ĠâĤ¬!", "Ġ", "there"]
    assert [*words.values()] == expected
    assert len(pieces) > len(words) + 6
    # The space before a sentence belongs to its first piece.
    (begin, end), (start, last) = corpus.get_sentence_spans(0)
    assert (begin, end, last) == (0, start, len(pieces))
    assert "".join(pieces[:end]) == "theĠcat,Ġ(theĠmat)."


def test_a_special_token_in_a_text_belongs_to_no_word(open_corpus):
    corpus = open_corpus(passage("p", "one [SEP] two three"), passage("q", "four five six"), name=find_minilm())
    assert corpus.get_text(0).words.tolist() == [0, -1, 1, 2]
    assert corpus.get_text(1).words.tolist() == [0, 1, 2]


def test_queries_and_continuations_keep_order_and_repeats_and_short_passages_are_excluded(open_corpus, pieces):
    corpus = open_corpus(
        passage("p1", "abc", title="ab", queries=["ab", "a", "ab"], continuations=["c wording"]),
        passage("short", "a b", queries=["b c", "c"], continuations=["d"], title="x"),
        passage("p2", queries=["d", ""], continuations=["e", "f"]),
        passage("p3", queries=[], continuations=[]),
        fields={"queries", "continuations"},
    )
    assert [corpus.get_id(row) for row in range(len(corpus))] == ["p1", "p2", "p3"]
    assert corpus.counts == {"passages": 3, "short": 1, "tokens": 11, "queries": 4, "continuations": 3}
    queries = [[tokens(pieces, query) for query in corpus.get_queries(row)] for row in range(3)]
    assert queries == [["a ##b", "a", "a ##b"], ["d"], []]
    continuations = [[tokens(pieces, text) for text in corpus.get_continuations(row)] for row in range(2)]
    assert continuations == [["c word ##ing"], ["e", "f"]]
    texts = [corpus.get_text(0), corpus.get_title(0), *corpus.get_queries(0)]  # each begins a word
    assert [text.words.tolist() for text in texts] == [[0, 0, 0], [0, 0], [0, 0], [0], [0, 0]]


def test_sentences_in_pieces(open_corpus):
    text = "a b. wording c! d e"  # pieces 0-2, 3-6 and 7-8; one list of spans has an empty sentence
    corpus = open_corpus(
        passage("p1", text, metadata={"sentences": [[0, 4], [5, 15], [16, 19]]}),
        passage("p2", text, metadata={"sentences": [[0, 4], [4, 5], [5, 19]]}),
        passage("p3", text),
        fields={"sentences"},
    )
    spans = [corpus.get_sentence_spans(row) for row in range(3)]
    assert spans == [[(0, 3), (3, 7), (7, 9)], [(0, 3), (3, 9)], [(0, 9)]]


def test_passages_of_documents_in_reading_order(open_corpus):
    corpus = open_corpus(
        passage("x", metadata={"source_id": "A", "position": 2}),
        passage("B#1"),
        passage("A#0"),
        passage("B#0"),
        passage("y", metadata={"source_id": "A", "position": 1}),
        passage("alone"),
        fields={"documents"},
    )
    assert [corpus.get_document(row) for row in range(6)] == [0, 1, 0, 1, 0, 2]
    passages = [corpus.get_document_passages(document).tolist() for document in range(corpus.num_documents)]
    assert passages == [[2, 4, 0], [3, 1], [5]]
    assert [corpus.get_next_passage(row) for row in range(6)] == [None, None, 4, 1, 0, None]
    assert corpus.multi_passage_documents.tolist() == [0, 1]
    # Without positions, the order of the file.
    corpus = open_corpus(*(passage(id, metadata={"source_id": "A"}) for id in ("c", "a", "b")), fields={"documents"})
    assert corpus.get_document_passages(0).tolist() == [0, 1, 2]
    assert [corpus.get_next_passage(row) for row in range(3)] == [1, 2, None]
    # A#2 is too short and A#5 is missing: runs are 0-1, 3-4, 6.
    rows = [passage(f"A#{n}", "a" if n == 2 else "a b c") for n in (0, 1, 2, 3, 4, 6)]
    corpus = open_corpus(*rows, fields={"documents"})
    assert [corpus.get_id(row) for row in corpus.get_document_passages(0)] == ["A#0", "A#1", "A#3", "A#4", "A#6"]
    assert [corpus.get_next_passage(row) for row in range(5)] == [1, None, 3, None, None]
    runs = [(rows.tolist(), at) for rows, at in map(corpus.get_consecutive_passages, range(5))]
    assert runs == [([0, 1], 0), ([0, 1], 1), ([2, 3], 0), ([2, 3], 1), ([4], 0)]


def test_weights_of_texts_and_titles(open_corpus):
    corpus = open_corpus(
        passage("p1", "a wording", title="b", weights=[1, 0.5, 0.25], title_weights=[2]),
        passage("p2", "a b c", title="d", weights=[0, 0, 3]),
        passage("p3", "a b c", weights=[1, 2, 3]),
        fields={"weights"},
    )
    weights = [corpus.get_text(row).weights for row in range(3)]
    assert [each.tolist() for each in weights] == [[1, 0.5, 0.25], [0, 0, 3], [1, 2, 3]]
    assert all(each.dtype == np.float32 for each in weights)
    titles = [corpus.get_title(row).weights for row in range(3)]
    assert [None if each is None else each.tolist() for each in titles] == [[2], None, []]


def test_side_files_and_several_files(tmp_path, pieces, open_corpus):
    side = write(tmp_path / "q.jsonl", {"_id": "p1", "queries": ["a"]}, {"_id": "p2", "queries": ["b", "c"]})
    corpus = open_corpus(passage("p1"), passage("p2"), fields={"queries"}, side_files=[side])
    assert [tokens(pieces, query) for query in corpus.get_queries(1)] == ["b", "c"]
    one, two = write(tmp_path / "1.jsonl", passage("p1")), write(tmp_path / "2.jsonl", passage("p2", "c b a"))
    corpus = TokenCorpus.open([one, two], pieces)
    assert [corpus.get_id(row) for row in range(2)] == ["p1", "p2"]
    with pytest.raises(RecordError, match=r"1.jsonl, .*3.jsonl: duplicate id 'p1'"):
        TokenCorpus.open([one, write(tmp_path / "3.jsonl", passage("p1", "c d e"))], pieces)


FULL = passage("p1", title="t", queries=["a"], continuations=["a"], weights=[1] * 4, title_weights=[1])


@pytest.mark.parametrize(
    ("fields", "row", "problem"),
    [
        (["queries"], passage("p2"), "2: passage 'p2' has no 'queries'; add them with `drtk doc2query`"),
        (["continuations"], passage("p2"), "2: passage 'p2' has no 'continuations'; add them with `drtk continue-"),
        (["weights"], passage("p2"), "2: passage 'p2' has no 'weights'; add them with `drtk termweight`"),
        (["weights", "title_weights"], passage("p2", title="t", weights=[1] * 4), "2: passage 'p2' has no 'title_"),
        (["weights"], passage("p2", weights=[1, 2]), "has 2 weights for the 4 word pieces of its text"),
        (
            ["weights"],
            passage("p2", weights=[1] * 4, title="ab", title_weights=[1]),
            "has 1 weights for the 2 .* title",
        ),
    ],
)
def test_missing_fields_and_wrong_numbers_of_weights(open_corpus, fields, row, problem):
    with pytest.raises(MismatchError, match=f"c.jsonl:{problem}" if problem[0] == "2" else problem):
        open_corpus(FULL, row, fields=fields)


def test_weights_of_another_tokenizer(tmp_path, folders, open_corpus):
    def row(name):
        return passage("p", weights=[1, 1, 1, 1], metadata={"weights_tokenizer": name})

    same = small_tokenizers.word_pieces(tmp_path / "same")
    assert len(open_corpus(row(same), fields={"weights"})) == 1
    with pytest.raises(MismatchError, match=r"c.jsonl:1: the weights are for the word pieces of .*sentences, which"):
        open_corpus(row(folders["sentences"]), fields={"weights"})
    with pytest.raises(MismatchError, match=r"c.jsonl:1: .* \./no/gone, which cannot be compared .*no such folder"):
        open_corpus(row("./no/gone"), fields={"weights"})


@pytest.mark.parametrize(
    ("field", "more", "problem"),
    [
        ("queries", {"queries": "a"}, "'queries' must be a list of strings"),
        ("continuations", {"continuations": [1]}, "'continuations' must be a list of strings"),
        ("weights", {"weights": [1, 1, 1, -1]}, "'weights' must be a list of numbers, 0 or more"),
        ("weights", {"weights": [1, 1, 1, True]}, "'weights' must be a list of numbers, 0 or more"),
        ("weights", {"weights": [1] * 4, "metadata": {"weights_tokenizer": 3}}, "'metadata.weights_tokenizer' must be"),
        ("sentences", {"metadata": {"sentences": [[0, 3], [2, 5]]}}, "'metadata.sentences' must be a list of"),
        ("sentences", {"metadata": {"sentences": [[-1, 3], [4, 7]]}}, "'metadata.sentences' must be a list of"),
        ("sentences", {"metadata": {"sentences": [[0, 99]]}}, "'metadata.sentences' must be a list of"),
        ("sentences", {"metadata": {"sentences": "all"}}, "'metadata.sentences' must be a list of"),
        ("documents", {"metadata": {"position": -1}}, "'metadata.position' must be an integer"),
    ],
)
def test_malformed_fields_can_be_skipped(open_corpus, field, more, problem):
    good = {"queries": ["a"], "continuations": ["a"], "weights": [1] * 4}
    placed = {"metadata": {"sentences": [[0, 3], [4, 7]], "source_id": "A"}}
    rows = [passage("p1", **good, **placed), passage("p2", **good | more), passage("p3", **good, **placed)]
    with pytest.raises(RecordError, match=r"c.jsonl:2: " + problem):
        open_corpus(*rows, fields={field})
    for _ in range(2):  # tokenized, and then cached
        tracker = InputTracker(skip_bad=1)
        corpus = open_corpus(*rows, fields={field}, tracker=tracker)
        assert [corpus.get_id(row) for row in range(len(corpus))] == ["p1", "p3"]
        assert tracker.bad == 1
    with pytest.raises(RecordError, match=r"c.jsonl:2: "):  # the cache skipped more than this run allows
        open_corpus(*rows, fields={field})


@pytest.mark.parametrize(
    ("rows", "fields", "problem"),
    [
        ([passage("p1"), passage("p2")], "documents", "no document has two passages, .*; split the documents with"),
        ([passage("p1"), passage("p2")], "sentences", "no passage has two sentences; split the documents with"),
        ([passage("p1", queries=[])], "queries", "'queries' is empty in every passage; add them with `drtk doc2query`"),
        ([passage("p1", continuations=[""])], "continuations", "'continuations' is empty in every .*; add them with"),
        ([], None, "has no passage of 3 word pieces or more"),
        ([passage("p1", "a b")], None, "has no passage of 3 word pieces or more"),
    ],
)
def test_a_corpus_without_the_fields_is_rejected(open_corpus, rows, fields, problem):
    for _ in range(2):  # tokenized, and then cached
        with pytest.raises(MismatchError, match=problem):
            open_corpus(*rows, fields=[fields] if fields else [])
    if fields == "queries":
        assert len(open_corpus(*rows, passage("p2", queries=["a"]), fields=[fields])) == 2


def test_unreadable_inputs(tmp_path, pieces, monkeypatch):
    path = tmp_path / "c.jsonl"
    path.write_text('{"_id":"a","text":"a b c"}\n{"_id":\n')
    for name, problem in (
        ("-", "<stdin>: the corpus must be a file"),
        (str(tmp_path / "none.jsonl"), r"none.jsonl: No such file or directory"),
        (str(path), r"c.jsonl:2: "),
    ):
        with pytest.raises(DrtkError, match=problem):
            TokenCorpus.open(name, pieces)
    left = [item.name for item in (tmp_path / "cache" / "tokens").iterdir()]
    assert [name for name in left if not name.endswith(".lock")] == []

    def deny(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("drtk.text.token_dataset.compute_content_digest", deny)
        with pytest.raises(PermissionError):  # not reported as an error of the cache
            TokenCorpus.open(str(path), pieces)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRTK_CACHE", str(tmp_path / "file"))
    with pytest.raises(DrtkError, match=r"file.*set .DRTK_CACHE to another"):
        TokenCorpus.open(write(path, passage("p1")), pieces)


# The cache.


def test_the_cache_depends_on_content_tokenizer_and_fields(tmp_path, folders, pieces, calls):
    row = passage("p1", queries=["a"])
    source = write(tmp_path / "c.jsonl", row)
    first, second = InputTracker(), InputTracker()
    one = TokenCorpus.open(source, pieces, tracker=first)
    assert TokenCorpus.open(source, pieces, tracker=second).get_text(0).ids.tolist() == one.get_text(0).ids.tolist()
    assert first.inputs == second.inputs
    assert first.inputs[0]["digest"]
    copy = write(tmp_path / "copy.jsonl", row)
    TokenCorpus.open(copy, small_tokenizers.word_pieces(tmp_path / "copied"))
    assert len(calls) == 1
    TokenCorpus.open(source, pieces, fields={"queries"})
    TokenCorpus.open(source, folders["bytes"])
    TokenCorpus.open(write(tmp_path / "c.jsonl", row, passage("p2")), pieces)
    assert len(calls) == 4
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(copy).read_bytes()))
    assert TokenCorpus.open(str(packed), pieces).get_text(0).ids.tolist() == one.get_text(0).ids.tolist()


@pytest.mark.parametrize("kind", ["words", "bytes", "sentences"])
def test_a_trained_model_uses_the_cache_of_its_tokenizer(tmp_path, folders, kind, calls):
    source = write(tmp_path / "c.jsonl", passage("p1", "the cat sat"))
    before = TokenCorpus.open(source, folders[kind])
    saved = AutoTokenizer.from_pretrained(folders[kind])
    saved.model_max_length = 144
    saved("the cat sat", truncation=True, max_length=4)  # stored in tokenizer.json
    saved.save_pretrained(tmp_path / "after")
    assert TokenCorpus.open(source, str(tmp_path / "after")).folder == before.folder
    assert len(calls) == 1
    saved.add_tokens(["word ing"])
    saved.save_pretrained(tmp_path / "added")
    assert WordPieceTokenizer(str(tmp_path / "added")).digest != WordPieceTokenizer(folders[kind]).digest


def test_one_of_two_runs_tokenizes_and_the_other_waits(tmp_path, pieces, monkeypatch):
    source = write(tmp_path / "c.jsonl", *(passage(f"p{n}") for n in range(20)))
    begun, waiting, gate = Event(), Event(), Event()
    encode, calls = WordPieceTokenizer.encode, []

    def hold(self, texts):
        calls.append(len(texts))
        begun.set()
        assert gate.wait(60)
        return encode(self, texts)

    def log(message):
        if message == f"waiting for another process, which is tokenizing {source}":
            waiting.set()

    monkeypatch.setattr(WordPieceTokenizer, "encode", hold)
    monkeypatch.setattr(integrity, "log", log)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(TokenCorpus.open, source, pieces)
        assert begun.wait(60)
        other = pool.submit(TokenCorpus.open, source, pieces)
        assert waiting.wait(60)
        gate.set()
        assert one.result().get_text(1).ids.tolist() == other.result().get_text(1).ids.tolist()
    assert len(calls) == 1


def test_leftovers_of_a_killed_run_are_removed(open_corpus, calls):
    folder = open_corpus(passage("p1")).folder
    making = folder.rename(folder.with_name(f"{folder.name}-making-1"))
    assert open_corpus(passage("p1")).folder == folder
    assert not making.exists()
    assert len(calls) == 2


def test_a_corpus_that_changes_while_it_is_read(tmp_path, pieces, monkeypatch):
    source = write(tmp_path / "c.jsonl", passage("p1"))
    encode = WordPieceTokenizer.encode

    def change(self, texts):
        write(tmp_path / "c.jsonl", passage("p1"), passage("p2"))
        return encode(self, texts)

    monkeypatch.setattr(WordPieceTokenizer, "encode", change)
    with pytest.raises(DrtkError, match=r"c.jsonl: changed while it was read"):
        TokenCorpus.open(source, pieces)


def test_batches_are_bounded(open_corpus, calls):
    open_corpus(*(passage(f"p{n}", queries=["a b"]) for n in range(1100)), fields={"queries"})
    assert calls == [1025, 1025, 153]  # 512 texts, an empty title, 512 queries
    calls.clear()
    open_corpus(*(passage(f"p{n}", "a b c " * 20_000) for n in range(9)))  # 120,000 characters each
    assert calls == [6, 5]

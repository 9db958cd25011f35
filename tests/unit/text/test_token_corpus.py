"""A corpus tokenised once: what is read back, what is refused, and who does the work when several want it."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.runtime.inputs import Intake
from drtk.text import token_dataset as token_cache
from drtk.text.token_building import arranged
from drtk.text.token_dataset import TokenCorpus
from drtk.text.word_pieces import WordPieceTokenizer
from tests.unit.text import tokenizers_made_here


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DRTK_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory) -> str:
    """BERT's kind: 'wording' is 'word' and '##ing', 'ab' is 'a' and '##b'."""
    return tokenizers_made_here.word_pieces(tmp_path_factory.mktemp("pieces"))


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """How many texts each call of the tokenizer was given."""
    found: list[int] = []
    plain = WordPieceTokenizer.encoded

    def counting(self, texts):
        found.append(len(texts))
        return plain(self, texts)

    monkeypatch.setattr(WordPieceTokenizer, "encoded", counting)
    return found


def write(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def passage(id: str, text: str = "a b c d", **more) -> dict:
    return {"_id": id, "text": text, **more}


def tokens(tokenizer: str, text) -> str:
    return " ".join(WordPieceTokenizer(tokenizer).tokenizer.convert_ids_to_tokens(text.ids.tolist()))


def test_texts_and_titles_come_back_piece_by_piece_with_the_number_of_each_word(tmp_path, pieces):
    source = write(tmp_path / "c.jsonl", passage("p1", "a wording b", title="ab"), passage("p2"))
    corpus = TokenCorpus.open(source, pieces)
    assert [corpus.id(row) for row in range(len(corpus))] == ["p1", "p2"]
    text = corpus.text(0)
    assert tokens(pieces, text) == "a word ##ing b"
    assert text.words.tolist() == [0, 1, 1, 2]
    assert (text.ids.dtype, text.words.dtype, text.weights) == (np.int32, np.int32, None)
    assert tokens(pieces, corpus.title(0)) == "a ##b"
    assert corpus.title(0).words.tolist() == [0, 0]
    assert corpus.title(1).ids.tolist() == []
    assert corpus.lengths.tolist() == [4, 4]
    assert corpus.counts == {"passages": 2, "short": 0, "tokens": 8}


@pytest.mark.parametrize("kind", ["word_pieces", "sentence_pieces"])
def test_every_kind_of_tokenizer_gives_its_own_pieces_and_words(tmp_path, kind):
    name = getattr(tokenizers_made_here, kind)(tmp_path / kind)
    tokenizer = WordPieceTokenizer(name)
    texts = ["the cat sat on unbelievable mats", "naïve ones: 10,000 €!", "there  \n there, there"]
    corpus = TokenCorpus.open(
        write(tmp_path / "c.jsonl", *(passage(f"p{n}", text) for n, text in enumerate(texts))), name
    )
    for row, expected in enumerate(tokenizer(texts)):
        assert corpus.text(row).ids.tolist() == expected.ids
        numbers = list(dict.fromkeys(expected.words))  # the tokenizer's words, counted from 0
        assert corpus.text(row).words.tolist() == [numbers.index(word) for word in expected.words]


def test_a_byte_level_piece_without_the_space_marker_joins_the_word_before_it(tmp_path):
    name = tokenizers_made_here.byte_pieces(tmp_path / "bytes")
    text = "the cat, (the mat). naïve\nones: 10,000 €! </s>there"
    corpus = TokenCorpus.open(write(tmp_path / "c.jsonl", passage("p", text)), name)
    found = corpus.text(0)
    pieces = WordPieceTokenizer(name).tokenizer.convert_ids_to_tokens(found.ids.tolist())
    words: dict[int, str] = {}
    for piece, word in zip(pieces, found.words.tolist(), strict=True):
        words[word] = words.get(word, "") + piece
    special = words.pop(-1)
    assert special == "</s>"
    # Ġ is a space and Ċ a new line; a letter or mark of several bytes is several pieces
    assert [*words.values()] == [
        "the",
        "Ġcat,",
        "Ġ(the",
        "Ġmat).",
        "ĠnaÃ¯ve",
        "Ċones:",
        "Ġ10,000",
        "ĠâĤ¬!",
        "Ġ",
        "there",
    ]
    assert len(pieces) > len(words) + 6


def test_a_large_vocabulary_is_kept_in_full(tmp_path, pieces, monkeypatch):
    monkeypatch.setattr(WordPieceTokenizer, "largest", 1 << 15)  # the first that two bytes with a flag cannot hold
    corpus = TokenCorpus.open(write(tmp_path / "c.jsonl", passage("p", "a wording b")), pieces)
    assert tokens(pieces, corpus.text(0)) == "a word ##ing b"
    assert corpus.text(0).words.tolist() == [0, 1, 1, 2]


def test_a_special_token_written_in_a_text_belongs_to_no_word(tmp_path):
    from tests.tiny import minilm

    model = minilm()
    corpus = TokenCorpus.open(
        write(tmp_path / "c.jsonl", passage("p", "one [SEP] two three"), passage("q", "four five six")), model
    )
    assert corpus.text(0).words.tolist() == [0, -1, 1, 2]
    assert corpus.text(1).words.tolist() == [0, 1, 2]


def test_passages_of_fewer_than_three_pieces_are_left_out_with_all_they_have_and_counted(tmp_path, pieces):
    rows = [
        passage("p1", "a b", queries=["b c", "c"], title="x"),
        passage("p2", "a b c", queries=["d", "e", "", "word"]),
        passage("p3", "", queries=["f"]),
        passage("p4", "a b c d", queries=[]),
    ]
    corpus = TokenCorpus.open(write(tmp_path / "c.jsonl", *rows), pieces, wants={"queries"})
    assert [corpus.id(row) for row in range(len(corpus))] == ["p2", "p4"]
    assert corpus.counts == {"passages": 2, "short": 2, "tokens": 7, "queries": 3}
    assert [tokens(pieces, query) for query in corpus.queries(0)] == ["d", "e", "word"]  # the empty one is none
    assert corpus.queries(1) == []


def test_queries_and_continuations_keep_order_and_repeats(tmp_path, pieces):
    source = write(
        tmp_path / "c.jsonl",
        passage("p1", queries=["b", "a", "b"], continuations=["c wording"]),
        passage("p2", queries=["d"], continuations=["e", "f"]),
    )
    corpus = TokenCorpus.open(source, pieces, wants={"queries", "continuations"})
    assert [tokens(pieces, query) for query in corpus.queries(0)] == ["b", "a", "b"]
    assert [tokens(pieces, text) for text in corpus.continuations(0)] == ["c word ##ing"]
    assert [tokens(pieces, text) for text in corpus.continuations(1)] == ["e", "f"]


def test_every_text_begins_a_word_of_its_own(tmp_path, pieces):
    rows = [passage("p1", "abc", queries=["ab", "ab", "wording"]), passage("p2", "abc", title="ab", queries=[])]
    corpus = TokenCorpus.open(write(tmp_path / "c.jsonl", *rows), pieces, wants={"queries"})
    texts = [corpus.text(0), corpus.text(1), corpus.title(1), *corpus.queries(0)]
    assert [text.words.tolist() for text in texts] == [[0, 0, 0], [0, 0, 0], [0, 0], [0, 0], [0, 0], [0, 0]]


def test_sentences_are_told_in_pieces(tmp_path, pieces):
    text = "a b. wording c! d e"
    # "a b ." are pieces 0-2, "word ##ing c !" 3-6, "d e" 7-8; the second of the two lists has an empty sentence in it
    rows = [
        passage("p1", text, metadata={"sentences": [[0, 4], [5, 15], [16, 19]]}),
        passage("p2", text, metadata={"sentences": [[0, 4], [4, 5], [5, 19]]}),
        passage("p3", text),
    ]
    corpus = TokenCorpus.open(write(tmp_path / "c.jsonl", *rows), pieces, wants={"sentences"})
    assert corpus.sentences(0) == [(0, 3), (3, 7), (7, 9)]
    assert corpus.sentences(1) == [(0, 3), (3, 9)]
    assert corpus.sentences(2) == [(0, 9)]


def test_a_byte_level_piece_that_begins_with_the_space_before_a_sentence_belongs_to_it(tmp_path):
    name = tokenizers_made_here.byte_pieces(tmp_path / "bytes")
    text = "the cat. the mat."
    row = passage("p", text, metadata={"sentences": [[0, 8], [9, 17]]})
    corpus = TokenCorpus.open(write(tmp_path / "c.jsonl", row), name, wants={"sentences"})
    (begin, end), (other, last) = corpus.sentences(0)
    decoded = WordPieceTokenizer(name).tokenizer.decode
    assert (begin, end, last) == (0, other, len(corpus.text(0).ids))
    assert decoded(corpus.text(0).ids[begin:end].tolist()) == "the cat."
    assert decoded(corpus.text(0).ids[other:last].tolist()).strip() == "the mat."


def test_passages_of_a_document_are_put_in_reading_order_wherever_they_stand(tmp_path, pieces):
    rows = [
        passage("x", metadata={"source_id": "A", "position": 2}),
        passage("B#1"),
        passage("A#0"),
        passage("B#0"),
        passage("y", metadata={"source_id": "A", "position": 1}),
        passage("alone"),
    ]
    corpus = TokenCorpus.open(write(tmp_path / "c.jsonl", *rows), pieces, wants={"documents"})
    assert [corpus.document(row) for row in range(6)] == [0, 1, 0, 1, 0, 2]
    assert [corpus.span(document).tolist() for document in range(corpus.documents)] == [[2, 4, 0], [3, 1], [5]]
    assert [corpus.following(row) for row in range(6)] == [None, None, 4, 1, 0, None]
    assert corpus.shared_documents.tolist() == [0, 1]


def test_without_positions_the_order_of_the_file_counts(tmp_path, pieces):
    rows = [passage(id, metadata={"source_id": "A"}) for id in ("c", "a", "b")]
    corpus = TokenCorpus.open(write(tmp_path / "c.jsonl", *rows), pieces, wants={"documents"})
    assert corpus.span(0).tolist() == [0, 1, 2]
    assert [corpus.following(row) for row in range(3)] == [1, 2, None]


def test_a_passage_that_is_missing_or_left_out_parts_its_neighbours(tmp_path, pieces):
    # A#2 is too short and A#5 is not there: runs are 0-1, 3-4, 6
    rows = [passage(f"A#{n}", "a" if n == 2 else "a b c") for n in (0, 1, 2, 3, 4, 6)]
    corpus = TokenCorpus.open(write(tmp_path / "c.jsonl", *rows), pieces, wants={"documents"})
    assert [corpus.id(row) for row in corpus.span(0)] == ["A#0", "A#1", "A#3", "A#4", "A#6"]
    assert [corpus.following(row) for row in range(5)] == [1, None, 3, None, None]
    found = [(corpus.run(row)[0].tolist(), corpus.run(row)[1]) for row in range(5)]
    assert found == [([0, 1], 0), ([0, 1], 1), ([2, 3], 0), ([2, 3], 1), ([4], 0)]


def test_documents_are_arranged_as_a_loop_would():
    rng = np.random.default_rng(3)
    keys = rng.integers(0, 40, 300).astype(np.uint64)
    positions = np.array(
        [-1 if key % 5 == 0 else number for key, number in zip(keys, rng.permutation(300), strict=True)]
    )
    found = arranged(keys, positions.astype(np.int32))
    order = list(dict.fromkeys(keys.tolist()))
    assert found["document"].tolist() == [order.index(key) for key in keys.tolist()]
    for number, key in enumerate(order):
        mine = [row for row in range(300) if keys[row] == key]
        expected = mine if key % 5 == 0 else sorted(mine, key=lambda row: positions[row])
        assert found["members"][found["spans"][number] : found["spans"][number + 1]].tolist() == expected


def test_weights_travel_with_their_text_and_its_title(tmp_path, pieces):
    rows = [
        passage("p1", "a wording", title="b", weights=[1, 0.5, 0.25], title_weights=[2]),
        passage("p2", "a b c", title="d", weights=[0, 0, 3]),
        passage("p3", "a b c", weights=[1, 2, 3]),
    ]
    corpus = TokenCorpus.open(write(tmp_path / "c.jsonl", *rows), pieces, wants={"weights"})
    weights = [corpus.text(row).weights for row in range(3)]
    assert [found.tolist() for found in weights if found is not None] == [[1, 0.5, 0.25], [0, 0, 3], [1, 2, 3]]
    assert all(found is not None and found.dtype == np.float32 for found in weights)
    titles = [corpus.title(row).weights for row in range(3)]
    assert [None if found is None else found.tolist() for found in titles] == [[2], None, []]


def test_side_files_bring_fields(tmp_path, pieces):
    source = write(tmp_path / "c.jsonl", passage("p1"), passage("p2"))
    side = write(tmp_path / "q.jsonl", {"_id": "p1", "queries": ["a"]}, {"_id": "p2", "queries": ["b", "c"]})
    corpus = TokenCorpus.open(source, pieces, wants={"queries"}, side_files=[side])
    assert [tokens(pieces, query) for query in corpus.queries(1)] == ["b", "c"]


def test_several_files_are_one_corpus(tmp_path, pieces):
    one, two = write(tmp_path / "1.jsonl", passage("p1")), write(tmp_path / "2.jsonl", passage("p2", "c b a"))
    corpus = TokenCorpus.open([one, two], pieces)
    assert [corpus.id(row) for row in range(2)] == ["p1", "p2"]
    with pytest.raises(RecordError, match=r"1.jsonl, .*3.jsonl: duplicate id 'p1'"):
        TokenCorpus.open([one, write(tmp_path / "3.jsonl", passage("p1", "c d e"))], pieces)


# what is wrong with a corpus


@pytest.mark.parametrize(
    ("field", "command"), [("queries", "doc2query"), ("continuations", "continue-text"), ("weights", "termweight")]
)
def test_a_passage_without_a_wanted_field_is_named_with_the_command_that_adds_it(tmp_path, pieces, field, command):
    values = [1, 1, 1, 1] if field == "weights" else ["a"]
    source = write(tmp_path / "c.jsonl", passage("p1", **{field: values}), passage("p2"))
    with pytest.raises(MismatchError, match=rf"c.jsonl:2: passage 'p2' has no '{field}'; drtk {command} adds them"):
        TokenCorpus.open(source, pieces, wants={field})


def test_wanted_title_weights_are_named_where_a_title_has_none(tmp_path, pieces):
    source = write(
        tmp_path / "c.jsonl",
        passage("p1", weights=[1, 1, 1, 1]),
        passage("p2", title="t", weights=[1, 1, 1, 1]),
    )
    with pytest.raises(MismatchError, match=r"c.jsonl:2: passage 'p2' has no 'title_weights'; drtk termweight"):
        TokenCorpus.open(source, pieces, wants={"weights", "title_weights"})


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"weights": [1, 2]}, "has 2 weights for the 4 word pieces .* makes of its text"),
        ({"weights": [1] * 4, "title": "ab", "title_weights": [1]}, "has 1 weights for the 2 word pieces .* its title"),
    ],
)
def test_as_many_weights_as_pieces_or_both_numbers_are_told(tmp_path, pieces, more, complaint):
    source = write(tmp_path / "c.jsonl", passage("p1", **more))
    with pytest.raises(MismatchError, match=r"c.jsonl:1: passage 'p1' " + complaint):
        TokenCorpus.open(source, pieces, wants={"weights"})


def test_weights_of_another_tokenizer_are_refused_and_those_of_the_same_by_another_name_taken(tmp_path, pieces):
    same = tokenizers_made_here.word_pieces(tmp_path / "same")
    other = tokenizers_made_here.sentence_pieces(tmp_path / "other")

    def weighted(name: str) -> str:
        path = tmp_path / f"{Path(name).name}.jsonl"
        return write(path, passage("p", weights=[1, 1, 1, 1], metadata={"weights_tokenizer": name}))

    assert len(TokenCorpus.open(weighted(same), pieces, wants={"weights"})) == 1
    with pytest.raises(MismatchError, match=r"other.jsonl:1: weights were made for the word pieces of .*other, not"):
        TokenCorpus.open(weighted(other), pieces, wants={"weights"})
    with pytest.raises(MismatchError, match=r"gone.jsonl:1: .* \./no/gone, which cannot be compared .*no such folder"):
        TokenCorpus.open(weighted("./no/gone"), pieces, wants={"weights"})


@pytest.mark.parametrize(
    ("field", "more", "complaint"),
    [
        ("queries", {"queries": "a"}, "'queries' must be a list of strings"),
        ("continuations", {"continuations": [1]}, "'continuations' must be a list of strings"),
        ("weights", {"weights": [1, 1, 1, -1]}, "'weights' must be a list of numbers, 0 or more"),
        ("weights", {"weights": [1, 1, 1, True]}, "'weights' must be a list of numbers, 0 or more"),
        ("weights", {"weights": [1] * 4, "metadata": {"weights_tokenizer": 3}}, "'metadata.weights_tokenizer' must be"),
        ("sentences", {"metadata": {"sentences": [[0, 3], [2, 5]]}}, "'metadata.sentences' must be a list of"),
        ("sentences", {"metadata": {"sentences": [[0, 99]]}}, "'metadata.sentences' must be a list of"),
        ("sentences", {"metadata": {"sentences": "all"}}, "'metadata.sentences' must be a list of"),
        ("documents", {"metadata": {"position": -1}}, "'metadata.position' must be a whole number"),
    ],
)
def test_an_ill_formed_field_is_a_fault_of_its_line_which_can_be_forgiven(tmp_path, pieces, field, more, complaint):
    good = {"queries": ["a"], "continuations": ["a"], "weights": [1] * 4}
    placed = {"metadata": {"sentences": [[0, 3], [4, 7]], "source_id": "A"}}
    rows = [passage("p1", **good, **placed), passage("p2", **good | more), passage("p3", **good, **placed)]
    source = write(tmp_path / "c.jsonl", *rows)
    with pytest.raises(RecordError, match=r"c.jsonl:2: " + complaint):
        TokenCorpus.open(source, pieces, wants={field})
    intake = Intake(skip_bad=1)
    corpus = TokenCorpus.open(source, pieces, wants={field}, intake=intake)
    assert [corpus.id(row) for row in range(len(corpus))] == ["p1", "p3"]
    assert intake.bad == 1
    again = Intake(skip_bad=1)
    TokenCorpus.open(source, pieces, wants={field}, intake=again)
    assert again.bad == 1
    with pytest.raises(RecordError, match=r"c.jsonl:2: "):  # the same work, but nothing is forgiven here
        TokenCorpus.open(source, pieces, wants={field})


def test_a_corpus_without_neighbours_sentences_or_passages_says_what_makes_them(tmp_path, pieces):
    source = write(tmp_path / "c.jsonl", passage("p1"), passage("p2"))
    with pytest.raises(MismatchError, match="no document has two passages, so none has a neighbour; drtk chunk"):
        TokenCorpus.open(source, pieces, wants={"documents"})
    with pytest.raises(MismatchError, match="no passage has two sentences; drtk chunk"):
        TokenCorpus.open(source, pieces, wants={"sentences"})
    for rows in ((), (passage("p1", "a b"),)):
        with pytest.raises(MismatchError, match="holds no passage of 3 word pieces or more"):
            TokenCorpus.open(write(tmp_path / "e.jsonl", *rows), pieces)


@pytest.mark.parametrize(("field", "command"), [("queries", "drtk doc2query"), ("continuations", "drtk continue-text")])
def test_a_field_that_is_empty_in_every_passage_is_refused_and_one_that_is_filled_once_is_not(
    tmp_path, pieces, field, command
):
    path = write(tmp_path / "c.jsonl", *(passage(str(number), **{field: []}) for number in range(3)))
    for _ in range(2):  # tokenised, and found tokenised
        with pytest.raises(MismatchError, match=f"'{field}' is empty in every passage; {command} adds them"):
            TokenCorpus.open(path, pieces, wants=[field])
    more = write(tmp_path / "d.jsonl", passage("0", **{field: []}), passage("1", **{field: ["a b c"]}))
    assert len(TokenCorpus.open(more, pieces, wants=[field])) == 2


def test_what_is_no_file_is_refused(tmp_path, pieces):
    with pytest.raises(DrtkError, match="must be a file, not stdin"):
        TokenCorpus.open("-", pieces)
    with pytest.raises(DrtkError, match=r"none.jsonl: No such file or directory"):
        TokenCorpus.open(str(tmp_path / "none.jsonl"), pieces)


def test_a_line_that_is_no_record_is_named_and_leaves_nothing_behind(tmp_path, pieces):
    path = tmp_path / "c.jsonl"
    path.write_text('{"_id":"a","text":"a b c"}\n{"_id":\n')
    with pytest.raises(RecordError, match=r"c.jsonl:2: "):
        TokenCorpus.open(str(path), pieces)
    left = [item.name for item in (tmp_path / "cache" / "tokens").iterdir()]
    assert [name for name in left if not name.endswith(".lock")] == []


def test_a_cache_that_cannot_be_written_says_how_to_name_another(tmp_path, pieces, monkeypatch):
    source = write(tmp_path / "c.jsonl", passage("p1"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRTK_CACHE", str(tmp_path / "file"))
    with pytest.raises(DrtkError, match=r"file.*DRTK_CACHE can name another"):
        TokenCorpus.open(source, pieces)


# the cache


def test_the_second_opening_tokenises_nothing_and_notes_the_same_inputs(tmp_path, pieces, calls):
    source = write(tmp_path / "c.jsonl", passage("p1"), passage("p2", "c b a"))
    first, second = Intake(), Intake()
    one = TokenCorpus.open(source, pieces, intake=first)
    assert len(calls) == 1
    two = TokenCorpus.open(source, pieces, intake=second)
    assert len(calls) == 1
    assert two.text(1).ids.tolist() == one.text(1).ids.tolist()
    assert first.inputs == second.inputs
    assert first.inputs[0]["digest"]


def test_the_same_content_is_found_by_another_name_and_other_content_or_wishes_are_not(tmp_path, pieces, calls):
    row = passage("p1", queries=["a"])
    TokenCorpus.open(write(tmp_path / "c.jsonl", row), pieces)
    TokenCorpus.open(write(tmp_path / "copy.jsonl", row), pieces)
    assert len(calls) == 1
    copied = tokenizers_made_here.word_pieces(tmp_path / "copied")
    TokenCorpus.open(str(tmp_path / "copy.jsonl"), copied)
    assert len(calls) == 1
    TokenCorpus.open(str(tmp_path / "c.jsonl"), pieces, wants={"queries"})
    assert len(calls) == 2
    TokenCorpus.open(str(tmp_path / "c.jsonl"), tokenizers_made_here.byte_pieces(tmp_path / "bytes"))
    assert len(calls) == 3
    TokenCorpus.open(write(tmp_path / "c.jsonl", row, passage("p2")), pieces)
    assert len(calls) == 4


@pytest.mark.parametrize("kind", ["word_pieces", "byte_pieces", "sentence_pieces"])
def test_a_model_that_was_trained_on_finds_what_was_tokenised_for_the_one_before(tmp_path, kind, calls):
    from transformers import AutoTokenizer

    name = getattr(tokenizers_made_here, kind)(tmp_path / "before")
    source = write(tmp_path / "c.jsonl", passage("p1", "the cat sat"))
    before = TokenCorpus.open(source, name)
    saved = AutoTokenizer.from_pretrained(name)
    saved.model_max_length = 144
    saved("the cat sat", truncation=True, max_length=4)  # which its Rust half remembers
    saved.save_pretrained(tmp_path / "after")
    assert TokenCorpus.open(source, str(tmp_path / "after")).folder == before.folder
    assert len(calls) == 1


def test_a_token_that_was_added_to_the_vocabulary_makes_another_tokenizer(tmp_path, pieces):
    from transformers import AutoTokenizer

    changed = AutoTokenizer.from_pretrained(pieces)
    changed.add_tokens(["word ing"])
    changed.save_pretrained(tmp_path / "added")
    assert WordPieceTokenizer(str(tmp_path / "added")).digest != WordPieceTokenizer(pieces).digest


def test_a_compressed_corpus_gives_the_same_passages(tmp_path, pieces):
    source = write(tmp_path / "c.jsonl", passage("p1"), passage("p2", "c b a"))
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(source).read_bytes()))
    one, two = TokenCorpus.open(source, pieces), TokenCorpus.open(str(packed), pieces)
    assert [one.text(row).ids.tolist() for row in range(2)] == [two.text(row).ids.tolist() for row in range(2)]


def test_a_corpus_travels_to_another_process_as_the_name_of_its_folder(tmp_path, pieces):
    rows = [passage(f"p{n}", "a b c d e f g " * 50) for n in range(200)]
    corpus = TokenCorpus.open(write(tmp_path / "c.jsonl", *rows), pieces)
    packed = pickle.dumps(corpus)
    assert len(packed) < 1000
    assert pickle.loads(packed).text(3).ids.tolist() == corpus.text(3).ids.tolist()


OPEN = """
import pathlib, sys, time
from drtk.runtime.progress import set_verbosity
from drtk.text.token_dataset import TokenCorpus
from drtk.text.word_pieces import WordPieceTokenizer
set_verbosity(quiet=False, verbose=False)
plain = WordPieceTokenizer.encoded
def held(self, texts):
    print("begun", flush=True)
    while not pathlib.Path(sys.argv[3]).exists():
        time.sleep(0.01)
    return plain(self, texts)
WordPieceTokenizer.encoded = held
corpus = TokenCorpus.open(sys.argv[1], sys.argv[2])
print(len(corpus), corpus.text(1).ids.tolist())
"""


def opening(source: str, tokenizer: str, gate: Path) -> subprocess.Popen[str]:
    """A process that opens the corpus and, where it has to tokenise, says "begun" and waits for the file `gate`."""
    command = [sys.executable, "-c", OPEN, source, tokenizer, str(gate)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_of_two_processes_that_open_at_once_one_tokenises_and_the_other_waits(tmp_path, pieces):
    source = write(tmp_path / "c.jsonl", *(passage(f"p{n}") for n in range(20)))
    one = opening(source, pieces, tmp_path / "gate")
    assert one.stdout is not None
    assert one.stdout.readline() == "begun\n"
    other = opening(source, pieces, tmp_path / "gate")
    assert other.stderr is not None
    assert other.stderr.readline() == f"drtk: waiting for another process, which is tokenising {source}\n"
    (tmp_path / "gate").touch()
    found = [process.communicate(timeout=300)[0] for process in (one, other)]
    assert [process.returncode for process in (one, other)] == [0, 0]
    assert found[0] == found[1]  # no second "begun"
    assert found[1].startswith("20 [")


def test_after_a_kill_the_work_begins_again_and_what_was_left_is_removed(tmp_path, pieces):
    source = write(tmp_path / "c.jsonl", *(passage(f"p{n}", f"a b {'c ' * n}") for n in range(1, 20)))
    process = opening(source, pieces, tmp_path / "gate")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    place = tmp_path / "cache" / "tokens"
    assert len(list(place.glob("*-making-*"))) == 1
    corpus = TokenCorpus.open(source, pieces)  # the lock went with the process
    assert [len(corpus.text(row).ids) for row in range(len(corpus))] == [n + 2 for n in range(1, 20)]
    assert list(place.glob("*-making-*")) == []


def test_two_processes_without_locks_may_both_work_and_either_result_serves(tmp_path, pieces, monkeypatch):
    # the other process finishes while this one is at work: its folder is there when this one would put its own
    source = write(tmp_path / "c.jsonl", passage("p1"))
    plain = token_cache._tokenise

    def overtaken(folder, *arguments):
        plain(folder, *arguments)
        plain(folder, *arguments)

    monkeypatch.setattr(token_cache, "_tokenise", overtaken)
    assert len(TokenCorpus.open(source, pieces)) == 1
    assert list((tmp_path / "cache" / "tokens").glob("*-making-*")) == []


def test_a_corpus_that_changes_while_it_is_read_is_not_kept(tmp_path, pieces, monkeypatch):
    source = write(tmp_path / "c.jsonl", passage("p1"))
    plain = WordPieceTokenizer.encoded

    def meddling(self, texts):
        write(tmp_path / "c.jsonl", passage("p1"), passage("p2"))
        return plain(self, texts)

    monkeypatch.setattr(WordPieceTokenizer, "encoded", meddling)
    with pytest.raises(DrtkError, match=r"c.jsonl: changed while it was read"):
        TokenCorpus.open(source, pieces)


MEMORY = """
import resource, sys
from drtk.text.token_dataset import TokenCorpus
from drtk.text.word_pieces import WordPieceTokenizer
tokenizer = WordPieceTokenizer(sys.argv[2])
TokenCorpus.open(sys.argv[1], tokenizer, shortest=1)  # libraries and their buffers, by a corpus a tenth as long
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
corpus = TokenCorpus.open(sys.argv[3], tokenizer, wants={"queries", "documents"})
print(len(corpus), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_tokenising_takes_little_memory_however_long_the_corpus(tmp_path, pieces):
    text, count = "a b c d e f g " * 40, 6_000  # 280 pieces a passage: 1.7 million
    few = write(tmp_path / "few.jsonl", *(passage(f"p{n}", text) for n in range(count // 10)))
    many = write(tmp_path / "many.jsonl", *(passage(f"A#{n}", text, queries=["a b"]) for n in range(count)))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    command = [sys.executable, "-c", MEMORY, few, pieces, many]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    passages, kilobytes = map(int, found.stdout.split())
    assert passages == count
    # Measured: 8 MB; 177 MB where the tokenizer's results of all passages are kept.
    assert kilobytes < 40_000, kilobytes

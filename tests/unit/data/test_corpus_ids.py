"""The ids of a corpus: look-ups of passages and documents."""

from __future__ import annotations

from zlib import crc32

import pytest

from drtk.data.corpus_ids import CorpusIds
from drtk.records import Passage

IDS = ["buckeroo", "a#0", "a#1", "b#0", "é"]
OTHER = Passage("x#0", "text", metadata={"source_id": "c d"})


@pytest.fixture(scope="module")
def corpus() -> CorpusIds:
    return CorpusIds([*(Passage(id, "text") for id in IDS), OTHER])


def test_ids_are_in_file_order(corpus: CorpusIds) -> None:
    assert list(corpus) == [*IDS, "x#0"]
    with pytest.raises(IndexError):
        corpus[-1]


def test_an_id_with_the_hash_of_another_is_not_in_the_corpus(corpus: CorpusIds) -> None:
    assert crc32(b"plumless") == crc32(b"buckeroo")
    assert "plumless" not in corpus
    assert corpus.find_missing(["plumless", "é", "zz", "buckeroo", "a"]) == ["plumless", "zz", "a"]
    assert CorpusIds([Passage("plumless", ""), Passage("buckeroo", "")]).find_missing(["plumless", "buckeroo"]) == []


def test_documents_are_those_of_the_ids_or_of_the_metadata(corpus: CorpusIds) -> None:
    assert [corpus(id) for id in ("a#1", "é", "x#0", "unknown#7")] == ["a", "é", "c d", "unknown"]
    assert [corpus.has_document(id) for id in ("a", "a#1", "x", "c d", "plumless")] == [True, False, False, True, False]


def test_the_only_passage_of_a_document(corpus: CorpusIds) -> None:
    documents = ("a", "b", "c d", "x", "buckeroo", "plumless")
    assert [corpus.get_only_passage_id(id) for id in documents] == [None, "b#0", "x#0", None, "buckeroo", None]


def test_an_empty_corpus_has_no_ids() -> None:
    corpus = CorpusIds([])
    assert (list(corpus), corpus.find_missing(["a"]), "a" in corpus, corpus("a#1")) == ([], ["a"], False, "a")

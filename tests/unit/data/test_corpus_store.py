"""Look-up of passages by id, invalid corpora, and the cached index."""

import gzip

import orjson
import pytest

from drtk.data import corpus_store as store_module
from drtk.data.corpus_store import CorpusStore
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.records import Passage
from drtk.runtime.integrity import hash_id
from tests.tiny_models import open_corpus


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DRTK_CACHE", str(tmp_path / "cache"))


def corpus(path, count=50, **changes):
    rows = [{"_id": f"d{n}", "title": f"title {n}", "text": f"text of {n}", "n": n} | changes for n in range(count)]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def test_each_passage_is_found_under_its_id_with_its_other_fields(tmp_path):
    store = CorpusStore.open(corpus(tmp_path / "c.jsonl"))
    assert len(store) == 50
    assert store["d17"] == Passage("d17", "text of 17", "title 17", None, {"n": 17})
    assert "d49" in store
    assert "d50" not in store
    ids = ["d30", "d2", "d30", "d49", "d0"]
    assert [passage.id for passage in store.get_many(ids)] == ids
    assert store.get_many([]) == []
    assert [passage.id for passage in store] == [f"d{n}" for n in range(50)]
    packed, table = tmp_path / "c.jsonl.gz", tmp_path / "c.tsv"
    packed.write_bytes(gzip.compress((tmp_path / "c.jsonl").read_bytes()))
    assert list(CorpusStore.open(packed)) == list(store)
    table.write_text("".join(f"d{n}\ttext of {n}\n" for n in range(50)))
    assert CorpusStore.open(table)["d17"].text == "text of 17"


def test_blank_lines_and_non_ascii_text_do_not_shift_offsets(tmp_path):
    path = tmp_path / "c.jsonl"
    text = '{"_id":"ä","text":"größer"}\n\n\r\n{"_id":"b","text":"日本"}\r\n{"_id":"c","text":"end"}'
    path.write_text(text, encoding="utf-8", newline="")
    store = CorpusStore.open(path)
    assert [store[id].text for id in ("c", "b", "ä")] == ["end", "日本", "größer"]


def test_the_index_is_built_once_and_reused_for_a_copy_of_the_file(tmp_path, monkeypatch):
    path = corpus(tmp_path / "c.jsonl")
    CorpusStore.open(path)
    made = []
    monkeypatch.setattr(store_module, "_build_index", lambda *arguments: made.append(arguments))
    CorpusStore.open(path)
    moved = path.rename(tmp_path / "other.jsonl")
    assert CorpusStore.open(moved)["d3"].text == "text of 3"
    assert made == []


def test_duplicate_ids_and_bad_lines_are_rejected_and_leave_no_index(tmp_path):
    twice = tmp_path / "twice.jsonl"
    twice.write_bytes(b'{"_id":"a","text":"1"}\n{"_id":"b","text":"2"}\n{"_id":"a","text":"3"}\n')
    with pytest.raises(RecordError, match="duplicate id 'a'"):
        CorpusStore.open(twice)
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b'{"_id":"a","text":"1"}\nnot json\n')
    with pytest.raises(RecordError, match=r"bad\.jsonl:2"):
        CorpusStore.open(bad)
    assert {path.suffix for path in (tmp_path / "cache" / "corpora").iterdir()} == {".lock"}


def test_an_empty_corpus_is_valid_and_stdin_is_rejected(tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(b"")
    store = CorpusStore.open(empty)
    assert len(store) == 0
    assert store.get("a") is None
    assert (store.find_missing(["a"]), list(store.iter_document("a"))) == (["a"], [])
    with pytest.raises(MismatchError):
        store.get_many(["a"])
    with pytest.raises(DrtkError, match="<stdin>: the corpus must be a file"):
        CorpusStore.open("-")
    with pytest.raises(DrtkError, match="No such file"):
        CorpusStore.open(tmp_path / "nowhere.jsonl")


def test_ids_with_equal_hashes_are_distinguished(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "hash_id", lambda name: hash_id(name[0]))  # all d… collide
    path = corpus(tmp_path / "c.jsonl", count=5)
    store = CorpusStore.open(path)
    assert [passage.id for passage in store.get_many(["d4", "d0", "d2"])] == ["d4", "d0", "d2"]
    assert store.get("d9") is None


def test_documents_are_those_of_the_ids_or_of_the_metadata():
    store = open_corpus("a#0", "a#1", "b#0", "é", Passage("x#0", "text", metadata={"source_id": "c d"}))
    assert [store.get_document_id(id) for id in ("a#1", "é", "x#0", "unknown#7")] == ["a", "é", "c d", "unknown"]
    passages = {id: sorted(store.iter_document(id)) for id in ("a", "b", "c d", "x", "é", "a#1")}
    assert passages == {"a": ["a#0", "a#1"], "b": ["b#0"], "c d": ["x#0"], "x": [], "é": ["é"], "a#1": []}
    assert [store.has_document(id) for id in passages] == [bool(ids) for ids in passages.values()]
    assert sorted(map(store.get_id, range(len(store)))) == ["a#0", "a#1", "b#0", "x#0", "é"]
    assert store.find_missing(["zz", "a#1", "a"]) == ["zz", "a"]
    assert [open_corpus(*ids).get_document_id("a#1") for ids in ((), ("a#0",))] == ["a", "a"]

"""Training data in all formats; texts without ids get ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from drtk.data import readers
from drtk.data.examples import ParsedExample
from drtk.data.readers import read_examples, read_passages, read_queries
from drtk.errors import DrtkError, RecordError
from drtk.records import Example, Hit, Passage, Qrel, Query
from drtk.runtime.inputs import InputTracker


def parse_rows(folder: Path, *rows: Any) -> list[ParsedExample]:
    path = folder / "train.jsonl"
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    records = [record for _, record in readers.iter_examples(str(path), InputTracker())]
    assert all(isinstance(record, ParsedExample) for record in records), records
    return records  # type: ignore[return-value]


CONTEXTS = {
    "positive_ctxs": [{"title": "T", "text": "yes", "score": 1000, "passage_id": "p1"}],
    "hard_negative_ctxs": [{"title": "", "text": "no", "psg_id": 2}],
    "negative_ctxs": [{"title": "T", "text": "other", "id": "p3"}],
}


WHO = {"query_id": "1", "query": "who?"}
TEXTS = {
    "positive_passages": [{"docid": "a", "title": "T", "text": "yes"}],
    "negative_passages": [{"docid": "b", "text": "no"}],
}
SIDES = {"positives": {"doc_id": ["a"], "score": [2.5]}, "negatives": {"doc_id": ["b", "c"], "score": [1, -1]}}
SCORED = {"qid": "1", "pos": [{"pid": "a", "ce-score": 9}], "neg": {"bm25": [{"pid": "b", "ce-score": -1.5}]}}


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("drtk", {"query_id": "1", "positives": ["a"], "negatives": ["b", "c"], "colour": "red"},
         Example("1", ("a",), ("b", "c"), extra={"colour": "red"})),
        ("SimLM", WHO | SIDES, Example("1", ("a",), ("b", "c"), {"positives": [2.5], "negatives": [1.0, -1.0]})),
        ("SimLM without scores", WHO | {"positives": {"doc_id": ["a"]}, "negatives": {"doc_id": [], "score": []}},
         Example("1", ("a",), ())),
        ("Tevatron", WHO | TEXTS, Example("1", ("a",), ("b",))),
        ("Tevatron by id", {"query_id": "1", "query_text": "who?", "positive_document_ids": ["a"], "negative_document_ids": ["b"]},
         Example("1", ("a",), ("b",))),
        ("DPR", {"query_id": "1", "question": "who?", "answers": ["I"], "dataset": "nq", **CONTEXTS},
         Example("1", ("p1",), ("2", "p3"), None, {"negatives": ["hard", "other"]}, {"dataset": "nq"})),
        # The source of 30, which both systems retrieved, is the first system.
        ("sentence-transformers", {"qid": 1, "pos": [10], "neg": {"bm25": [20, 30], "tas-b": [30, 40]}},
         Example("1", ("10",), ("20", "30", "40"), None, {"negatives": ["bm25", "bm25", "tas-b"]})),
        ("sentence-transformers with scores", SCORED,
         Example("1", ("a",), ("b",), {"positives": [9.0], "negatives": [-1.5]}, {"negatives": ["bm25"]})),
        ("sentence-transformers' older lists", {"qid": "1", "pos": ["a"], "neg": ["b"]}, Example("1", ("a",), ("b",))),
    ],
)  # fmt: skip
def test_examples_are_read_in_every_format(tmp_path: Path, name: str, row: dict[str, Any], expected: Example) -> None:
    (one,) = parse_rows(tmp_path, row)
    assert one.example == expected
    assert not one.has_new_ids
    if "sentence" not in name and name != "drtk":
        assert one.query is not None
        assert one.query.text == "who?"
    assert list(read_examples(str(tmp_path / "train.jsonl"))) == [expected]


def test_generated_ids_of_passages_depend_only_on_the_text(tmp_path: Path) -> None:
    first, second = parse_rows(
        tmp_path,
        {"query": "who?", "pos": ["yes"], "neg": ["no", "maybe"], "pos_scores": [3], "neg_scores": [1, 2], "type": "n"},
        {"query": "what?", "pos": ["maybe"], "neg": ["no"]},
    )
    assert first.has_new_ids
    assert first.example.scores == {"positives": [3.0], "negatives": [1.0, 2.0]}
    assert first.example.extra == {"type": "n"}
    assert first.example.negatives == (second.example.negatives[0], second.example.positives[0])
    path = str(tmp_path / "train.jsonl")
    assert [passage.text for passage in read_passages(path)] == ["yes", "no", "maybe"]  # each once
    assert [query.text for query in read_queries(path)] == ["who?", "what?"]
    with pytest.raises(DrtkError, match=r"has texts without ids; run drtk convert three"):
        list(read_examples(path))


TRIPLET = {"anchor": "who is it", "positive": "it is me", "negative": "not you", "negative_1": "or him"}


@pytest.mark.parametrize(
    ("row", "texts", "scores"),
    [
        (TRIPLET, ["it is me", "not you", "or him"], None),
        (
            {"negative_10": "c", "negative_2": "b", "negative_1": None, "negative": " ", "query": "x", "positive": "a"},
            ["a", "b", "c"],
            None,
        ),
        (
            TRIPLET | {"score": [3, 1, 2]},
            ["it is me", "not you", "or him"],
            {"positives": [3.0], "negatives": [1.0, 2.0]},
        ),
        (  # the format of sentence_transformers.util.mine_hard_negatives(output_scores=True)
            {"query": "x", "positive": "a", "negative": "b", "scores": [0.9, 0.1]},
            ["a", "b"],
            {"positives": [0.9], "negatives": [0.1]},
        ),
        ({"question": "x", "positive": "a", "score": 0.5}, ["a"], {"positives": [0.5], "negatives": []}),
    ],
)
def test_pairs_and_triplets_of_sentence_transformers(
    tmp_path: Path, row: dict[str, Any], texts: list[str], scores: dict[str, list[float]] | None
) -> None:
    (parsed,) = parse_rows(tmp_path, row)
    assert [passage.text for passage in parsed.passages] == texts
    assert (len(parsed.example.positives), parsed.example.scores) == (1, scores)
    assert not parsed.example.extra
    assert [passage.text for passage in read_passages(str(tmp_path / "train.jsonl"))] == texts


def test_texts_in_tsv_are_the_same_as_in_json(tmp_path: Path) -> None:
    plain, headed = tmp_path / "triples.tsv", tmp_path / "headed.tsv"
    plain.write_text("who is it\tit is me\tnot you\nflight\tit is me\tno\n")
    headed.write_text("anchor\tpositive\tnegative\tscore\nwho is it\tit is me\tnot you\t0.5\n")
    (expected,) = parse_rows(tmp_path, {name: TRIPLET[name] for name in ("anchor", "positive", "negative")})
    first, second = readers.iter_valid(readers.iter_examples(str(plain), InputTracker()), str(plain), InputTracker())
    assert first == expected
    assert second.example.positives == first.example.positives
    ((_, one),) = readers.iter_examples(str(headed), InputTracker())
    assert isinstance(one, ParsedExample)
    assert (one.passages, one.example.extra) == (expected.passages, {"score": 0.5})
    assert [passage.text for passage in read_passages(str(headed))] == ["it is me", "not you"]
    assert [query.text for query in read_queries(str(headed))] == ["who is it"]
    assert [passage.text for passage in read_passages(str(plain))] == ["it is me", "not you", "no"]
    for rows in ("q0\td0\td1\n", "what is lift\tan upward force\n"):
        plain.write_text(rows)
        with pytest.raises(
            RecordError,
            match=r"triples\.tsv:1: columns without names; for texts, add a header such as query<TAB>",
        ):
            list(read_examples(str(plain)))
    headed.write_text("Query\tpos\tneg\nwho is it\tit is me\tnot you\n")
    assert next(readers.iter_examples(str(headed), InputTracker())) == (2, first)
    headed.write_bytes(b"\xef\xbb\xbfquery\tpositive\r\nwho is it\tit is me\r\n")
    assert [parsed.example.positives for _, parsed in readers.iter_examples(str(headed), InputTracker())] == [  # type: ignore[union-attr]
        first.example.positives
    ]
    plain.write_text("\n" + "who is it\tit is me\tnot you\n" + f"flight\tit is me{' or he' * 9999}\tno\n" * 9)
    assert next(readers.iter_examples(str(plain), InputTracker())) == (2, first)  # of 700 kB
    for header, lines, problem in (
        ("qid\tpos_id\tneg_id", "7\t1000\t2000\n8\t1000\t2000\n", "is a header above id triples; remove it"),
        ("query\tpositive\tnegative", "7\t1000\t2000\n8\t1000\t2000\n", "is a header above id triples; remove"),
        ("question\tanswer\tcontext", "who is it\tit is me\tnot you\n", "is a header without 'query' or 'positive'"),
    ):
        plain.write_text(f"{header}\n{lines}")
        with pytest.raises(RecordError, match=rf"triples\.tsv:1: {problem}"):
            list(read_examples(str(plain)))
    headed.write_text('"query"\t"positive"\n"who is it"\t"it is me"\n')
    assert [parsed.example.positives for _, parsed in readers.iter_examples(str(headed), InputTracker())] == [  # type: ignore[union-attr]
        first.example.positives
    ]
    plain.write_text("flight\tit is me\tno\nwho is it\tit is me\tnot you\n")
    assert [passage.text for passage in read_passages(str(plain))] == ["it is me", "no", "not you"]
    assert [query.text for query in read_queries(str(plain))] == ["flight", "who is it"]
    for repeated in ("query\tpos\tpositive", "anchor\tquery\tpositive", "query\tpos\tneg\tneg"):
        headed.write_text(f"{repeated}\nwho\n")
        with pytest.raises(RecordError, match=r"headed\.tsv:1: is a header with several columns '"):
            list(read_examples(str(headed)))
    headed.write_text("query\tpositive\tnegatives\nwho is it\tit is me\tnot you\n")
    with pytest.raises(RecordError, match=r"headed\.tsv:1: is a header with the unknown column 'negatives'; rename or"):
        list(read_examples(str(headed)))
    headed.write_text("anchor\tpositive\nwho\n")
    with pytest.raises(RecordError, match=r"headed\.tsv:2: expected 2 columns, got 1$"):
        list(read_examples(str(headed)))
    headed.write_text("anchor\tpositive\tscore\nwho\tme\thigh\n")
    with pytest.raises(RecordError, match=r"headed\.tsv:2: 'score' must be a number, got 'high'$"):
        list(read_examples(str(headed)))


def test_examples_with_an_id_of_the_query(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"_id": "7", "query": "who?", "pos": ["me"], "neg": ["you"]}\n' * 2)
    (_, parsed), _ = readers.iter_examples(str(path), InputTracker())
    assert isinstance(parsed, ParsedExample)
    assert readers.load_qrels(str(path)) == {"7": {parsed.example.positives[0]: 1}}
    assert [query.id for query in read_queries(str(path))] == [parsed.example.query_id] == ["7"]
    assert [passage.id for passage in read_passages(str(path))] == [
        *parsed.example.positives,
        *parsed.example.negatives,
    ]


def test_an_id_of_a_row_does_not_replace_that_of_the_query(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"_id": "e1", "query_id": "7", "query": "who?", "positive_document_ids": ["d1"]}\n')
    ((_, parsed),) = readers.iter_examples(str(path), InputTracker())
    assert isinstance(parsed, ParsedExample)
    assert (parsed.example.query_id, parsed.example.extra) == ("7", {"_id": "e1"})


def test_triples_of_ids_are_grouped_by_query(tmp_path: Path) -> None:
    path = tmp_path / "qidpidtriples.tsv"
    path.write_text("7\t1000\t2000\n7\t1001\t2001\n8\t1000\t2002\n")
    assert list(read_examples(str(path))) == [
        Example("7", ("1000", "1001"), ("2000", "2001")),
        Example("8", ("1000",), ("2002",)),
    ]
    ((_, error),) = readers.iter_hits(str(path), InputTracker())
    assert "a triple of ids (query, positive, negative), not a hit" in str(error)


def test_candidates_of_ms_marco_are_passages_queries_and_hits(tmp_path: Path) -> None:
    path = tmp_path / "top1000.tsv"
    path.write_text("1\t7\twhat is wind\tair that moves\n1\t8\twhat is wind\ta rock\n2\t7\twho\tair that moves\n")
    assert list(read_passages(str(path))) == [Passage("7", "air that moves"), Passage("8", "a rock")]
    assert list(read_queries(str(path))) == [Query("1", "what is wind"), Query("2", "who")]
    hits = [record for _, record in readers.iter_hits(str(path), InputTracker())]
    assert hits == [Hit("1", "7", 1, 1.0), Hit("1", "8", 2, 0.5), Hit("2", "7", 1, 1.0)]


def test_dpr_training_data_is_read_as_corpus_and_queries(tmp_path: Path) -> None:
    path = tmp_path / "nq.json"
    path.write_bytes(orjson.dumps([{"question": "who?", "answers": ["I"], **CONTEXTS}], option=orjson.OPT_INDENT_2))
    expected = [Passage("p1", "yes", "T"), Passage("2", "no"), Passage("p3", "other", "T")]
    assert list(read_passages(str(path))) == expected
    (query,) = read_queries(str(path))
    assert query == Query(query.id, "who?", ("I",))
    assert [record for _, record in readers.iter_judgments(str(path), InputTracker())] == [Qrel(query.id, "p1", 1)]


def test_dpr_results_are_read_as_run_and_examples(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    contexts = [
        {"id": "wiki:1", "title": "T", "text": "no", "score": "81.5", "has_answer": False},
        {"id": "wiki:2", "title": "T", "text": "yes", "score": 80.25, "has_answer": True},
    ]
    path.write_bytes(orjson.dumps([{"question": "who?", "answers": ["I"], "ctxs": contexts}]))
    hits = [record for _, record in readers.iter_hits(str(path), InputTracker())]
    (query,) = read_queries(str(path))
    assert hits == [Hit(query.id, "wiki:1", 1, 81.5), Hit(query.id, "wiki:2", 2, 80.25)]
    (example,) = read_examples(str(path))
    assert (example.positives, example.negatives) == (("wiki:2",), ("wiki:1",))


IDS = {"query_id": "1", "positives": ["a"], "negatives": []}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"query_id": "1", "positives": [], "negatives": []}, "'positives' is empty"),
        ({"query_id": "1", "positives": ["a b"], "negatives": []}, "'positives' 'a b' contains white space"),
        ({"query_id": "1", "positives": ["a"], "negatives": "b"}, "'negatives' must be a list of ids"),
        (IDS | {"scores": {"positives": [1, 2]}}, "2 entries for 1"),
        (IDS | {"scores": {"positives": ["x"]}}, "not a number"),
        (IDS | {"scores": {"positives": [False]}}, "not a number"),
        (IDS | {"sources": {"negatives": 3}}, "must be a list"),
        (
            {"query_id": "1", "query": "q", "positives": {"doc_id": ["a"], "score": [1, 2]}},
            "has 2 entries for 1 passages",
        ),
        ({"query_id": "1", "query": "q", "positives": {"score": []}, "negatives": {}}, "with 'doc_id' and 'score'"),
        ({"query_id": "1", "positive_passages": [{"docid": "a", "text": "t"}]}, "'query' is missing"),
        ({"query": "q", "positive_passages": ["a"]}, "must hold objects with 'title' and 'text'"),
        ({"question": "q", "positive_ctxs": [{"title": "t"}]}, "'text' is missing"),
        ({"question": "q", "positive_ctxs": []}, "has no positives"),
        ({"qid": "1", "pos": 5, "neg": []}, "'pos' must be a list"),
        ({"query": "q", "pos": ["a"], "neg": [1]}, "'neg' must be a list of strings"),
        ({"anchor": "q", "positive": ["a"]}, "'positive' must be a string"),
        ({"anchor": "q", "positive": "a", "negative": "b", "score": [1]}, "'score' has 1 entries for 2 passages"),
        ({"anchor": "q", "positive": " "}, "the query or the positive is empty; remove the row"),
        ({"anchor": "", "positive": "a"}, "the query or the positive is empty; remove the row"),
        ({"query": "q", "pos": ["a"], "neg": [""]}, "'neg' has an empty text; remove it"),
        ({"anchor": "q", "positive": "a", "label": 0}, "'label' is 0, so 'positive' is not relevant"),
        (
            {"query": "q", "positive": "a", "negatives": ["b"]},
            "'negatives' is unknown; name the negatives negative, negative_1, …",
        ),
        ({"query": "q", "positive": "a", "negative_id": "9", "hard_negative": "b"}, "'hard_negative' is unknown"),
        ({"query": "q", "pos": ["a"], "scores": [1]}, "'scores' is not a field of examples with 'pos'"),
        ({"_id": "1", "text": "a passage"}, "not a training example"),
    ],
)
def test_bad_examples_are_reported_with_their_line(tmp_path: Path, row: dict[str, Any], problem: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"\n" + orjson.dumps(row) + b"\n")
    with pytest.raises(RecordError) as raised:
        list(read_examples(str(path)))
    assert str(raised.value).startswith(f"{path}:2: ")
    assert problem in str(raised.value)


def test_a_repeated_id_with_another_text_is_an_error(tmp_path: Path) -> None:
    parse_rows(
        tmp_path,
        {"query": "who?", "positive_passages": [{"docid": "a", "text": "yes"}]},
        {"query": "what?", "positive_passages": [{"docid": "a", "text": "no"}]},
    )
    with pytest.raises(RecordError, match=r"train.jsonl:2: id 'a' is repeated with another text \(first in line 1\)"):
        list(read_passages(str(tmp_path / "train.jsonl")))

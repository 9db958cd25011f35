"""Training data in all formats; texts without ids get ids."""

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
from tests.run_commands import write_text


def parse_file(path: Path) -> list[ParsedExample]:
    records = [record for _, record in readers.iter_examples(str(path), InputTracker())]
    assert all(isinstance(record, ParsedExample) for record in records), records
    return records  # type: ignore[return-value]


def parse_rows(folder: Path, *rows: Any) -> list[ParsedExample]:
    path = folder / "train.jsonl"
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return parse_file(path)


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
        ({"negative_10": "c", "negative_2": "b", "negative_1": None, "negative": " ", "query": "x", "positive": "a"},
         ["a", "b", "c"], None),
        (TRIPLET | {"score": [3, 1, 2]}, ["it is me", "not you", "or him"], {"positives": [3.0], "negatives": [1.0, 2.0]}),
        # the format of sentence_transformers.util.mine_hard_negatives(output_scores=True)
        ({"query": "x", "positive": "a", "negative": "b", "scores": [0.9, 0.1]}, ["a", "b"],
         {"positives": [0.9], "negatives": [0.1]}),
        ({"question": "x", "positive": "a", "score": 0.5}, ["a"], {"positives": [0.5], "negatives": []}),
    ],
)  # fmt: skip
def test_pairs_and_triplets_of_sentence_transformers(
    tmp_path: Path, row: dict[str, Any], texts: list[str], scores: dict[str, list[float]] | None
) -> None:
    (parsed,) = parse_rows(tmp_path, row)
    assert [passage.text for passage in parsed.passages] == texts
    assert (len(parsed.example.positives), parsed.example.scores) == (1, scores)
    assert not parsed.example.extra
    assert [passage.text for passage in read_passages(str(tmp_path / "train.jsonl"))] == texts


def test_texts_in_tsv_are_the_same_as_in_json(tmp_path: Path) -> None:
    (expected,) = parse_rows(tmp_path, {name: TRIPLET[name] for name in ("anchor", "positive", "negative")})
    line, file = "who is it\tit is me\tnot you\n", tmp_path / "t.tsv"
    long = f"flight\tit is me{' or he' * 9999}\tno\n" * 9  # 700 kB
    for text, number in ((f"{line}flight\tit is me\tno\n", 1), (f"\n{line}{long}", 2), (f"Query\tpos\tneg\n{line}", 2)):
        write_text(file, text)
        assert next(readers.iter_examples(str(file), InputTracker())) == (number, expected)
    for text in ("\ufeffquery\tpositive\r\nwho is it\tit is me\r\n", '"query"\t"positive"\n"who is it"\t"it is me"\n'):
        write_text(file, text)
        assert [parsed.example.positives for parsed in parse_file(file)] == [expected.example.positives]
    write_text(file, "anchor\tpositive\tnegative\tscore\nwho is it\tit is me\tnot you\t0.5\n")
    (parsed,) = parse_file(file)
    assert (parsed.passages, parsed.example.extra) == (expected.passages, {"score": 0.5})
    assert [passage.text for passage in read_passages(str(file))] == ["it is me", "not you"]
    assert [query.text for query in read_queries(str(file))] == ["who is it"]
    for lines in (f"{line}flight\tit is me\tno\n", f"flight\tit is me\tno\n{line}"):
        write_text(file, lines)
        first, second = parse_file(file)
        assert first.example.positives == second.example.positives == expected.example.positives
        assert sorted(passage.text for passage in read_passages(str(file))) == ["it is me", "no", "not you"]
        assert sorted(query.text for query in read_queries(str(file))) == ["flight", "who is it"]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("q0\td0\td1\n", 1, "columns without names; for texts, add a header such as query<TAB>"),
        ("what is lift\tan upward force\n", 1, "columns without names; for texts, add a header such as query<TAB>"),
        ("query-id\tcorpus-id\tscore\n7\t70\t1\n", 1, "expected a JSON object, got "),
        ("7\t70\t0\n7\t71\t4\n", 1, "three numbers, but MS MARCO's triples have passage ids above 999"),
        ("qid\tpos_id\tneg_id\n7\t1000\t2000\n8\t1000\t2000\n", 1, "is a header above id triples; remove it"),
        ("query\tpositive\tnegative\n7\t1000\t2000\n8\t1000\t2000\n", 1, "is a header above id triples; remove it"),
        ("question\tanswer\tcontext\nwho is it\tit\tnot you\n", 1, "is a header without 'query' or 'positive'"),
        ("query\tpos\tpositive\nwho\n", 1, "is a header with several columns '"),
        ("anchor\tquery\tpositive\nwho\n", 1, "is a header with several columns '"),
        ("query\tpos\tneg\tneg\nwho\n", 1, "is a header with several columns '"),
        ("query\tpositive\tnegatives\nwho is it\tit\tnot you\n", 1, "unknown column 'negatives'; rename or remove"),
        ("anchor\tpositive\nwho\n", 2, "expected 2 columns, got 1"),
        ("anchor\tpositive\tscore\nwho\tme\thigh\n", 2, "'score' must be a number, got 'high'"),
    ],
)
def test_bad_tsv_is_reported_with_its_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    file = write_text(tmp_path / "t.tsv", text)
    with pytest.raises(RecordError, match=rf"t\.tsv:{line}: .*{problem}"):
        list(read_examples(str(file)))


def test_examples_with_an_id_of_the_query(tmp_path: Path) -> None:
    path = write_text(tmp_path / "train.jsonl", '{"_id": "7", "query": "who?", "pos": ["me"], "neg": ["you"]}\n' * 2)
    example = parse_file(path)[0].example
    assert readers.load_qrels(str(path)) == {"7": {example.positives[0]: 1}}
    assert [query.id for query in read_queries(str(path))] == [example.query_id] == ["7"]
    assert [passage.id for passage in read_passages(str(path))] == [*example.positives, *example.negatives]
    (row,) = parse_rows(tmp_path, {"_id": "e1", "query_id": "7", "query": "who?", "positive_document_ids": ["d1"]})
    assert (row.example.query_id, row.example.extra) == ("7", {"_id": "e1"})


def test_triples_of_ids_are_grouped_by_query(tmp_path: Path) -> None:
    path = tmp_path / "qidpidtriples.tsv"
    path.write_bytes(b"7\t70\t1500\r\n7\t70\t1600\r\n7\t71\t1500\r\n8\t80\t15\r\n7\t70\t1700\r\n")  # CRLF as MS MARCO's
    expected = ("7", ("70", "71"), ("1500", "1600")), ("8", ("80",), ("15",)), ("7", ("70",), ("1700",))
    assert list(read_examples(str(path))) == [Example(*example) for example in expected]
    ((_, error),) = readers.iter_hits(str(path), InputTracker())
    assert "a triple of ids (query, positive, negative), not a hit" in str(error)


def test_candidates_of_ms_marco_are_passages_queries_and_hits(tmp_path: Path) -> None:
    path, text = tmp_path / "top1000.tsv", "1\t7\twhat is wind\tair that moves\n2\t7\twho\tair that moves\n"
    write_text(path, f"{text}1\t8\twhat is wind\t5 6 7 8\nD7\thttp://x\ttitle\tbody\n7\t71\n")
    passages = list(read_passages(str(path), tracker=InputTracker(skip_bad=1)))
    assert passages[:2] == [Passage("7", "air that moves"), Passage("8", "5 6 7 8")]
    numbers, records = zip(*readers.iter_hits(str(path), InputTracker()), strict=True)
    *hits, error, short = records
    assert numbers == (1, 2, 3, 4, 5)
    assert hits == [Hit("1", "7", 1, 1.0), Hit("2", "7", 1, 1.0), Hit("1", "8", 2, 0.5)]
    assert str(error) == "expected integers as qid and pid, got 'D7' and 'http://x'"
    assert str(short) == "expected 4 columns 'qid pid query passage', got 2"
    write_text(path, text)
    assert list(read_queries(str(path))) == [Query("1", "what is wind"), Query("2", "who")]


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
        ({"query_id": "1", "query": "q", "positives": {"doc_id": ["a"], "score": [1, 2]}}, "2 entries for 1 passages"),
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
        ({"query": "q", "positive": "a", "negatives": ["b"]}, "unknown; name the negatives negative, negative_1, …"),
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

"""Records written in a format are read back unchanged, except for fields that the format does not have."""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drtk.data import readers
from drtk.data.examples import ParsedExample
from drtk.data.json_arrays import iter_array_rows
from drtk.data.readers import read_passages, read_queries
from drtk.data.writers import FORMATS
from drtk.records import Example, Hit, Passage, Qrel, Query
from drtk.runtime.inputs import InputTracker

IDS = st.text("abcXYZ019_-.é", min_size=1, max_size=8)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=30)
LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\t\0"), max_size=30)
EXTRA = st.dictionaries(
    st.sampled_from(["colour", "weights"]), st.integers(-(2**63), 2**64 - 1) | st.lists(st.floats(0, 1)), max_size=2
)
URLS = LINES.map("https://".__add__)  # a number would make the line a candidate of MS MARCO
METADATA = st.none() | st.dictionaries(st.sampled_from(["year", "url"]), TEXTS, min_size=1)
SETTINGS = settings(max_examples=60, deadline=None)


@contextlib.contextmanager
def write_records(kind: str, name: str, records: list[Any]) -> Iterator[str]:
    form = FORMATS[kind].load(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(form.header + form.between.join(form.to_bytes(record, {}) for record in records) + form.footer)
        yield str(path)


def read_judgments(path: str) -> list[Any]:
    return [record for _, record in readers.iter_judgments(path, InputTracker())]


def read_hits(path: str) -> list[Any]:
    return [record for _, record in readers.iter_hits(path, InputTracker())]


READERS = {"passages": read_passages, "queries": read_queries, "qrels": read_judgments, "run": read_hits}
PASSAGES = st.builds(Passage, IDS, TEXTS, TEXTS, METADATA, EXTRA)
QUERIES = st.builds(Query, IDS, TEXTS, st.none() | st.lists(TEXTS, max_size=2).map(tuple), st.none(), EXTRA)
QRELS = st.builds(Qrel, IDS, IDS, st.integers(-2, 4))
RANKS = st.integers(1, 1000)


@pytest.mark.parametrize(
    ("kind", "name", "records"),
    [
        ("passages", "beir", PASSAGES),
        ("passages", "tevatron", PASSAGES),
        ("passages", "pyserini", st.builds(Passage, IDS, TEXTS, LINES, METADATA, EXTRA)),  # titles of one line
        ("passages", "dpr", st.builds(Passage, IDS, TEXTS, TEXTS)),
        ("passages", "msmarco-docs", st.builds(Passage, IDS, LINES, LINES, st.fixed_dictionaries({"url": URLS}))),
        ("passages", "msmarco", st.builds(Passage, IDS, LINES)),
        ("queries", "beir", QUERIES),
        ("queries", "tevatron", QUERIES),
        ("qrels", "beir", QRELS),
        ("qrels", "trec", QRELS),
        ("run", "trec", st.builds(Hit, IDS, IDS, RANKS, st.floats(allow_nan=False, allow_infinity=False), IDS)),
        ("run", "msmarco", st.builds(lambda *ids, rank: Hit(*ids, rank, 1 / rank), IDS, IDS, rank=RANKS)),
    ],
)
@SETTINGS
@given(st.data())
def test_records_round_trip(kind, name, records, data):
    unique = {getattr(record, "id", None) or (record.query_id, record.doc_id): record
              for record in data.draw(st.lists(records, max_size=5))}  # fmt: skip
    with write_records(kind, name, list(unique.values())) as path:
        assert list(READERS[kind](path)) == list(unique.values())


@SETTINGS
@given(
    st.lists(st.tuples(LINES.filter(str.strip), st.lists(TEXTS, max_size=3)), max_size=4),
    st.sampled_from(["dpr-qa", "nq-open"]),
)
@example([("{", [])], "dpr-qa")
@example([('{"', ["a"])], "dpr-qa")
@example([("{", ["'"])], "dpr-qa")
def test_questions_and_answers_round_trip_without_ids(pairs, name):
    queries = [Query(f"q{number}", text, tuple(answers)) for number, (text, answers) in enumerate(pairs)]
    with write_records("queries", name, queries) as path:
        assert [(query.text, list(query.answers)) for query in read_queries(path)] == pairs


@st.composite
def examples_with_texts(draw: st.DrawFn) -> ParsedExample:
    """Draw an example with its texts and unique ids."""
    passages = draw(st.lists(st.builds(Passage, IDS, TEXTS, TEXTS), min_size=1, max_size=5, unique_by=lambda p: p.id))
    ids = tuple(passage.id for passage in passages)
    cut = draw(st.integers(1, len(ids)))
    query = Query(draw(IDS), draw(TEXTS), tuple(draw(st.lists(TEXTS, max_size=2))))
    scored = draw(st.booleans())
    numbers = [float(number) for number in range(len(ids))]
    scores = {"positives": numbers[:cut], "negatives": numbers[cut:]} if scored and cut < len(ids) else None
    return ParsedExample(Example(query.id, ids[:cut], ids[cut:], scores), query, tuple(passages))


def read_examples(path: str) -> list[ParsedExample]:
    records = [record for _, record in readers.iter_examples(path, InputTracker())]
    assert all(isinstance(record, ParsedExample) for record in records), records
    return records  # type: ignore[return-value]


def drop_fields(example: Example, *fields: str) -> Example:
    values = {name: getattr(example, name) for name in ("scores", "sources", "extra") if name not in fields}
    return Example(example.query_id, example.positives, example.negatives, **values)


@SETTINGS
@given(st.lists(examples_with_texts(), max_size=4))
def test_examples_round_trip_in_every_format(examples):
    expected = [parsed.example for parsed in examples]
    for name in ("drtk", "simlm"):
        with write_records("examples", name, examples) as path:
            assert [parsed.example for parsed in read_examples(path)] == expected
    for name in ("tevatron", "dpr-json", "sbert"):
        with write_records("examples", name, examples) as path:
            parsed = read_examples(path)
            unscored = [drop_fields(record.example, "scores", "sources") for record in parsed]
            assert unscored == [drop_fields(example, "scores") for example in expected]
            if name != "sbert":
                assert [(each.query, each.passages) for each in parsed] == [(e.query, e.passages) for e in examples]


@SETTINGS
@given(st.lists(examples_with_texts(), max_size=4))
def test_flag_embedding_texts_round_trip(examples):
    def has_texts(record: ParsedExample) -> bool:
        texts = [record.query.text if record.query else "", *(p.title + p.text for p in record.passages)]
        return all(map(str.strip, texts))

    examples = [*filter(has_texts, examples)]  # empty texts are rejected
    with write_records("examples", "flag", examples) as path:
        for original, parsed in zip(examples, read_examples(path), strict=True):
            texts = [f"{p.title} {p.text}" if p.title else p.text for p in original.passages]
            assert [passage.text for passage in parsed.passages] == texts
            assert parsed.example.scores == original.example.scores


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(st.sampled_from('"\\{}[],:é\n'), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('"{]a', max_size=3), inner, max_size=3),
    max_leaves=8,
)


@SETTINGS
@given(
    st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=3), max_size=5),
    st.sampled_from([None, 1, 4]),
    st.integers(1, 40),
    st.booleans(),
)
def test_a_json_array_is_parsed_equally_in_blocks_of_any_size(rows, indent, size, plain):
    text = json.dumps(rows, indent=indent, ensure_ascii=plain).encode()
    blocks = [text[start : start + size] for start in range(0, len(text), size)]
    numbered_rows = list(iter_array_rows(blocks))
    assert [row for _, row in numbered_rows] == rows
    if indent is not None and rows:
        starts = [at for at, line in enumerate(text.split(b"\n"), start=1) if line.startswith(b" " * indent + b"{")]
        assert [line for line, _ in numbered_rows] == starts


@SETTINGS
@given(st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=3), min_size=1, max_size=4), st.data())
def test_a_truncated_json_array_gives_complete_elements_and_then_an_error(rows, data):
    text = orjson.dumps(rows)
    cut = text[: data.draw(st.integers(1, len(text) - 1))]
    *whole, last = [row for _, row in iter_array_rows([cut])]
    assert whole == rows[: len(whole)]
    assert isinstance(last, ValueError)

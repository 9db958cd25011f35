"""What is written in a format is read back as it was, as far as the format has a place for it."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drtk.data import formats
from drtk.data.examples import ParsedExample
from drtk.data.findings import DuplicateFinder
from drtk.data.json_arrays import iter_array_rows
from drtk.data.jsonl import read_passages, read_queries
from drtk.data.writers import FORMATS
from drtk.records import Example, Hit, Passage, Qrel, Query
from drtk.runtime.inputs import InputTracker

IDS = st.text("abcXYZ019_-.é", min_size=1, max_size=8)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=30)
LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\t\0"), max_size=30)
EXTRA = st.dictionaries(
    st.sampled_from(["colour", "weights"]), st.integers(-(2**63), 2**64 - 1) | st.lists(st.floats(0, 1)), max_size=2
)
METADATA = st.none() | st.dictionaries(st.sampled_from(["year", "url"]), TEXTS, min_size=1)
FULL = settings(max_examples=60, deadline=None)


def unique(records: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(records, max_size=5, unique_by=lambda record: record.id)


@contextlib.contextmanager
def written(kind: str, name: str, records: list[Any]) -> Iterator[str]:
    form = FORMATS[kind].load(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(form.header + form.between.join(form.write(record, {}) for record in records) + form.footer)
        yield str(path)


@FULL
@given(unique(st.builds(Passage, IDS, TEXTS, TEXTS, METADATA, EXTRA)), st.sampled_from(["beir", "tevatron"]))
def test_passages_as_json_come_back_whole(passages: list[Passage], name: str) -> None:
    with written("passages", name, passages) as path:
        assert list(read_passages(path)) == passages


@FULL
@given(unique(st.builds(Passage, IDS, TEXTS, LINES, METADATA, EXTRA)))
def test_passages_for_pyserini_come_back_whole_where_titles_are_one_line(passages: list[Passage]) -> None:
    with written("passages", "pyserini", passages) as path:
        assert list(read_passages(path)) == passages


@FULL
@given(unique(st.builds(Passage, IDS, TEXTS, TEXTS)))
def test_passages_for_dpr_come_back_with_their_quotes_tabs_and_line_ends(passages: list[Passage]) -> None:
    with written("passages", "dpr", passages) as path:
        assert list(read_passages(path)) == passages


@FULL
@given(unique(st.builds(Passage, IDS, LINES, LINES, st.fixed_dictionaries({"url": LINES}))))
def test_passages_for_ms_marco_come_back_where_they_have_no_tabs(passages: list[Passage]) -> None:
    with written("passages", "msmarco-docs", passages) as path:
        assert list(read_passages(path)) == passages
    with written("passages", "msmarco", passages) as path:
        assert list(read_passages(path)) == [Passage(passage.id, passage.text) for passage in passages]


@FULL
@given(
    unique(st.builds(Query, IDS, TEXTS, st.none() | st.lists(TEXTS, max_size=2).map(tuple), st.none(), EXTRA)),
    st.sampled_from(["beir", "tevatron"]),
)
def test_queries_as_json_come_back_whole(queries: list[Query], name: str) -> None:
    with written("queries", name, queries) as path:
        assert list(read_queries(path)) == queries


@FULL
@given(
    st.lists(st.tuples(LINES.filter(str.strip), st.lists(TEXTS, max_size=3)), max_size=4),
    st.sampled_from(["dpr-qa", "nq-open"]),
)
@example([("{", [])], "dpr-qa")
@example([('{"', ["a"])], "dpr-qa")
def test_questions_and_answers_come_back_without_their_ids(pairs: list[tuple[str, list[str]]], name: str) -> None:
    queries = [Query(f"q{number}", text, tuple(answers)) for number, (text, answers) in enumerate(pairs)]
    with written("queries", name, queries) as path:
        assert [(query.text, query.answers) for query in read_queries(path)] == [
            (query.text, query.answers) for query in queries
        ]


@FULL
@given(st.lists(st.builds(Qrel, IDS, IDS, st.integers(-2, 4)), max_size=5), st.sampled_from(["beir", "trec"]))
def test_judgements_come_back(qrels: list[Qrel], name: str) -> None:
    with written("qrels", name, qrels) as path:
        assert [record for _, record in formats.iter_judgements(path, InputTracker())] == qrels


@FULL
@given(
    st.lists(
        st.builds(Hit, IDS, IDS, st.integers(1, 1000), st.floats(allow_nan=False, allow_infinity=False), IDS),
        max_size=5,
        unique_by=lambda hit: (hit.query_id, hit.doc_id),
    )
)
def test_runs_come_back_with_every_bit_of_their_scores(hits: list[Hit]) -> None:
    with written("run", "trec", hits) as path:
        assert [record for _, record in formats.iter_hits(path, InputTracker())] == hits
    with written("run", "msmarco", hits) as path:
        back = [record for _, record in formats.iter_hits(path, InputTracker()) if isinstance(record, Hit)]
        assert [(hit.query_id, hit.doc_id, hit.rank) for hit in back] == [
            (hit.query_id, hit.doc_id, hit.rank) for hit in hits
        ]


@st.composite
def texted(draw: st.DrawFn) -> ParsedExample:
    """An example with its texts; ids are unique within it."""
    passages = draw(st.lists(st.builds(Passage, IDS, TEXTS, TEXTS), min_size=1, max_size=5, unique_by=lambda p: p.id))
    ids = tuple(passage.id for passage in passages)
    cut = draw(st.integers(1, len(ids)))
    query = Query(draw(IDS), draw(TEXTS), tuple(draw(st.lists(TEXTS, max_size=2))))
    scored = draw(st.booleans())
    numbers = [float(number) for number in range(len(ids))]
    scores = {"positives": numbers[:cut], "negatives": numbers[cut:]} if scored and cut < len(ids) else None
    return ParsedExample(Example(query.id, ids[:cut], ids[cut:], scores), query, tuple(passages))


def back(path: str) -> list[ParsedExample]:
    records = [record for _, record in formats.iter_examples(path, InputTracker())]
    assert all(isinstance(record, ParsedExample) for record in records), records
    return records  # type: ignore[return-value]


def without(example: Example, *fields: str) -> Example:
    values = {name: getattr(example, name) for name in ("scores", "sources", "extra") if name not in fields}
    return Example(example.query_id, example.positives, example.negatives, **values)


@FULL
@given(st.lists(texted(), max_size=4))
def test_examples_come_back_from_every_shape(examples: list[ParsedExample]) -> None:
    expected = [found.example for found in examples]
    for name in ("drtk", "simlm"):
        with written("examples", name, examples) as path:
            assert [found.example for found in back(path)] == expected
    for name in ("tevatron", "dpr-json", "sbert"):
        with written("examples", name, examples) as path:
            found = back(path)
            assert [without(one.example, "scores", "sources") for one in found] == [
                without(example, "scores") for example in expected
            ]
            if name != "sbert":
                assert [(one.query, one.passages) for one in found] == [(one.query, one.passages) for one in examples]


@FULL
@given(st.lists(texted(), max_size=4))
def test_texts_come_back_from_flag_embedding(examples: list[ParsedExample]) -> None:
    with written("examples", "flag", examples) as path:
        for one, found in zip(examples, back(path), strict=True):
            texts = [f"{passage.title} {passage.text}" if passage.title else passage.text for passage in one.passages]
            assert [passage.text for passage in found.passages] == texts
            assert found.example.scores == one.example.scores


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(st.sampled_from('"\\{}[],:é\n'), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('"{]a', max_size=3), inner, max_size=3),
    max_leaves=8,
)


@FULL
@given(
    st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=3), max_size=5),
    st.sampled_from([None, 1, 4]),
    st.integers(1, 40),
    st.booleans(),
)
def test_an_array_reads_the_same_in_blocks_of_any_size(
    rows: list[Any], indent: int | None, size: int, plain: bool
) -> None:
    text = json.dumps(rows, indent=indent, ensure_ascii=plain).encode()
    blocks = [text[start : start + size] for start in range(0, len(text), size)]
    found = list(iter_array_rows(blocks))
    assert [row for _, row in found] == rows
    if indent is not None and rows:
        starts = [
            number for number, line in enumerate(text.split(b"\n"), start=1) if line.startswith(b" " * indent + b"{")
        ]
        assert [line for line, _ in found] == starts


@FULL
@given(st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=3), min_size=1, max_size=4), st.data())
def test_an_array_cut_anywhere_gives_its_whole_elements_and_then_a_fault(rows: list[Any], data: st.DataObject) -> None:
    text = orjson.dumps(rows)
    cut = text[: data.draw(st.integers(1, len(text) - 1))]
    *whole, last = [row for _, row in iter_array_rows([cut])]
    assert whole == rows[: len(whole)]
    assert isinstance(last, ValueError)


@FULL
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 99).map(str)), max_size=40), st.integers(1, 50))
def test_grouping_finds_what_comes_again_in_memory_and_on_disk_alike(pairs: list[tuple[str, str]], held: int) -> None:
    expected: dict[str, list[str]] = {}
    for key, value in pairs:
        expected.setdefault(key, []).append(value)
    grouping = DuplicateFinder(max_pairs=held, num_files=3)
    for key, value in pairs:
        grouping.add(key, value)
    assert dict(grouping.iter_duplicates()) == {key: values for key, values in expected.items() if len(values) > 1}

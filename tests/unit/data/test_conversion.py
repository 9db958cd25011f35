"""drtk convert: conversion between formats, and texts in training data."""

import tempfile
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError

TEXTED = [
    {"query": "who?", "pos": ["yes"], "neg": ["no", "maybe"], "pos_scores": [3.5], "neg_scores": [1.5, 2.5]},
    {"query": "what?", "pos": ["maybe"], "neg": ["no"]},
]


def run(*arguments: str, input: bytes | None = None) -> bytes:
    """Run drtk convert and return its output; without -o it is written to a temporary file."""
    with tempfile.TemporaryDirectory() as folder:
        named = [] if "-o" in arguments else ["-o", f"{folder}/out"]
        result = CliRunner().invoke(app, ["convert", *arguments, *named], input=input)
        if isinstance(result.exception, DrtkError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return (Path(folder) / "out").read_bytes() if named else b""


def lines(path: Path, rows: list[Any]) -> str:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with examples that contain ids, their corpus and their queries."""
    folder = tmp_path_factory.mktemp("data")
    source = lines(folder / "flag.jsonl", TEXTED)
    for kind, name in (("examples", "train"), ("passages", "corpus"), ("queries", "queries")):
        run(source, "--as", kind, "-o", str(folder / f"{name}.jsonl"))
    return folder


def rows(path: Path) -> list[Any]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_examples_with_texts_are_split_into_corpus_queries_and_examples(data: Path) -> None:
    corpus = {row["_id"]: row["text"] for row in rows(data / "corpus.jsonl")}
    queries = {row["_id"]: row["text"] for row in rows(data / "queries.jsonl")}
    assert sorted(corpus.values()) == ["maybe", "no", "yes"]
    examples = rows(data / "train.jsonl")
    assert [queries[row["query_id"]] for row in examples] == ["who?", "what?"]
    assert [[corpus[id] for id in row["negatives"]] for row in examples] == [["no", "maybe"], ["no"]]
    assert examples[0]["scores"] == {"positives": [3.5], "negatives": [1.5, 2.5]}
    for name in ("train", "corpus", "queries"):
        assert (data / f"{name}.jsonl.meta.json").exists()


@pytest.mark.parametrize("to", ["simlm", "tevatron", "dpr-json", "flag", "triplets"])
def test_texts_are_looked_up_for_formats_with_texts(data: Path, tmp_path: Path, to: str) -> None:
    with_texts = ["--corpus", str(data / "corpus.jsonl"), "--queries", str(data / "queries.jsonl")]
    out = tmp_path / "out"
    out.write_bytes(run(str(data / "train.jsonl"), "--as", "examples", "--to", to, *with_texts))
    assert b"who?" in out.read_bytes()
    assert (b'"maybe"' in out.read_bytes()) == (to != "simlm")
    back = [orjson.loads(line) for line in run(str(out), "--as", "examples").splitlines()]
    for example, converted in zip(rows(data / "train.jsonl"), back, strict=True):
        for key in ("query_id", "positives", "negatives"):
            assert converted[key] == example[key]
        assert converted.get("scores") == (example.get("scores") if to in ("simlm", "flag", "triplets") else None)


def test_missing_texts_are_an_error(data: Path) -> None:
    train, corpus = str(data / "train.jsonl"), str(data / "corpus.jsonl")
    with pytest.raises(UsageError, match=r"requires query texts, .* has none; give `queries`"):
        run(train, "--as", "examples", "--to", "tevatron", "--corpus", corpus)
    with pytest.raises(UsageError, match=r"requires passage texts, .* has none; give `corpus`"):
        run(train, "--as", "examples", "--to", "tevatron", "--queries", str(data / "queries.jsonl"))
    few = lines(data / "few.jsonl", rows(data / "corpus.jsonl")[:1])
    with pytest.raises(MismatchError, match="has no passage"):
        run(train, "--as", "examples", "--to", "flag", "--corpus", few, "--queries", str(data / "queries.jsonl"))
    with pytest.raises(MismatchError, match="has no query"):
        run(train, "--as", "examples", "--to", "simlm", "--queries", lines(data / "none", [{"_id": "z", "text": "z"}]))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "`as` is required"),
        (["--as", "passages", "--to", "trec"], "unknown format of passages 'trec'; choose from beir"),
        (["--as", "passages", "--corpus", "x"], "--corpus requires --as examples"),
    ],
)
def test_contradictory_settings_are_rejected(arguments: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        run(*arguments, input=b"")


def test_losses_are_counted_in_the_manifest(tmp_path: Path) -> None:
    source = lines(tmp_path / "c", [{"_id": "1", "title": "T", "text": "a\tb"}, {"_id": "2", "text": "c"}])
    run(source, "--as", "passages", "--to", "msmarco", "-o", str(tmp_path / "tsv"))
    assert (tmp_path / "tsv").read_bytes() == b"1\ta b\n2\tc\n"
    counts = orjson.loads((tmp_path / "tsv.meta.json").read_bytes())["counts"]
    assert counts == {"in": 2, "out": 2, "titles left out": 1, "texts with tabs or line ends made spaces": 1}


def test_empty_input_gives_header_and_footer_only() -> None:
    assert run("--as", "passages", input=b"") == b""
    assert run("--as", "qrels", input=b"") == b"query-id\tcorpus-id\tscore\n"
    assert orjson.loads(run("--as", "examples", "--to", "dpr-json", input=b"")) == []


def test_an_interrupted_json_array_is_resumed(tmp_path: Path) -> None:
    good = [{"query": f"question {number}", "pos": [f"p{number}"], "neg": []} for number in range(250)]
    source, out = tmp_path / "train.jsonl", tmp_path / "out.json"
    options = [lines(source, good), "--as", "examples", "--to", "dpr-json", "-q"]
    whole = run(*options)
    source.write_bytes(b"\n".join(orjson.dumps(row) for row in good[:220]) + b'\n{"torn')
    options += ["-o", str(out)]
    with pytest.raises(RecordError, match=r"train\.jsonl:221"):
        run(*options)
    lines(source, good)
    run(*options, "--resume")
    assert out.read_bytes() == whole
    assert len(orjson.loads(whole)) == 250
    counts = orjson.loads((tmp_path / "out.json.meta.json").read_bytes())["counts"]
    assert (counts["in"], counts["out"]) == (250, 250)


def test_side_files_are_joined_to_passages_only(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_bytes(b'{"_id":"a","text":"one","metadata":{"year":1}}\n{"_id":"b","text":"two"}\n')
    side = b'{"_id":"a","queries":["which?"],"metadata":{"by":"x"}}\n{"_id":"b","queries":[]}\n'
    (tmp_path / "side.jsonl").write_bytes(side)
    given = [str(tmp_path / "c.jsonl"), "--with", str(tmp_path / "side.jsonl")]
    rows = [orjson.loads(line) for line in run(*given, "--as", "passages").splitlines()]
    assert [row["queries"] for row in rows] == [["which?"], []]
    assert rows[0]["metadata"] == {"year": 1, "by": "x"}
    (tmp_path / "side.jsonl").write_bytes(side + b'{"_id":"c"}\n')
    with pytest.raises(MismatchError, match=r"side\.jsonl:3: id 'c' is beyond the end of .* \(2 records\)"):
        run(*given, "--as", "passages")
    with pytest.raises(UsageError, match="`with` requires `as` passages"):
        run(*given, "--as", "queries")


def test_several_files_of_examples_become_one(tmp_path: Path) -> None:
    first = lines(tmp_path / "a", [{"query_id": "q1", "positives": ["d1"], "negatives": ["d2"]}])
    other = [{"query_id": id, "positives": ["d1"], "negatives": ["d3"]} for id in ("q1", "q2")]
    second = lines(tmp_path / "b", other)
    actual = run(first, second, "--as", "examples")
    assert actual == Path(first).read_bytes() + Path(second).read_bytes()
    assert run(first, "-", "--as", "examples", input=Path(second).read_bytes()) == actual
    converted = run(first, second, "--as", "examples", "--to", "sbert")
    assert [orjson.loads(line)["qid"] for line in converted.splitlines()] == ["q1", "q1", "q2"]
    lines(tmp_path / "b", [*other, {"query_id": "q3"}])
    with pytest.raises(RecordError, match=r"b:3: "):
        run(first, second, "--as", "examples")
    with pytest.raises(UsageError, match=r"c\.parquet: is a file of vectors; give `as` embeddings"):
        run(first, "--as", "examples", "-o", tmp_path / "c.parquet")
    with pytest.raises(UsageError, match="several inputs require `as` examples"):
        run(first, second, "--as", "passages")

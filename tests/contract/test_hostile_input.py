"""Malicious or malformed input: each case is a one-line error within bounded memory."""

import gzip
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest

from drtk.cli.search import search_and_print
from drtk.data import run_blocks
from drtk.data.run_blocks import UnsupportedRunError, iter_judged_documents
from drtk.runtime.inputs import InputTracker
from drtk.runtime.streams import MAX_LINE_BYTES, set_max_line_bytes
from drtk.text.word_pieces import WordPieceTokenizer
from tests.contract.run_drtk import Outcome, run_in_process, run_successfully

FIRST = b'{"_id": "a", "text": "one"}\n'


@pytest.fixture(autouse=True)
def _usual_line_limit(folder: Path) -> Iterator[None]:
    yield
    set_max_line_bytes(MAX_LINE_BYTES)


def assert_one_line(outcome: Outcome, status: int, message: str) -> None:
    assert outcome.status == status, outcome.err
    assert message in outcome.err
    assert outcome.err.count("\n") == 1, outcome.err


LONG = b"x" * 200
LONG_LINES = {
    "JSONL": (FIRST + b'{"_id": "b", "text": "%s"}\n' % LONG, "convert {} --as passages", 2),
    "JSONL without a line end": (FIRST + b'{"_id": "b", "text": "%s' % LONG, "convert {} --as passages", 2),
    "TSV": (b"a\tone\nb\t%s\n" % LONG, "convert {} --as queries", 2),
    "JSON array": (b'[{"_id": "a", "text": "one"},\n{"_id": "b", "text": "%s"}]' % LONG, "convert {} --as queries", 2),
    "JSON array, cut": (b'[\n{"_id": "b", "text": "%s' % LONG, "convert {} --as queries", 2),
    "run": (b"q Q0 d 1 1 t\nq Q0 %s 2 0 t\n" % LONG, "eval {} --qrels qrels", 2),
    "judgments": (b"q\td\t1\nq\t%s\t1\n" % LONG, "eval run --qrels {}", 2),
    "texts by id": (FIRST + b'{"_id": "b", "text": "%s"}\n' % LONG, "validate run --as run --corpus {}", 2),
}


@pytest.mark.parametrize("case", LONG_LINES)
def test_a_line_above_the_limit_is_reported(case):
    content, call, line = LONG_LINES[case]
    Path("run").write_bytes(b"q Q0 d 1 1 t\n")
    Path("qrels").write_bytes(b"q\td\t1\n")
    for stored in (content, gzip.compress(content)):
        Path("in").write_bytes(stored)
        outcome = run_in_process("--max-line-bytes", "100", *call.format("in").split())
        assert outcome.status == 1, outcome.err
        assert f"drtk: in:{line}: " in outcome.err
        assert "longer than 100 bytes; split it, or raise --max-line-bytes (given before the command)" in outcome.err


def test_lines_up_to_the_limit_are_read_and_validate_reports_longer_ones():
    Path("in").write_bytes(b"q\t" + b"x" * 98 + b"\nr\t" + b"x" * 98)
    assert run_successfully("--max-line-bytes=100", "convert", "in", "--as", "queries").out.count(b"\n") == 2
    outcome = run_in_process("--max-line-bytes=99", "validate", "in", "--as", "queries", "--json")
    assert outcome.status == 1
    assert b"line longer than 99 bytes" in outcome.out
    assert "; see drtk convert --help" in run_in_process("--max-line-bytes", "100", "convert", "--no-such-option").err


def test_the_block_reader_leaves_long_lines_to_the_line_reader(monkeypatch):
    Path("run").write_bytes(b"\n" * 3000)
    monkeypatch.setattr(run_blocks, "_LARGEST_QUERY", 1000)
    with pytest.raises(UnsupportedRunError):
        list(iter_judged_documents("run", {"q": {"d": 1}}, InputTracker()))


@pytest.mark.parametrize(("levels", "array"), [(201, False), (2000, True)])
def test_deeply_nested_json_is_reported(levels, array):
    nested = b'{"_id": "b", "text": "two", "more": ' + b"[" * levels + b"]" * levels + b"}"
    Path("in").write_bytes(b'[{"_id": "a", "text": "one"},\n' + nested + b"]" if array else FIRST + nested)
    outcome = run_in_process("convert", "in", "--as", "passages")
    assert_one_line(outcome, 1, "drtk: in:2: ")
    assert "JSON nested more than 200 levels deep" in outcome.err
    report = run_in_process("validate", "in", "--as", "passages")
    assert report.status == 1
    assert b"in:2: " in report.out
    assert b"nested more than 200 levels deep" in report.out


def test_json_nested_as_deep_as_allowed_is_written_again():
    nested = b'{"_id":"b","title":"","text":"[]{}","more":' + b"[" * 199 + b"]" * 199 + b"}\n"
    assert run_successfully("convert", "-", "--as", "passages", stdin=nested).out == nested
    run_successfully("chunk", "-", "-o", "out", stdin=nested)


BIG = "18446744073709551616"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (f"chunk in -o out --max-words {BIG}", ": must fit into 64 bits, is "),
        (f"show in -n {BIG}", ": must fit into 64 bits, is "),
        ("doc2query in --model m --top-p 0", "--top-p: must be at least 1e-06"),
        ("chunk in --set punkt_mb=1e308", "--set punkt_mb: must be at most 1000000.0"),
        ("chunk caf\udce9 -o out", ": not UTF-8; choose another name"),
        ("fuse a b --set tag=\udcff -o out", ": not UTF-8; choose another name"),
    ],
)
def test_unusable_arguments_are_usage_errors(arguments, message):
    for name in ("in", "caf\udce9"):
        Path(name).write_bytes(FIRST)
    assert_one_line(run_in_process(*arguments.split()), 2, message)


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (f"q Q0 d {BIG} 1 t\n", "run", f"rank '{BIG}' does not fit into 64 bits"),
        (f"q\td\t{BIG}\n", "qrels", f"grade '{BIG}' does not fit into 64 bits"),
        (f"q\td\t{BIG}\n", "run", f"rank '{BIG}' must be an integer from 1 to 2^63 - 1"),
    ],
)
def test_numbers_beyond_64_bits_in_a_file_are_reported(content, kind, message):
    Path("in").write_text(content)
    assert_one_line(run_in_process("convert", "in", "--as", kind, "-o", "out"), 1, f"drtk: in:1: {message}")


@pytest.mark.parametrize(
    ("fields", "view"),
    [
        ({"weights": [None, True]}, "--term-weights"),
        ({"title": "two", "title_weights": 3}, "--html o.html"),
    ],
)
def test_non_numeric_term_weights_are_reported(fields, view, collection):
    metadata = {"weights_tokenizer": str(collection["model"])}
    row = {"_id": "a", "text": "one two", "weights": [1, 2], "metadata": metadata}
    Path("in").write_bytes(orjson.dumps(row | fields))
    outcome = run_in_process("show", "in", *view.split())
    assert_one_line(outcome, 1, "passage 'a': weights must be a list of numbers")


ESCAPES = "\x1b[31mred\x1b[0m \x9b2J \x07 \x7f\r"  # color, clear screen, bell
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def passage(**fields: object) -> bytes:
    return (
        orjson.dumps({"_id": "a\x1b[2J", "title": f"T {ESCAPES}", "text": f"one two {ESCAPES} three"} | fields) + b"\n"
    )


@pytest.mark.parametrize("color", [False, True])
def test_control_characters_are_escaped_where_texts_are_shown(color, collection, monkeypatch):
    model = str(collection["model"])
    pieces = WordPieceTokenizer(model)([f"one two {ESCAPES} three"])[0]
    weights = {"weights": [1.0] * len(pieces.ids), "metadata": {"weights_tokenizer": model}}
    Path("in").write_bytes(passage(**weights))
    Path("table").write_bytes(f"a\tb {ESCAPES}\n".encode())
    if color:
        monkeypatch.setenv("FORCE_COLOR", "1")
    for call in ("show in", "show table", "show in --term-weights", f"show in --preset mlm --model {model}"):
        shown = run_successfully(*call.split()).out.decode()
        assert "red" in shown, call
        plain = re.sub("\x1b\\[(0|[0-9]+;48;5;[0-9]+)m", "", shown) if color else shown  # drtk's own colors
        assert CONTROLS.search(plain) is None, call
    assert "\\x1b[31mred" in run_successfully("show", "in", "--term-weights").out.decode().replace(" ", "") or color


def test_control_characters_are_escaped_in_error_messages():
    Path("in").write_bytes(passage() + passage())
    Path("run").write_bytes(b"q Q0 a\x1b[31m 1 1 t\n" * 2)
    for call in ("convert in --as passages -o out", "validate in --as passages", "convert run --as run -o out"):
        outcome = run_in_process(*call.split())
        shown = outcome.out.decode() + outcome.err
        assert outcome.status == 1
        assert CONTROLS.search(shown) is None, call
        assert "\\x1b" in shown, call


def test_control_characters_are_escaped_in_search_results(monkeypatch, capsys):
    Path("in").write_bytes(passage())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"two {ESCAPES}\n".encode())))

    class Hits:
        folders: ClassVar[list[str]] = []
        manifests: ClassVar[list[Any]] = []

        def iter_rankings(self, texts: list[str], k: int) -> list[list[tuple[str, float]]]:
            return [[("a\x1b[2J", 1.0), ("absent\x1b[2J", 0.5)]]

        def __len__(self) -> int:
            return 2

    search_and_print("-", Hits(), None, 2, "in")  # type: ignore[arg-type]
    shown = capsys.readouterr().out
    assert shown.count("\\x1b[31mred") == 3  # the query, title and text
    assert CONTROLS.search(shown) is None


def test_names_and_texts_cannot_break_a_markdown_page():
    names = ["a|b*c*", "<i>`d`"]
    Path("one").write_bytes(b"q`1 Q0 d`1 1 1 t\nq2 Q0 x 1 1 t\n")
    Path("two").write_bytes(b"q`1 Q0 x 1 1 t\nq2 Q0 d 1 1 t\n")
    Path("qrels").write_bytes(b"q`1\td`1\t1\nq2\td\t1\n")
    Path("queries").write_bytes(b"q`1\twhat <b>|*x*\nq2\twho\n")
    runs = [f"{name}={run}" for name, run in zip(names, ("one", "two"), strict=True)]
    corpus = [{"_id": id, "title": "*T*", "text": "a `b` <b>"} for id in ("d`1", "d", "x")]
    Path("corpus").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in corpus))
    texts = ["--qrels", "qrels", "--queries", "queries", "--corpus", "corpus"]
    call = ["compare", *runs, *texts, *"--format markdown --moved 1 --heading <u>*T*".split()]
    page = run_successfully(*call).out.decode()
    run_successfully("report", *runs, *texts, "-o", "out")
    for text in (page, Path("out/report.md").read_text()):
        for raw in ("<i>", "<b>", "<u>", "a|b", "*c*", "*T*", "(`q`1`", "a `b`"):
            assert raw not in text, raw
        assert "a\\|b\\*c\\*" in text
        assert "\\<i\\>\\`d\\`" in text
        assert "what \\<b\\>\\|\\*x\\*" in text
        assert "(`` q`1 ``" in text

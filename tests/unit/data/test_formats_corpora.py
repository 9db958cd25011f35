"""Corpora and queries in all formats, which are detected from the content."""

import csv
import gzip
from pathlib import Path

import pytest

from drtk.data.readers import read_passages, read_queries
from drtk.errors import RecordError
from drtk.records import Passage, Query
from drtk.runtime.inputs import InputTracker

BEIR = b'{"_id":"7","title":"Wing","text":"Lift grows.","metadata":{"year":1958},"colour":"red"}\n'


def passages(folder: Path, content: bytes) -> list[Passage]:
    (folder / "corpus").write_bytes(content)
    return list(read_passages(str(folder / "corpus")))


def queries(folder: Path, content: bytes) -> list[Query]:
    (folder / "queries").write_bytes(content)
    return list(read_queries(str(folder / "queries")))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("BEIR", BEIR, Passage("7", "Lift grows.", "Wing", {"year": 1958}, {"colour": "red"})),
        ("id for _id", b'{"id":"7","text":"Lift grows."}', Passage("7", "Lift grows.")),
        ("a number as id", b'{"_id":7,"text":"Lift grows."}', Passage("7", "Lift grows.")),
        ("null title", b'{"_id":"7","title":null,"text":"Lift grows."}', Passage("7", "Lift grows.")),
        ("Tevatron", b'{"docid":"7","title":"Wing","text":"Lift grows."}', Passage("7", "Lift grows.", "Wing")),
        ("Pyserini", b'{"id":"7","contents":"Wing\\nLift grows."}', Passage("7", "Lift grows.", "Wing")),
        ("MS MARCO passages", b"7\tLift grows.\n", Passage("7", "Lift grows.")),
        ("MS MARCO documents", b"7\tURL\tWing\tLift grows.\n", Passage("7", "Lift grows.", "Wing", {"url": "URL"})),
        ("DPR", b"id\ttext\ttitle\n7\tLift grows.\tWing\n", Passage("7", "Lift grows.", "Wing")),
        ("DPR quoted", b'id\ttext\ttitle\n7\t"Lift ""grows""."\tWing\n', Passage("7", 'Lift "grows".', "Wing")),
        ("DPR without header", b'"7"\t"Lift ""grows""."\tWing\n', Passage("7", 'Lift "grows".', "Wing")),
        ("DPR over two lines", b'id\ttext\ttitle\n7\t"Lift\ngrows."\tWing\n', Passage("7", "Lift\ngrows.", "Wing")),
        ("a quote inside", b'id\ttext\ttitle\n7\t5" pipe\tWing\n', Passage("7", '5" pipe', "Wing")),
        ("TSV with a header", b'_id\ttitle\ttext\n7\tWing\t"Lift" grows.\n', Passage("7", '"Lift" grows.', "Wing")),
        ("ids like names", b"topic1\tcovid\n", Passage("topic1", "covid")),
        ("names in quotes", b'"id"\t"title"\t"text"\n"7"\t"Wing"\t"Lift."\n', Passage("7", "Lift.", "Wing")),
        ("two columns with a header", b"docid\ttext\n7\tLift grows.\n", Passage("7", "Lift grows.")),
        ("JSON array", b'[\n {"_id":"7",\n  "text":"Lift grows."}\n]\n', Passage("7", "Lift grows.")),
        ("BOM", b'\xef\xbb\xbf{"_id":"7","text":"Lift grows."}\n', Passage("7", "Lift grows.")),
        ("CRLF", b'{"_id":"7","text":"Lift grows."}\r\n', Passage("7", "Lift grows.")),
        ("blank lines first", b'\n  \n{"_id":"7","text":"Lift grows."}\n', Passage("7", "Lift grows.")),
    ],
)
def test_passages_are_read_in_every_format(tmp_path: Path, name: str, content: bytes, expected: Passage) -> None:
    assert passages(tmp_path, content) == [expected]
    assert passages(tmp_path, gzip.compress(content)) == [expected]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("BEIR", b'{"_id":"1","text":"who?","answers":["I"]}', Query("1", "who?", ("I",))),
        ("metadata", b'{"_id":"1","text":"","metadata":{"answers":["I"]}}', Query("1", "", ("I",), {"answers": ["I"]})),
        ("question for text", b'{"id":"1","question":"who?","answers":["I"]}', Query("1", "who?", ("I",))),
        ("Tevatron", b'{"query_id":"1","query":"who?"}', Query("1", "who?")),
        ("MS MARCO", b"1\twho?\n", Query("1", "who?")),
        ("TSV with a header", b"text\tqid\nwho?\t1\n", Query("1", "who?")),
        ("question in a header", b"QID\tQuestion\n1\twho?\n", Query("1", "who?")),
    ],
)
def test_queries_are_read_in_every_format(tmp_path: Path, name: str, content: bytes, expected: Query) -> None:
    assert queries(tmp_path, content) == [expected]


def test_columns_without_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # A title may be the usual name of a column.
    assert passages(tmp_path, b"7\tAn utterance.\tQuestion\n") == [Passage("7", "An utterance.", "Question")]
    (document,) = passages(tmp_path, b"D7\tu\tQuery\tAn utterance.\n")
    assert (document.id, document.title, caplog.text) == ("D7", "Query", "")
    assert passages(tmp_path, b"7\tWing\tLift grows.\n") == [Passage("7", "Wing", "Lift grows.")]
    assert "corpus: read as id, text, title, but the third column is longer than the second; name the" in caplog.text


def test_generated_ids_of_questions_do_not_depend_on_the_format(tmp_path: Path) -> None:
    from_json = queries(tmp_path, b'{"question":"who wrote it?","answer":["A","B"]}\n')
    from_tsv = queries(tmp_path, b"who wrote it?\t['A', 'B']\n")
    quoted = queries(tmp_path, b'who wrote it?\t"[\'A\', ""B""]"\n')
    assert from_json == from_tsv == quoted
    assert from_json[0].answers == ("A", "B")
    assert len(from_json[0].id) == 21  # q and 80 bits in hexadecimal
    first, second = queries(tmp_path, b'{"question":"who?","answer":["A"]}\n{"question":"who?","answer":["B"]}\n')
    assert (second.id, second.answers) == (first.id + "-2", ("B",))


def test_triviaqa_answers_begin_with_the_value_in_both_formats(tmp_path: Path) -> None:
    own = b'{"Question":"Which band?","QuestionId":"tc_1","Answer":{"Aliases":["Fab 4","THE BEATLES"],"Value":"THE BEATLES"}}\n'
    hub = b'{"question":"Which band?","question_id":"tc_1","answer":{"aliases":["Fab 4","THE BEATLES"],"value":"THE BEATLES"}}\n'
    expected = [Query("tc_1", "Which band?", ("THE BEATLES", "Fab 4"))]
    assert queries(tmp_path, own) == expected == queries(tmp_path, hub)
    with pytest.raises(RecordError, match=r":1: 'answer' must be a string, a list, or an object"):
        queries(tmp_path, b'{"question":"Which band?","answer":{"aliases":["Fab 4"]}}\n')


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (BEIR + b'{"_id": "8", "te', 2, "not JSON: ends after 16 bytes; the line is incomplete"),
        (BEIR + b"[1, 2]\n", 2, "expected a JSON object, got a list"),
        (BEIR + b'{"_id":"8","text":"a"} {"_id":"9"}\n', 2, "not JSON: unexpected text after the object at column 24"),
        (BEIR + b'{"_id":"8","text":NaN}\n', 2, "not JSON: NaN at column 19 is not a JSON number"),
        (BEIR + b'{"_id":"8","text":"\xff"}\n', 2, "not UTF-8 at byte 20"),
        (BEIR + b'{"text":"a"}\n', 2, "'_id' is missing"),
        (BEIR + b'{"_id":"","text":"a"}\n', 2, "'_id' is empty"),
        (BEIR + b'{"_id":"8\\t","text":"a"}\n', 2, "contains white space"),
        (BEIR + b'{"_id":"8\\u0000","text":"a"}\n', 2, "contains a NUL character"),
        (BEIR + b'{"_id":true,"text":"a"}\n', 2, "'_id' must be a string, got a boolean"),
        (BEIR + b'{"_id":"8"}\n', 2, "'text' is missing"),
        (BEIR + b'{"_id":"8","text":null}\n', 2, "'text' must be a string, got null"),
        (BEIR + b'{"_id":"8","text":"a","metadata":[]}\n', 2, "'metadata' must be an object, got a list"),
        (BEIR + BEIR, 2, "duplicate id '7'"),
        ("text".encode("utf-16"), 1, "not UTF-8 at byte 1 (UTF-16?)"),
        (b"anchor,positive\n", 1, "expected a JSON object, got comma-separated text; convert it to JSONL or TSV"),
        (
            b"_id\tbody\n1\tx\n",
            1,
            "header with the unknown column 'body'; rename or remove columns; expected id<TAB>title<TAB>text",
        ),
        (b"PassageID\tPassage\n1\tx\n", 1, "is a header with the unknown column 'passageid'"),
        (b"sku\tTitle\tText\n1\tx\ty\n", 1, "is a header with the unknown column 'sku'"),
        (b"id\ttitle\n1\tx\n", 1, "is a header without a column 'text'"),
        (b"id\tdocid\ttext\n1\t1\tx\n", 1, "is a header with several columns 'id'"),
        (b"just text\n", 1, "expected a JSON object, got other text"),
        (b"1\ta\n2\tb\tc\n", 2, "expected 2 columns, got 3"),
        (b"1\ta\n2\tb\x00\n", 2, "contains a NUL byte"),
        (b"1\ta\n2\t\xff\n", 2, "not UTF-8 at byte 3"),
        (b"a\tb\tc\td\te\n", 1, "got 5"),
        (b"query-id\tcorpus-id\tscore\nq\td\t1\n", 1, "the header of judgments"),
        (b'id\ttext\ttitle\n1\t"open\tt\n', 2, "not quoted as by csv (lines 2 to 2): unexpected end of data"),
        (b'id\ttext\ttitle\n1\t"a"\tb\rc\n', 2, "a carriage return outside quotes"),
        (b'id\ttext\ttitle\n1\t"a" b\tt\n', 2, "'\t' expected after '\"'; correct the quotes"),
        (b'id\ttext\ttitle\n1\t"a\x00"\tt\n', 2, "contains a NUL byte"),
        (b'id\ttext\ttitle\n1\t"a\n\xff"\tt\n', 2, "not UTF-8 at byte 1"),
        (b'[{"_id":"1","text":"a"},\n{"_id":"2","te', 2, "the array ends in or after element 1"),
        (b'[{"_id":"1","text":"a"}\n', 2, "the array ends in or after element 1"),
        (b'[{"_id":"1","text":"a"},\n 5]', 2, "element 2 is not an object"),
        (b'[{"_id":"1","text":"a"},\n {"_id" "2"}]', 2, "element 2: not JSON"),
    ],
)
def test_bad_records_are_reported_with_their_line_and_can_be_skipped(
    tmp_path: Path, content: bytes, line: int, problem: str
) -> None:
    with pytest.raises(RecordError) as raised:
        passages(tmp_path, content)
    assert str(raised.value).startswith(f"{tmp_path}/corpus:{line}: ")
    assert problem in str(raised.value)
    tracker = InputTracker(skip_bad=1)
    if "header" in problem:  # every line is an error, so that the file is not skipped as a whole
        with pytest.raises(RecordError):
            list(read_passages(str(tmp_path / "corpus"), tracker=tracker))
        return
    assert len(list(read_passages(str(tmp_path / "corpus"), tracker=tracker))) <= 2
    assert tracker.bad == 1


def test_an_unclosed_quote_invalidates_the_lines_to_the_next_quote(tmp_path: Path) -> None:
    lines = b"".join(b'%d\t"text ""%d"" here"\tt\n' % (number, number) for number in range(50))
    (tmp_path / "corpus").write_bytes(b'id\ttext\ttitle\nx\t"open\tt\n' + lines)
    with pytest.raises(RecordError, match=r"corpus:3: part of the invalid row of line 2"):
        list(read_passages(str(tmp_path / "corpus"), tracker=InputTracker(skip_bad=1)))
    actual = list(read_passages(str(tmp_path / "corpus"), tracker=InputTracker(skip_bad=2)))
    assert [passage.id for passage in actual] == [str(number) for number in range(1, 50)]
    assert actual[2].text == 'text "3" here'


def test_a_quoted_field_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drtk.data.tsv._MAX_FIELD_SIZE", 1000)
    (tmp_path / "corpus").write_bytes(b'id\ttext\ttitle\nx\t"open' + b"." * 1000 + b"\tt\n1\ttext\tt\n")
    with pytest.raises(RecordError, match=r"corpus:2: not quoted as by csv .*: field larger than field limit"):
        list(read_passages(str(tmp_path / "corpus")))
    actual = list(read_passages(str(tmp_path / "corpus"), tracker=InputTracker(skip_bad=1)))
    assert actual == [Passage("1", "text", "t")]
    csv.field_size_limit(1 << 24)  # of this process

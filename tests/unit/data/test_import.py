"""drtk import: formats, ids, tables, bad files, resuming; real documentation, chunked by its sections."""

import json
import mailbox
import os
import sys
import zipfile
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import orjson
import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MissingDependency, RecordError, UsageError
from tests.pdf_files import make_pdf
from tests.run_commands import Capture, get_messages, run_command, run_rows

for module in ("bs4", "lxml", "mammoth", "markdown_it", "markdownify", "pathspec", "pypdfium2"):
    pytest.importorskip(module, reason="the extra import is not installed")

ROOT = Path(__file__).resolve().parents[3]
GUIDE = "---\ntitle: 'The guide'\n---\n# Start\n\nHello.\n\n## With *pip* and `uv`\n\n```sh\n# no heading\n```\n\nMore\n----\n"


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def make_docx(*paragraphs: tuple[str, str]) -> dict[str, str]:
    """Return the files of a Word document with paragraphs (style, text)."""
    space = "http://schemas.openxmlformats.org"
    paragraph = '<w:p><w:pPr><w:pStyle w:val="{}"/></w:pPr><w:r><w:t>{}</w:t></w:r></w:p>'
    body = "".join(paragraph.format(*item) for item in paragraphs)
    target = f'<Relationship Id="a" Type="{space}/officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/>'
    return {
        "_rels/.rels": f'<Relationships xmlns="{space}/package/2006/relationships">{target}</Relationships>',
        "word/document.xml": f'<w:document xmlns:w="{space}/wordprocessingml/2006/main"><w:body>{body}</w:body></w:document>',
    }


def import_rows(capfd: Capture, *arguments: str | Path) -> dict[str, dict[str, Any]]:
    return {row["_id"]: row for row in run_rows(capfd, "import", *arguments)}


def get_headings(row: dict[str, Any]) -> list[tuple[int, str, str]]:
    """Return (level, title, text at the offsets) of each heading."""
    headings = row["metadata"]["headings"]
    return [(item["level"], item["title"], row["text"][item["begin"] : item["end"]]) for item in headings]


def test_a_folder_of_texts(capfd: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    write(folder / "guide.md", GUIDE.replace("\n", "\r\n"))
    write(folder / "sub/my 100% notes.txt", "\ufeffPlain text.\n")
    write(
        folder / "page.html",
        "<title>Site</title><nav>Menu</nav><div class=header>Next: <a accesskey=n href=y>Drag</a></div><main><h1>Wings<a class=headerlink>¶</a></h1><p>Lift <a href=x>grows</a><h2>Drag</h2>"
        "<table><tr><td><pre>a  b</pre></table><table><tr><th>x<th>y<tr><td>1<td>2</table><script>no()</script></main><p>Imprint",
    )
    cells = [
        {"cell_type": "markdown", "source": ["# Plots\n", "Text."]},
        {"cell_type": "code", "source": "# draw\nplot()", "outputs": []},
    ]
    write(folder / "a.ipynb", json.dumps({"cells": cells, "metadata": {"kernelspec": {"language": "python"}}}))
    for ignored in (".hidden.md", ".git/notes.md", "image.png", "empty.md"):
        write(folder / ignored, "")
    rows = import_rows(capfd, folder)
    notes = "sub/my%20100%25%20notes.txt"
    titles = {"a.ipynb": "Plots", "guide.md": "The guide", "page.html": "Wings", notes: "my 100% notes"}
    assert [(id, row["title"]) for id, row in rows.items()] == [*titles.items()]
    text = rows[notes]
    assert (text["text"], text["metadata"]) == ("Plain text.\n", {"path": str(folder / "sub/my 100% notes.txt")})
    assert rows["guide.md"]["text"].startswith("# Start\n\nHello.\n")
    headings = [
        (1, "Start", "# Start\n"),
        (2, "With pip and uv", "## With *pip* and `uv`\n"),
        (2, "More", "More\n----\n"),
    ]
    assert get_headings(rows["guide.md"]) == headings
    page = rows["page.html"]
    assert get_headings(page) == [(1, "Wings", "# Wings\n"), (2, "Drag", "## Drag\n")]
    assert page["text"].split() == "# Wings Lift grows ## Drag ``` a b ``` | x | y | | --- | --- | | 1 | 2 |".split()
    assert rows["a.ipynb"]["text"] == "# Plots\nText.\n\n```python\n# draw\nplot()\n```"
    rows = import_rows(capfd, folder, "--exclude", "sub/", "--exclude", "*.md", "--exclude", "!guide.md")
    assert list(rows) == ["a.ipynb", "guide.md", "page.html"]
    rows = import_rows(capfd, folder / "guide.md", write(tmp_path / "LICENSE", "Free."))
    assert list(rows) == ["LICENSE", "guide.md"]


def test_pdf_and_docx_files_become_passages_with_pages_and_heading_paths(capfd: Capture, tmp_path: Path) -> None:
    pages = "1 Wings\nLift grows with speed.", "It also grows with area.\n2 Tails\nTails hold the pitch."
    write(tmp_path / "in/book.pdf", make_pdf(*pages, bookmarks=(("Wings", 0), ("Tails", 1))))
    paragraphs = ("Heading1", "Report"), ("", "Summary."), ("Heading2", "Costs"), ("", "They fell.")
    with zipfile.ZipFile(tmp_path / "in/report.docx", "w") as archive:
        for name, text in make_docx(*paragraphs).items():
            archive.writestr(name, text)
    run_command(capfd, "import", tmp_path / "in", "-o", tmp_path / "documents.jsonl")
    rows = {row["_id"]: row for row in map(orjson.loads, (tmp_path / "documents.jsonl").read_bytes().splitlines())}
    book = rows["book.pdf"]
    assert book["text"].split("\n") == [line for page in pages for line in page.split("\n")]
    assert get_headings(book) == [(1, "Wings", "1 Wings\n"), (1, "Tails", "2 Tails\n")]
    assert [book["text"][page:][:7] for page in book["metadata"]["pages"]] == ["1 Wings", "It also"]
    assert get_headings(rows["report.docx"]) == [(1, "Report", "# Report\n"), (2, "Costs", "## Costs\n")]

    def chunk(words: int) -> list[tuple[str, str, list[str], int | None]]:
        chunks = run_rows(capfd, "chunk", tmp_path / "documents.jsonl", "--max-words", str(words))
        assert not any("pages" in row["metadata"] for row in chunks)
        return [(row["title"], row["text"], row["metadata"]["headings"], row["metadata"].get("page")) for row in chunks]

    others = (
        ("book > Tails", "Tails hold the pitch.", ["Tails"], 2),
        ("Report", "Summary. ## Costs They fell.", [], None),
    )
    assert chunk(9) == [("book > Wings", "Lift grows with speed. It also grows with area.", ["Wings"], 1), *others]
    assert chunk(5)[1:] == [("book > Wings", "It also grows with area.", ["Wings"], 2), *others]
    assert chunk(4)[-2:] == [("Report", "Summary.", [], None), ("Report > Costs", "They fell.", ["Costs"], None)]


def test_mail_messages_become_documents(capfd: Capture, tmp_path: Path) -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "Ann <a@b.org>", "c@d.org", "Zürich"
    message.set_content("<p>See <b>you</b></p>", subtype="html")
    write(tmp_path / "one.eml", message.as_bytes())
    box = mailbox.mbox(tmp_path / "all.mbox")
    message.set_content("Plain\n")
    for _ in range(2):
        box.add(message)
    box.close()
    rows = import_rows(capfd, tmp_path)
    assert [(id, row["title"], row["text"]) for id, row in rows.items()] == [
        *((f"all.mbox:{number}", "Zürich", "Plain\n") for number in (1, 2)),
        ("one.eml", "Zürich", "See **you**"),
    ]
    assert rows["one.eml"]["metadata"]["from"] == "Ann <a@b.org>"


def test_rows_of_tables_become_documents(capfd: Capture, tmp_path: Path) -> None:
    table = write(tmp_path / "p.csv", 'sku;name;about\n7;Pump;"Inflates;\ntires"\n8;Lever;\n')
    fields = "--field _id=sku --field title=name --field text=name --field text=about".split()
    pump = {"_id": "7", "title": "Pump", "text": "Pump\n\nInflates;\ntires", "metadata": {"path": str(table)}}
    lever = {"_id": "8", "title": "Lever", "text": "Lever", "metadata": {"path": str(table)}}
    assert import_rows(capfd, table, *fields) == {"7": pump, "8": lever}
    texts = [row["text"] for row in import_rows(capfd, table).values()]
    assert texts == ["sku: 7\nname: Pump\nabout: Inflates;\ntires", "sku: 8\nname: Lever"]
    rows = [{"title": "T", "text": "one", "year": 1999}, {"text": "two", "tags": ["x"]}]
    write(tmp_path / "a.json", json.dumps(rows))
    write(tmp_path / "b.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    made = import_rows(capfd, tmp_path / "a.json", tmp_path / "b.jsonl")
    assert [(id, row["title"], row["text"]) for id, row in made.items()] == [
        *(("a.json:1", "T", "one"), ("a.json:2", "a", "two")),
        *(("b.jsonl:1", "T", "one"), ("b.jsonl:2", "b", "two")),
    ]
    assert made["a.json:1"]["metadata"] == {"path": str(tmp_path / "a.json"), "year": 1999}
    write(tmp_path / "c.tsv", 'n\ttext\n1\t"Lift" rises\n2\tends with "\n')
    write(tmp_path / "d.csv", "id|Title| TEXT\n1|t|bar\n")
    write(tmp_path / "g.csv", "Text,contents,TITLE,title\n,bar,b,a\n")  # exact names count
    write(tmp_path / "e.csv", ",country,2018,2019,,\n0,Italy,1,2,,\n")
    write(tmp_path / "f.tsv", 'id\ttext\ttitle\n1\t"a ""b"""\tT\n')  # DPR
    made = import_rows(capfd, *(tmp_path / name for name in ("c.tsv", "d.csv", "e.csv", "f.tsv", "g.csv")))
    assert [(id, row["text"]) for id, row in made.items()] == [
        *(("c.tsv:1", '"Lift" rises'), ("c.tsv:2", 'ends with "')),
        *(("d.csv:1", "bar"), ("e.csv:1", "country: Italy\n2018: 1\n2019: 2"), ("f.tsv:1", 'a "b"')),
        ("g.csv:1", "bar"),
    ]
    assert (made["d.csv:1"]["title"], made["g.csv:1"]["title"]) == ("t", "a")
    write(tmp_path / "h.csv", "sku,text\n7,one\n8,two\n7,three\n")
    write(tmp_path / "i.jsonl", '{"sku": 7, "text": "one"}\n\n{"sku": 7, "text": "two"}\n')
    for name, line in (("h.csv", 4), ("i.jsonl", 3)):
        with pytest.raises(RecordError, match=f"{name}:{line}: duplicate id '7'"):
            run_command(capfd, "import", tmp_path / name, "--field", "_id=sku")
    assert import_rows(capfd, tmp_path / "h.csv", "--field", "_id=sku", "--skip-bad", "1").keys() == {"7", "8"}
    with pytest.raises(UsageError, match="`field` body=x: expected _id=COLUMN, title=COLUMN or text=COLUMN"):
        run_command(capfd, "import", table, "--field", "body=x")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "a,body\n1,2\n1,2,3\n", ":3: expected 2 columns, got 3; correct the line"),
        ("a.csv", "a,b\n1\n", ":2: expected 2 columns, got 1; correct the line"),
        ("a.csv", 'a\n"open\n', ":2: not CSV: unexpected end of data; correct the line"),
        ("a.csv", "a,b\n1,2\n", ":2: no field 'body'; the record has 'a', 'b'"),
        ("a.tsv", "0\tfirst\n1\tsecond\n", ":1: the first line does not name the columns ('0'); add a line"),
        ("a.csv", "a,a,body\n1,2,3\n", ":1: names the column 'a' twice; rename one"),
        ("a.mbox", "Subject: x\n\nbody\n", ":1: no line begins with 'From '; exclude the file"),
        ("a.json", '{"a": 1', ":1: not JSON: ends after 7 bytes; the file is incomplete"),
        ("a.json", "[1]", ":1: expected a JSON object or an array of objects; exclude the file"),
        ("a.jsonl", '{"body": "x"}\n{"body": \n', ":2: not JSON: "),
        ("a.md", b"ok\n\xe9\n", ":2: not UTF-8; convert the file with iconv, exclude it, or set `skip_bad`"),
        ("a.txt", "ok\n\0", ":2: contains a NUL character"),
        ("a.pdf", make_pdf("Text.")[:60], ":1: damaged or not a PDF file; repair or exclude it"),
        ("a.docx", b"PK\3\4no", ":1: damaged or not a .docx file (File is not a zip file); exclude it"),
        ("a.ipynb", "{}", ":1: has no 'cells'; convert it to nbformat 4, or exclude it"),
    ],
)
def test_a_bad_file_is_one_error_with_its_place(
    capfd: Capture, tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = write(tmp_path / name, content)
    write(tmp_path / "good.json", '{"body": "kept"}')
    with pytest.raises(RecordError) as failed:
        run_command(capfd, "import", tmp_path, "--field", "text=body")
    assert str(failed.value).startswith(f"{path}{message}")
    assert "\n" not in str(failed.value)
    rows = import_rows(capfd, tmp_path, "--field", "text=body", "--skip-bad", "1")
    texts = [row["text"] for row in rows.values()]
    assert texts[-1] == "kept"
    assert len(texts) == 1 + (":3: expected" in message or name == "a.jsonl")  # the other row of a table


def test_html_text_like_a_heading_is_none(capfd: Capture, tmp_path: Path) -> None:
    page = "<title>T</title><main> </main><p># no heading</p><pre>a&#13;b</pre><h2>&lt;b&gt;</h2><p>b</p>"
    write(tmp_path / "a.html", page)
    write(tmp_path / "b.html", "<title>Photo</title><body><img></body>")
    (row,) = import_rows(capfd, tmp_path).values()
    assert (row["title"], [title for _, title, _ in get_headings(row)]) == ("T", ["<b>"])
    assert row["text"].startswith("\\# no heading")


def test_ignored_files_and_folders_are_reported(capfd: Capture, tmp_path: Path) -> None:
    write(tmp_path / "in/a.md", "x")
    write(tmp_path / "in/a.png", "x")
    (tmp_path / "in/folder").symlink_to(tmp_path)
    (tmp_path / "in/lost.md").symlink_to(tmp_path / "none")
    messages = get_messages(capfd, "import", tmp_path / "in", "--exclude", "in/drafts/", "--exclude", "a.p*")
    assert "ignored: links to folders (1), broken links or special files (1)\n" in messages
    assert "--exclude in/drafts/: excludes nothing further; patterns are relative to each folder\n" in messages


def test_outputs_of_drtk_are_no_documents(capfd: Capture, tmp_path: Path) -> None:
    write(tmp_path / "in/a.md", "word")
    write(tmp_path / "in/c.jsonl", '{"_id": "c", "text": "word"}\n')
    run_command(capfd, "chunk", tmp_path / "in/c.jsonl", "-o", tmp_path / "in/passages.jsonl")
    run_command(capfd, "index", tmp_path / "in/c.jsonl", "--type", "bm25s", "-o", tmp_path / "in/index")
    messages = get_messages(capfd, "import", tmp_path / "in")
    assert "ignored: files written by drtk (1), folders written by drtk (1)\n" in messages
    write(tmp_path / "in/b.md", "word")
    write(tmp_path / "in/b.md.meta.json", '{"author": "of another program"}')
    assert import_rows(capfd, tmp_path / "in").keys() == {"a.md", "b.md", "b.md.meta.json", "c.jsonl:1"}


def test_the_output_may_be_in_the_folder(capfd: Capture, tmp_path: Path) -> None:
    write(tmp_path / "a.md", "word")
    output = tmp_path / "corpus.jsonl"
    for _ in range(2):  # also with a file that a BEIR folder would have
        run_command(capfd, "import", tmp_path, "-o", output, "--force")
        assert import_rows(capfd, tmp_path).keys() == {"a.md"}
        assert "is up to date" in get_messages(capfd, "import", tmp_path, "-o", output, "--skip-done")
    with pytest.raises(
        DrtkError, match=r"notes\.md: is in the folder .* and has no manifest of drtk; give another output"
    ):
        run_command(capfd, "import", tmp_path, "-o", write(tmp_path / "notes.md", "word"), "--force")
    (tmp_path / "notes.md").unlink()
    write(tmp_path / "a.md", "other words")
    assert f"changed: {tmp_path}\n" in get_messages(capfd, "import", tmp_path, "-o", output, "--skip-done", "--force")


def test_an_interrupted_import_resumes(capfd: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drtk.data.import_files.BATCH_SIZE", 4)
    for number in range(10, 20):
        write(tmp_path / f"in/{number}.md", f"# Note {number}\n\nText {number}.\n")
    run_command(capfd, "import", tmp_path / "in", "-o", tmp_path / "whole")
    bad = write(tmp_path / "in/18.md", b"\xff")
    call = ["import", tmp_path / "in", "-o", tmp_path / "in/out.jsonl"]  # the output is not an input
    with pytest.raises(RecordError, match="not UTF-8"):
        run_command(capfd, *call)
    write(bad, "# Note 18\n\nText 18.\n")
    app([*map(str, call), "--resume"], standalone_mode=False)
    assert "resuming" in capfd.readouterr().err
    assert (tmp_path / "in/out.jsonl").read_bytes() == (tmp_path / "whole").read_bytes()


def test_errors_about_the_set_of_files(capfd: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = write(tmp_path / "a/x.md", "x"), write(tmp_path / "b/x.md", "y")
    with pytest.raises(DrtkError, match=rf"{second}: has the same id as {first}; import a folder that contains both"):
        run_command(capfd, "import", first, second)
    with pytest.raises(DrtkError, match=rf"{first}: is given twice; give the file or its folder once"):
        run_command(capfd, "import", first, first.parent)
    assert list(import_rows(capfd, first.parent, second.parent)) == ["a/x.md", "b/x.md"]
    with pytest.raises(DrtkError, match=r"no files to import; known types: \.txt"):
        run_command(capfd, "import", first.parent, "--exclude", "*.md")
    with pytest.raises(DrtkError, match="none: no such file or folder"):
        run_command(capfd, "import", tmp_path / "none")
    scandir = os.scandir

    def fail(path: str) -> Any:  # root can read every folder
        if str(path).endswith("b"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr("os.scandir", fail)
        with pytest.raises(DrtkError, match="/b: Permission denied; exclude the folder"):
            run_command(capfd, "import", tmp_path)
        assert list(import_rows(capfd, tmp_path, "--exclude", "b/")) == ["a/x.md"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"import of \.md files needs markdown_it, .* pip install .* pypdfium2"):
        run_command(capfd, "import", first)
    monkeypatch.setitem(sys.modules, "pathspec", None)
    with pytest.raises(MissingDependency, match=r"`exclude` needs pathspec, .* pip install .* pypdfium2"):
        run_command(capfd, "import", first.parent, "--exclude", "*.txt")


def test_commands_that_read_records_name_import(capfd: Capture, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"README.md:1: expected a JSON object, .*; run `drtk import .*README.md`"):
        run_command(capfd, "chunk", ROOT / "README.md", "-o", tmp_path / "out")
    for name in ("index", "docid"):  # as Pyserini
        write(tmp_path / "faiss" / name, "x")
    with pytest.raises(DrtkError, match=r"run `drtk index .*faiss/index --ids .*faiss/docid`"):
        run_command(capfd, "index", tmp_path / "faiss", "-o", tmp_path / "out")
    write(tmp_path / "lucene/segments_1", "x")
    with pytest.raises(DrtkError, match=r"run `drtk search .*lucene QUERIES`"):
        run_command(capfd, "index", tmp_path / "lucene", "-o", tmp_path / "out")
    write(tmp_path / "notes/a.pdf", "%PDF")
    for command in ("chunk", "index"):
        with pytest.raises(DrtkError, match=r"notes: is a folder; expected a file; run `drtk import .*notes`"):
            run_command(capfd, command, tmp_path / "notes", "-o", tmp_path / "out")


def test_the_counts_are_those_of_files_and_documents(capfd: Capture, tmp_path: Path) -> None:
    write(tmp_path / "notes/table.csv", 'text\none\n" "\nthree\n')
    write(tmp_path / "notes/empty.txt", "\n")
    write(tmp_path / "notes/header.csv", "text\n")
    app(["import", str(tmp_path / "notes"), "-o", str(tmp_path / "out")], standalone_mode=False)
    assert "import: 3 files, 2 documents with a text, 3 without a text, " in capfd.readouterr().err
    counts = orjson.loads((tmp_path / "out.meta.json").read_bytes())["counts"]
    assert counts == {"in": 3, "out": 2, "without a text": 3}


def test_a_pdf_file_of_matplotlib(capfd: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Compressed, with subsets of embedded fonts, unlike the files of make_pdf.
    matplotlib = pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    monkeypatch.setitem(matplotlib.rcParams, "pdf.fonttype", 42)
    pages = ["Größe & flow: 100 % of the wing.", "Lift grows\nwith the square of the speed – naïvely."]
    with PdfPages(tmp_path / "report.pdf", metadata={"Title": "Annual report"}) as pdf:
        for page in pages:
            figure = Figure()
            figure.text(0.1, 0.5, page)
            pdf.savefig(figure)
    (row,) = import_rows(capfd, tmp_path / "report.pdf").values()
    assert (row["title"], row["text"]) == ("Annual report", "\n".join(pages))
    write(tmp_path / "documents.jsonl", orjson.dumps(row))
    chunks = run_rows(capfd, "chunk", tmp_path / "documents.jsonl", "--max-words", "10")
    assert [(chunk["text"], chunk["metadata"]["page"]) for chunk in chunks] == [
        (" ".join(page.split()), number) for number, page in enumerate(pages, start=1)
    ]

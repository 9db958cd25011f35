"""Parse files of text, Markdown, HTML, PDF, DOCX, e-mail, notebooks and tables as documents with headings and pages."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, count, pairwise
from pathlib import Path
from typing import Any

import orjson

from drtk.data.json_arrays import iter_array_rows
from drtk.data.readers import parse_jsonl
from drtk.data.rows import Row, describe_json_error, is_json_array, parse_id
from drtk.data.tsv import DPR_HEADER
from drtk.errors import DrtkError, MissingDependency, RecordError, format_pip_command
from drtk.records import Passage

FieldMap = Mapping[str, Sequence[str]]  # "_id", "title" or "text" -> columns of a table
Parsed = Passage | RecordError  # a document, or the error in a row of a table
Parser = Callable[[Path, str, FieldMap], Iterator[Passage] | Iterator[Parsed]]  # path, id of the file, columns
MODULES = {  # suffix -> modules that its parser needs
    **dict.fromkeys((".md", ".markdown", ".ipynb"), ("markdown_it",)),
    **dict.fromkeys((".html", ".htm", ".xhtml", ".eml", ".mbox"), ("bs4", "lxml", "markdown_it", "markdownify")),
    ".docx": ("bs4", "lxml", "mammoth", "markdown_it", "markdownify"),
    ".pdf": ("pypdfium2",),
}
PACKAGES = ("beautifulsoup4", "lxml", "mammoth", "markdown-it-py", "markdownify", "pathspec", "pypdfium2")
_NAVIGATION = (
    "nav, footer, script, style, template, noscript, .headerlink, [role=navigation], [role=search], .nav-panel, "
)
_NAVIGATION += "div.header:has(a[accesskey])"  # of Texinfo
_BLOCKS = ["table", "pre", "ul", "ol", "dl", "h1", "h2", "h3", "h4", "h5", "h6"]  # a table with these is for layout
_FRONT_MATTER = re.compile(r"\A---\n(.*?\n)(?:---|\.\.\.)\n", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(['\"]?)(.+?)\1[ \t]*$", re.MULTILINE)
_SPACE = re.compile(r"\s+")
_HASHES = re.compile(r"^#+(?=\s)", re.MULTILINE)
_NUMBER = re.compile(r"[\d.]+")
_MAIL_FIELDS = ("From", "To", "Cc", "Date")


def check_modules(suffixes: set[str]) -> None:
    """Raise MissingDependency if a library that parses files with these suffixes is not installed."""
    from importlib.util import find_spec

    for suffix in sorted(suffixes):
        for module in MODULES.get(suffix, ()):
            if find_spec(module) is None:
                raise MissingDependency(module, f"import of {suffix} files", format_pip_command(*PACKAGES))


def iter_documents(path: Path, id: str, fields: FieldMap) -> Iterator[Parsed]:
    """Yield the documents of a file, and errors in place of invalid rows. Files of unknown types are read as plain text.

    id: id of the file's document; messages of mailboxes, and rows of tables if `fields` has no `_id`, get `ID:NUMBER`
    fields: the columns of a table (CSV, TSV, JSON or JSONL) that contain the id, title and text
    Raises RecordError (file:line) for a damaged file, DrtkError for a file that cannot be read.
    """
    parser = PARSERS.get(path.suffix.lower(), _parse_text)
    try:
        for document in parser(path, id, fields):
            yield _complete_document(document, path) if isinstance(document, Passage) else document
    except (DrtkError, MemoryError):
        raise
    except OSError as error:
        raise DrtkError(f"{path}: {error.strerror or error}") from error
    except Exception as error:  # libraries raise errors of many types for damaged files
        reason = _SPACE.sub(" ", str(error)).strip(". ") or type(error).__name__
        raise RecordError(f"{path}:1", f"damaged or not a {path.suffix} file ({reason}); exclude it") from error


def _complete_document(document: Passage, path: Path) -> Passage:
    """Add the path to the metadata, use the file name without suffix if the title is empty, and replace surrogates."""
    title = _SPACE.sub(" ", document.title).strip() or path.stem
    place = {"path": str(path)}
    return Passage(
        document.id,
        _replace_surrogates(document.text),
        _replace_surrogates(title),
        place | (document.metadata or {}) | place,
    )


def _replace_surrogates(text: str) -> str:
    """Replace surrogates, which damaged PDF files and e-mail contain and JSON cannot."""
    return text.encode("utf-8", "replace").decode()


def _read_text(path: Path) -> str:
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        hint = " (UTF-16?)" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        if path.suffix.lower() not in PARSERS:
            raise RecordError(
                f"{path}:{line}", "neither UTF-8 nor of a supported type; convert it, or exclude it"
            ) from error
        raise RecordError(
            f"{path}:{line}", f"not UTF-8{hint}; convert the file with iconv, exclude it, or set `skip_bad`"
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise RecordError(f"{path}:{line}", "contains a NUL character, so it is not a text file; exclude it")
    return _use_line_feeds(text)


def _use_line_feeds(text: str) -> str:
    """Replace carriage returns, with which the lines of a parser would not be those of `str.split`."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _parse_text(path: Path, id: str, fields: FieldMap) -> Iterator[Passage]:
    yield Passage(id, _read_text(path))


def _parse_markdown(path: Path, id: str, fields: FieldMap) -> Iterator[Passage]:
    text, title = _read_text(path), ""
    if match := _FRONT_MATTER.match(text):
        found = _FRONT_TITLE.search(match[1])
        text, title = text[match.end() :], found[2] if found else ""
    yield _make_markdown_document(id, text, title)


def _make_markdown_document(id: str, text: str, title: str = "", *, has_tags: bool = True) -> Passage:
    """Return a document with its headings; without `title`, the first heading of level 1 is the title."""
    text = _use_line_feeds(text)
    headings = find_headings(text, has_tags=has_tags)
    title = title or next((heading["title"] for heading in headings if heading["level"] == 1), "")
    return Passage(id, text, title, {"headings": headings})


def find_headings(text: str, *, has_tags: bool) -> list[dict[str, Any]]:
    """Return {"level", "title", "begin", "end"} of each heading in Markdown, with character offsets begin and end.

    has_tags: whether HTML tags in a heading are not part of its title
    """
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": has_tags})
    with parser.reset_rules():
        parser.disable("inline")  # the texts of paragraphs are not needed
        tokens = parser.parse(text)
    starts = list(accumulate((len(line) + 1 for line in text.split("\n")), initial=0))
    headings = []
    for token, inline in pairwise(tokens):
        if token.type == "heading_open" and token.level == 0 and token.map is not None:
            children = parser.parseInline(inline.content)[0].children or ()
            parts = (
                child.content or " " * (child.type == "softbreak") for child in children if child.type != "html_inline"
            )
            title = _SPACE.sub(" ", "".join(parts)).strip()
            begin, end = starts[token.map[0]], min(starts[token.map[1]], len(text))
            if title:
                headings.append({"level": int(token.tag[1]), "title": title, "begin": begin, "end": end})
    return headings


def _parse_html(path: Path, id: str, fields: FieldMap) -> Iterator[Passage]:
    text, title = convert_html(path.read_bytes())
    yield _make_markdown_document(id, text, title, has_tags=False)


def convert_html(html: bytes | str) -> tuple[str, str]:
    """Convert the main content of a page to Markdown without links and images; return the text and the title.

    Navigation is removed, and tables for layout are unwrapped. The title is the only h1, or else the page's title.
    """
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    class Converter(MarkdownConverter):
        def escape(self, text: str, parent_tags: Any) -> str:
            escaped: str = super().escape(text, parent_tags)  # type: ignore[misc]
            return _HASHES.sub(r"\\\g<0>", escaped)  # no heading

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XHTML, and about texts that look like file names
        page = BeautifulSoup(html, "lxml")
    name = page.title.get_text() if page.title else ""
    if page.title:
        page.title.decompose()
    for element in page.select(_NAVIGATION):
        element.decompose()
    places = (page.find("main"), page.find(role="main"), page.body)
    content = next((place for place in places if place is not None and place.get_text(strip=True)), page)
    for table in content.find_all("table"):
        if table.find(_BLOCKS):
            for element in table.find_all(["thead", "tbody", "tr", "td", "th"]):
                if element.find_parent("table") is table:
                    element.name = "div"
            table.name = "div"
    titles = content.find_all("h1")
    if len(titles) == 1:
        name = titles[0].get_text()
    converter = Converter(
        heading_style="ATX", strip=["a", "img", "title"], escape_asterisks=False, escape_underscores=False
    )
    return converter.convert_soup(content).strip(), _SPACE.sub(" ", name).strip()


def _parse_docx(path: Path, id: str, fields: FieldMap) -> Iterator[Passage]:
    import mammoth

    with path.open("rb") as file:
        html = mammoth.convert_to_html(
            file,
            style_map="p[style-name='Title'] => h1:fresh",
            convert_image=mammoth.images.img_element(lambda image: {"src": ""}),
        ).value
    text, title = convert_html(html)
    yield _make_markdown_document(id, text, title, has_tags=False)


def _parse_pdf(path: Path, id: str, fields: FieldMap) -> Iterator[Passage]:
    """Yield a document with the character offset of each page in `pages`, and with bookmarks as headings."""
    from pypdfium2 import PdfDocument, PdfiumError

    try:
        pdf = PdfDocument(path)
    except PdfiumError as error:
        problem = "encrypted with a password" if "password" in str(error) else "damaged or not a PDF file"
        raise RecordError(f"{path}:1", f"{problem}; repair or exclude it") from error
    try:
        texts = []
        for number in range(len(pdf)):
            text = pdf[number].get_textpage().get_text_bounded()
            text = text.replace("\x02", "").replace("\ufffe", "")  # PDFium's marks of hyphens at line ends
            texts.append(_use_line_feeds(text).replace("\0", "").strip() + "\n")
        pages = list(accumulate(map(len, texts), initial=0))[:-1]
        headings: list[dict[str, Any]] = []
        for mark in pdf.get_toc():
            target = mark.get_dest()
            index = target.get_index() if target is not None else None
            title = _SPACE.sub(" ", _replace_surrogates(mark.get_title() or "")).strip()
            if index is None or not 0 <= index < len(texts) or not title:
                continue
            begin, end = _find_line(texts[index], title)
            previous = headings[-1]["end"] if headings else 0
            begin, end = max(pages[index] + begin, previous), max(pages[index] + end, previous)
            headings.append({"level": mark.level + 1, "title": title, "begin": begin, "end": end})
        title = (pdf.get_metadata_dict().get("Title") or "").removeprefix("Microsoft Word - ")
        title = "" if title.lower() == "untitled" else title
        yield Passage(id, "".join(texts).rstrip(), title, {"headings": headings, "pages": pages})
    finally:
        pdf.close()


def _find_line(page: str, title: str) -> tuple[int, int]:
    """Return the offsets of the line of a page that ends with a heading, such as "2.1 Title"; (0, 0) if there is none."""
    begin = 0
    plain = title.casefold()
    for line in page.splitlines(keepends=True):
        text = _SPACE.sub(" ", line).strip().casefold()
        if text.endswith(plain) and len(text) <= len(plain) + 12:
            return begin, begin + len(line)
        begin += len(line)
    return 0, 0


def _parse_notebook(path: Path, id: str, fields: FieldMap) -> Iterator[Passage]:
    """Yield a document with the Markdown and code cells, without outputs."""
    notebook = _load_json(path, path.read_bytes())
    language = notebook.get("metadata", {}).get("kernelspec", {}).get("language", "")
    if "cells" not in notebook:
        raise RecordError(f"{path}:1", "has no 'cells'; convert it to nbformat 4, or exclude it")
    cells = []
    for cell in notebook["cells"]:
        source = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        is_code = cell["cell_type"] == "code" and source.strip()
        cells.append(f"```{language}\n{source}\n```" if is_code else source)
    yield _make_markdown_document(id, "\n\n".join(cells))


def _parse_mail(path: Path, id: str, fields: FieldMap) -> Iterator[Passage]:
    from email import message_from_bytes, policy

    yield _make_mail_document(message_from_bytes(path.read_bytes(), policy=policy.default), id)


def _parse_mailbox(path: Path, id: str, fields: FieldMap) -> Iterator[Passage]:
    from email import message_from_binary_file, policy
    from mailbox import mbox

    parse: Any = lambda file: message_from_binary_file(file, policy=policy.default)  # noqa: E731
    messages = mbox(path, factory=parse, create=False)
    if not len(messages) and path.stat().st_size:
        raise RecordError(f"{path}:1", "no line begins with 'From '; exclude the file")
    for number, message in enumerate(messages, start=1):
        yield _make_mail_document(message, f"{id}:{number}")


def _make_mail_document(message: Any, id: str) -> Passage:
    body = message.get_body(("plain", "html"))
    text = "" if body is None else _decode_body(body)
    if body is not None and body.get_content_subtype() == "html":
        text = convert_html(text)[0]
    fields = {name.lower(): _replace_surrogates(str(message[name])) for name in _MAIL_FIELDS if message[name]}
    return Passage(id, _use_line_feeds(text), str(message["Subject"] or ""), fields)


def _decode_body(body: Any) -> str:
    try:
        text: str = body.get_content()
    except (LookupError, ValueError):  # the charset is unknown or malformed
        text = body.get_payload(decode=True).decode("utf-8", "replace")
    return text


NumberedRow = tuple[int | None, int, Row | ValueError]  # number for the id, or None for a single row; line; row


def _parse_table(
    iter_rows: Callable[[Path], Iterable[NumberedRow]], path: Path, id: str, fields: FieldMap
) -> Iterator[Parsed]:
    """Yield the documents of rows, and errors in place of invalid rows and of repeated ids."""
    seen: set[int] = set()  # hashes
    for number, line, row in iter_rows(path):
        try:
            if isinstance(row, ValueError):
                raise row
            document = _make_row_document(row, id if number is None else f"{id}:{number}", fields)
            if "_id" in fields:
                if (key := hash(document.id)) in seen:
                    raise ValueError(f"duplicate id '{document.id}'")
                seen.add(key)
        except ValueError as error:
            yield RecordError(f"{path}:{line}", str(error))
            continue
        yield document


def _iter_csv_rows(path: Path) -> Iterator[NumberedRow]:
    csv.field_size_limit(1 << 30)
    text = _read_text(path)
    is_tsv, header = path.suffix.lower() == ".tsv", text.partition("\n")[0]
    delimiter = "\t" if is_tsv else max(",;\t", key=header.count)
    delimiter = delimiter if delimiter in header else "|"
    # as in docs/formats.md
    has_quotes = not is_tsv or [name.strip().lower() for name in header.split("\t")] == DPR_HEADER
    lines = (f"{line}\n" for line in text.removesuffix("\n").split("\n"))
    reader = csv.DictReader(
        lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE, strict=True
    )
    columns = reader.fieldnames or []
    if repeated := [name for name in columns if name and columns.count(name) > 1]:
        raise RecordError(f"{path}:1", f"names the column '{repeated[0]}' twice; rename one")
    if columns and _NUMBER.fullmatch(columns[0]):
        advice = ", or use drtk convert, which reads TSV of ids and texts" if is_tsv else ""
        raise RecordError(
            f"{path}:1", f"the first line does not name the columns ('{columns[0]}'); add a line of names{advice}"
        )
    for number in count(1):
        line = reader.reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise RecordError(f"{path}:{line}", f"not CSV: {error}; correct the line") from error
        if row is None:
            return
        if None in row or None in row.values():
            num_columns = len(columns) + (len(row[None]) if None in row else -list(row.values()).count(None))
            yield number, line, ValueError(f"expected {len(columns)} columns, got {num_columns}; correct the line")
        else:
            yield number, line, row


def _iter_json_rows(path: Path) -> Iterable[NumberedRow]:
    """Return the objects of a JSON array, or the object of the file."""
    data = path.read_bytes()
    if is_json_array(data[:64]):
        return ((number, line, row) for number, (line, row) in enumerate(iter_array_rows([data]), start=1))
    return [(None, 1, _load_json(path, data))]


def _load_json(path: Path, data: bytes) -> Row:
    try:
        content = orjson.loads(data.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        problem = describe_json_error(data, error).replace("the line is", "the file is")
        raise RecordError(f"{path}:{error.lineno}", problem) from error
    if not isinstance(content, dict):
        raise RecordError(f"{path}:1", "expected a JSON object or an array of objects; exclude the file")
    return content


def _iter_jsonl_rows(path: Path) -> Iterable[NumberedRow]:
    lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return ((number, number, row) for number, row in parse_jsonl(enumerate(lines, start=1)))


def _make_row_document(row: Row, id: str, fields: FieldMap) -> Passage:
    """Return the document of a row. The columns that are not its id, title or text become metadata.

    Without a column for the text (in `fields`, or `text` or `contents`), these columns are the text instead, as lines
    `NAME: VALUE`.
    id: id if no column has it
    Raises ValueError for a missing column or an invalid id.
    """
    title, text = _find_column(row, "title"), _find_column(row, "text", "contents")
    columns: dict[str, Sequence[str]] = {"_id": (), "title": title, "text": text} | dict(fields)
    used = [name for names in columns.values() for name in names]
    for name in used:
        if name not in row:
            raise ValueError(f"no field '{name}'; the record has {', '.join(map(repr, row))}")
    if columns["_id"]:
        id = ":".join(parse_id(row[name], name) for name in columns["_id"])
    others = {name: value for name, value in row.items() if name not in used and value not in (None, "")}
    if columns["text"]:
        text = "\n\n".join(filter(None, (_format_value(row[name]) for name in columns["text"])))
    else:
        text, others = "\n".join(f"{name}: {_format_value(value)}" for name, value in others.items()), {}
    return Passage(id, text, " ".join(_format_value(row[name]) for name in columns["title"]), others)


def _find_column(row: Row, *names: str) -> Sequence[str]:
    """Return the first of the columns `names`; if there is none, one in another case; [] if there is none either."""
    exact = [name for name in names if name in row]
    return (exact or [column for name in names for column in row if column.strip().lower() == name])[:1]


def _format_value(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()


PARSERS: dict[str, Parser] = {
    **dict.fromkeys((".txt", ".text", ".rst"), _parse_text),
    **dict.fromkeys((".md", ".markdown"), _parse_markdown),
    **dict.fromkeys((".html", ".htm", ".xhtml"), _parse_html),
    ".pdf": _parse_pdf,
    ".docx": _parse_docx,
    **dict.fromkeys((".csv", ".tsv"), partial(_parse_table, _iter_csv_rows)),
    ".json": partial(_parse_table, _iter_json_rows),
    **dict.fromkeys((".jsonl", ".ndjson"), partial(_parse_table, _iter_jsonl_rows)),
    ".eml": _parse_mail,
    ".mbox": _parse_mailbox,
    ".ipynb": _parse_notebook,
}

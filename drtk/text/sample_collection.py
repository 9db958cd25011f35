"""Build a small retrieval collection from the docstrings of installed packages."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from drtk.data.rows import dump
from drtk.errors import DrtkError, MissingDependency, format_pip_command
from drtk.records import Passage, Query
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.progress import log
from drtk.runtime.runners import Workers
from drtk.runtime.sharding import count_cores
from drtk.runtime.streams import Output, digest_file
from drtk.text.config import SampleSettings
from drtk.text.rng import sample_uniform
from drtk.text.words import extract_content_words, extract_words

STDLIB = "stdlib"
# Calls that document compiled functions, and their number of arguments up to the text.
_DOCUMENTING_CALLS = {"add_docstr": 2, "add_docstr_all": 2, "add_newdoc": 3}
_QUERY_WORDS = range(4, 31)
_NOT_DOCUMENTED = {"test", "tests", "testing", "site-packages", "dist-packages", "idlelib", "lib2to3", "turtledemo"}
_PRIVATE_BUT_PUBLIC = {"_core"}  # of numpy
_COPIES = "transformers/models/"  # hundreds of models made by copying, with the same sentences
_FILES_AT_ONCE = 40
_CALL = re.compile(r"[\w.]+\(")
_ROLE = re.compile(r":[\w:+.-]+:`~?\.?([^`<]+?)(?:\s*<[^`>]*>)?`")  # :class:`~torch.Tensor` -> torch.Tensor
_TICKS = re.compile(r"`{1,2}([^`\n]+)`{1,2}_?")
_LINK = re.compile(r"\[([^\]\n]+)\](?:\([^)\n]*\))?")  # [`Trainer`], [text](address)
_PLACEHOLDER = re.compile(r"^\s*\{\w+\}\s*$\n?", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[\w)\]'\"`*])[.!?](?=\s+[A-Z])(?<!e\.g\.)(?<!i\.e\.)")


@dataclass(frozen=True, slots=True)
class DocString:
    """The docstring of a Python object, split into summary and body.

    name: qualified name; kind: module, class, function or method; summary: first sentence; body: the text after it
    """

    name: str
    kind: str
    summary: str
    body: str


def parse_docstrings(path: Path, module: str) -> list[DocString]:
    """Return the public docstrings with summary and body in a source file, in file order; [] if it cannot be parsed."""
    try:
        source = path.read_text(encoding="utf-8")
        if '"""' not in source and "'''" not in source:
            return []
        tree = ast.parse(source)
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    strings = [
        (module, "module", ast.get_docstring(tree) or ""),
        *_iter_definitions(tree.body, module, kind="function"),
    ]
    docstrings = [DocString(name, kind, *split_summary(text)) for name, kind, text in strings]
    return [docstring for docstring in docstrings if docstring.summary and docstring.body]


def _iter_definitions(body: list[ast.stmt], scope: str, *, kind: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name, kind, documentation) of the public classes and functions in a scope. kind: "function" or "method"."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name.startswith("_"):
                continue
            is_class = isinstance(node, ast.ClassDef)
            name = f"{scope}.{node.name}"
            if text := ast.get_docstring(node):
                yield name, "class" if is_class else kind, text
            if is_class:
                yield from _iter_definitions(node.body, name, kind="method")
        elif isinstance(node, ast.If | ast.Try):  # definitions that depend on the platform
            yield from _iter_definitions(node.body + node.orelse, scope, kind=kind)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from _iter_documenting_call(node.value)


def _iter_documenting_call(call: ast.Call) -> Iterator[tuple[str, str, str]]:
    """Yield (name, "function", text) if a call such as add_docstr(torch.abs, "…") documents compiled code."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function not in _DOCUMENTING_CALLS or len(call.args) < _DOCUMENTING_CALLS[function]:
        return
    target, text = call.args[0], _evaluate_text(call.args[_DOCUMENTING_CALLS[function] - 1])
    if text is None:
        return
    if function == "add_newdoc":  # place, name, text
        names = [item.value for item in call.args[:2] if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        name = ".".join(names) if len(names) == 2 else ""
    elif function == "add_docstr_all":  # a method of torch.Tensor
        name = f"torch.Tensor.{target.value!s}" if isinstance(target, ast.Constant) else ""
    else:
        name = ast.unparse(target)
    if re.fullmatch(r"[\w.]+", name):
        yield make_public_name(name), "function", inspect.cleandoc(_PLACEHOLDER.sub("", text))


def _evaluate_text(node: ast.expr) -> str | None:
    """Evaluate an AST node of string literals, `+` and `.format(…)`; keep placeholders ({name}). None for others."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _evaluate_text(node.left), _evaluate_text(node.right)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        text = _evaluate_text(node.func.value)
        return None if text is None else text.replace("{{", "{").replace("}}", "}")
    return None


def make_public_name(name: str) -> str:
    """Drop private parts of a qualified name: numpy.linalg._linalg.solve -> numpy.linalg.solve; _thread -> thread."""
    first, *rest = name.split(".")
    return ".".join([first.lstrip("_"), *(part for part in rest if not part.startswith("_"))])


def split_summary(text: str) -> tuple[str, str]:
    """Split a docstring into its first sentence, without signatures and markup, and the text after it.

    Without a sentence end, the first sentence is the first paragraph. Both may be empty.
    """
    first, _, rest = _remove_signatures(text.strip()).partition("\n\n")
    end = _SENTENCE_END.search(first)
    if end is not None:
        first, remaining = first[: end.end()], first[end.end() :].strip()
        rest = f"{remaining}\n\n{rest}" if rest else remaining
    return remove_markup(" ".join(first.split())).rstrip(".:").strip(), rest.strip("\n").rstrip()


def _remove_signatures(text: str) -> str:
    """Return the text after signatures such as `solve(a, b) -> x`, which may have several lines."""
    text = re.sub(r"\n(?:[^\S\n]*\n)+", "\n\n", text)
    while (call := _CALL.match(text)) is not None:
        depth, end = 1, call.end()
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        after, _, following = text[end:].partition("\n")
        if depth or (after.strip() and not after.lstrip().startswith(("->", "→", "=>"))):
            break
        text = following.lstrip()
    return text


def remove_markup(text: str) -> str:
    """Return a text without the markup of reStructuredText and Markdown: roles, ticks, links."""
    unmarked = _TICKS.sub(r"\1", _LINK.sub(r"\1", _ROLE.sub(r"\1", text)))
    return re.sub(r"(?<!\S)~(?=\w)", "", unmarked).replace("**", "")


@dataclass(frozen=True, slots=True)
class SampledPair:
    """A query and its relevant document; `is_test` if it belongs to the test split."""

    query: Query
    document: Passage
    is_test: bool


def build_sample_collection(settings: SampleSettings, job: FolderJob) -> None:
    """Write a collection from docstrings: documents.jsonl, queries.jsonl and qrels/{train,test}.tsv.

    The records are ordered by a hash of the qualified name of the documented object.
    Packages that are not installed are skipped if `settings.packages` is the default, else MissingDependency is raised.
    Raises DrtkError for a package without Python sources, or if there is no usable documentation.
    """
    files = []
    versions = {}
    for package in settings.packages:
        root = _find_root(package)
        if root is None and settings.packages != SampleSettings().packages:
            raise MissingDependency(package, "the sample collection", format_pip_command(package))
        if root is None:
            log(f"{package} is not installed and is excluded")
            continue
        sources = list(_iter_sources(package, root))
        if not sources:
            raise DrtkError(f"{package}: no Python sources in {root}; give a package with source files")
        files += sources
        versions[package], path = _find_version(package)
        facts = path.stat()
        entry = {"path": str(path), "bytes": facts.st_size, "digest": digest_file(path), "mtime_ns": facts.st_mtime_ns}
        job.tracker.inputs.append(entry)
    pairs = sample_pairs(files, settings)
    if not pairs:
        raise DrtkError(f"no documentation in {', '.join(settings.packages)}; give other `packages`")
    _write_collection(job.begin(), pairs)
    num_test = sum(pair.is_test for pair in pairs)
    job.counts |= {"documents": len(pairs), "train queries": len(pairs) - num_test, "test queries": num_test}
    job.finish(packages=versions)


def sample_pairs(files: list[tuple[str, Path, str]], settings: SampleSettings) -> list[SampledPair]:
    """Return up to `settings.limit` pairs: summary (query) and body (document) of docstrings in source files.

    Pairs are ordered by a hash of the qualified name of the object, so smaller samples are prefixes of larger ones.
    files: (package, file, module name)
    """
    batches = [files[begin : begin + _FILES_AT_ONCE] for begin in range(0, len(files), _FILES_AT_ONCE)]
    with Workers(_make_docstring_parser, count=min(settings.num_workers or count_cores(), len(batches))) as workers:
        docstrings = [item for batch in workers.map(batches) for item in batch]
    usable = _select_usable_docstrings(docstrings, settings.min_words)
    usable.sort(key=lambda item: (sample_uniform("sample", item[1].name), item[1].name))
    pairs = []
    for package, item in usable[: settings.limit]:
        title = item.name.rpartition(".")[0] or item.name  # the last part often repeats words of the query
        document = Passage(item.name, item.body, title, {"package": package, "kind": item.kind})
        is_test = sample_uniform("split", item.name) * 100 < settings.test_percent
        pairs.append(SampledPair(Query(f"q-{item.name}", item.summary), document, is_test))
    return pairs


def _find_root(package: str) -> Path | None:
    """Return the folder or file of a package's sources, without importing it; None if it is not installed."""
    if package == STDLIB:
        return Path(sysconfig.get_path("stdlib"))
    spec = PathFinder.find_spec(package) if package.isidentifier() else None
    if spec is None:
        return None
    path = Path(spec.origin or next(iter(spec.submodule_search_locations or "")))  # a namespace package has no origin
    return path.parent if path.name == "__init__.py" else path


def _iter_sources(package: str, root: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield (package, file, public module name) of a package, sorted by path, without private and test folders."""
    if root.is_file():
        yield package, root, package
        return
    for path in sorted(root.rglob("*.py")):
        inner = path.relative_to(root)
        folders = inner.parts[:-1]
        is_private = any(name.startswith("_") and name not in _PRIVATE_BUT_PUBLIC for name in folders)
        if is_private or _NOT_DOCUMENTED.intersection(folders):
            continue
        if f"{package}/{inner.as_posix()}".startswith(_COPIES):
            continue
        names = [*folders, *([] if path.stem == "__init__" else [path.stem])]
        if package != STDLIB:
            names.insert(0, package)
        if names and names != ["__main__"]:
            yield package, path, make_public_name(".".join(names))


def _find_version(package: str) -> tuple[str, Path]:
    """Return the version of a package, "" if unknown, and a file that changes with it."""
    if package == STDLIB:
        return sys.version.split()[0], Path(sys.executable).resolve()
    try:
        installed = distribution(package)
    except PackageNotFoundError:  # a folder on the path
        spec = PathFinder.find_spec(package)
        return "", Path(str(spec and spec.origin))
    records = [item for item in installed.files or [] if item.name in ("RECORD", "METADATA")]
    return installed.version, Path(str(installed.locate_file(records[0])))


def _make_docstring_parser() -> Callable[[Sequence[tuple[str, Path, str]]], list[tuple[str, DocString]]]:
    return lambda files: [(package, item) for package, path, module in files for item in parse_docstrings(path, module)]


def _select_usable_docstrings(docstrings: list[tuple[str, DocString]], min_words: int) -> list[tuple[str, DocString]]:
    """Drop duplicates, short texts, and docstrings whose summary is no query, not unique, or repeated in the text."""
    names: set[str] = set()
    texts: set[tuple[str, str]] = set()
    unique = []
    for package, item in docstrings:
        text = (item.summary.lower(), " ".join(item.body.split()))
        if item.name not in names and text not in texts:
            unique.append((package, item))
        names.add(item.name)
        texts.add(text)
    shared = Counter(_normalize_key(item.summary) for _, item in unique)
    return [
        (package, item)
        for package, item in unique
        if shared[_normalize_key(item.summary)] == 1
        and is_query(item.summary)
        and len(item.body.split()) >= min_words
        and _normalize_key(item.summary) not in _normalize_key(item.body)
    ]


def _normalize_key(text: str) -> str:
    return " ".join(extract_words(text))


def is_query(summary: str) -> bool:
    """Return whether a summary can be a query.

    It has 4 to 30 words, at least two distinct content words, a letter at the start, and no parameter list or markup.
    """
    head = summary.partition(":")[0]
    return (
        len(summary.split()) in _QUERY_WORDS
        and len(set(extract_content_words(summary))) >= 2
        and summary[0].isalpha()
        and not ("(" in head and head.endswith(")"))
        and not any(mark in summary for mark in ("===", "---", "~~~", ">>>", "::"))
    )


def _write_collection(folder: Path, pairs: list[SampledPair]) -> None:
    (folder / "qrels").mkdir(exist_ok=True)
    with Output(str(folder / "documents.jsonl")) as documents, Output(str(folder / "queries.jsonl")) as queries:
        for pair in pairs:
            documents.write(dump(pair.document))
            queries.write(dump(pair.query))
    for split in ("train", "test"):
        with Output(str(folder / "qrels" / f"{split}.tsv")) as qrels:
            qrels.write(b"query-id\tcorpus-id\tscore\n")
            for pair in pairs:
                if pair.is_test == (split == "test"):
                    qrels.write(f"{pair.query.id}\t{pair.document.id}\t1\n".encode())

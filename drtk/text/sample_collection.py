"""Build a small retrieval collection from the docstrings of installed packages."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from drtk.data.jsonl import dump
from drtk.errors import DrtkError, MissingDependency, pip_install
from drtk.records import Passage, Query
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.progress import log
from drtk.runtime.streams import Output, digest_file
from drtk.runtime.workers import Workers, count_cores
from drtk.text.config import SampleSettings
from drtk.text.rng import uniform
from drtk.text.words import content_words, words

ATTACHED = {
    "add_docstr": 2,
    "add_docstr_all": 2,
    "add_newdoc": 3,
}  # calls that document compiled functions: their arguments
_CALL = re.compile(r"[\w.]+\(")
_ROLE = re.compile(r":[\w:+.-]+:`~?\.?([^`<]+?)(?:\s*<[^`>]*>)?`")  # :class:`~torch.Tensor` -> torch.Tensor
_TICKS = re.compile(r"`{1,2}([^`\n]+)`{1,2}_?")
_LINK = re.compile(r"\[([^\]\n]+)\](?:\([^)\n]*\))?")  # [`Trainer`], [text](address)
_PLACEHOLDER = re.compile(r"^\s*\{\w+\}\s*$\n?", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[\w)\]'\"`*])[.!?](?=\s+[A-Z])(?<!e\.g\.)(?<!i\.e\.)")


@dataclass(frozen=True, slots=True)
class Documented:
    """A documented object: its qualified name, what it is, and its documentation in two parts."""

    name: str
    kind: str  # module, class, function or method
    summary: str  # one sentence, without mark-up
    body: str  # everything after it


def documented_in(path: Path, module: str) -> list[Documented]:
    """What a source file documents, in file order; nothing of a file that does not parse."""
    try:
        source = path.read_text(encoding="utf-8")
        if '"""' not in source and "'''" not in source:
            return []
        tree = ast.parse(source)
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = []
    for name, kind, text in _strings(tree, module):
        summary, body = parted(text)
        if summary and body:
            found.append(Documented(name, kind, summary, body))
    return found


def _strings(tree: ast.Module, module: str) -> Iterator[tuple[str, str, str]]:
    text = ast.get_docstring(tree)
    if text:
        yield module, "module", text
    yield from _definitions(tree.body, module, inside_class=False)


def _definitions(body: list[ast.stmt], scope: str, *, inside_class: bool) -> Iterator[tuple[str, str, str]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name.startswith("_"):
                continue
            is_class = isinstance(node, ast.ClassDef)
            name = f"{scope}.{node.name}"
            text = ast.get_docstring(node)
            if text:
                yield name, "class" if is_class else "method" if inside_class else "function", text
            if is_class:
                yield from _definitions(node.body, name, inside_class=True)
        elif isinstance(node, ast.If | ast.Try):  # definitions that depend on the platform
            yield from _definitions(node.body, scope, inside_class=inside_class)
            yield from _definitions(node.orelse, scope, inside_class=inside_class)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from _attached(node.value, scope)


def _attached(call: ast.Call, scope: str) -> Iterator[tuple[str, str, str]]:
    """The documentation that a call such as add_docstr(torch.abs, "…") gives to a compiled function."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function not in ATTACHED or len(call.args) < ATTACHED[function]:
        return
    target, text = call.args[0], _text(call.args[ATTACHED[function] - 1])
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
        yield public(name), "function", inspect.cleandoc(_PLACEHOLDER.sub("", text))


def _text(node: ast.expr) -> str | None:
    """The string an expression of literals, `+` and `.format(…)` makes; what would be filled in stays as {name}."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        text = _text(node.func.value)
        return None if text is None else text.replace("{{", "{").replace("}}", "}")
    return None


def public(name: str) -> str:
    """A qualified name without the private parts users do not write: numpy.linalg._linalg.solve -> numpy.linalg.solve."""
    first, *rest = name.split(".")
    return ".".join([first.lstrip("_"), *(part for part in rest if not part.startswith("_"))])


def parted(text: str) -> tuple[str, str]:
    """(summary, rest) of a documentation string: its first sentence without mark-up, and what follows.

    Signatures on the first lines are passed over. Both are empty where nothing else is there.
    """
    first, _, rest = _without_signatures(text.strip()).partition("\n\n")
    end = _SENTENCE_END.search(first)
    if end is not None:
        first, remaining = first[: end.end()], first[end.end() :].strip()
        rest = f"{remaining}\n\n{rest}" if rest else remaining
    return plain(" ".join(first.split())).rstrip(".:").strip(), rest.strip("\n").rstrip()


def _without_signatures(text: str) -> str:
    """The text after lines such as `solve(a, b) -> x`, which may go on over several lines; blank lines hold no spaces."""
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


def plain(text: str) -> str:
    """Text without the mark-up of reStructuredText and Markdown: roles, ticks, links."""
    unmarked = _TICKS.sub(r"\1", _LINK.sub(r"\1", _ROLE.sub(r"\1", text)))
    return re.sub(r"(?<!\S)~(?=\w)", "", unmarked).replace("**", "")


STDLIB = "stdlib"
QUERY_WORDS = range(4, 31)  # shorter ones say too little, longer ones are no questions
_NOT_DOCUMENTED = {"test", "tests", "testing", "site-packages", "dist-packages", "idlelib", "lib2to3", "turtledemo"}
_PRIVATE_BUT_PUBLIC = {"_core"}  # where numpy keeps what users call numpy
_COPIES = {"transformers/models"}  # hundreds of models made by copying: the same sentences over and over
_FILES_AT_ONCE = 40


@dataclass(frozen=True, slots=True)
class Pair:
    """A question, and the document that answers it."""

    query: Query
    document: Passage
    is_test: bool


def make_sample(settings: SampleSettings, job: FolderJob) -> None:
    """Write documents.jsonl, queries.jsonl and qrels/{train,test}.tsv into the job's folder.

    The order is by a hash of the names, so that the beginning of a file is a mixture of all packages.
    Raises MissingDependency for a package that was asked for and is not installed, DrtkError where nothing is found.
    """
    files = []
    versions = {}
    for package in settings.packages:
        root = _root(package, asked_for=settings.packages != SampleSettings().packages)
        if root is None:
            log(f"{package} is not installed: left out")
            continue
        found = list(_sources(package, root))
        if not found:
            raise DrtkError(f"{package}: no Python sources in {root}")
        files += found
        versions[package], entry = _version(package)
        job.intake.inputs.append(entry)
    pairs = sample_pairs(files, settings)
    if not pairs:
        raise DrtkError("no documentation found in these packages: " + ", ".join(settings.packages))
    _write(job.begin(), pairs)
    tests = sum(pair.is_test for pair in pairs)
    job.counts |= {"documents": len(pairs), "train queries": len(pairs) - tests, "test queries": tests}
    job.finish(packages=versions)


def sample_pairs(files: list[tuple[str, Path, str]], settings: SampleSettings) -> list[Pair]:
    """Pairs of the sources `(package, file, module)`, ordered by a hash of their names, at most `settings.limit`."""
    batches = [files[begin : begin + _FILES_AT_ONCE] for begin in range(0, len(files), _FILES_AT_ONCE)]
    with Workers(_reader, count=min(settings.workers or count_cores(), len(batches))) as workers:
        found = [item for batch in workers.map(batches) for item in batch]
    chosen = _usable(found, settings.min_words)
    chosen.sort(key=lambda item: (uniform("sample", item[1].name), item[1].name))
    return [_pair(package, item, settings.test_percent) for package, item in chosen[: settings.limit]]


def _root(package: str, *, asked_for: bool) -> Path | None:
    """The folder of a package's sources, found without importing it; None where it is not installed."""
    if package == STDLIB:
        return Path(sysconfig.get_path("stdlib"))
    found = PathFinder.find_spec(package) if package.isidentifier() else None
    if found is None and asked_for:
        raise MissingDependency(package, "its documentation", pip_install(package))
    if found is None or not found.origin:
        return None
    path = Path(found.origin)
    return path.parent if path.name == "__init__.py" else path


def _sources(package: str, root: Path) -> Iterator[tuple[str, Path, str]]:
    """(package, file, module) of its public sources, in the order of their names."""
    if root.is_file():
        yield package, root, package
        return
    for path in sorted(root.rglob("*.py")):
        inner = path.relative_to(root)
        folders = inner.parts[:-1]
        if _NOT_DOCUMENTED.intersection(folders):
            continue
        if any(name.startswith("_") and name not in _PRIVATE_BUT_PUBLIC for name in folders):
            continue
        if any(f"{package}/{inner.as_posix()}".startswith(f"{copies}/") for copies in _COPIES):
            continue
        names = [*folders, *([] if path.stem == "__init__" else [path.stem])]
        if package != STDLIB:
            names.insert(0, package)
        if names and names != ["__main__"]:
            yield package, path, public(".".join(names))


def _version(package: str) -> tuple[str, dict[str, Any]]:
    """The version of a package, and an entry for the manifest's inputs of a file that changes with it."""
    if package == STDLIB:
        return sys.version.split()[0], _entry(Path(sys.executable).resolve())
    try:
        found = distribution(package)
    except PackageNotFoundError:  # a folder on the path that nobody installed
        spec = PathFinder.find_spec(package)
        return "", _entry(Path(str(spec and spec.origin)))
    records = [item for item in found.files or [] if item.name in ("RECORD", "METADATA")]
    return found.version, _entry(Path(str(found.locate_file(records[0]))))


def _entry(path: Path) -> dict[str, Any]:
    """How a file is listed among a manifest's inputs."""
    found = path.stat()
    return {"path": str(path), "bytes": found.st_size, "digest": digest_file(path), "mtime_ns": found.st_mtime_ns}


def _reader() -> Any:
    return _read


def _read(files: Iterable[tuple[str, Path, str]]) -> list[tuple[str, Documented]]:
    return [(package, item) for package, path, module in files for item in documented_in(path, module)]


def _usable(found: list[tuple[str, Documented]], min_words: int) -> list[tuple[str, Documented]]:
    """Without copies, without what is too short, and without summaries that several objects share."""
    names: set[str] = set()
    texts: set[tuple[str, str]] = set()
    once = []
    for package, item in found:
        text = (item.summary.lower(), " ".join(item.body.split()))
        if item.name not in names and text not in texts:
            once.append((package, item))
        names.add(item.name)
        texts.add(text)
    shared = Counter(_key(item.summary) for _, item in once)
    return [
        (package, item)
        for package, item in once
        if shared[_key(item.summary)] == 1
        and is_question(item.summary)
        and len(item.body.split()) >= min_words
        and _key(item.summary) not in _key(item.body)
    ]


def _key(text: str) -> str:
    return " ".join(words(text))


def is_question(summary: str) -> bool:
    """Whether a summary can be asked for: a sentence of 4 to 30 words, with content, and not a parameter's description."""
    head = summary.partition(":")[0]
    return (
        len(summary.split()) in QUERY_WORDS
        and len(set(content_words(summary))) >= 2
        and summary[0].isalpha()
        and not ("(" in head and head.endswith(")"))
        and not any(mark in summary for mark in ("===", "---", "~~~", ">>>", "::"))
    )


def _pair(package: str, item: Documented, test_percent: int) -> Pair:
    # The title is what the object is part of: its own name often repeats the words of the question.
    title = item.name.rpartition(".")[0] or item.name
    return Pair(
        Query(f"q-{item.name}", item.summary),
        Passage(item.name, item.body, title, {"package": package, "kind": item.kind}),
        uniform("split", item.name) * 100 < test_percent,
    )


def _write(folder: Path, pairs: list[Pair]) -> None:
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

"""Documentation strings in Python sources, found by parsing: nothing is imported or run."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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

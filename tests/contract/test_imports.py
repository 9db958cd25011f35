"""The import rules: packages import only lower layers, no cycles, and light modules import nothing heavy."""

from __future__ import annotations

import ast
import sys
import tomllib
from functools import cache
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import drtk

ROOT = Path(drtk.__file__).parent
# Packages on one line do not import each other; architecture in docs/design.md.
LAYERS = (
    ("errors", "option_names"),
    ("records", "registry", "config"),
    ("runtime",),
    ("data",),
    ("text",),
    ("models", "losses"),
    ("training",),
    ("pretraining", "indexing"),
    ("retrieval",),
    ("mining", "expansion", "query_expansion", "evaluation"),
    ("serving",),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
LIGHT = (
    "errors",
    "option_names",
    "records",
    "registry",
    "config",
    "runtime.runners",
    "runtime.streams",
    "data.readers",
    "cli",
)
LIGHT_MAY_IMPORT = {"drtk", "typer", "orjson"} | set(sys.stdlib_module_names)


def modules() -> list[str]:
    """Return the names of all modules, such as `data` and `data.trec`."""
    names = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        names += [name] if name and name != "__main__" else []
    return names


def path_of(module: str) -> Path:
    plain = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return plain if plain.exists() else ROOT.joinpath(*module.split("."), "__init__.py")


@cache
def all_modules() -> frozenset[str]:
    return frozenset(modules())


@cache
def imports_of(module: str) -> frozenset[tuple[str, bool]]:
    """Return (imported module, whether it is imported at import time) of every import statement in a module."""
    tree = ast.parse(path_of(module).read_text(encoding="utf-8"))
    inside = {id(node) for block in ast.walk(tree) if is_run_later(block) for node in ast.walk(block)}
    imports = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {(alias.name, id(node) not in inside) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            assert node.module is not None
            at_once = id(node) not in inside
            imports.add((node.module, at_once))
            imports |= {
                (f"{node.module}.{alias.name}", at_once) for alias in node.names if is_module(node.module, alias)
            }
    return frozenset(imports)


def is_run_later(node: ast.AST) -> bool:
    """Return whether a node is a function, or a block for type checkers only."""
    is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return is_for_types or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def is_module(parent: str, alias: ast.alias) -> bool:
    return parent.split(".")[0] == "drtk" and f"{parent}.{alias.name}".removeprefix("drtk.") in all_modules()


def own_imports(module: str) -> set[str]:
    """Return the modules of drtk that `module` imports anywhere in its file, without `drtk.`."""
    return {name.removeprefix("drtk.") for name, _ in imports_of(module) if name.startswith("drtk.")}


def layer(module: str) -> str:
    return module.split(".")[0]


def test_a_package_imports_only_from_layers_below_it():
    for module in modules():
        package = layer(module)
        assert package in RANK, f"{package} is not in LAYERS"
        for other in own_imports(module):
            assert layer(other) == package or RANK[layer(other)] < RANK[package], f"{module} imports {other}"


def test_there_are_no_import_cycles():
    waiting = {name: {other for other in own_imports(name) if path_of(other).exists()} - {name} for name in modules()}
    while free := [name for name, others in waiting.items() if not others & set(waiting)]:
        for name in free:
            del waiting[name]
    assert not waiting


def test_no_module_has_a_name_that_says_nothing():
    assert not {"utils", "helpers", "common", "misc"} & {part for name in modules() for part in name.split(".")}


def test_package_files_hold_registries_or_nothing():
    packages = [name for name in modules() if path_of(name).name == "__init__.py"]
    for statement in (node for name in packages for node in ast.parse(path_of(name).read_text(encoding="utf-8")).body):
        assigned = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
        registry = assigned is not None and ast.unparse(assigned).startswith("Registry(")
        constant = isinstance(assigned, ast.Constant) or (
            isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        )
        assert registry or constant or isinstance(statement, ast.ImportFrom), ast.unparse(statement)[:80]


def light_modules() -> list[str]:
    registries = [name for name in modules() if "Registry(" in path_of(name).read_text(encoding="utf-8")]
    packages = [name for name in registries if path_of(name).name == "__init__.py"]
    configs = [name for name in modules() if name.endswith(".config")]
    return [name for name in modules() if name.startswith(LIGHT)] + packages + configs


def test_light_modules_import_only_light_ones_at_import_time():
    waiting = [(module, module) for module in light_modules()]
    seen = set()
    while waiting:
        module, by = waiting.pop()
        if module in seen or module not in all_modules():
            continue
        seen.add(module)
        for name, at_once in imports_of(module):
            if at_once:
                assert name.split(".")[0] in LIGHT_MAY_IMPORT, f"{by}, by way of {module}, imports {name}"
                own = name.removeprefix("drtk.")
                waiting += [(each, by) for each in (own, own.rpartition(".")[0]) if name.startswith("drtk.")]


def test_every_imported_package_is_declared():
    # An indirect dependency, such as starlette of fastapi, may disappear with the next version.
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [lines for name, lines in project["optional-dependencies"].items() if name != "dev"]
    declared = {
        canonicalize_name(Requirement(line).name) for lines in (project["dependencies"], *extras) for line in lines
    }
    imported = {name.split(".")[0] for module in modules() for name, _ in imports_of(module)}
    distributions = packages_distributions()
    for package in imported - sys.stdlib_module_names - {"drtk"}:
        names = {canonicalize_name(name) for name in distributions.get(package, [package])}
        assert names & declared, f"{package} is not in pyproject.toml"


def test_every_module_can_be_imported():
    # In any order: no two files import each other, at import time or later.
    for module in modules():
        import_module(f"drtk.{module}")


def test_only_one_module_may_start_the_jvm():
    # jnius starts it when it is first imported, with the options that jnius_config has by then.
    starters = [name for name in modules() if any(imported == "jnius_config" for imported, _ in imports_of(name))]
    assert len(starters) <= 1, starters
    assert not [name for name in modules() if ("jnius", True) in imports_of(name)]


def test_only_the_command_line_prints_and_exits():
    for module in modules():
        if layer(module) == "cli" or module == "runtime.progress":
            continue
        for node in ast.walk(ast.parse(path_of(module).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "sys.exit", "exit", "quit"), f"{module}: {called}"

"""Mutation testing: apply each fault of mutations.toml to a copy of the checkout; the tests must fail.

    just mutants                  all faults
    just mutants NAME…            these faults
    just mutants -j 4 --resume    four at a time, without those that runs/mutants.jsonl lists as killed

First run the tests that import the faulty file directly, name its command or preset, or have its name. If none fails,
run those that import it through other modules, the folder of its package first. Finally run the failed tests
on the code without faults, where they must pass.
"""

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / "runs" / "mutants.jsonl"
TIME_LIMIT = 1800  # seconds of a test run


def build_import_graph() -> dict[Path, set[Path]]:
    """Return the files that import each file of drtk/ and tests/; a string may name a module, command or preset."""
    paths = [path.relative_to(ROOT) for top in ("drtk", "tests") for path in sorted((ROOT / top).rglob("*"))]
    paths = [path for path in paths if path.suffix in (".py", ".toml")]
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    words = {path.stem.replace("_", "-"): path for path in paths if "cli" in path.parts or path.suffix == ".toml"}
    graph: dict[Path, set[Path]] = {path: set() for path in paths}
    for path in (path for path in paths if path.suffix == ".py"):
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            found: list[Path | None] = []
            if isinstance(node, ast.Import):
                found = [names.get(alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                found = [
                    names.get(f"{node.module}{alias}") for alias in ("", *(f".{each.name}" for each in node.names))
                ]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found = [
                    names.get(node.value.partition(":")[0]),
                    words.get(node.value) if "tests" in path.parts else None,
                ]
            for each in filter(None, found):
                graph[each].add(path)
    return graph


def select_tests(path: Path, graph: dict[Path, set[Path]]) -> list[list[str]]:
    """Return the test files for a fault in `path`: those to run first, and the others that depend on it."""
    distance, near = {path: 0}, {path}
    while near:
        near = set().union(*(graph[each] for each in near)) - distance.keys()
        distance |= dict.fromkeys(near, max(distance.values()) + 1)
    own, mirror = f"test_{path.stem if path.suffix == '.py' else 'preset'}", Path("tests/unit", *path.parent.parts[1:])
    tests = [each for each in graph if each.name.startswith("test_") and "slow" not in each.parts]
    tests = [each for each in tests if each in distance or path.suffix == ".toml"]
    others = {each: (mirror not in each.parents, distance.get(each, 99), "unit" not in each.parts) for each in tests}
    tests.sort(key=lambda each: (not each.stem.startswith(own), *others[each]))
    first = [str(each) for each in tests if each.stem.startswith(own) or distance.get(each) == 1]
    return [first, [str(each) for each in tests if str(each) not in first]]


def run_tests(folder: Path, tests: list[str]) -> str | None:
    """Run tests until one fails and return its name; None if all pass."""
    variables = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "CI": "true"}
    command = [sys.executable, "-m", "pytest", "-xq", "-n0", "-m", "not slow and not gpu", "-pno:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        return "time limit"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return None if done.returncode in (0, 5) else failed[1] if failed else "pytest"  # 5: no test was selected


def try_fault(fault: dict[str, str], folder: Path, graph: dict[Path, set[Path]]) -> dict[str, Any]:
    """Apply a fault to the copy in `folder`, run the tests and restore the file."""
    files = [path for path in graph if path.parts[0] == "drtk" and fnmatch(str(path), fault.get("file", "*"))]
    texts = {path: (folder / path).read_text(encoding="utf-8") for path in files}
    found = [path for path, text in texts.items() for _ in range(text.count(fault["find"]))]
    if len(found) != 1:
        return {"name": fault["name"], "result": f"text found {len(found)} times", "test": "", "seconds": 0}
    began, path, killer = time.monotonic(), found[0], None
    try:
        (folder / path).write_text(texts[path].replace(fault["find"], fault["replace"]), encoding="utf-8")
        shutil.rmtree((folder / path).parent / "__pycache__", ignore_errors=True)  # it compares whole seconds
        for tests in filter(None, select_tests(path, graph)):
            killer = killer or run_tests(folder, tests)
    finally:
        (folder / path).write_text(texts[path], encoding="utf-8")
        shutil.rmtree((folder / path).parent / "__pycache__", ignore_errors=True)
    result = "survived" if killer is None else "killed" if killer != "time limit" else killer
    return {"name": fault["name"], "result": result, "test": killer or "", "seconds": round(time.monotonic() - began)}


def main() -> int:
    """Try the faults; return 1 if one survived or was not found, or if a test fails without a fault."""
    parser = argparse.ArgumentParser(description="Check that the tests notice the faults of tests/mutations.toml.")
    parser.add_argument("names", nargs="*", help="faults to try (default: all)")
    parser.add_argument("-j", type=int, default=2, help="faults tried at once (default: 2)")
    parser.add_argument("--resume", action="store_true", help="leave out those killed in earlier runs")
    given = parser.parse_args()
    faults = tomllib.loads((ROOT / "tests" / "mutations.toml").read_text(encoding="utf-8"))["mutant"]
    if unknown := set(given.names) - {each["name"] for each in faults}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    LOG.parent.mkdir(exist_ok=True)
    old = LOG.read_text(encoding="utf-8").splitlines() if given.resume and LOG.exists() else []
    results = {row["name"]: row for row in map(json.loads, old) if row["result"] == "killed"}
    faults = [each for each in faults if each["name"] in given.names or not given.names]
    graph, free = build_import_graph(), SimpleQueue[Path]()

    def attempt(fault: dict[str, str]) -> dict[str, Any]:
        folder = free.get()
        row = try_fault(fault, folder, graph)
        free.put(folder)
        return row

    with tempfile.TemporaryDirectory(prefix="drtk-mutants-") as place:
        ignored = shutil.ignore_patterns(".git", ".venv", ".hypothesis", ".*_cache", "runs", "__pycache__")
        for number in range(given.j):
            free.put(shutil.copytree(ROOT, Path(place, str(number)), symlinks=True, ignore=ignored))
        with ThreadPoolExecutor(given.j) as pool, LOG.open("a" if given.resume else "w", encoding="utf-8") as log:
            for row in pool.map(attempt, [each for each in faults if each["name"] not in results]):
                results[row["name"]] = row
                print(json.dumps(row), file=log, flush=True)
                print("{result:8} {seconds:5} s  {name}  {test}".format(**row), flush=True)
        killers = sorted({row["test"].partition("[")[0] for row in results.values() if "::" in row["test"]})
        if failed := run_tests(free.get(), killers) if killers else None:
            print(f"{failed} fails without a fault, too")
    killed = sum(row["result"] == "killed" for row in results.values())
    print(f"{killed} of {len(results)} faults killed")
    return int(bool(failed) or killed < len(results))


if __name__ == "__main__":
    sys.exit(main())

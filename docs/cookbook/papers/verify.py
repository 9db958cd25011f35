"""Check the result of a recipe against expected.toml.

python docs/cookbook/papers/verify.py SCALE/RECIPE.jsonl …        in a folder of another name, SCALE is mini

Prints a line per row: measure, runs, mean, standard deviation over seeds, expected value and tolerance. Exits with 1 if a row is outside its
tolerance, an expected order is not significant, or no row has been run.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any


def read_result(path: Path, measure: str) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
    """Read the records of a measure: averages by system, and tests by (system, baseline)."""
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        records = [record for record in records if record.get("measure") == measure]
        systems = {record["system"]: record for record in records if record["kind"] == "system"}
        tests = {(record["system"], record["baseline"]): record for record in records if record["kind"] == "contrast"}
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}; run the recipe")
    except (ValueError, KeyError, AttributeError):
        sys.exit(
            f"{path}: is not the result of a recipe; give a file that `just reproduce` or `drtk compare --format jsonl` wrote"
        )
    return systems, tests


def verify(path: Path, expected: dict[str, Any], scale: str) -> bool:
    """Print the rows of a result; return whether all that were run are as expected."""
    measure = expected["measure"][scale]
    systems, contrasts = read_result(path, measure)
    correct = any(scale in values and row in systems for row, values in expected["rows"].items())
    print(f"{path}: scale {scale}, {measure}" + ("" if correct else "; it has no row with an expected figure"))
    for row, values in expected["rows"].items():
        if scale not in values:
            continue
        mean, found = values[scale], systems.get(row)
        if found is None:
            print(f"  --   {row}: not run; expected {mean:.4f}")
            continue
        tolerance = (expected["tolerance"] | values.get("tolerance", {}))[scale]
        holds = abs(found["mean"] - mean) <= tolerance
        correct &= holds
        value = f"{found['mean']:.4f} ± {found['sd'] or 0:.4f}, {found['runs']} runs"
        print(f"  {'ok  ' if holds else 'FAIL'} {row}: {value}; expected {mean:.4f} ± {tolerance:.4f}")
    for row in sorted(systems.keys() - expected["rows"].keys()):
        print(f"  --   {row}: {systems[row]['mean']:.4f}; no expected figure")
    for order in expected.get("checks", {}).get(scale, []):
        higher, lower = order.split(" > ")
        contrast = contrasts.get((higher, lower)) or contrasts.get((lower, higher))
        if contrast is None and {higher, lower} <= systems.keys():
            print(f"  FAIL {order}: not tested")
            correct = False
        if contrast is None:
            continue
        sign = 1 if (higher, lower) in contrasts else -1
        holds = contrast["significant"] and sign * contrast["difference"] > 0
        correct &= holds
        print(
            f"  {'ok  ' if holds else 'FAIL'} {order}: {sign * contrast['difference']:+.4f}, p = {contrast['t_p_corrected']:.4f}"
        )
    return correct


def main() -> None:
    expected = tomllib.loads((Path(__file__).parent / "expected.toml").read_text(encoding="utf-8"))
    del expected["names"]
    correct = True
    for path in map(Path, sys.argv[1:]):
        if path.stem not in expected:
            sys.exit(f"{path}: no section {path.stem} in docs/cookbook/papers/expected.toml; give RECIPE.jsonl")
        section = expected[path.stem]
        scale = path.parent.name if path.parent.name in ("mini", "full") else "mini"
        if scale not in section["measure"]:
            sys.exit(f"{path}: has no figures of scale {scale} in expected.toml")
        correct &= verify(path, section, scale)
    sys.exit(0 if correct else 1)


if __name__ == "__main__":
    main()

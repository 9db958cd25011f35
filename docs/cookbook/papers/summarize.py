"""Summarize the values of systems that were trained with several seeds: print a table, and write RESULT in the format of
`drtk compare --format jsonl`, with a manifest RESULT.meta.json.

python docs/cookbook/papers/summarize.py RESULT BASELINE VALUES …

VALUES are files of JSON lines, in one of two formats:

- values of queries, by `drtk eval NAME=RUN … --per-query --format jsonl`, one file per seed: means over seeds, and paired tests over the queries;
- values of systems NAME.SEED, by `drtk eval-sentences --format jsonl`: means over seeds, and Welch's t-test over seeds, two-sided.

Each system is tested against the baseline; p values are Holm-corrected over the systems. Files may come from several machines.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_ind

from drtk.evaluation.compare import Comparison, System
from drtk.evaluation.compare_report import format_comparison
from drtk.evaluation.config import CompareSettings
from drtk.evaluation.evaluate import Evaluation
from drtk.evaluation.measures import Measure
from drtk.evaluation.significance import correct_holm
from drtk.runtime.atomic import write_json
from drtk.runtime.manifest import complete_manifest, create_manifest, find_inputs
from drtk.runtime.streams import digest_file, open_input


def read_values(path: str) -> list[dict[str, Any]]:
    """Read the lines of a file, which may be compressed."""
    with open_input(path)[0] as lines:
        return [json.loads(line) for line in lines]


def compare_queries(baseline: str, files: list[list[dict[str, Any]]]) -> Comparison:
    """Return the means and the paired tests of values by query. Exits if files have different queries."""
    systems: dict[str, System] = {}
    queries: list[str] = []
    for records in files:
        values: dict[str, dict[str, Any]] = defaultdict(dict)
        for record in records:
            if "query_id" in record:
                values[record.pop("run")][record.pop("query_id")] = record
        for name, per_query in values.items():
            queries = queries or list(per_query)
            if per_query.keys() != set(queries):
                sys.exit(f"{name}: its queries differ from those of other systems; summarize files of the same queries")
            measures = per_query[queries[0]]
            if any(run.overall.keys() != measures.keys() for system in systems.values() for run in system.runs):
                sys.exit(
                    f"{name}: its measures differ from those of other systems; summarize files of the same measures"
                )
            overall = {measure: float(np.mean([row[measure] for row in per_query.values()])) for measure in measures}
            systems.setdefault(name, System(name)).runs.append(Evaluation(name, per_query, overall))
    pairs = [(baseline, name) for name in systems if name != baseline and baseline in systems]
    settings = CompareSettings(baseline=baseline, measures=" ".join(measures), format="jsonl", moved=0)
    return Comparison(systems, [Measure(name, "builtin", name) for name in measures], queries, {}, pairs, settings)


def summarize_systems(baseline: str, records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the means and the tests of values by system and seed."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for measure, value in record["values"].items():
            values[measure][record["system"].rpartition(".")[0]].append(value)
    for measure, systems in values.items():
        for system, found in systems.items():
            spread = float(np.std(found, ddof=1)) if len(found) > 1 else None
            summary = {"kind": "system", "system": system, "measure": measure, "runs": len(found)}
            yield json.dumps(summary | {"mean": float(np.mean(found)), "sd": spread})
        old = systems.get(baseline, [])
        tested = [name for name, found in systems.items() if name != baseline and min(len(found), len(old)) > 1]
        p_values = [float(ttest_ind(systems[name], old, equal_var=False).pvalue) for name in tested]
        for system, p, corrected in zip(tested, p_values, correct_holm(p_values), strict=True):
            difference = float(np.mean(systems[system]) - np.mean(old))
            test = {"kind": "contrast", "baseline": baseline, "system": system, "measure": measure}
            test |= {"difference": difference, "t_p": p, "t_p_corrected": corrected, "significant": corrected < 0.05}
            yield json.dumps(test)


def main() -> None:
    result, baseline, *paths = sys.argv[1:]
    start = time.monotonic()
    manifest = create_manifest("comparison", {"baseline": baseline, "values": paths}, program="summarize.py")
    manifest["command"] = shlex.join(["python", *sys.argv])
    files = [records for path in paths if (records := read_values(path))]
    if not files:
        sys.exit(f"{', '.join(paths)}: no values; run the recipe first")
    if "query_id" in files[0][0]:
        comparison = compare_queries(baseline, files)
        lines = list(format_comparison(comparison, []))
        comparison.settings = replace(comparison.settings, format="table")
        table = format_comparison(comparison, []) if comparison.pairs else lines
    else:
        table = lines = list(summarize_systems(baseline, [record for records in files for record in records]))
    print(*table, sep="\n")
    Path(result).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    inputs = [entry | {"digest": digest_file(entry["path"])} for entry in find_inputs({"values": paths})]
    counts, seconds = {"in": len(files), "out": len(lines)}, time.monotonic() - start
    write_json(Path(f"{result}.meta.json"), complete_manifest(manifest, inputs=inputs, counts=counts, seconds=seconds))


if __name__ == "__main__":
    main()

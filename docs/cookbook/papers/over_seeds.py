"""Summarize values of systems that were trained with several seeds, in the format of `drtk compare --format jsonl`.

python docs/cookbook/papers/over_seeds.py BASELINE VALUES … > RESULT

VALUES are JSON lines with "system" (NAME.SEED) and "values" (by measure), as `drtk eval-sentences --format jsonl` writes them. Prints for each system
and measure the mean, the standard deviation over seeds and their number, and for each system and the baseline Welch's t-test over seeds, two-sided,
Holm-corrected over the systems.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.stats import ttest_ind

from drtk.evaluation.significance import correct_holm


def main() -> None:
    baseline, *paths = sys.argv[1:]
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            for measure, value in record["values"].items():
                values[measure][record["system"].rpartition(".")[0]].append(value)
    for measure, systems in values.items():
        for system, found in systems.items():
            spread = float(np.std(found, ddof=1)) if len(found) > 1 else None
            record = {"kind": "system", "system": system, "measure": measure, "runs": len(found)}
            print(json.dumps(record | {"mean": float(np.mean(found)), "sd": spread}))
        old = systems.get(baseline, [])
        tested = [name for name, found in systems.items() if name != baseline and min(len(found), len(old)) > 1]
        p_values = [float(ttest_ind(systems[name], old, equal_var=False).pvalue) for name in tested]
        for system, p, corrected in zip(tested, p_values, correct_holm(p_values), strict=True):
            difference = float(np.mean(systems[system]) - np.mean(old))
            record = {"kind": "contrast", "baseline": baseline, "system": system, "measure": measure}
            record |= {"difference": difference, "t_p": p, "t_p_corrected": corrected, "significant": corrected < 0.05}
            print(json.dumps(record))


if __name__ == "__main__":
    main()

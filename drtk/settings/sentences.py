"""How sentence vectors are evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import knob


@dataclass(frozen=True)
class SentenceSettings:
    """drtk eval-sentences."""

    tasks: str = knob("", "Tasks, separated by spaces. [default: all that --data has]")
    setting: Literal["all", "mean"] = knob(
        "all", "STS12 to STS16: all (one correlation over all subsets together) or mean (of the subsets' own)."
    )
    split: str = knob("test", "Which part of STS-B and SICK-R.")
    positive: float = knob(4.0, "Alignment is over pairs of STS-B rated above this.")
    same: float = knob(5.0, "Retrieval looks for the partners of pairs of STS-B rated this.")
    seed: int = knob(1111, "Seed of the transfer tasks' folds and fits.")
    format: Literal["table", "jsonl", "markdown", "latex", "csv"] = knob(
        "table", "table, jsonl, markdown, latex or csv."
    )
    digits: int = knob(4, "Decimals shown; jsonl and csv hold all of them.", at_least=0, at_most=17)

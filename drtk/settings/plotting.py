"""What is drawn, and how large."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import By, knob


@dataclass(frozen=True)
class PlotSettings:
    """drtk plot. None stands for "not given": a picture refuses options that mean nothing to it."""

    measure: str | None = knob(None, "differences: the measure. [default: nDCG@10]")
    hit_rate: bool | None = knob(None, "recall: draw how often any relevant document is found, not the share of all.")
    rel: int | None = knob(None, "The grade from which on a document counts as relevant. [default: 1]")
    by: By | None = knob(None, "What is scored: passage, or source: a document by its best passage. [default: passage]")
    drop_same_id: bool | None = knob(None, "Take a query's own document out of its ranking (BEIR).")
    depth: int | None = knob(None, "Look at the first N of each ranking.", at_least=1)
    field: tuple[str, ...] | None = knob(
        None, "training: a number of the log that is drawn; repeatable. [default: loss, or all terms and measurements]"
    )
    positive: float | None = knob(None, "space: pairs rated above this belong together. [default: 4]")
    points: int | None = knob(None, "space: vectors drawn of each group, chosen by a hash. [default: 1500]", at_least=2)
    format: Literal["png", "svg", "pdf", "json"] | None = knob(
        None, "png, svg, pdf, or json: the numbers that are drawn. [default: what the name of the file ends in]"
    )
    title: str | None = knob(None, "Heading of the picture.")
    width: float | None = knob(None, "Width in inches.", at_least=1, at_most=100)
    height: float | None = knob(None, "Height in inches.", at_least=1, at_most=100)


COMMON = frozenset({"format", "title", "width", "height"})  # what every picture takes
RUNS = frozenset({"qrels", "rel", "by", "drop_same_id", "depth"})  # what those of runs take

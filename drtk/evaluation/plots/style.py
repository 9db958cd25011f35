"""How pictures look: colours that can be told apart, few lines, labels where the eye is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
MARKERS = "osD^vPX*"
GOOD, BAD, GREY = "#0072b2", "#d55e00", "#8a8a8a"
SIZE = (7.2, 4.5)  # inches: 864 pixels wide, as a page shows it
MOST = len(COLOURS)  # lines that can be told apart


def plain(axis: Any, title: str = "", *, grid: str = "y") -> None:
    """An axis with no more than it needs."""
    if title:
        axis.set_title(title, fontsize=13, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    if grid:
        axis.grid(axis=grid, color="#e2e2e2", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=10.5)


def label_ends(axis: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Names beside the ends of lines, moved apart where they would overlap. ends: x, y, name, colour"""
    low, high = axis.get_ylim()
    least = (high - low) * 0.055
    placed: list[float] = []
    for _, y, _, _ in sorted(ends, key=lambda end: end[1]):
        placed.append(max(y, placed[-1] + least) if placed else y)
    over = max(0.0, placed[-1] - high) if placed else 0.0
    for (x, _, name, colour), place in zip(sorted(ends, key=lambda end: end[1]), placed, strict=True):
        axis.annotate(
            name,
            (x, place - over),
            xytext=(7, 0),
            textcoords="offset points",
            color=colour,
            fontsize=11,
            fontweight="bold",
            va="center",
            annotation_clip=False,
        )


def shortened(name: str, most: int = 28) -> str:
    """A name that fits beside a line."""
    return name if len(name) <= most else name[: most - 1] + "…"

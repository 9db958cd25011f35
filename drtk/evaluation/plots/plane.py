"""The plane in which vectors differ most, and the drawing of it beside alignment and uniformity."""

from __future__ import annotations

from typing import Any

import numpy as np

from drtk.evaluation.plots.base import Numbers
from drtk.evaluation.plots.style import COLOURS, GREY, MARKERS, plain, shortened

Geometry = dict[str, dict[str, float]]


def projected(vectors: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """The first two principal components of the vectors, and the share of variance of each. (n, d) -> (n, 2)

    Each axis points to where its largest entry is positive, so that the picture does not depend on the solver.
    """
    centred = vectors - vectors.mean(axis=0)
    _, strengths, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2]
    if len(axes) < 2:
        axes = np.concatenate([axes, np.zeros((2 - len(axes), vectors.shape[1]))])
    axes = axes * np.sign(axes[np.arange(2), np.abs(axes).argmax(axis=1)] + 1e-300)[:, None]
    total = float((strengths**2).sum()) or 1.0
    shares = [float(value) for value in (strengths[:2] ** 2) / total]
    return centred @ axes.T, [*shares, 0.0, 0.0][:2]


def draw_geometry(axis: Any, geometry: Geometry) -> None:
    """A point a model: uniformity to the right, alignment upwards."""
    for at, (name, values) in enumerate(geometry.items()):
        axis.plot(
            values["uniformity"],
            values["alignment"],
            marker=MARKERS[at],
            color=COLOURS[at],
            markersize=11,
            linestyle="",
        )
        axis.annotate(
            shortened(name, 20), (values["uniformity"], values["alignment"]), xytext=(0, 11), ha="center",
            textcoords="offset points", color=COLOURS[at], fontweight="bold", fontsize=11,
        )  # fmt: skip
    axis.margins(0.35)
    axis.set_xlabel("uniformity (low: evenly spread)", fontsize=11)
    axis.set_ylabel("alignment (low: pairs are near)", fontsize=11)
    plain(axis, "Lower left is better", grid="both")


def draw_plane(axis: Any, panel: Numbers, geometry: Geometry, *, colour: str) -> None:
    """Points by group, pairs joined, the share of variance at the axes."""
    from matplotlib.collections import LineCollection

    groups = {name: np.array(points) for name, points in panel["groups"].items()}
    everything = np.concatenate(list(groups.values()))
    lines = [[everything[a], everything[b]] for a, b in panel["links"]]
    axis.add_collection(LineCollection(lines, colors=GREY, linewidths=0.7, alpha=0.6))
    several = len(groups) > 1
    for at, (name, points) in enumerate(groups.items()):
        shade = COLOURS[at] if several else colour
        figures = geometry.get(name, {})
        label = f"{shortened(name)}: uniformity {figures['uniformity']:z.2f}" if "uniformity" in figures else name
        axis.scatter(
            points[:, 0], points[:, 1], s=9 if len(points) > 300 else 18, color=shade, alpha=0.55, linewidths=0,
            label=label if several else None, marker=MARKERS[at],
        )  # fmt: skip
    first, second = panel["variance"]
    axis.set_xlabel(f"first axis: {first:.0%} of the variance", fontsize=11)
    axis.set_ylabel(f"second axis: {second:.0%}", fontsize=11)
    axis.set_aspect("equal", adjustable="datalim")
    plain(axis, _plane_title(panel, geometry), grid="")
    if several:
        axis.legend(frameon=False, fontsize=10.5, markerscale=1.8, loc="best")


def _plane_title(panel: Numbers, geometry: Geometry) -> str:
    name = panel["name"]
    if name in geometry:
        figures = geometry[name]
        return f"{shortened(name, 20)}\nalignment {figures['alignment']:z.2f}, uniformity {figures['uniformity']:z.2f}"
    pairs = geometry.get("judged pairs")
    return (
        f"Judged pairs joined: alignment {pairs['alignment']:z.2f}"
        if pairs
        else "The plane in which vectors differ most"
    )

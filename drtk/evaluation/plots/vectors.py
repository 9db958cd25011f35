"""Plots of vectors: cosines of matching and random pairs, and cosines by human rating."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from drtk.data.readers import read_records
from drtk.data.rows import Row
from drtk.errors import DrtkError, UsageError
from drtk.evaluation.config import PLOT_OPTIONS, PlotSettings
from drtk.evaluation.plots import base
from drtk.evaluation.plots.base import Plot, PlotData, PlotInputs
from drtk.evaluation.sentence_data import read_pairs
from drtk.evaluation.sentences import (
    compute_alignment,
    compute_pair_cosines,
    compute_spearman,
    compute_uniformity,
    normalize_vectors,
    open_encoder,
)
from drtk.runtime.streams import get_source_name, is_stream

POINTS, POSITIVE = 1500, 4.0  # vectors sampled per group, and the rating above which a pair is positive
MAX_MODELS, BINS = 4, 60


class CosineDistributions(Plot):
    """Cosines of matching and random pairs, alignment and uniformity (drtk plot space)."""

    option_names: ClassVar[frozenset[str]] = PLOT_OPTIONS | {"pairs", "positive", "points"}

    def compute_data(self, inputs: PlotInputs) -> PlotData:
        """Return {"edges", "panels": {model: {"matching", "random"}}, "geometry": {model: {"alignment", "uniformity"}}}.

        edges: limits of the cosine bins; matching, random: numbers of pairs per bin
        """
        inputs.check_num_inputs(1, MAX_MODELS)
        cosines, geometry = _compute_distributions(inputs)
        all_cosines = np.concatenate([values for pair in cosines.values() for values in pair])
        edges = np.linspace(all_cosines.min() - 1e-9, all_cosines.max() + 1e-9, BINS + 1)
        panels = {
            name: {
                "matching": np.histogram(matching, edges)[0].tolist(),
                "random": np.histogram(random, edges)[0].tolist(),
            }
            for name, (matching, random) in cosines.items()
        }
        return {"edges": edges.tolist(), "panels": panels, "geometry": geometry}

    def choose_size(self, data: PlotData) -> tuple[float, float]:
        return base.SIZE[0] + 4.2 * (len(data["panels"]) > 1), 1.4 + 2.3 * len(data["panels"])

    def draw(self, figure: Any, data: PlotData, settings: PlotSettings) -> None:
        """Draw histograms of the cosines of matching and random pairs; for several models also alignment and uniformity."""
        geometry, histograms = data["geometry"], figure
        if len(data["panels"]) > 1:
            histograms, scatter = figure.subfigures(1, 2, width_ratios=[1.7, 1])
            _draw_geometry(scatter.subplots(), geometry)
        panels: list[base.HistogramPanel] = []
        for name, panel in data["panels"].items():
            values = ", ".join(f"{measure} {value:z.2f}" for measure, value in geometry[name].items())
            title = f"{base.shorten(name)}: " + values.replace("-", "\N{MINUS SIGN}")
            panels.append((title, data["edges"], (panel["random"], panel["matching"])))
        base.draw_histograms(figure, histograms, panels, ["random pairs", "matching pairs"], "cosine", settings.heading)


def _draw_geometry(axis: Any, geometry: dict[str, dict[str, float]]) -> None:
    """Draw a point per model: uniformity on the x axis, alignment on the y axis."""
    for at, (name, values) in enumerate(geometry.items()):
        place = values["uniformity"], values["alignment"]
        axis.plot(*place, **base.choose_point_style(at) | {"markersize": 10})
        axis.annotate(
            base.shorten(name, 20),
            place,
            xytext=(0, 10),
            ha="center",
            textcoords="offset points",
            color=base.COLORS[at],
        )
    axis.margins(0.3)
    axis.set_xlabel("uniformity (low: evenly spread)", fontsize=11)
    axis.set_ylabel("alignment (low: matching pairs are near)", fontsize=11)
    base.style_axis(axis, "Lower left is better", grid="both")


Cosines = dict[str, tuple[np.ndarray, np.ndarray]]  # by panel: of matching and of random pairs
Geometry = dict[str, dict[str, float]]


def _compute_distributions(inputs: PlotInputs) -> tuple[Cosines, Geometry]:
    if inputs.pairs is None:
        raise UsageError("`pairs` is required to plot models")
    pairs = read_pairs(inputs.pairs, inputs.tracker).pairs
    positive = POSITIVE if inputs.settings.positive is None else inputs.settings.positive
    positives = [at for at, pair in enumerate(pairs) if pair.score > positive]
    texts = [pair.first for pair in pairs] + [pair.second for pair in pairs]
    sample = _sample_rows(texts, inputs.settings.points)
    cosines, geometry = {}, {}
    for item in inputs.inputs:
        vectors = normalize_vectors(open_encoder(item.source, inputs.device, inputs.tracker)(texts))
        first, second = vectors[positives], vectors[[at + len(pairs) for at in positives]]
        geometry[item.name] = {"alignment": compute_alignment(first, second), "uniformity": compute_uniformity(vectors)}
        random = (vectors[sample] @ vectors[sample].T)[np.triu_indices(len(sample), k=1)]
        cosines[item.name] = compute_pair_cosines(first, second), random
    return cosines, geometry


def _sample_rows(ids: Sequence[str], count: int | None) -> list[int]:
    """Return up to `count` (None: POINTS) row indices in ascending order, sampled by a hash of the ids."""
    hashes = [hashlib.blake2b(id.encode(), digest_size=8).digest() for id in ids]
    return sorted(sorted(range(len(ids)), key=lambda row: (hashes[row], row))[: count or POINTS])


MAX_SYSTEMS, MAX_EDGES = 4, 12


class CosineByRating(Plot):
    """Cosines of sentence pairs by human rating (drtk plot cosine)."""

    option_names: ClassVar[frozenset[str]] = PLOT_OPTIONS | {"pairs"}

    def compute_data(self, inputs: PlotInputs) -> PlotData:
        """Return {"bins": [[low, high], …], "systems": {name: {"spearman", "pairs", "cosines": [[…], …]}}}.

        bins: ranges of human ratings; pairs: number of sentence pairs; cosines: sorted cosines of each bin
        """
        data: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for item in inputs.inputs:
            if (is_stream(item.source) or Path(item.source).is_file()) and inputs.tracker.peek(item.source)[:1] == b"{":
                data |= _read_cosines(item.source, inputs)
            else:
                data[item.name] = _compute_cosines(item.source, inputs)
        if not 1 <= len(data) <= MAX_SYSTEMS:
            raise UsageError(f"drtk plot {inputs.kind} requires 1 to {MAX_SYSTEMS} systems, got {len(data)}")
        high = max(float(ratings.max()) for _, ratings in data.values())
        low = int(np.floor(min(float(ratings.min()) for _, ratings in data.values())))
        edges = list(range(low, max(int(np.ceil(high)), low + 1) + 1))
        if len(edges) > MAX_EDGES:
            raise DrtkError(
                f"ratings from {low} to {high:g} require more than {MAX_EDGES - 1} bins; rescale the ratings"
            )
        systems = {}
        for name, (cosines, ratings) in data.items():
            bins = np.clip(np.searchsorted(edges, ratings, side="right") - 1, 0, len(edges) - 2)
            systems[name] = {
                "spearman": compute_spearman(cosines, ratings),
                "pairs": len(ratings),
                "cosines": [np.sort(cosines[bins == number]).tolist() for number in range(len(edges) - 1)],
            }
        return {"bins": [[a, b] for a, b in pairwise(edges)], "systems": systems}

    def draw(self, figure: Any, data: PlotData, settings: PlotSettings) -> None:
        """Draw a violin for each system and bin, with its median and quartiles."""
        axis = figure.subplots()
        systems, bins = data["systems"], data["bins"]
        width = 0.82 / len(systems)
        for at, (name, system) in enumerate(systems.items()):
            for number, cosines in enumerate(system["cosines"]):
                if cosines:
                    x = number + (at - (len(systems) - 1) / 2) * width
                    _draw_violin(axis, np.array(cosines), x, width * 0.92, base.COLORS[at])
            label = f"{base.shorten(name)}: Spearman {system['spearman']:z.4f}"
            axis.plot([], [], color=base.COLORS[at], linewidth=8, alpha=0.5, label=label)
        last = len(bins) - 1
        axis.set_xticks(
            range(len(bins)), [f"{a} to {b}" if at == last else f"{a} to <{b}" for at, (a, b) in enumerate(bins)]
        )
        axis.set_xlabel("human rating of similarity", fontsize=11.5)
        axis.set_ylabel("cosine", fontsize=11.5)
        axis.set_xlim(-0.6, last + 0.6)
        axis.legend(frameon=False, fontsize=11, loc="lower right")
        pairs = max(system["pairs"] for system in systems.values())
        base.style_axis(axis, settings.heading or f"Cosine by human rating, {pairs:,} pairs")


def _draw_violin(axis: Any, cosines: np.ndarray, x: float, width: float, color: str) -> None:
    if len(cosines) > 2 and np.ptp(cosines) > 0:
        parts = axis.violinplot([cosines], [x], widths=width, showextrema=False)
        for body in parts["bodies"]:
            body.set(facecolor=color, alpha=0.4, edgecolor=color, linewidth=1)
    lower, median, upper = np.percentile(cosines, [25, 50, 75])
    axis.plot([x, x], [lower, upper], color=color, linewidth=4, solid_capstyle="round")
    axis.plot([x], [median], marker="o", color="white", markeredgecolor=color, markersize=5.5, markeredgewidth=1.5)


def _read_cosines(source: str, inputs: PlotInputs) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Read the cosines and ratings written by drtk eval-sentences --pairs-out, by system."""
    if inputs.pairs is not None:
        raise UsageError("`pairs` cannot be combined with a file of cosines; omit it")
    pairs: dict[str, list[tuple[float, float]]] = {}

    def parse_row(row: Row) -> tuple[str, float, float]:
        return str(row.get("system") or source), _get_number(row, "cosine"), _get_number(row, "score")

    for system, cosine, rating in read_records(source, parse_row, tracker=inputs.tracker):
        pairs.setdefault(system, []).append((cosine, rating))
    if not pairs:
        raise DrtkError(
            f"{get_source_name(source)}: no sentence pairs; create the file with drtk eval-sentences --pairs-out"
        )
    return {name: tuple(np.array(values).T) for name, values in pairs.items()}


def _get_number(row: Row, field: str) -> float:
    value: Any = row.get(field)
    if type(value) not in (int, float):
        raise ValueError(f"expected a number as '{field}'")
    return float(value)


def _compute_cosines(source: str, inputs: PlotInputs) -> tuple[np.ndarray, np.ndarray]:
    if inputs.pairs is None:
        raise UsageError("`pairs` is required to plot a model")
    pairs = read_pairs(inputs.pairs, inputs.tracker)
    encode = open_encoder(source, inputs.device, inputs.tracker)
    texts = [pair.first for pair in pairs.pairs] + [pair.second for pair in pairs.pairs]
    vectors = encode(texts)
    return compute_pair_cosines(vectors[: len(pairs.pairs)], vectors[len(pairs.pairs) :]), np.array(pairs.scores)

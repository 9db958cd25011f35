"""Plot the cosines of sentence pairs by human similarity rating (figure 2-2 of Chuang's thesis)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from drtk.errors import DrtkError, RecordError, UsageError
from drtk.evaluation.plots.base import Numbers, Request
from drtk.evaluation.plots.style import COLOURS, SIZE, plain, shortened
from drtk.evaluation.sentence_data import read_pairs
from drtk.evaluation.sentences import pair_cosines, spearman
from drtk.io.rows import Row, parse_row
from drtk.io.streams import is_stream, name_of
from drtk.settings.plotting import COMMON, PlotSettings

MOST_SYSTEMS = 4


class CosineByRating:
    """drtk plot cosine."""

    takes: ClassVar[frozenset[str]] = COMMON | {"pairs"}

    def numbers(self, request: Request) -> Numbers:
        """{"bins": [[low, high], …], "systems": {name: {"spearman", "pairs", "cosines": [those of each bin]}}}"""
        found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for item in request.inputs:
            if request.intake.peek(item.source)[:1] == b"{" if _is_file(item.source) else False:
                found |= _from_file(item.source, request)
            else:
                found[item.name] = _from_model(item.source, request)
        if not 1 <= len(found) <= MOST_SYSTEMS:
            raise UsageError(f"this picture is of 1 to {MOST_SYSTEMS} systems; there are {len(found)}")
        top = max(float(ratings.max()) for _, ratings in found.values())
        low = int(np.floor(min(float(ratings.min()) for _, ratings in found.values())))
        edges = list(range(low, max(int(np.ceil(top)), low + 1) + 1))
        if len(edges) > 12:
            raise DrtkError(f"ratings from {low} to {top:g} are too many to draw one by one")
        systems = {}
        for name, (cosines, ratings) in found.items():
            place = np.clip(np.searchsorted(edges, ratings, side="right") - 1, 0, len(edges) - 2)
            systems[name] = {
                "spearman": spearman(cosines, ratings),
                "pairs": len(ratings),
                "cosines": [np.sort(cosines[place == at]).tolist() for at in range(len(edges) - 1)],
            }
        return {"bins": [[a, b] for a, b in pairwise(edges)], "systems": systems}

    def size(self, numbers: Numbers) -> tuple[float, float]:
        """The usual one."""
        return SIZE

    def draw(self, figure: Any, numbers: Numbers, settings: PlotSettings) -> None:
        """A violin for each system and bin, its median and middle half marked."""
        axis = figure.subplots()
        systems, bins = numbers["systems"], numbers["bins"]
        width = 0.82 / len(systems)
        for at, (name, system) in enumerate(systems.items()):
            for place, cosines in enumerate(system["cosines"]):
                if not cosines:
                    continue
                x = place + (at - (len(systems) - 1) / 2) * width
                _violin(axis, np.array(cosines), x, width * 0.92, COLOURS[at])
            axis.plot(
                [],
                [],
                color=COLOURS[at],
                linewidth=8,
                alpha=0.5,
                label=f"{shortened(name)}: Spearman {system['spearman']:z.4f}",
            )
        last = len(bins) - 1
        axis.set_xticks(
            range(len(bins)), [f"{a} to {b}" if at == last else f"{a} to <{b}" for at, (a, b) in enumerate(bins)]
        )
        axis.set_xlabel("how alike people find the two sentences", fontsize=11.5)
        axis.set_ylabel("cosine of their vectors", fontsize=11.5)
        axis.set_xlim(-0.6, last + 0.6)
        axis.legend(frameon=False, fontsize=11, loc="lower right")
        pairs = max(system["pairs"] for system in systems.values())
        plain(axis, settings.title or f"Cosine by human rating, {pairs:,} pairs")


def _violin(axis: Any, cosines: np.ndarray, x: float, width: float, colour: str) -> None:
    if len(cosines) > 2 and np.ptp(cosines) > 0:
        parts = axis.violinplot([cosines], [x], widths=width, showextrema=False)
        for body in parts["bodies"]:
            body.set(facecolor=colour, alpha=0.4, edgecolor=colour, linewidth=1)
    quarter, middle, upper = np.percentile(cosines, [25, 50, 75])
    axis.plot([x, x], [quarter, upper], color=colour, linewidth=4, solid_capstyle="round")
    axis.plot([x], [middle], marker="o", color="white", markeredgecolor=colour, markersize=5.5, markeredgewidth=1.5)


def _is_file(source: str) -> bool:
    return is_stream(source) or Path(source).is_file()


def _from_file(source: str, request: Request) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The pairs that drtk eval-sentences --pairs-out wrote, by system."""
    if request.pairs is not None:
        raise UsageError("--pairs does not go with pairs that have their cosines already")
    found: dict[str, tuple[list[float], list[float]]] = {}
    for number, line in request.intake.lines(source):
        if not line.strip():
            continue
        try:
            row = parse_row(line)
            name, cosine, rating = str(row.get("system", source)), _number(row, "cosine"), _number(row, "score")
        except ValueError as error:
            request.intake.forgive(RecordError(f"{name_of(source)}:{number}", str(error)))
            continue
        cosines, ratings = found.setdefault(name, ([], []))
        cosines.append(cosine)
        ratings.append(rating)
    if not found:
        raise DrtkError(f"{name_of(source)}: holds no pairs")
    return {name: (np.array(cosines), np.array(ratings)) for name, (cosines, ratings) in found.items()}


def _number(row: Row, field: str) -> float:
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number as '{field}'")
    return float(value)


def _from_model(source: str, request: Request) -> tuple[np.ndarray, np.ndarray]:
    if request.pairs is None:
        raise UsageError("a model needs sentences: --pairs FILE")
    pairs = read_pairs(request.pairs, request.intake)
    encode = request.encoder(source)
    texts = [pair.first for pair in pairs.pairs] + [pair.second for pair in pairs.pairs]
    vectors = encode(texts)
    return pair_cosines(vectors[: len(pairs.pairs)], vectors[len(pairs.pairs) :]), np.array(pairs.scores)

"""Plots of vectors: vector space and cosines by rating."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from drtk.data.embeddings import check_finite, read_shards
from drtk.data.jsonl import read_records
from drtk.data.rows import Row
from drtk.data.runs import NamedRun
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.evaluation.config import PLOT_OPTIONS, PlotSettings
from drtk.evaluation.plots.base import COLORS, GRAY, MARKERS, SIZE, Numbers, Plot, PlotInputs, shorten, style_axis
from drtk.evaluation.sentence_data import read_pairs
from drtk.evaluation.sentences import alignment, open_encoder, pair_cosines, spearman, uniformity, unit
from drtk.runtime.streams import is_stream, name_of

Geometry = dict[str, dict[str, float]]


def project(vectors: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Project vectors on their first two principal components; also return their shares of variance. (n, d) -> (n, 2)

    The largest entry of each axis is positive, so that the signs do not depend on the solver.
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
    """Draw a point per model: uniformity on the x axis, alignment on the y axis."""
    for at, (name, values) in enumerate(geometry.items()):
        axis.plot(
            values["uniformity"], values["alignment"], marker=MARKERS[at], color=COLORS[at], markersize=11, linestyle=""
        )
        axis.annotate(
            shorten(name, 20), (values["uniformity"], values["alignment"]), xytext=(0, 11), ha="center",
            textcoords="offset points", color=COLORS[at], fontweight="bold", fontsize=11,
        )  # fmt: skip
    axis.margins(0.35)
    axis.set_xlabel("uniformity (low: evenly spread)", fontsize=11)
    axis.set_ylabel("alignment (low: pairs are near)", fontsize=11)
    style_axis(axis, "Lower left is better", grid="both")


def draw_plane(axis: Any, panel: Numbers, geometry: Geometry, *, color: str) -> None:
    """Draw points by group, lines between pairs, and shares of variance at the axes."""
    from matplotlib.collections import LineCollection

    groups = {name: np.array(points) for name, points in panel["groups"].items()}
    everything = np.concatenate(list(groups.values()))
    lines = [[everything[a], everything[b]] for a, b in panel["links"]]
    axis.add_collection(LineCollection(lines, colors=GRAY, linewidths=0.7, alpha=0.6))
    several = len(groups) > 1
    for at, (name, points) in enumerate(groups.items()):
        shade = COLORS[at] if several else color
        figures = geometry.get(name, {})
        label = f"{shorten(name)}: uniformity {figures['uniformity']:z.2f}" if "uniformity" in figures else name
        axis.scatter(
            points[:, 0], points[:, 1], s=9 if len(points) > 300 else 18, color=shade, alpha=0.55, linewidths=0,
            label=label if several else None, marker=MARKERS[at],
        )  # fmt: skip
    first, second = panel["variance"]
    axis.set_xlabel(f"first axis: {first:.0%} of the variance", fontsize=11)
    axis.set_ylabel(f"second axis: {second:.0%}", fontsize=11)
    axis.set_aspect("equal", adjustable="datalim")
    style_axis(axis, _plane_title(panel, geometry), grid="")
    if several:
        axis.legend(frameon=False, fontsize=10.5, markerscale=1.8, loc="best")


def _plane_title(panel: Numbers, geometry: Geometry) -> str:
    name = panel["name"]
    if name in geometry:
        figures = geometry[name]
        return f"{shorten(name, 20)}\nalignment {figures['alignment']:z.2f}, uniformity {figures['uniformity']:z.2f}"
    pairs = geometry.get("judged pairs")
    return (
        f"Judged pairs joined: alignment {pairs['alignment']:z.2f}"
        if pairs
        else "The plane in which vectors differ most"
    )


MOST_SYSTEMS = 4


class CosineByRating(Plot):
    """drtk plot cosine."""

    takes: ClassVar[frozenset[str]] = PLOT_OPTIONS | {"pairs"}

    def numbers(self, inputs: PlotInputs) -> Numbers:
        """Return {"bins": [[low, high], …], "systems": {name: {"spearman", "pairs", "cosines": [[…] per bin]}}}."""
        found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for item in inputs.inputs:
            if inputs.tracker.peek(item.source)[:1] == b"{" if _is_file(item.source) else False:
                found |= _read_cosines(item.source, inputs)
            else:
                found[item.name] = _compute_cosines(item.source, inputs)
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

    def draw(self, figure: Any, numbers: Numbers, settings: PlotSettings) -> None:
        """Draw a violin for each system and bin, with its median and quartiles."""
        axis = figure.subplots()
        systems, bins = numbers["systems"], numbers["bins"]
        width = 0.82 / len(systems)
        for at, (name, system) in enumerate(systems.items()):
            for place, cosines in enumerate(system["cosines"]):
                if not cosines:
                    continue
                x = place + (at - (len(systems) - 1) / 2) * width
                _violin(axis, np.array(cosines), x, width * 0.92, COLORS[at])
            axis.plot(
                [],
                [],
                color=COLORS[at],
                linewidth=8,
                alpha=0.5,
                label=f"{shorten(name)}: Spearman {system['spearman']:z.4f}",
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
        style_axis(axis, settings.heading or f"Cosine by human rating, {pairs:,} pairs")


def _violin(axis: Any, cosines: np.ndarray, x: float, width: float, color: str) -> None:
    if len(cosines) > 2 and np.ptp(cosines) > 0:
        parts = axis.violinplot([cosines], [x], widths=width, showextrema=False)
        for body in parts["bodies"]:
            body.set(facecolor=color, alpha=0.4, edgecolor=color, linewidth=1)
    quarter, middle, upper = np.percentile(cosines, [25, 50, 75])
    axis.plot([x, x], [quarter, upper], color=color, linewidth=4, solid_capstyle="round")
    axis.plot([x], [middle], marker="o", color="white", markeredgecolor=color, markersize=5.5, markeredgewidth=1.5)


def _is_file(source: str) -> bool:
    return is_stream(source) or Path(source).is_file()


def _read_cosines(source: str, inputs: PlotInputs) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Read the pairs written by drtk eval-sentences --pairs-out, by system."""
    if inputs.pairs is not None:
        raise UsageError("`pairs` does not go with pairs that have their cosines already")
    found: dict[str, list[tuple[float, float]]] = {}
    rows = read_records(
        source,
        lambda row: (row.get("system"), _take_number(row, "cosine"), _take_number(row, "score")),
        tracker=inputs.tracker,
    )
    for system, cosine, rating in rows:
        found.setdefault(str(system or source), []).append((cosine, rating))
    if not found:
        raise DrtkError(f"{name_of(source)}: holds no pairs")
    return {name: tuple(np.array(pairs).T) for name, pairs in found.items()}


def _take_number(row: Row, field: str) -> float:
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number as '{field}'")
    return float(value)


def _compute_cosines(source: str, inputs: PlotInputs) -> tuple[np.ndarray, np.ndarray]:
    if inputs.pairs is None:
        raise UsageError("a model needs sentences: `pairs`")
    pairs = read_pairs(inputs.pairs, inputs.tracker)
    encode = open_encoder(source, inputs.device, inputs.tracker)
    texts = [pair.first for pair in pairs.pairs] + [pair.second for pair in pairs.pairs]
    vectors = encode(texts)
    return pair_cosines(vectors[: len(pairs.pairs)], vectors[len(pairs.pairs) :]), np.array(pairs.scores)


POINTS, POSITIVE, MOST_MODELS = 1500, 4.0, 4
LINKS = 100  # pairs joined by a line


class VectorSpace(Plot):
    """drtk plot space."""

    takes: ClassVar[frozenset[str]] = PLOT_OPTIONS | {"pairs", "qrels", "rel", "positive", "points"}

    def numbers(self, inputs: PlotInputs) -> Numbers:
        """Return {"panels": [{"name", "groups": {name: [[x, y], …]}, "links", "variance"}], "geometry": {name: {…}}}."""
        inputs.check_count(1, MOST_MODELS)
        folders = [_is_embeddings(item) for item in inputs.inputs]
        if any(folders) and not all(folders):
            raise UsageError("models and folders of embeddings do not go into one picture")
        return _project_embeddings(inputs) if folders[0] else _project_models(inputs)

    def size(self, numbers: Numbers) -> tuple[float, float]:
        panels = len(numbers["panels"]) + (len(numbers["geometry"]) > 1 and len(numbers["panels"]) > 1)
        return (SIZE[0], 5.6) if panels == 1 else (4.1 * panels, 4.6)

    def draw(self, figure: Any, numbers: Numbers, settings: PlotSettings) -> None:
        """Draw a plane per model, and before them a panel of alignment and uniformity if there are several."""
        panels, geometry = numbers["panels"], numbers["geometry"]
        compared = len(panels) > 1
        axes = list(figure.subplots(1, len(panels) + compared, squeeze=False)[0])
        if compared:
            draw_geometry(axes.pop(0), geometry)
        for at, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
            draw_plane(axis, panel, geometry, color=COLORS[at])
        if settings.heading:
            figure.suptitle(settings.heading, fontsize=14, fontweight="bold")


Groups = Mapping[str, tuple[Sequence[str], np.ndarray]]  # name -> ids and unit vectors (n, d)
End = tuple[str, int]  # group and row of a vector


def _project_models(inputs: PlotInputs) -> Numbers:
    if inputs.pairs is None:
        raise UsageError("models need sentences: `pairs`")
    if inputs.qrels is not None:
        raise UsageError("`qrels` is for folders of embeddings; models take `pairs`")
    settings = inputs.settings
    pairs = read_pairs(inputs.pairs, inputs.tracker).pairs
    positive = POSITIVE if settings.positive is None else settings.positive
    near = [at for at, pair in enumerate(pairs) if pair.score > positive]
    partners = [at + len(pairs) for at in near]
    texts = [pair.first for pair in pairs] + [pair.second for pair in pairs]
    ids = [str(at % len(pairs)) for at in range(len(texts))]  # the same for both sentences of a pair
    joined = [(("sentences", a), ("sentences", b)) for a, b in zip(near, partners, strict=True)]
    panels, geometry = [], {}
    for item in inputs.inputs:
        vectors = unit(open_encoder(item.source, inputs.device, inputs.tracker)(texts))
        geometry[item.name] = {
            "alignment": alignment(vectors[near], vectors[partners]),
            "uniformity": uniformity(vectors),
        }
        panels.append(_build_panel(item.name, {"sentences": (ids, vectors)}, joined, settings.points)[0])
    return {"panels": panels, "geometry": geometry, "pairs": len(near)}


def _project_embeddings(inputs: PlotInputs) -> Numbers:
    settings = inputs.settings
    if inputs.pairs is not None:
        raise UsageError("`pairs` is for models; folders of embeddings take `qrels`")
    if settings.positive is not None:
        raise UsageError("`positive` is for `pairs`; of judgements `rel` says what is relevant")
    groups = {item.name: _load_vectors(item, inputs) for item in inputs.inputs}
    sizes = {vectors.shape[1] for _, vectors in groups.values()}
    if len(sizes) > 1:
        raise MismatchError(f"vectors of differing length ({', '.join(map(str, sorted(sizes)))}) share no space")
    wanted = [] if inputs.qrels is None else [
        (query, id) for query, grades in inputs.judgements().items() for id, grade in grades.items() if grade >= inputs.rel
    ]  # fmt: skip
    place = {id: (name, at) for name, (ids, _) in groups.items() for at, id in enumerate(ids)}
    joined = [(place[query], place[id]) for query, id in wanted if query in place and id in place]
    if wanted and not joined:
        raise MismatchError(f"no judged pair is among the vectors; the judgements begin with '{wanted[0][0]}'")
    panel, kept = _build_panel("", groups, joined, settings.points)
    geometry = {name: {"uniformity": uniformity(vectors[kept[name]])} for name, (_, vectors) in groups.items()}
    if joined:
        first, second = (np.stack([groups[end[side][0]][1][end[side][1]] for end in joined]) for side in (0, 1))
        geometry["judged pairs"] = {"alignment": alignment(first, second)}
    return {"panels": [panel], "geometry": geometry, "pairs": len(joined)}


def _build_panel(
    name: str, groups: Groups, joined: Sequence[tuple[End, End]], points: int | None
) -> tuple[Numbers, dict[str, list[int]]]:
    """Project a sample of each group on one plane, pairs first; also return the rows that are drawn of each group."""
    kept = {group: _choose_rows(ids, group, joined, points or POINTS) for group, (ids, _) in groups.items()}
    plane, variance = project(np.concatenate([vectors[kept[group]] for group, (_, vectors) in groups.items()]))
    ends = [(group, row) for group, rows in kept.items() for row in rows]
    number = {end: at for at, end in enumerate(ends)}
    links = [[number[a], number[b]] for a, b in joined if a in number and b in number][:LINKS]
    places: dict[str, list[list[float]]] = {group: [] for group in groups}
    for (group, _), point in zip(ends, plane.tolist(), strict=True):
        places[group].append(point)
    return {"name": name, "groups": places, "links": links, "variance": variance}, kept


def _is_embeddings(item: NamedRun) -> bool:
    return any(Path(item.source).glob("*.npy")) and any(Path(item.source).glob("*.ids"))


def _load_vectors(item: NamedRun, inputs: PlotInputs) -> tuple[list[str], np.ndarray]:
    from drtk.runtime.manifest import describe_folder

    shards = read_shards(item.source)
    inputs.tracker.inputs.append(describe_folder(item.source))
    for shard in shards:
        check_finite(shard, shard.vectors, range(shard.rows))
    ids = [id for shard in shards for id in shard.ids]
    if len(ids) < 2:
        raise DrtkError(f"{item.source}: holds {len(ids)} vectors; a picture needs two")
    return ids, unit(np.concatenate([np.asarray(shard.vectors) for shard in shards]))


def _choose_rows(ids: Sequence[str], name: str, joined: Sequence[tuple[End, End]], count: int) -> list[int]:
    """Return the rows of a group to draw: those of the first joined pairs, then a sample by a hash of the id."""
    linked = dict.fromkeys(row for pair in joined[:LINKS] for group, row in pair if group == name)
    hashes = [hashlib.blake2b(id.encode(), digest_size=8).digest() for id in ids]
    others = sorted(set(range(len(ids))) - linked.keys(), key=lambda row: (hashes[row], row))
    return sorted([*linked, *others][:count])

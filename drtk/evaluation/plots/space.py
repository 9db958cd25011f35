"""A vector space at a glance: alignment and uniformity, and the plane in which vectors differ most."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.evaluation.plots.base import Numbers, Request
from drtk.evaluation.plots.judged import judgements_of, rel_of
from drtk.evaluation.plots.plane import draw_geometry, draw_plane, projected
from drtk.evaluation.plots.style import COLOURS, SIZE
from drtk.evaluation.sentence_data import read_pairs
from drtk.evaluation.sentences import alignment, uniformity, unit
from drtk.io.runs import NamedRun
from drtk.io.shards import check_finite, read_shards
from drtk.settings.plotting import COMMON, PlotSettings

POINTS, POSITIVE, MOST_MODELS = 1500, 4.0, 4
LINKS = 100  # pairs joined by a line


class VectorSpace:
    """drtk plot space."""

    takes: ClassVar[frozenset[str]] = COMMON | {"pairs", "qrels", "rel", "positive", "points"}

    def numbers(self, request: Request) -> Numbers:
        """{"panels": [{"name", "groups": {name: [[x, y], …]}, "links", "variance"}], "geometry": {name: {"alignment", "uniformity"}}}"""
        request.need_inputs(1, MOST_MODELS)
        folders = [_is_embeddings(item) for item in request.inputs]
        if any(folders) and not all(folders):
            raise UsageError("models and folders of embeddings do not go into one picture")
        return _of_embeddings(request) if folders[0] else _of_models(request)

    def size(self, numbers: Numbers) -> tuple[float, float]:
        """Panels side by side: a plane each, and one for alignment and uniformity of several models."""
        panels = len(numbers["panels"]) + (len(numbers["geometry"]) > 1 and len(numbers["panels"]) > 1)
        return (SIZE[0], 5.6) if panels == 1 else (4.1 * panels, 4.6)

    def draw(self, figure: Any, numbers: Numbers, settings: PlotSettings) -> None:
        """Where several models are compared, their figures first; then a plane each."""
        panels, geometry = numbers["panels"], numbers["geometry"]
        compared = len(panels) > 1
        axes = list(figure.subplots(1, len(panels) + compared, squeeze=False)[0])
        if compared:
            draw_geometry(axes.pop(0), geometry)
        for at, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
            draw_plane(axis, panel, geometry, colour=COLOURS[at])
        if settings.title:
            figure.suptitle(settings.title, fontsize=14, fontweight="bold")


def _of_models(request: Request) -> Numbers:
    if request.pairs is None:
        raise UsageError("models need sentences: --pairs FILE")
    if request.qrels is not None:
        raise UsageError("--qrels is for folders of embeddings; models take --pairs")
    settings = request.settings
    pairs = read_pairs(request.pairs, request.intake).pairs
    positive = POSITIVE if settings.positive is None else settings.positive
    near = [at for at, pair in enumerate(pairs) if pair.score > positive]
    texts = [pair.first for pair in pairs] + [pair.second for pair in pairs]
    panels, geometry = [], {}
    for item in request.inputs:
        vectors = unit(request.encoder(item.source)(texts))
        second = [at + len(pairs) for at in near]
        geometry[item.name] = {
            "alignment": alignment(vectors[near], vectors[second]),
            "uniformity": uniformity(vectors),
        }
        shown = set(_sample(list(map(str, range(len(pairs)))), max(1, (settings.points or POINTS) // 2)))
        rows = [at for at in range(len(texts)) if at % len(pairs) in shown]
        place = {row: at for at, row in enumerate(rows)}
        plane, variance = projected(vectors[rows])
        links = [[place[at], place[at + len(pairs)]] for at in near if at in shown][:LINKS]
        panels.append(
            {"name": item.name, "groups": {"sentences": plane.tolist()}, "links": links, "variance": variance}
        )
    return {"panels": panels, "geometry": geometry, "pairs": len(near)}


def _of_embeddings(request: Request) -> Numbers:
    settings = request.settings
    if request.pairs is not None:
        raise UsageError("--pairs is for models; folders of embeddings take --qrels")
    if settings.positive is not None:
        raise UsageError("--positive is for --pairs; of judgements --rel says what is relevant")
    groups = {item.name: _loaded(item, request) for item in request.inputs}
    sizes = {vectors.shape[1] for _, vectors in groups.values()}
    if len(sizes) > 1:
        raise MismatchError(f"vectors of differing length ({', '.join(map(str, sorted(sizes)))}) share no space")
    geometry: dict[str, dict[str, float]] = {}
    wanted = [] if request.qrels is None else [
        (query, id) for query, grades in judgements_of(request).items() for id, grade in grades.items() if grade >= rel_of(request)
    ]  # fmt: skip
    place = {id: (name, at) for name, (ids, _) in groups.items() for at, id in enumerate(ids)}
    joined = [(place[query], place[id]) for query, id in wanted if query in place and id in place]
    if wanted and not joined:
        raise MismatchError(f"no judged pair is among the vectors; the judgements begin with '{wanted[0][0]}'")
    limit = settings.points or POINTS
    kept = {name: _kept(ids, name, joined, limit) for name, (ids, _) in groups.items()}
    for name, (_, vectors) in groups.items():
        geometry[name] = {"uniformity": uniformity(vectors[kept[name]])}
    if joined:
        first, second = (np.stack([groups[end[side][0]][1][end[side][1]] for end in joined]) for side in (0, 1))
        geometry["judged pairs"] = {"alignment": alignment(first, second)}
    plane, variance = projected(np.concatenate([groups[name][1][kept[name]] for name in groups]))
    number: dict[tuple[str, int], int] = {}
    for name in groups:
        for at in kept[name]:
            number[name, at] = len(number)
    links = [[number[a], number[b]] for a, b in joined if a in number and b in number][:LINKS]
    parts, start = {}, 0
    for name in groups:
        parts[name] = plane[start : start + len(kept[name])].tolist()
        start += len(kept[name])
    panel = {"name": "", "groups": parts, "links": links, "variance": variance}
    return {"panels": [panel], "geometry": geometry, "pairs": len(joined)}


def _is_embeddings(item: NamedRun) -> bool:
    return any(Path(item.source).glob("*.npy")) and any(Path(item.source).glob("*.ids"))


def _loaded(item: NamedRun, request: Request) -> tuple[list[str], np.ndarray]:
    from drtk.io.manifest import folder_entry

    shards = read_shards(item.source)
    request.intake.inputs.append(folder_entry(item.source))
    for shard in shards:
        check_finite(shard, shard.vectors, range(shard.rows))
    ids = [id for shard in shards for id in shard.ids]
    if len(ids) < 2:
        raise DrtkError(f"{item.source}: holds {len(ids)} vectors; a picture needs two")
    return ids, unit(np.concatenate([np.asarray(shard.vectors) for shard in shards]))


def _sample(ids: Sequence[str], count: int) -> list[int]:
    """`count` places, chosen by a hash of the id: the same ones whatever else is drawn."""
    ranked = sorted(range(len(ids)), key=lambda at: hashlib.blake2b(ids[at].encode(), digest_size=8).digest())
    return sorted(ranked[:count])


def _kept(ids: Sequence[str], name: str, joined: Sequence[Any], count: int) -> list[int]:
    """The vectors of a group that are drawn: those of the first judged pairs, then what a hash of the id chooses."""
    linked = [end[1] for pair in joined[:LINKS] for end in pair if end[0] == name]
    kept = list(dict.fromkeys(linked))[:count]
    taken = set(kept)
    others = [at for at in range(len(ids)) if at not in taken]
    chosen = _sample([ids[at] for at in others], max(0, count - len(kept)))
    return sorted(kept + [others[at] for at in chosen])

"""Runs that end before a measure's cut-off: nobody knows what they would have found further down, and this is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drtk.evaluation.measures import Measure
from drtk.io.progress import log

NAMED = 3  # runs, or measures, that are named before the others are counted


def tell_shallow(
    depths: Mapping[str, int], measures: Sequence[Measure], *, right: str = "judgements", size: int | None = None
) -> None:
    """Say which runs are shallower than a measure looks, in one line for all that are equally deep.

    depths: by run, documents of the longest ranking among the queries that count; runs of none are passed over.
    right: what makes a query count. size: documents of the collection, where it is known: no run can hold more.
    """
    cutoffs = {measure.name: measure.cutoff for measure in measures if measure.cutoff is not None}
    by_depth: dict[int, list[str]] = {}
    for name, depth in depths.items():
        if depth and (size is None or depth < size):
            by_depth.setdefault(depth, []).append(name)
    for depth, names in by_depth.items():
        deeper = {name: cutoff for name, cutoff in cutoffs.items() if cutoff > depth}
        if deeper:
            holds = "holds" if len(names) == 1 else "hold"
            documents = "1 document" if depth == 1 else f"{depth:,} documents"
            log(f"{_listed(names)}: {holds} at most {documents} for a query with {right}; {_looks(deeper)}")


def _listed(names: Sequence[str]) -> str:
    others = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {others:,} more" if others > 0 else "")


def _looks(cutoffs: Mapping[str, int]) -> str:
    """How far down measures look: all of them where they are few, else the one that looks furthest."""
    if len(cutoffs) > NAMED:
        furthest = max(cutoffs, key=lambda name: cutoffs[name])
        return f"{len(cutoffs):,} measures look further, {furthest} at {cutoffs[furthest]:,}"
    (first, depth), *others = cutoffs.items()
    return ", ".join([f"{first} looks at {depth:,}", *(f"{name} at {cutoff:,}" for name, cutoff in others)])

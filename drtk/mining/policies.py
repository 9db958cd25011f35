"""How many negatives a query gets, and how they are chosen among its candidates: figures of published recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from drtk.mining.pool import Sighting

BySource = Mapping[str, Sequence[Sighting]]  # best first; a passage may stand in several
Choice = Callable[[BySource, int | None, Random], list[Sighting]]


def shuffled(candidates: BySource, keep: int | None, rng: Random) -> list[Sighting]:
    """`keep` candidates of all sources in random order, all where it is None; one of several sources counts for the first."""
    merged: dict[str, Sighting] = {}
    for found in candidates.values():
        for sighting in found:
            merged.setdefault(sighting.id, sighting)
    drawn = list(merged.values())
    rng.shuffle(drawn)
    return drawn[:keep]


def first_of_each(candidates: BySource, keep: int | None, _: Random) -> list[Sighting]:
    """The first `keep` of each source, source after source; what an earlier one gave makes room for the next in rank."""
    drawn: dict[str, Sighting] = {}
    for found in candidates.values():
        new = (sighting for sighting in found if sighting.id not in drawn)
        drawn |= {sighting.id: sighting for sighting, _ in zip(new, range(len(found) if keep is None else keep))}  # noqa: B905
    return list(drawn.values())


@dataclass(frozen=True)
class Policy:
    """What a recipe settles; options override the numbers.

    keep: negatives of a query, of each source with `first_of_each`; None: all. floor: filled up to with random passages.
    depth: ranks looked at; None: all. answers: passages with an answer are positives. ce_margin: as the option.
    """

    keep: int | None
    floor: int = 0
    depth: int | None = 200
    choose: Choice = shuffled
    answers: bool = False
    ce_margin: float | None = None


MSMARCO = Policy(keep=200, floor=210)
TEVATRON = Policy(keep=128)
NQ = Policy(keep=None, depth=100, answers=True)
SBERT = Policy(keep=5, depth=None, choose=first_of_each, ce_margin=3.0)

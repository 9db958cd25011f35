"""Mining policies: how many negatives a query gets, and how they are sampled from its candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from random import Random

from drtk.mining.candidates import Candidate

BySource = Mapping[str, Sequence[Candidate]]  # best first; a passage may be in several sources
Sample = Callable[[BySource, int | None, Random], list[Candidate]]


def sample_shuffled(candidates: BySource, keep: int | None, rng: Random) -> list[Candidate]:
    """Mix the candidates of all sources, shuffle, and return the first `keep` (None: all).

    A passage of several sources counts for the first.
    """
    merged: dict[str, Candidate] = {}
    for found in candidates.values():
        for one in found:
            merged.setdefault(one.id, one)
    sampled = list(merged.values())
    rng.shuffle(sampled)
    return sampled[:keep]


def take_first_of_each(candidates: BySource, keep: int | None, _: Random) -> list[Candidate]:
    """Return the first `keep` of each source, source after source; passages of earlier sources are skipped."""
    taken: dict[str, Candidate] = {}
    for found in candidates.values():
        new = [one for one in found if one.id not in taken]
        taken |= {one.id: one for one in new[:keep]}
    return list(taken.values())


def sample_random_ids(
    ids: Sequence[str],
    number: int,
    rng: Random,
    *,
    excluded: AbstractSet[str],
    is_allowed: Callable[[str], bool] | None = None,
) -> list[str]:
    """Sample `number` different ids that are allowed and not excluded; fewer if there are not enough.

    Ids are sampled one by one, unless too many of them are excluded: then the remaining ones are listed first.
    """
    sampled: dict[str, None] = {}
    if len(ids) >= 4 * (number + len(excluded)):
        for _ in range(number + len(ids)):  # listing costs no more: one document may own most of the corpus
            if len(sampled) == number:
                break
            id = ids[rng.randrange(len(ids))]
            if id not in excluded and (is_allowed is None or is_allowed(id)):
                sampled[id] = None
    if len(sampled) < number:
        free = [id for id in ids if id not in excluded and id not in sampled and (is_allowed is None or is_allowed(id))]
        sampled |= dict.fromkeys(rng.sample(free, min(number - len(sampled), len(free))))
    return list(sampled)


@dataclass(frozen=True)
class Policy:
    """The numbers of a recipe; options override them.

    keep: negatives of a query, or of each source with `take_first_of_each`; None: all. floor: fill up to this number with
    random passages. depth: ranks of each source that are candidates; None: all. answers: passages that contain an answer
    become positives. ce_margin: as the option.
    """

    keep: int | None
    floor: int = 0
    depth: int | None = 200
    sample: Sample = sample_shuffled
    answers: bool = False
    ce_margin: float | None = None


MSMARCO = Policy(keep=200, floor=210)
TEVATRON = Policy(keep=128)
NQ = Policy(keep=None, depth=100, answers=True)
SBERT = Policy(keep=5, depth=None, sample=take_first_of_each, ce_margin=3.0)

"""Mining policies: how many negatives a query gets, and how negatives are sampled from its candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from random import Random

from drtk.mining.candidates import Candidate, drop_duplicates

BySource = Mapping[str, Sequence[Candidate]]  # best first; a passage may be in several sources
Sample = Callable[[BySource, int | None, Random], list[Candidate]]


def sample_shuffled(candidates: BySource, count: int | None, rng: Random) -> list[Candidate]:
    """Sample up to `count` candidates (None: all) from the union of all sources, without replacement, in random order.

    candidates: by source name, best first; a passage of several sources counts for the first one
    """
    shuffled = drop_duplicates(chain.from_iterable(candidates.values()))
    rng.shuffle(shuffled)
    return shuffled[:count]


def take_top_per_source(candidates: BySource, count: int | None, _: Random) -> list[Candidate]:
    """Return the top `count` candidates of each source, without passages already taken from earlier sources.

    candidates: by source name, best first    count: None: return all
    """
    selected: dict[str, Candidate] = {}
    for source_candidates in candidates.values():
        new = [candidate for candidate in source_candidates if candidate.id not in selected]
        selected |= {candidate.id: candidate for candidate in new[:count]}
    return list(selected.values())


def sample_random_ids(
    total: int,
    get_id: Callable[[int], str],
    count: int,
    rng: Random,
    *,
    excluded: AbstractSet[str],
    is_allowed: Callable[[str], bool] | None = None,
) -> list[str]:
    """Sample up to `count` distinct ids that are not in `excluded` and for which `is_allowed` returns True.

    total: number of ids; `get_id` returns the id of a number below it
    Uses rejection sampling, or a random permutation of all ids if many are excluded.
    """
    sampled: dict[str, None] = {}
    if total >= 4 * (count + len(excluded)):
        for _ in range(count + total):  # `is_allowed` may reject most ids
            if len(sampled) == count:
                break
            id = get_id(rng.randrange(total))
            if id not in excluded and (is_allowed is None or is_allowed(id)):
                sampled[id] = None
    for number in rng.sample(range(total), total) if len(sampled) < count else ():
        if len(sampled) == count:
            break
        id = get_id(number)
        if id not in excluded and (is_allowed is None or is_allowed(id)):
            sampled[id] = None
    return list(sampled)


@dataclass(frozen=True)
class Policy:
    """A published recipe for sampling negatives. Fields of `MineSettings` with the same name override it, unless None.

    negatives: number of negatives per query, or per source with `take_top_per_source`; None: all candidates
    min_negatives: minimum number of negatives per query, reached by adding random passages, if a corpus is given
    depth: maximum rank of a candidate in its source; None: no maximum
    sample: function that samples negatives from the candidates
    answers: turn candidates that contain an answer into positives
    ce_margin: minimum difference between the cross-encoder scores of the positives and of a negative
    """

    negatives: int | None
    min_negatives: int = 0
    depth: int | None = 200
    sample: Sample = sample_shuffled
    answers: bool = False
    ce_margin: float | None = None


MSMARCO = Policy(negatives=200, min_negatives=210)
TEVATRON = Policy(negatives=128)
NQ = Policy(negatives=None, depth=100, answers=True)
SBERT = Policy(negatives=5, depth=None, sample=take_top_per_source, ce_margin=3.0)

"""Rankings and judgements to training examples: positives from the judgements, negatives from what was retrieved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from drtk.io.corpus_ids import CorpusIds
from drtk.io.sources import source_of
from drtk.records import Example
from drtk.registry import Registry

RANDOM = "random"  # the source of negatives that no run gave

MINING = Registry(
    "mining policy",
    {
        "msmarco": ("drtk.retrieval.negatives:MSMARCO", "200 drawn, filled up to 210 with random passages (SimLM)"),
        "tevatron": ("drtk.retrieval.negatives:TEVATRON", "128 drawn, nothing filled (Tevatron)"),
    },
)

Candidate = tuple[str, str]  # passage id, name of the run it is from
Choice = Callable[[Sequence[Candidate], int, Random], list[Candidate]]


def shuffled(candidates: Sequence[Candidate], keep: int, rng: Random) -> list[Candidate]:
    """`keep` candidates in random order."""
    drawn = list(candidates)
    rng.shuffle(drawn)
    return drawn[:keep]


@dataclass(frozen=True)
class Policy:
    """How many negatives a query gets, and how they are chosen among the candidates."""

    keep: int
    floor: int
    choose: Choice = shuffled


MSMARCO = Policy(keep=200, floor=210)
TEVATRON = Policy(keep=128, floor=0)


@dataclass(frozen=True)
class Miner:
    """Makes examples. Draws depend on the seed and the query's id alone, so neither order nor batching matters.

    corpus: where random passages come from; without it none are added. by_source: judgements name documents.
    counts: what was left out, and how often.
    """

    policy: Policy
    seed: int
    depth: int
    rel: int = 1
    by_source: bool = False
    corpus: CorpusIds | None = None
    counts: dict[str, int] = field(default_factory=dict)

    def __call__(
        self, query_id: str, rankings: Mapping[str, Sequence[str]], grades: Mapping[str, int]
    ) -> Example | None:
        """The example of a query, or None, counted, where it has no positive or no negative.

        rankings: passage ids, best first, by name of run; whole, as positives are looked for at every rank.
        """
        relevant = sorted((id for id in grades if grades[id] >= self.rel), key=grades.__getitem__, reverse=True)
        positives = self._passages_of(relevant, rankings.values()) if self.by_source else relevant
        if not positives:
            self._count("without_positives")
            return None
        wanted = set(relevant)
        of = (self.corpus or source_of) if self.by_source else _itself
        candidates: dict[str, str] = {}
        for name, ranking in rankings.items():
            for id in ranking[: self.depth]:
                if of(id) not in wanted:
                    candidates.setdefault(id, name)
        rng = Random(f"{self.seed}\0{query_id}")
        negatives = self.policy.choose(list(candidates.items()), self.policy.keep, rng)
        negatives += self._fill(query_id, self.policy.floor - len(negatives), wanted, dict(negatives), of)
        if not negatives:
            self._count("without_negatives")
            return None
        ids, sources = zip(*negatives, strict=True)
        return Example(query_id, tuple(positives), tuple(ids), sources={"negatives": list(sources)})

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _passages_of(self, documents: Iterable[str], rankings: Iterable[Sequence[str]]) -> list[str]:
        """The best-ranked passage of each document, in the first run that has one; where none has, its only one."""
        of = self.corpus or source_of
        best: dict[str, str] = {}
        wanted = set(documents)
        for ranking in rankings:
            for id in ranking:
                document = of(id)
                if document in wanted:
                    best.setdefault(document, id)
        positives = []
        for document in documents:
            passage = best.get(document) or (self.corpus.only_passage(document) if self.corpus else None)
            if passage is None:
                self._count("positives_not_found")
            else:
                positives.append(passage)
        return positives

    def _fill(
        self, query_id: str, number: int, wanted: set[str], taken: Mapping[str, str], of: Callable[[str], str]
    ) -> list[Candidate]:
        """Up to `number` random passages that are neither of a positive nor taken; fewer where the corpus ends."""
        if number <= 0 or self.corpus is None:
            return []
        rng = Random(f"{self.seed}\0{query_id}\0fill")
        ids = self.corpus.ids
        found: dict[str, str] = {}
        if len(ids) < 4 * (number + len(taken) + len(wanted)):  # drawing one by one would mostly hit what is taken
            free = [id for id in ids if id not in taken and of(id) not in wanted]
            return [(id, RANDOM) for id in rng.sample(free, min(number, len(free)))]
        while len(found) < number:
            id = ids[rng.randrange(len(ids))]
            if id not in taken and of(id) not in wanted:
                found[id] = RANDOM
        return list(found.items())


def _itself(id: str) -> str:
    return id

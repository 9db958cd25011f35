"""What a table of systems says, in claims that hold or do not, with the numbers they rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import comb
from typing import Any

from drtk.evaluation.evaluate import Evaluation
from drtk.io.trec import Judgements

# What a system is, told by how its name begins.
ROLES = {
    "bm25": ("bm25", "lucene", "sparse"),
    "untrained": ("off-the-shelf", "untrained", "zero-shot", "base"),
    "pretrained": ("pretrained", "pre-trained"),
    "trained": ("trained", "fine-tuned", "finetuned", "retriever"),
    "fused": ("fused", "fusion", "hybrid", "rrf"),
}


@dataclass(frozen=True)
class Claim:
    """`first` is better than `second` on `measure`, or not; on how many queries it is better, worse and equal."""

    first: str
    second: str
    measure: str
    values: tuple[float, float]
    holds: bool
    better: int
    worse: int
    equal: int

    def text(self) -> str:
        """The claim, or what is the case instead, as a sentence."""
        a, b = self.values
        verb = "beats" if self.holds else "does not beat" if a < b else "equals"
        if self.holds and self.chance > 0.05:
            verb = "is ahead of"
        return (
            f"{self.first} {verb} {self.second} on {self.measure}: {a:.4f} against {b:.4f} ({a - b:+z.4f}); "
            f"better on {self.better:,} of {self.better + self.worse + self.equal:,} queries, worse on {self.worse:,}, equal on {self.equal:,} "
            f"(sign test: p = {self.chance:.2g})."
        )

    @property
    def chance(self) -> float:
        """Two-sided p of the sign test: how likely such a split of better and worse is where neither system is better."""
        trials, extreme = self.better + self.worse, max(self.better, self.worse)
        tail = sum(comb(trials, wins) for wins in range(extreme, trials + 1)) / 2**trials
        return min(1.0, 2 * tail)

    def row(self) -> dict[str, Any]:
        """The claim as it stands in report.json."""
        return {"claim": f"{self.first} beats {self.second}"} | asdict(self) | {"sign_test_p": self.chance}


@dataclass(frozen=True)
class Overlap:
    """Where the relevant documents of all queries are, among the first `depth` of two runs and of their fusion.

    found: how many both runs hold, only the first, only the second, neither. kept: how many of each are in the fusion.
    shared: documents that both runs hold, relevant or not, as a share of the shorter list, averaged over queries.
    """

    runs: tuple[str, str]
    fused: str
    depth: int
    found: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    shared: float = 0.0

    def text(self) -> str:
        """Why fusion helps as much as it does."""
        a, b = self.runs
        total = sum(self.found.values())
        one = self.found["first"] + self.found["second"]
        kept = self.kept["first"] + self.kept["second"]
        lost = one - kept + self.found["both"] - self.kept["both"]
        return (
            f"Of {total:,} relevant documents, {self.found['both']:,} are among the first {self.depth} of both {a} and "
            f"{b}, {self.found['first']:,} of {a} alone, {self.found['second']:,} of {b} alone, "
            f"{self.found['neither']:,} of neither. {self.fused} keeps {kept:,} of the {one:,} that one run alone finds, "
            f"and {self.kept['both']:,} of those that both find: {lost:,} fall below rank {self.depth}. "
            f"The two share {self.shared:.0%} of what they retrieve."
        )


def role_of(name: str) -> str | None:
    """The role of a system, by its name."""
    for role, beginnings in ROLES.items():
        if name.lower().startswith(beginnings):
            return role
    return None


def with_role(results: Sequence[Evaluation], role: str) -> Evaluation | None:
    """The first system of a role."""
    return next((result for result in results if role_of(result.name) == role), None)


def compare(first: Evaluation, second: Evaluation, measure: str) -> Claim:
    """Whether `first` is better than `second` on average, and on how many queries."""
    a, b = float(first.overall[measure]), float(second.overall[measure])
    pairs = [
        (float(values[measure]), float(second.per_query[query][measure])) for query, values in first.per_query.items()
    ]
    better, worse = sum(x > y for x, y in pairs), sum(x < y for x, y in pairs)
    return Claim(first.name, second.name, measure, (a, b), a > b, better, worse, len(pairs) - better - worse)


def claims(results: Sequence[Evaluation], main: str, deep: str) -> list[Claim]:
    """What a report should answer, on `main`: does training beat BM25 and no training, and does pre-training before it help?

    And does fusion beat both of what it joins (`deep`)?
    """
    trained, bm25 = with_role(results, "trained"), with_role(results, "bm25")
    untrained, fused = with_role(results, "untrained"), with_role(results, "fused")
    found = []
    if trained is not None:
        found += [compare(trained, other, main) for other in (bm25, untrained) if other is not None]
    pretrained = with_role(results, "pretrained")
    if trained is not None and pretrained is not None:
        found.append(compare(pretrained, trained, main))
    if fused is not None:
        found += [compare(fused, other, deep) for other in (bm25, trained or untrained) if other is not None]
    return found


def overlap(
    names: tuple[str, str],
    fused: str,
    rankings: Mapping[str, Mapping[str, Sequence[str]]],
    judgements: Judgements,
    *,
    depth: int = 100,
    rel: int = 1,
) -> Overlap:
    """Counts behind a fusion of the runs `names`; `rankings` by system, then by query."""
    found = dict.fromkeys(("both", "first", "second", "neither"), 0)
    kept = dict(found)
    shares = []
    for query, grades in judgements.items():
        a, b, f = (set(rankings[name].get(query, ())[:depth]) for name in (*names, fused))
        if a and b:
            shares.append(len(a & b) / min(len(a), len(b)))
        for id, grade in grades.items():
            if grade >= rel:
                where = {(True, True): "both", (True, False): "first", (False, True): "second"}.get(
                    (id in a, id in b), "neither"
                )
                found[where] += 1
                kept[where] += id in f
    return Overlap(names, fused, depth, found, kept, sum(shares) / len(shares) if shares else 0.0)


def leaders(results: Sequence[Evaluation], measures: Sequence[str]) -> list[str]:
    """A sentence for each group of measures on which the same system is ahead."""
    best: dict[str, list[str]] = {}
    for measure in measures:
        ranked = sorted(results, key=lambda result: float(result.overall[measure]), reverse=True)
        if float(ranked[0].overall[measure]) > float(ranked[1].overall[measure]):
            best.setdefault(ranked[0].name, []).append(measure)
    return [f"{name} is best on {', '.join(on)}." for name, on in best.items()]

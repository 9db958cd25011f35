"""Summarize a table of systems in sentences, with the numbers behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from drtk.evaluation.comparison import Contrast
from drtk.evaluation.comparison_text import chance
from drtk.evaluation.evaluate import Evaluation
from drtk.io.trec import Judgements


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


def describe_contrast(contrast: Contrast, values: tuple[float, float], *, significant: bool) -> str:
    """Return a sentence that compares a run with the first one.

    values: the averages of the run and of the first one
    """
    better = "better" if contrast.difference > 0 else "worse"
    verb = f"is significantly {better} than" if significant else "does not differ significantly from"
    queries = contrast.better + contrast.worse + contrast.equal
    return (
        f"{contrast.system} {verb} {contrast.baseline} on {contrast.measure}: {values[0]:.4f} against {values[1]:.4f} "
        f"({contrast.difference:+z.4f}; p(t) {chance(contrast.t_p_corrected)}, "
        f"p(rand) {chance(contrast.randomisation_p_corrected)}); better on {contrast.better:,} of {queries:,} queries, "
        f"worse on {contrast.worse:,}, equal on {contrast.equal:,}."
    )


def significance_note(baseline: str, comparisons: int, alpha: float) -> str:
    """Return a sentence that names the tests of the p values."""
    family = f", with Holm's correction over the {comparisons} comparisons with {baseline}" if comparisons > 1 else ""
    return (
        f"p(t) is from a paired t-test, p(rand) from a randomization test{family}; a difference is significant if both "
        f"are below {alpha:g}."
    )


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

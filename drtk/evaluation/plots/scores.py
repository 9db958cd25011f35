"""How scores of what is relevant and of what is not are spread."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from drtk.errors import DrtkError, UsageError
from drtk.evaluation.plots.base import Numbers, Request
from drtk.evaluation.plots.judged import judgements_of, rel_of, view_of
from drtk.evaluation.plots.style import BAD, GOOD, SIZE, plain, shortened
from drtk.io.jsonl import read_examples
from drtk.io.runs import NamedRun
from drtk.io.trec import Judgements, load_hits
from drtk.settings.plotting import COMMON, RUNS, PlotSettings

MOST_PANELS, BINS = 6, 40


class ScoreDistributions:
    """drtk plot scores."""

    takes: ClassVar[frozenset[str]] = COMMON | RUNS

    def numbers(self, request: Request) -> Numbers:
        """{"kinds": [good, other], "panels": {input: {"edges", "good", "other" (counts), "auc", "means"}}}"""
        request.need_inputs(1, MOST_PANELS)
        of_examples = [request.intake.peek(item.source).lstrip()[:1] == b"{" for item in request.inputs]
        if any(of_examples) and not all(of_examples):
            raise UsageError("runs and training examples do not go into one picture")
        if of_examples[0]:
            if request.qrels is not None:
                raise UsageError("--qrels does not go with training examples: they name their positives")
            kinds = ["positives", "negatives"]
            panels = {item.name: _of_examples(item, request) for item in request.inputs}
        else:
            kinds = ["relevant", "not relevant, or not judged"]
            judgements = judgements_of(request)
            panels = {item.name: _of_run(item, judgements, request) for item in request.inputs}
        return {"kinds": kinds, "panels": {name: spread(*scores, name) for name, scores in panels.items()}}

    def size(self, numbers: Numbers) -> tuple[float, float]:
        """A panel below the other."""
        return SIZE[0], 1.0 + 2.6 * len(numbers["panels"])

    def draw(self, figure: Any, numbers: Numbers, settings: PlotSettings) -> None:
        """Shares of either kind by score, one over the other."""
        panels = numbers["panels"]
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        good, other = numbers["kinds"]
        for axis, (name, panel) in zip(axes, panels.items(), strict=True):
            for kind, label, colour in (("other", other, BAD), ("good", good, GOOD)):
                counts = np.array(panel[kind], dtype=float)
                axis.stairs(counts / counts.sum(), panel["edges"], fill=True, alpha=0.45, color=colour)
                axis.stairs(
                    counts / counts.sum(),
                    panel["edges"],
                    color=colour,
                    linewidth=1.6,
                    label=f"{label} ({int(counts.sum()):,})",
                )
            axis.set_ylabel("share", fontsize=11)
            axis.set_ylim(0, axis.get_ylim()[1] * 1.35)  # room for the legend
            plain(axis, f"{shortened(name)}: {good} score higher with a chance of {panel['auc']:.3f} (AUC)")
            axis.legend(frameon=False, fontsize=10.5, loc="upper right", ncols=2)
        axes[-1].set_xlabel("score", fontsize=11.5)
        if settings.title:
            figure.suptitle(settings.title, fontsize=14, fontweight="bold")


def spread(good: np.ndarray, other: np.ndarray, name: str) -> Numbers:
    """Counts in bins over the common range, and how often a good score is the higher one (ties half).

    good, other: (n,), (m,); raises DrtkError where one is empty
    """
    from scipy.stats import rankdata

    for what, values in (("relevant", good), ("other", other)):
        if len(values) == 0:
            raise DrtkError(f"{name}: there is no score of anything {what}")
    both = np.concatenate([good, other])
    edges = np.histogram_bin_edges(both, bins=BINS)
    ranks = rankdata(both)[: len(good)]
    auc = (float(ranks.sum()) - len(good) * (len(good) + 1) / 2) / (len(good) * len(other))
    return {
        "edges": edges.tolist(),
        "good": np.histogram(good, edges)[0].tolist(),
        "other": np.histogram(other, edges)[0].tolist(),
        "auc": auc,
        "means": [float(good.mean()), float(other.mean())],
    }


def _of_run(run: NamedRun, judgements: Judgements, request: Request) -> tuple[np.ndarray, np.ndarray]:
    view, rel = view_of(request), rel_of(request)
    good: list[float] = []
    other: list[float] = []
    for query, hits in load_hits(run.source, intake=request.intake, only=judgements).items():
        grades = judgements[query]
        best: dict[str, float] = {}
        for id, score in hits.ranking():
            best.setdefault(view.by(id) if view.by else id, score)
        for id in view(hits):
            (good if grades.get(id, rel - 1) >= rel else other).append(best[id])
    return np.array(good), np.array(other)


def _of_examples(item: NamedRun, request: Request) -> tuple[np.ndarray, np.ndarray]:
    good: list[float] = []
    other: list[float] = []
    for example in read_examples(item.source, intake=request.intake):
        scores = example.scores or {}
        good += scores.get("positives", [])
        other += scores.get("negatives", [])
    if not good and not other:
        raise DrtkError(f"{item.source}: the examples have no scores")
    return np.array(good), np.array(other)

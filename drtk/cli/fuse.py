"""drtk fuse: fuse runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from drtk.cli.decorators import filter_command
from drtk.cli.options import Output, make_argument, make_option, with_settings
from drtk.errors import UsageError
from drtk.retrieval.config import FuseSettings
from drtk.runtime.filter_job import FilterJob

if TYPE_CHECKING:
    from drtk.data.trec import Ranking


@with_settings(FuseSettings)
@filter_command("run")
def fuse(
    runs: Annotated[list[str], make_argument("RUN…", "TREC runs; one may be - for stdin.")],
    output: Output = "-",
    *,
    qrels: Annotated[str | None, make_option("--qrels FILE", "Judgments for --sweep.")] = None,
    settings: FuseSettings,
    job: FilterJob,
) -> None:
    """Fuse runs into one.

    Scores of the fused run decrease strictly, so all tools read the same order.

    Examples:
    drtk fuse bm25.run dense.run -o fused.run
    drtk fuse bm25.run dense.run --method weighted --sweep --qrels dev.tsv -o fused.run
    """
    from drtk.retrieval.fusion import fuse_runs

    if not settings.sweep:
        if qrels is not None:
            raise UsageError("--qrels requires --sweep")
        fuse_runs(runs, settings, job)
        return
    if qrels is None:
        raise UsageError("--sweep requires --qrels")
    if settings.method == "round-robin" or settings.weights:
        raise UsageError("--sweep chooses the weights; use a --method with weights and omit --weights")
    from drtk.evaluation.tuning import find_fusion_weights

    def find_weights(
        rankings: Sequence[Mapping[str, Ranking]], scored: Sequence[int | None] | None
    ) -> tuple[float, ...]:
        weights, job.counts["best"] = find_fusion_weights(runs, qrels, settings, rankings, scored, tracker=job.tracker)
        return weights

    fuse_runs(runs, settings, job, find_weights=find_weights)

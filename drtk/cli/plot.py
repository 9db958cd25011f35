"""drtk plot: plot runs, training logs and vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from drtk.cli.decorators import filter_command
from drtk.cli.options import Device, Output, Qrels, make_argument, make_option, with_settings
from drtk.errors import UsageError
from drtk.evaluation.config import PlotSettings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.streams import STANDARD


@with_settings(PlotSettings)
@filter_command("picture")
def plot(
    kind: Annotated[
        str, make_argument("KIND", "Kind of plot: recall, training, differences, scores, space or cosine.")
    ],
    inputs: Annotated[list[str], make_argument("[NAME=]INPUT…", "Runs, training logs, or models, depending on KIND.")],
    output: Output = "-",
    *,
    qrels: Qrels | None = None,
    pairs: Annotated[
        str | None, make_option("--pairs FILE", "TSV of sentence1, sentence2, score (space and cosine plots only).")
    ] = None,
    device: Device = "auto",
    settings: PlotSettings,
    job: FilterJob,
) -> None:
    """Plot runs, training logs and vectors.

    Kinds of plots: recall (recall by depth), training (loss or measures by step), differences (two runs, query by query),
    scores (of relevant and other documents), space (cosines, alignment, uniformity), cosine (cosines by human rating).

    Examples:
    drtk plot recall bm25=bm25.run dense=dense.run --qrels qrels.tsv -o recall.png
    drtk plot training model/log.jsonl -o loss.pdf
    """
    from drtk.evaluation.plots.base import FORMATS, draw_plot

    format = settings.format or Path(job.output).suffix.removeprefix(".").lower()
    if format not in FORMATS:
        raise UsageError(f"--format is required unless --output ends in .{', .'.join(FORMATS)}")
    data = draw_plot(kind, inputs, settings, format, job.tracker, qrels=qrels, pairs=pairs, device=device)
    job.log_summary, job.is_text, job.counts["in"] = job.output != STANDARD, False, len(inputs)
    job.run([kind], lambda _: [data], unit="pictures")

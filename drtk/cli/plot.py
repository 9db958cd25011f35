"""drtk plot: pictures of runs, training and vectors."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drtk.cli.decorators import record_filter
from drtk.cli.options import Device, Output, with_settings
from drtk.errors import UsageError
from drtk.evaluation.config import PlotSettings
from drtk.runtime.filter_job import FilterJob

if TYPE_CHECKING:
    from collections.abc import Callable

Kind = Annotated[
    str,
    typer.Argument(metavar="KIND", help="recall, training, differences, scores, space or cosine.", show_default=False),
]
Inputs = Annotated[
    list[str],
    typer.Argument(metavar="[NAME=]INPUT…", help="Runs, training logs, models or embeddings, as KIND needs them."),
]
Judged = Annotated[str | None, typer.Option("--qrels", metavar="FILE", help="Judgements: BEIR TSV or TREC qrels.")]
RatedPairs = Annotated[
    str | None,
    typer.Option("--pairs", metavar="FILE", help="space, cosine: a table of sentence1, sentence2, score, for models."),
]


@with_settings(PlotSettings)
@record_filter("picture")
def plot(
    kind: Kind,
    inputs: Inputs,
    output: Output = "-",
    *,
    qrels: Judged = None,
    pairs: RatedPairs = None,
    device: Device = "auto",
    settings: PlotSettings,
    job: FilterJob,
) -> None:
    """Draw runs, training and vectors.

    recall: recall by depth. training: loss or a measure by step. differences: two runs, query by query. scores: of
    relevant and other documents. space: alignment, uniformity and a plane. cosine: by human rating. Writes PNG, SVG, PDF,
    or the numbers that are drawn as JSON.
    """
    from drtk.data.runs import parse_logs, parse_runs
    from drtk.evaluation.plots import PLOTS
    from drtk.evaluation.plots.base import PlotInputs, render_plot
    from drtk.runtime.manifest import folder_entry

    chosen = PLOTS.load(kind)()
    given = {item.name: getattr(settings, item.name) for item in fields(settings)} | {"qrels": qrels, "pairs": pairs}
    for name, value in given.items():
        if value is not None and name not in chosen.takes:
            raise UsageError(f"`{name}` does not go with drtk plot {kind}")
    format = _choose_format(output, settings)

    def load_encoder(source: str) -> Callable[[list[str]], Any]:
        from drtk.models.model_folder import locate
        from drtk.retrieval.encode import Embedder

        job.intake.inputs.append(folder_entry(locate(source)))  # before it is loaded
        return Embedder(source, role="query", device=device)

    named = parse_logs(inputs) if kind == "training" else parse_runs(inputs)
    plot_inputs = PlotInputs(named, qrels, pairs, settings, job.intake, load_encoder)
    data = render_plot(chosen, chosen.numbers(plot_inputs), settings, format)
    job.log_summary = False
    job.counts["in"] = len(named)
    job.run([kind], lambda _: [data], unit="pictures")


def _choose_format(output: str, settings: PlotSettings) -> str:
    """Return --format, or the suffix of the output."""
    from drtk.evaluation.plots.base import FORMATS

    ending = Path(output).suffix.removeprefix(".").lower()
    if settings.format is not None:
        return settings.format
    if ending not in FORMATS:
        raise UsageError(f"-o names the picture by what it ends in: .{', .'.join(FORMATS)}; or say --format")
    return ending

"""drtk eval-sentences: evaluate sentence vectors."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from drtk.cli.decorators import record_filter
from drtk.cli.options import Device, Output, with_settings
from drtk.errors import DrtkError
from drtk.evaluation.config import SentenceSettings
from drtk.runtime.filter_job import FilterJob

Systems = Annotated[
    list[str],
    typer.Argument(metavar="[NAME=]MODEL…", help="Model folders, Hub names, or files of texts with vectors."),
]
Tasks = Annotated[
    str, typer.Option("--data", metavar="DIR", help="Folder of tasks, with DIR/STS12/*.tsv, DIR/STS-B/test.tsv …")
]
PairsOut = Annotated[
    str | None,
    typer.Option("--pairs-out", metavar="FILE", help="File for the cosine similarity of each rated pair, as JSONL."),
]


@with_settings(SentenceSettings)
@record_filter("sentence evaluation", writes=("pairs_out",))
def eval_sentences(
    systems: Systems,
    output: Output = "-",
    *,
    data: Tasks,
    pairs_out: PairsOut = None,
    device: Device = "auto",
    settings: SentenceSettings,
    job: FilterJob,
) -> None:
    """Evaluate sentence vectors: STS, alignment, uniformity, retrieval, transfer.

    Writes a table with a row per model. Correlations are Spearman's, from -1 to 1.

    Examples:
    drtk eval-sentences model --data sts
    drtk eval-sentences ours=model bert=bert-base-uncased --data sts --tasks "STS12 STS-B" --format markdown
    """
    from drtk.evaluation.sentences import evaluate_sentences
    from drtk.runtime import streams

    if pairs_out is not None and Path(pairs_out).exists() and not job.force:
        raise DrtkError(f"{pairs_out}: exists already; --force replaces it")
    with nullcontext() if pairs_out is None else streams.Output(pairs_out) as pairs:
        write = None if pairs is None else pairs.write
        lines = evaluate_sentences(systems, data, settings, job.tracker, write_pair=write, device=device)
    job.run_report(lines, num_inputs=len(systems))

"""drtk eval-sentences: evaluate sentence vectors."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from drtk.cli.decorators import filter_command
from drtk.cli.options import Device, Output, make_argument, make_option, with_settings
from drtk.errors import DrtkError
from drtk.evaluation.config import SentenceSettings
from drtk.runtime.filter_job import FilterJob


@with_settings(SentenceSettings)
@filter_command("sentence evaluation", writes=("pairs_out",))
def eval_sentences(
    systems: Annotated[
        list[str], make_argument("[NAME=]MODEL…", "Model folders, Hub names, or files of sentence vectors.")
    ],
    output: Output = "-",
    *,
    data: Annotated[str, make_option("--data DIR", "Folder of tasks, with DIR/STS12/*.tsv, DIR/STS-B/test.tsv …")],
    pairs_out: Annotated[
        str | None, make_option("--pairs-out FILE", "File for the cosine similarity of each sentence pair, as JSONL.")
    ] = None,
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

"""drtk eval-sentences: how good sentence vectors are."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.decorators import record_filter
from drtk.cli.options import Device, Output, with_settings
from drtk.evaluation.config import SentenceSettings
from drtk.runtime.filter_job import FilterJob

Systems = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME=]MODEL…", help='Model folders, hub names, or files of {"text", "vector"} made elsewhere.'
    ),
]
Tasks = Annotated[
    str, typer.Option("--data", metavar="DIR", help="Folder of tasks: DIR/STS12/*.tsv, DIR/STS-B/test.tsv …")
]
PairsOut = Annotated[
    str | None, typer.Option("--pairs-out", metavar="FILE", help="Write every rated pair with its cosine, as JSONL.")
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
    """Score sentence vectors: STS, alignment, uniformity, retrieval, transfer.

    Reads models, or vectors made elsewhere, and a folder of tasks; writes a table, a system a row. Correlations are
    Spearman's, from -1 to 1 (papers print them times 100).
    """
    from collections.abc import Iterator
    from pathlib import Path

    from drtk.data.runs import parse_runs
    from drtk.errors import DrtkError
    from drtk.evaluation.sentence_data import find_tasks, vectors_from
    from drtk.evaluation.sentences import (
        Encode,
        Result,
        SentenceVectors,
        evaluate_tasks,
        format_pairs,
        format_sentence_results,
        load_tasks,
    )
    from drtk.runtime.manifest import folder_entry
    from drtk.runtime.progress import log
    from drtk.runtime.streams import Output as Stream
    from drtk.runtime.streams import is_stream

    named = parse_runs(systems)
    if pairs_out is not None and Path(pairs_out).exists() and not job.force:
        raise DrtkError(f"{pairs_out}: exists already; --force replaces it")
    tasks = find_tasks(Path(data), settings.tasks.split(), split=settings.split)
    log(f"eval-sentences: {', '.join(task.name for task in tasks)}")
    loaded = load_tasks(tasks, job.intake)

    def encoder(source: str) -> Encode:
        if is_stream(source) or Path(source).is_file():
            return vectors_from(source, job.intake)
        from drtk.models.model_folder import locate
        from drtk.retrieval.encode import Embedder

        job.intake.inputs.append(folder_entry(locate(source)))  # before it is loaded
        return Embedder(source, role="query", device=device)

    results: dict[str, list[Result]] = {}

    def pairs() -> Iterator[bytes]:
        for system in named:
            texts = (text for item in loaded for text in item.texts())
            vectors = SentenceVectors(encoder(system.source), texts)
            results[system.name] = evaluate_tasks(loaded, vectors, settings)
            if pairs_out is not None:
                yield from format_pairs(system.name, loaded, vectors)

    if pairs_out is None:
        list(pairs())
    else:
        with Stream(pairs_out) as stream:
            for line in pairs():
                stream.write(line)
    lines = format_sentence_results(results, settings.format, digits=settings.digits)
    job.run_report(lines, num_inputs=len(named))

"""drtk report: write a report that compares systems."""

from __future__ import annotations

from typing import Annotated

from drtk.cli.decorators import folder_command
from drtk.cli.options import Folder, Qrels, make_argument, make_option, with_settings
from drtk.evaluation.config import ReportSettings
from drtk.runtime.folder_job import FolderJob


@with_settings(ReportSettings)
@folder_command("report")
def report(
    runs: Annotated[
        list[str], make_argument("[NAME=]RUN…", "TREC runs; give several runs of a system (seeds) the same NAME.")
    ],
    *,
    qrels: Qrels,
    output: Folder,
    corpus: Annotated[str | None, make_option("--corpus FILE", "Corpus, to show passage texts.")] = None,
    queries: Annotated[str | None, make_option("--queries FILE", "Queries, to show their texts.")] = None,
    log: Annotated[str | None, make_option("--log FILE", "Training log (log.jsonl), to plot the loss.")] = None,
    settings: ReportSettings,
    job: FolderJob,
) -> None:
    """Compare runs in a report with measures, significance tests and a figure.

    Writes report.json, report.md and report.png, and prints the report without per-query results: the tables
    of drtk compare, the effect of a fusion, and the change of the training loss.

    Examples:
    drtk report bm25=bm25.run dense=dense.run --qrels qrels.tsv -o report
    drtk report bm25.run dense.run --qrels qrels.tsv --corpus corpus.jsonl --queries queries.jsonl -o report
    """
    from drtk.evaluation.report import build_report
    from drtk.runtime.progress import escape_control_characters

    content = build_report(runs, qrels, settings, job.tracker, corpus=corpus, queries=queries, loss_log=log)
    content.write(job.begin())
    job.counts |= {"systems": len(content.comparison.systems), "queries": len(content.comparison.queries)}
    job.finish()
    for line in content.iter_lines(markdown=False):
        print(escape_control_characters(line))

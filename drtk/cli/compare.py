"""drtk compare: test whether systems differ significantly."""

from __future__ import annotations

from typing import Annotated

from drtk.cli.decorators import filter_command
from drtk.cli.options import Answers, Output, Qrels, make_argument, make_option, with_settings
from drtk.errors import UsageError
from drtk.evaluation.config import CompareSettings
from drtk.runtime.filter_job import FilterJob


@with_settings(CompareSettings)
@filter_command("comparison")
def compare(
    runs: Annotated[
        list[str],
        make_argument("[NAME=]RUN…", "TREC runs; give several runs of a system (seeds) the same NAME; - is stdin."),
    ],
    output: Output = "-",
    *,
    qrels: Qrels | None = None,
    answers: Answers | None = None,
    corpus: Annotated[
        str | None, make_option("--corpus FILE", "Corpus, to show passage texts (required with --answers).")
    ] = None,
    queries: Annotated[str | None, make_option("--queries FILE", "Queries, to show their texts.")] = None,
    settings: CompareSettings,
    job: FilterJob,
) -> None:
    """Test whether systems differ significantly, and show the queries that changed most.

    Writes mean values, and paired t-tests and randomization tests against a baseline, or of all pairs of systems.
    Several runs of one NAME are repetitions of one system with different seeds.

    Examples:
    drtk compare bm25=bm25.run dense=dense.run --qrels qrels.tsv
    drtk compare bm25.run dense.run --qrels qrels.tsv --queries queries.jsonl --format html -o comparison.html
    """
    if qrels is not None and answers is not None:
        raise UsageError("--qrels and --answers cannot be combined; give one")
    from drtk.data.checks import warn_of_other_kind
    from drtk.evaluation.compare_report import compare_files

    warn_of_other_kind(passages=corpus, queries=queries)
    lines = compare_files(runs, settings, job.tracker, qrels=qrels, answers=answers, corpus=corpus, queries=queries)
    job.run_report(lines, num_inputs=len(runs))

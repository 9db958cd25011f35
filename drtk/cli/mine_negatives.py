"""drtk mine-negatives: runs, indexes or examples, and judgements, to training examples."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drtk.cli.decorators import record_filter
from drtk.cli.options import AnotherCorpus, Output, Seed, with_settings
from drtk.mining.config import MineSettings
from drtk.runtime.filter_job import Done, FilterJob
from drtk.runtime.streams import STANDARD, is_stream
from drtk.runtime.streams import Output as OutputFile

if TYPE_CHECKING:
    from drtk.mining.audit import Audit
    from drtk.mining.mine import Mining
    from drtk.mining.pool import Asked
    from drtk.mining.report import Figures
    from drtk.records import Example, Query

SNIPPET_WORDS = 40


def side_files(audit: str | None, report: str | None, job: FilterJob) -> Audit | None:
    """Where the rows go that an audit is, and a report is made of; None where neither is wanted.

    Raises DrtkError for a file that already exists.
    """
    from drtk.mining.audit import Audit, check_target

    for path in (audit, None if report == STANDARD else report):
        if path is not None:
            check_target(path, job)
    if audit is not None:
        return Audit(audit, job, scratch=False)
    if report is None:
        return None
    return Audit(f"{job.output}.report" if report == STANDARD else report, job, scratch=True)


def none_mined(counts: Mapping[str, Any]) -> str:
    """Why no query made an example, in one line: how many for which reason, and what became of their candidates."""
    from drtk.mining.sampler import LEFT_OUT

    why = ", ".join(f"{counts[what]:,} {what.replace('_', ' ')}" for what in LEFT_OUT if counts.get(what))
    if counts.get("positives_not_found"):
        why += f" ({counts['positives_not_found']:,} positives not found)"
    passages = counts.get("passages", {})
    fates = [f"{number:,} dropped by {name}" for name, number in counts.get("dropped", {}).items()]
    fates += [
        f"{passages[name]:,} {name.replace('_', ' ')}"
        for name in ("became_positives", "not_drawn")
        if passages.get(name)
    ]
    candidates = f" (of {passages['candidates']:,} candidates {', '.join(fates)})" if fates else ""
    return f"no query makes an example: {why}{candidates}"


class Told:
    """Writes the audit window by window, and the report at the end; does nothing where neither is wanted."""

    def __init__(self, audit: Audit | None, report: str | None, *, corpus: str | None, queries: str | None) -> None:
        self._audit, self._report = audit, report
        self._corpus, self._queries = corpus, queries
        self._stack = ExitStack()

    def __enter__(self) -> Told:
        if self._audit is not None:
            self._stack.enter_context(self._audit)
        return self

    def __exit__(self, *fault: Any) -> None:
        self._stack.__exit__(*fault)

    def windows(self, mining: Mining, windows: Iterable[list[Asked]]) -> Generator[Done, None, None]:
        """The examples of each window, whose rows are written before; after the last, all else is finished."""
        from drtk.data.jsonl import dump

        for window in windows:
            yield Done(map(dump, self._window(mining, window)))
        if self._audit is not None:
            self._write_report()
            self._audit.commit()

    def _window(self, mining: Mining, window: list[Asked]) -> list[Example]:
        if self._audit is None:
            return mining.examples(window)
        found = mining.examples(window, tell=self._audit.add)
        self._audit.end_window()
        return found

    def _write_report(self) -> None:
        from drtk.mining.report import figures_of, text_lines
        from drtk.mining.report_page import report_page
        from drtk.runtime.progress import log

        if self._report is None or self._audit is None:
            return
        figures = figures_of(self._audit.rows())
        is_page = self._report.endswith((".html", ".htm"))
        lines = self._page(figures, report_page) if is_page else text_lines(figures)
        with OutputFile(self._report) as output:
            for line in lines:
                output.write(f"{line}\n".encode())
        if self._report != STANDARD:
            log("\n".join([f"report: {self._report}", *text_lines(figures)]))

    def _page(self, figures: Figures, page: Any) -> Iterator[str]:
        from drtk.data.corpus_store import CorpusStore
        from drtk.data.jsonl import read_queries
        from drtk.mining.report_page import MARK
        from drtk.retrieval.snippets import matched_stems, snippet

        wanted = {row["query_id"] for row in figures.shown}
        queries: dict[str, Query] = {}
        if self._queries is not None and not is_stream(self._queries):
            queries = {query.id: query for query in read_queries(self._queries) if query.id in wanted}
        store = None if self._corpus is None or is_stream(self._corpus) else CorpusStore.open(self._corpus)

        def question(query_id: str) -> str:
            return queries[query_id].text if query_id in queries else ""

        def show(query_id: str, id: str) -> tuple[str, str]:
            passage = None if store is None else store.get(id)
            if passage is None:
                return "", ""
            answers = (queries[query_id].answers if query_id in queries else None) or ()
            stems = matched_stems(" ".join((question(query_id), *answers)))
            return passage.title, snippet(passage.text, stems, words=SNIPPET_WORDS, mark="{}".join(MARK).format)

        return page(figures, title="Mined negatives", questions=question, show=show)  # type: ignore[no-any-return]


MinedSources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=]SOURCE…",
        help="TREC runs of training queries, index folders, or examples to mine anew; - is stdin.",
        show_default=False,
    ),
]
MinedQrels = Annotated[
    str | None, typer.Option("--qrels", metavar="FILE", help="Judgements: BEIR TSV or TREC qrels.", show_default=False)
]
MinedCorpus = Annotated[
    str | None,
    typer.Option("--corpus", metavar="FILE", help="Passages: random negatives, texts; checks every id."),
]
MinedQueries = Annotated[
    str | None,
    typer.Option("--queries", metavar="FILE", help="Training queries: for indexes, --policy nq, --scorer, --report."),
]
QueryVectors = Annotated[
    str | None,
    typer.Option("--query-vectors", metavar="DIR", help="Index: ask it with a folder of drtk encode --role query."),
]
MinedVectors = Annotated[
    str | None, typer.Option("--vectors", metavar="DIR", help="Vectors of the passages, for --max-cosine, --report.")
]
IndexModel = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="Index: where the encoder is; by default as the index says."),
]
AuditFile = Annotated[
    str | None,
    typer.Option("--audit", metavar="FILE", help="Write what became of each candidate, and why: a JSON line a query."),
]
ReportFile = Annotated[
    str | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="How many, how hard, how suspicious: a page (FILE.html) with examples, or text; - is stdout.",
    ),
]
WINDOW = 100  # queries between two flushes: each may have thousands of hits in every run


@with_settings(MineSettings)
@record_filter("examples", writes=("audit", "report"))
def mine_negatives(
    candidates: MinedSources = None,
    output: Output = "-",
    *,
    qrels: MinedQrels = None,
    corpus: MinedCorpus = None,
    queries: MinedQueries = None,
    query_vectors: QueryVectors = None,
    model: IndexModel = None,
    vectors: MinedVectors = None,
    audit: AuditFile = None,
    report: ReportFile = None,
    another_corpus: AnotherCorpus = False,
    seed: Seed = 42,
    settings: MineSettings,
    job: FilterJob,
) -> None:
    """Make training examples out of what was retrieved, and judgements.

    Writes an example for each training query: its judged passages as positives, and what was retrieved besides them,
    filtered and shuffled, as negatives. Ids only; texts are looked up.
    """
    from drtk.data.checks import describe_textless, warn_of_textless
    from drtk.mining.filters import LOOKED_INTO
    from drtk.mining.mine import Inputs, set_up
    from drtk.runtime.progress import log, warn

    told = side_files(audit, report, job)
    inputs = Inputs(
        candidates or ["-"],
        qrels,
        corpus,
        queries,
        query_vectors,
        vectors,
        model,
        another_corpus=another_corpus,
        looks=report is not None,
    )
    mining = set_up(inputs, settings, job, seed=seed)
    job.window = settings.batch if mining.sources.indexes else WINDOW
    job.no_input = "no query came in, so nothing is mined"

    def textless() -> str | None:
        return describe_textless(job.counts.get(LOOKED_INTO, {}), str(corpus))

    job.find_problem = lambda lines: textless() or (None if lines else none_mined(job.counts)) or mining.id_mismatch()
    with Told(told, report, corpus=corpus, queries=queries) as tell:
        job.run_windows(mining.queries(), lambda windows: tell.windows(mining, windows), unit="queries")
    warn_of_textless(job.counts.get(LOOKED_INTO, {}), str(corpus))
    for problem in mining.unjudged_sources():
        warn(problem)
    passages = job.counts.get("passages", {})
    if drawn := passages.get("random"):
        negatives, floor = drawn + passages["kept"], mining.stages.miner.policy.floor
        log(f"random: {drawn:,} of the {negatives:,} negatives, to fill lists up to --floor {floor}")
    dropped = job.counts.get("dropped")
    if dropped:
        log("dropped: " + ", ".join(f"{number:,} by {name}" for name, number in dropped.items()))

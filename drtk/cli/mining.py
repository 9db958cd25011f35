"""What mine-negatives tells beside its examples: an audit, and a report as a page or as text."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from drtk.io.filtering import Done, FilterJob
from drtk.io.streams import STANDARD, Output, is_stream

if TYPE_CHECKING:
    from drtk.records import Example, Query
    from drtk.retrieval.mining.audit import Audit
    from drtk.retrieval.mining.figures import Figures
    from drtk.retrieval.mining.pool import Asked
    from drtk.retrieval.mining.walk import Mining

SNIPPET_WORDS = 40


def side_files(audit: str | None, report: str | None, job: FilterJob) -> Audit | None:
    """Where the rows go that an audit is, and a report is made of; None where neither is wanted.

    Raises DrtkError for a file that already exists.
    """
    from drtk.retrieval.mining.audit import Audit, check_target

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
    from drtk.retrieval.mining.miner import LEFT_OUT

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
        from drtk.io.jsonl import dump

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
        from drtk.io.progress import log
        from drtk.retrieval.mining.figures import figures_of
        from drtk.retrieval.mining.page import report_page
        from drtk.retrieval.mining.report import text_lines

        if self._report is None or self._audit is None:
            return
        figures = figures_of(self._audit.rows())
        is_page = self._report.endswith((".html", ".htm"))
        lines = self._page(figures, report_page) if is_page else text_lines(figures)
        with Output(self._report) as output:
            for line in lines:
                output.write(f"{line}\n".encode())
        if self._report != STANDARD:
            log("\n".join([f"report: {self._report}", *text_lines(figures)]))

    def _page(self, figures: Figures, page: Any) -> Iterator[str]:
        from drtk.io.jsonl import read_queries
        from drtk.io.store import CorpusStore
        from drtk.retrieval.mining.page import MARK
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

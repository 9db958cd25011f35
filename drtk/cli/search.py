"""drtk search: queries to a run, or one question to the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from drtk.cli.jobs import record_filter
from drtk.cli.options import Output, with_settings
from drtk.io.filtering import FilterJob
from drtk.settings.retrieval import RUN_DEPTH, SearchSettings

if TYPE_CHECKING:
    from drtk.records import Query

DEPTH, ANSWERS = RUN_DEPTH, 5  # -k where it is not given: of a run, of an answer on the terminal


@with_settings(SearchSettings)
@record_filter("run")
def search(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="Folders of drtk index; and one file of queries (default: -, stdin) or folder of drtk encode --role query.",
            show_default=False,
        ),
    ],
    output: Output = "-",
    question: Annotated[
        str | None,
        typer.Option(
            "--query", metavar="TEXT", help="Print the passages for one typed query; -: for each line of stdin."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Where the encoder is; by default as the index says.")
    ] = None,
    by: Annotated[
        Literal["passage", "source"], typer.Option("--by", help="source: rank documents, by their best passage (MaxP).")
    ] = "passage",
    drop_same_id: Annotated[
        bool, typer.Option("--drop-same-id", help="Leave out the document that is called what the query is called.")
    ] = False,
    corpus: Annotated[
        str | None,
        typer.Option(
            "--corpus", metavar="FILE", help="Passages: texts for --query, names of documents for --by source."
        ),
    ] = None,
    tag: Annotated[str, typer.Option("--tag", metavar="NAME", help="Last column of the run.")] = "drtk",
    tune: Annotated[
        bool, typer.Option("--tune", help="Try a grid of k1 and b against --qrels; write a table, the best first.")
    ] = False,
    qrels: Annotated[
        str | None,
        typer.Option(
            "--qrels", metavar="FILE", help="Judgements: search the judged queries alone; what --tune goes by."
        ),
    ] = None,
    expand: Annotated[
        list[str] | None,
        typer.Option(
            "--expand",
            metavar="[KIND=]MODEL",
            help="With --query: expand it with this generator; repeatable, one per kind.",
            show_default=False,
        ),
    ] = None,
    expand_prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--expand-prompt",
            metavar="[KIND=]TEXT",
            help="With --expand: prompt of a generator that was not trained for this (T0, GPT-2). The query replaces …, or comes "
            "first. Repeatable, one per kind.",
            show_default=False,
        ),
    ] = None,
    query_reranker: Annotated[
        list[str] | None,
        typer.Option(
            "--query-reranker",
            metavar="[KIND=]DIR",
            help="With --query: select expansions with this model of drtk rerank-queries train; repeatable.",
            show_default=False,
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option("--candidates", min=1, help="With --query-reranker: expansions per generator. [default: 50]"),
    ] = None,
    *,
    settings: SearchSettings,
    job: FilterJob,
) -> None:
    """Find passages for queries.

    Writes a TREC run: qid Q0 docid rank score tag, best first; equal scores by descending id, as trec_eval orders them.
    Several index folders are searched as parts of one collection.
    """
    from drtk.cli.answering import answer_questions, expanding, plain
    from drtk.cli.tuning import tune_bm25
    from drtk.errors import UsageError
    from drtk.evaluation.runs import judgements_from
    from drtk.io.progress import log
    from drtk.retrieval.asking import QueryEncoder, TextQueries, sort_paths
    from drtk.retrieval.collection import Collection
    from drtk.retrieval.searching import Wanted
    from drtk.settings.core import check_word

    check_word("--tag", tag)
    folders, source = sort_paths(paths)
    if question is not None and (source or by == "source" or job.output != "-"):
        raise UsageError("--query prints passages to the terminal; omit query files, --by source and -o")
    if (tune and qrels is None) or (qrels is not None and question is not None):
        raise UsageError("--tune needs --qrels; use both with query files, not with --query")
    if expand and question is None:
        raise UsageError(
            "--expand needs --query; for query files use drtk expand-queries, then drtk rerank-queries apply"
        )
    if expand_prompt and not expand:
        raise UsageError("--expand-prompt says what the model of --expand MODEL reads")
    if query_reranker and not expand:
        raise UsageError("--query-reranker chooses among what --expand MODEL writes")
    if candidates is not None and not query_reranker:
        raise UsageError("--candidates: without --query-reranker there is one, the likeliest text")
    wanted = Wanted(settings.k or DEPTH, _documents(corpus) if by == "source" else None, drop_same_id)
    collection = Collection(folders, settings)
    if tune:
        if not collection.tunable:
            raise UsageError("--tune chooses k1 and b, which only indexes of words have (bm25, bm25s)")
        tune_bm25(folders, source or "-", str(qrels), wanted, settings=settings, job=job)
        return
    if collection.advised:
        taken = ", ".join(f"{name} {value:g}" for name, value in collection.advised.items())
        log(f"taking {taken}, as {folders[0]} advises")
    encode = QueryEncoder(collection, settings, model) if collection.reads == "vectors" else None
    if question is not None:
        ask, shown = TextQueries(collection, encode), settings.k or ANSWERS
        answer = plain(ask, shown)
        if expand:
            prompts, chosen = expand_prompt or [], query_reranker or []
            answer = expanding(expand, prompts, chosen, candidates, ask, shown, corpus=corpus, device=settings.device)
        answer_questions(question, answer, collection, corpus)
        return
    judged = None if qrels is None else judgements_from(qrels, job.intake)
    _run(source or "-", collection, encode, wanted, tag, judged, settings, job)


def _run(
    source: str,
    collection: Any,
    encode: Any,
    wanted: Any,
    tag: str,
    judged: Mapping[str, Any] | None,
    settings: SearchSettings,
    job: FilterJob,
) -> None:
    from pathlib import Path

    from drtk.errors import MismatchError
    from drtk.io.jsonl import read_queries
    from drtk.io.manifest import folder_entry
    from drtk.io.trec import run_lines
    from drtk.retrieval.asking import StoredQueries, TextQueries

    job.intake.inputs += [folder_entry(folder) for folder in collection.folders]
    queries: Any
    ask: Any
    if Path(source).is_dir():
        queries = ask = StoredQueries(collection, source)
        job.intake.inputs.append(folder_entry(source))
    else:
        queries, ask = _hinted(read_queries(source, intake=job.intake)), TextQueries(collection, encode)
        job.looked_up = (encode.place,) if encode is not None and encode.place else ()

    def work(window: list[Any]) -> Iterator[bytes]:
        empty = ask.empty
        for query_id, ranking in ask(window, wanted):
            yield from run_lines(query_id, ranking, tag)
        if ask.empty > empty:
            job.counts["without a word"] = job.counts.get("without a word", 0) + ask.empty - empty

    job.window = settings.batch
    if judged is not None:
        queries = (query for query in queries if query.id in judged)
        first = next(queries, None)
        if first is None:
            raise MismatchError(f"{source}: has none of the judged queries")
        queries = chain([first], queries)
    job.run(queries, work, unit="queries")


def _hinted(queries: Iterator[Query]) -> Iterator[Query]:
    """Yield the queries; point to --query if stdin begins with plain text."""
    from drtk.errors import RecordError

    try:
        yield from queries
    except RecordError as error:
        if error.place != "<stdin>:1":
            raise
        hint = "for one query per line use --query - (-q is --quiet)"
        raise RecordError(error.place, f"{error.problem}; {hint}") from None


def _documents(corpus: str | None) -> Callable[[str], str]:
    """The document of a passage: by the corpus where one is given, otherwise by the passage's id alone."""
    from functools import cache

    from drtk.io.sources import document_of, source_of
    from drtk.io.store import CorpusStore

    if corpus is None:
        return source_of
    store = CorpusStore.open(corpus)
    return cache(lambda passage_id: document_of(store[passage_id]))

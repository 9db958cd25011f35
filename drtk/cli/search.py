"""drtk search: queries to a run, or one question on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from drtk.cli.decorators import record_filter
from drtk.cli.options import Output, with_settings
from drtk.errors import RecordError, UsageError
from drtk.indexing.config import RUN_DEPTH, SearchSettings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.progress import printable

if TYPE_CHECKING:
    from drtk.indexing.base import Ranking
    from drtk.query_expansion.answer import Chosen
    from drtk.records import Passage, Query
    from drtk.retrieval.queries import TextQueries
    from drtk.retrieval.search import Collection, Wanted
    from drtk.retrieval.tuning import Tuned


class _Opened:
    """Indexes opened with one k1 and b, that answer as the run would: documents or passages, without the query's own."""

    def __init__(self, folders: list[str], settings: SearchSettings, query_ids: list[str], wanted: Wanted) -> None:
        from drtk.retrieval.search import Collection

        self._collection = Collection(folders, settings)
        self._query_ids, self._wanted = query_ids, wanted

    def search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        from drtk.retrieval.search import search

        return search(self._collection, self._query_ids, texts, replace(self._wanted, k=k))


def tune_bm25(
    folders: list[str], source: str, qrels: str, wanted: Wanted, *, settings: SearchSettings, job: FilterJob
) -> None:
    """Write the table `k1 b measure`, the best point first, tab-separated under a header."""
    from drtk.data.checks import JudgedHits
    from drtk.data.jsonl import read_queries
    from drtk.evaluation.evaluate import Evaluator
    from drtk.evaluation.judged_runs import read_judgements
    from drtk.evaluation.measures import parse_measures
    from drtk.retrieval.tuning import parse_grid, tune
    from drtk.runtime.manifest import folder_entry
    from drtk.runtime.progress import Progress

    measures = parse_measures(settings.measure)
    if len(measures) != 1:
        raise UsageError("--measure: name one")
    grid = parse_grid(settings.grid)
    judgements = read_judgements(qrels, job.intake)
    evaluator = Evaluator(judgements, measures)
    judged = JudgedHits(", ".join(folders), judgements)
    queries = [query for query in read_queries(source, intake=job.intake) if query.id in judgements]
    ids = [query.id for query in queries]
    job.intake.inputs += [folder_entry(folder) for folder in folders]

    def measure(_: object, rankings: dict[str, Ranking]) -> float:
        found = {query: [id for id, _ in ranking] for query, ranking in rankings.items()}
        if not judged.found:
            for query, ids in found.items():
                judged.add(query, ids)
        return float(evaluator("tuned", found).overall[measures[0].name])

    with Progress("tune", total=len(grid), unit="points") as progress:
        points = tune(
            lambda k1, b: _Opened(folders, replace(settings, k1=k1, b=b), ids, wanted),  # type: ignore[arg-type,return-value]
            queries,
            judgements,
            grid=grid,
            measure=measure,  # type: ignore[arg-type]
            depth=wanted.k,
            progress=progress,
        )
    judged.warn()
    header = [f"k1\tb\t{measures[0].name}\n".encode()]

    def lines(window: list[Tuned]) -> Iterator[bytes]:
        while header:
            yield header.pop()
        for point in window:
            yield f"{point.k1:g}\t{point.b:g}\t{point.value:.4f}\n".encode()

    job.kind, job.window = "tuning", len(points)
    job.counts["judged queries"] = len(queries)
    job.run(points, lines, unit="points")


SEED = 42  # as drtk expand-queries has it, unless told otherwise
LINES = "-"  # the question that stands for lines of stdin
Answer = Callable[[str], tuple[list[str], "Ranking"]]  # of a question: lines to show before the passages, and these


def answer_questions(question: str, answer: Answer, collection: Collection, corpus: str | None) -> None:
    """Print what `answer` finds for a question, or for each line of stdin, as soon as it has come, under the line itself.

    corpus: where the texts are, in the place of what the index says
    Raises UsageError for an empty question, RecordError for a line that is not UTF-8.
    """
    page = _Page(collection, corpus)
    if question != LINES:
        if not question.strip():
            raise UsageError("--query: the query is empty")
        page.show(question, *answer(question))
        return
    for line in _lines():
        print(page.mark(printable(line)))
        page.show(line, *answer(line))


def plain(ask: TextQueries, k: int) -> Answer:
    """The way a question is answered by searching with it as it is."""
    from drtk.records import Query
    from drtk.retrieval.search import Wanted

    def answer(question: str) -> tuple[list[str], Ranking]:
        ((_, ranking),) = ask([Query("question", question)], Wanted(k))
        return [], ranking

    return answer


def expanding(
    expand: Sequence[str],
    prompts: Sequence[str],
    query_reranker: Sequence[str],
    candidates: int | None,
    ask: TextQueries,
    k: int,
    *,
    corpus: str | None,
    device: str,
) -> Answer:
    """The way a question is answered through generators and query re-rankers, which are loaded here.

    Raises UsageError where they do not go together, and what loading raises.
    """
    from drtk.data.checks import TEXTLESS, warn_of_textless
    from drtk.models.query_reranker_input import reading_of
    from drtk.query_expansion.answer import Chain, expanders_of
    from drtk.query_expansion.config import ExpansionSettings
    from drtk.query_expansion.rerank import ANY, QueryReranker
    from drtk.records import Query
    from drtk.retrieval.search import FoundTexts, Wanted

    models: dict[str, str] = {}
    for kind, model in map(_named, query_reranker):
        if models.setdefault(kind or ANY, model) != model:
            raise UsageError(f"--query-reranker: two are for {f'kind {kind}' if kind else 'all kinds'}")
    settings = ExpansionSettings(decode="greedy", n=1) if not models else ExpansionSettings(n=candidates or 50)
    asked: dict[str, str] = {}
    for kind, text in map(_prompt, prompts):
        if asked.setdefault(kind, text) != text:
            raise UsageError(f"--expand-prompt: two are for {f'kind {kind}' if kind else 'all kinds'}")
    expanders = expanders_of([*map(_named, expand)], settings, prompts=asked, seed=SEED, device=device)
    reranker, texts = None, None
    if models:
        if any(reading_of(model).scorer == "rd" for model in models.values()):
            if len(ask.collection.folders) > 1:
                raise UsageError("--query-reranker: one that reads passages (rd) asks one index of words")
            texts = FoundTexts(ask.collection, corpus=corpus)  # the search's own: what it finds first is what is read
        reranker = QueryReranker(models, device=device, texts=texts)
        for kind in expanders:
            reranker.scorer(kind)  # now, not at the first question

    def search(texts: Sequence[str], depth: int) -> list[Ranking]:
        queries = [Query(f"q{number}", text) for number, text in enumerate(texts)]
        return [ranking for _, ranking in ask(queries, Wanted(depth))]

    chain = Chain(expanders, reranker, search)
    told = False

    def answer(question: str) -> tuple[list[str], Ranking]:
        nonlocal told
        chosen, ranking = chain(question, k)
        if reranker is not None and texts is not None and not told and reranker.looked_up[TEXTLESS]:
            told = True  # once, with the first question that lacks one: stdin may go on for hours
            warn_of_textless(reranker.looked_up, texts.corpus)
        return [_told(each) for each in chosen], ranking

    return answer


def _named(given: str) -> tuple[str, str]:
    """KIND and model of KIND=MODEL; an empty kind where it is a model alone."""
    from pathlib import Path

    kind, separator, model = given.partition("=")
    return ("", given) if not separator or "/" in kind or Path(given).exists() else (kind, model)


def _prompt(given: str) -> tuple[str, str]:
    """KIND and text of KIND=TEXT; an empty kind where no single word stands before the first =."""
    kind, separator, text = given.partition("=")
    return (kind, text) if separator and kind.split() == [kind] else ("", given)


def _told(chosen: Chosen) -> str:
    """A line about the query of one kind."""
    notes = []
    if not chosen.candidates:
        notes.append("nothing was written")
    elif chosen.estimate is not None:
        notes.append(f"estimate {chosen.estimate:.4f}, the lowest of {chosen.candidates}")
    if chosen.seen:
        notes.append("the generator was trained with this question")
    return f"{chosen.kind}: {chosen.query}" + (f"  ({'; '.join(notes)})" if notes else "")


def _lines() -> Iterator[str]:
    """Questions of stdin, each as soon as its line is complete; blank lines are passed over."""
    import sys

    from drtk.runtime.streams import raw_lines

    for number, line in enumerate(raw_lines(sys.stdin.buffer, "<stdin>"), start=1):
        try:
            question = " ".join(line.decode("utf-8-sig" if number == 1 else "utf-8").split())
        except UnicodeDecodeError as error:
            raise RecordError(f"<stdin>:{number}", "not UTF-8") from error
        if question:
            yield question


def _warn_if_corpus_changed(collection: Collection, shown: Sequence[str]) -> None:
    """Warn if the corpus of an index changed after indexing: its texts are then not those that were ranked."""
    from pathlib import Path

    from drtk.data.checks import origins_of
    from drtk.runtime.cache import content_digest
    from drtk.runtime.progress import warn

    paths = {Path(path).resolve() for path in shown}
    for folder, manifest in zip(collection.folders, collection.manifests, strict=True):
        corpus = Path(manifest.get("corpus") or "")
        origins = {origin.digest for origin in origins_of(folder)}
        if corpus.is_file() and corpus.resolve() in paths and origins and content_digest(corpus) not in origins:
            warn(f"{corpus}: changed since {folder} was made; texts may differ from those ranked: index it again")


class _Page:
    """Passages as a person sees them; the corpora are opened once."""

    def __init__(self, collection: Collection, corpus: str | None) -> None:
        import os
        import sys
        from pathlib import Path

        from drtk.data.corpus_store import CorpusStore
        from drtk.runtime.progress import log

        self._named = [corpus] if corpus else sorted({at["corpus"] for at in collection.manifests if at.get("corpus")})
        self._stores = [CorpusStore.open(path) for path in self._named if corpus or Path(path).exists()]
        _warn_if_corpus_changed(collection, self._named)
        self._told = False
        if not self._stores:
            log("ids alone: the corpus is not where the index says, or it says nothing; name it with --corpus FILE")
        styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self.mark: Callable[[str], str] = "\033[1m{}\033[0m".format if styled else str

    def show(self, question: str, before: list[str], ranking: Ranking) -> None:
        """Print the lines before, and the passages with the part of each that speaks of the question."""
        import shutil

        from drtk.retrieval.snippets import shown
        from drtk.runtime.progress import log

        for line in before:
            print(printable(line))
        if not ranking:
            log("nothing found")
        passages = [self._text(id) for id, _ in ranking]
        if self._stores and None in passages and not self._told:
            self._told = True
            log(f"{', '.join(self._named)}: lacks some of these passages; is it the corpus the index was made from?")
        width = shutil.get_terminal_size().columns
        for line in shown(question, ranking, passages, width=width, mark=self.mark):
            print(line, flush=True)

    def _text(self, id: str) -> Passage | None:
        return next((found for store in self._stores if (found := store.get(id)) is not None), None)


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
    from drtk.config import check_word
    from drtk.errors import UsageError
    from drtk.evaluation.judged_runs import read_judgements
    from drtk.retrieval.queries import QueryEncoder, TextQueries, sort_paths
    from drtk.retrieval.search import Collection, Wanted
    from drtk.runtime.progress import log

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
    judged = None if qrels is None else read_judgements(qrels, job.intake)
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

    from drtk.data.jsonl import read_queries
    from drtk.data.trec import run_lines
    from drtk.errors import MismatchError
    from drtk.retrieval.queries import StoredQueries, TextQueries
    from drtk.runtime.manifest import folder_entry

    job.intake.inputs += [folder_entry(folder) for folder in collection.folders]
    queries: Any
    ask: Any
    if Path(source).is_dir():
        queries = ask = StoredQueries(collection, source)
        job.intake.inputs.append(folder_entry(source))
    else:
        queries, ask = _hinted(read_queries(source, intake=job.intake)), TextQueries(collection, encode)
        job.lookups = (encode.place,) if encode is not None and encode.place else ()

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

    from drtk.data.corpus_store import CorpusStore
    from drtk.data.ids import document_id, document_id_of

    if corpus is None:
        return document_id
    store = CorpusStore.open(corpus)
    return cache(lambda passage_id: document_id_of(store[passage_id]))

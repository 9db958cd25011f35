"""drtk search: search indexes; write a run, or print passages."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from drtk.cli.decorators import filter_command
from drtk.cli.options import Output, make_argument, make_option, with_settings
from drtk.config import SEARCH, check_effects
from drtk.errors import DrtkError, RecordError, UsageError
from drtk.indexing.config import RUN_DEPTH, SearchSettings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.runners import RunnerSettings

if TYPE_CHECKING:
    from drtk.retrieval.search import IndexGroup, QueryEncoder

TERMINAL_DEPTH = 5  # passages printed for a typed query


@with_settings(SearchSettings, panel=SEARCH)
@with_settings(RunnerSettings, name="runner_settings")
@filter_command("run")
def search(
    paths: Annotated[
        list[str],
        make_argument(
            "INDEX… [QUERIES]", "One or more index folders, then a file of queries or a folder of query vectors."
        ),
    ],
    output: Output = "-",
    question: Annotated[
        str | None,
        make_option("--query TEXT", "Search for one query and print the passages; - reads queries from stdin."),
    ] = None,
    model: Annotated[
        str | None, make_option("--model MODEL", "Encoder of the queries. [default: as recorded in the index]")
    ] = None,
    by: Annotated[
        Literal["passage", "source"],
        make_option(
            "--by passage|source", "Rank passages, or source documents by their best passage (MaxP).", panel=SEARCH
        ),
    ] = "passage",
    drop_same_id: Annotated[
        bool, make_option("--drop-same-id", "Exclude the document with the query's id.", panel=SEARCH)
    ] = False,
    corpus: Annotated[
        str | None,
        make_option(
            "--corpus FILE",
            "Corpus of the texts to print (--query), or of source ids (--by source). "
            "[default with --query: the indexed corpus]",
        ),
    ] = None,
    tune: Annotated[
        bool, make_option("--tune", "Evaluate a grid of BM25 k1 and b on --qrels; print a table.", panel=SEARCH)
    ] = False,
    qrels: Annotated[
        str | None, make_option("--qrels FILE", "Search only queries with judgments in this file; required by --tune.")
    ] = None,
    *,
    settings: SearchSettings,
    runner_settings: RunnerSettings,
    job: FilterJob,
) -> None:
    """Search indexes for passages.

    Writes a TREC run, best first; ties are ordered by descending id, as in trec_eval. Several indexes are searched as one
    collection.

    Examples:
    drtk search bm25 queries.jsonl -k 100 -o bm25.run
    drtk search dense --query "how do penguins stay warm"
    """
    from drtk.indexing.base import read_index_manifest
    from drtk.retrieval.search import IndexGroup, RankingOptions, make_query_encoder, search_indexes

    folders, source = split_paths(paths)
    for folder in folders:
        check_effects(settings, other_options={"index_type": read_index_manifest(folder).get("type")})
    if question is not None and (source or by == "source" or drop_same_id or job.output != "-"):
        raise UsageError(
            "--query prints passages to the terminal; omit query files, --by source, --drop-same-id and -o"
        )
    if question is not None and (tune or qrels is not None):
        raise UsageError("--tune and --qrels require query files; omit --query")
    if question is None and corpus is not None and by == "passage":
        raise UsageError("--corpus has no effect without --query or --by source; omit it")
    if (question is not None or tune) and runner_settings.runner != "local":
        raise UsageError("--runner has no effect with --query or --tune; omit it")
    if tune and qrels is None:
        raise UsageError("--tune requires --qrels")
    if tune and model is not None:
        raise UsageError("--model has no effect with --tune, which requires a BM25 index; omit it")
    if question is not None:
        collection = IndexGroup(folders, settings)
        encoder = make_query_encoder(collection, settings, model)
        search_and_print(question, collection, encoder, settings.depth or TERMINAL_DEPTH, corpus)
        return
    options = RankingOptions(
        settings.depth or RUN_DEPTH, _get_document_mapper(corpus) if by == "source" else None, drop_same_id
    )
    try:
        if tune:
            from drtk.evaluation.tuning import tune_bm25

            grid = tune_bm25(folders, source or "-", str(qrels), options, settings, job.tracker)
            job.kind, job.batch_size, job.counts["judged queries"] = "tuning", len(grid.scores), grid.num_queries
            job.run(grid.scores, lambda _: grid.to_lines(), unit="points")
        else:
            search_indexes(
                folders,
                source or "-",
                settings,
                job,
                options=options,
                model=model,
                qrels=qrels,
                runner_settings=runner_settings,
            )
    except RecordError as error:
        if error.place != "<stdin>:1" or qrels == "-":
            raise
        hint = "for one query per line use --query - (-q is --quiet)"
        raise RecordError(error.place, f"{error.problem}; {hint}") from None


def split_paths(paths: Sequence[str]) -> tuple[list[str], str | None]:
    """Split paths into index folders and the one source of queries: a file, "-", an embeddings folder, or None.

    Raises UsageError for no index, an index given twice, or more than one source; DrtkError for a missing path;
    MismatchError for a folder of another kind.
    """

    from drtk.data.embeddings import KIND, SPARSE_KIND
    from drtk.indexing.base import read_index_manifest
    from drtk.runtime.manifest import has_unfinished_part, read_manifest, read_manifest_if_any
    from drtk.runtime.progress import is_quiet

    folders, sources = [], []
    for path in paths:
        if path != "-" and not Path(path).exists():
            if has_unfinished_part(Path(path)):
                read_manifest(path)  # raises MismatchError
            is_text = is_quiet() or any(map(str.isspace, path))
            hint = "; for a typed query use --query TEXT (-q is --quiet)" if is_text else ""
            raise DrtkError(f"{path}: No such file or directory{hint}")
        folder_kind = None if path == "-" else read_manifest_if_any(Path(path)).get("kind")
        if path == "-" or not Path(path).is_dir() or folder_kind in (KIND, SPARSE_KIND):
            sources.append(path)
        else:
            read_index_manifest(path)
            folders.append(path)
    if not folders:
        raise UsageError(f"{paths[0]}: not an index; make one with drtk index")
    if len(folders) > len(set(folders)):
        raise UsageError("an index folder is given twice; give each folder only once")
    if len(sources) > 1:
        raise UsageError(f"give only one query source, got {' and '.join(sources)}")
    return folders, sources[0] if sources else None


def _get_document_mapper(corpus: str | None) -> Callable[[str], str]:
    """Return a function that maps a passage id to its document id: `metadata.source_id` in `corpus`, else the part before #."""
    from drtk.data.corpus_store import CorpusStore
    from drtk.records import get_document_id, parse_document_id

    if corpus is None:
        return parse_document_id
    store = CorpusStore.open(corpus)
    return cache(lambda passage_id: get_document_id(store[passage_id]))


def search_and_print(
    question: str, collection: IndexGroup, encoder: QueryEncoder | None, k: int, corpus: str | None
) -> None:
    """Search for a query, or for each line of stdin if it is "-", and print the `k` best passages.

    corpus: file with the texts, by default the corpus that is recorded in the index
    Raises UsageError for an empty query, RecordError for a line that is not UTF-8, MismatchError for an id of different passages.
    """
    from drtk.records import Query
    from drtk.retrieval.passage_lookup import PassageLookup
    from drtk.retrieval.search import RankingOptions, TextQuerySearcher
    from drtk.retrieval.snippets import format_passages
    from drtk.runtime.progress import escape_control_characters, log

    if not question.strip():
        raise UsageError("--query: the query is empty; give its text, or - for stdin")
    searcher = TextQuerySearcher(collection, encoder)
    lookup = PassageLookup(collection, corpus)
    if not lookup.names:
        log("printing ids only: the corpus of the index is not recorded or does not exist; give it with --corpus FILE")
    use_bold = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    highlight: Callable[[str], str] = "\033[1m{}\033[0m".format if use_bold else str
    has_warned = False
    for text in [question] if question != "-" else _iter_stdin_lines():
        if question == "-":
            print(highlight(escape_control_characters(text)))
        ((_, ranking),) = searcher([Query("query", text)], RankingOptions(k))
        if not ranking:
            log("no passages found")
        passages = [lookup.get(id) for id, _ in ranking]
        if lookup.names and None in passages and not has_warned:
            has_warned = True
            log(f"{', '.join(lookup.names)}: some retrieved passages are missing; is this the corpus of the index?")
        width = shutil.get_terminal_size().columns
        for line in format_passages(text, ranking, passages, width=width, highlight=highlight):
            print(line, flush=True)


def _iter_stdin_lines() -> Iterator[str]:
    """Yield the lines of stdin as they arrive, except blank lines."""
    from drtk.runtime.streams import read_lines

    for number, line in read_lines(sys.stdin.buffer, "<stdin>"):
        try:
            text = " ".join(line.decode().split())
        except UnicodeDecodeError as error:
            raise RecordError(f"<stdin>:{number}", "not UTF-8; encode queries as UTF-8") from error
        if text:
            yield text

"""Read judgments and run files, and evaluate runs against the judgments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from drtk.data.checks import JudgedHitCounter
from drtk.data.readers import load_qrels
from drtk.data.runs import NamedRun
from drtk.data.trec import Judgments, load_hits
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.evaluation.config import EvalSettings, ScoringSettings
from drtk.evaluation.evaluate import Evaluation, Evaluator, RankingBuilder, log_shallow_runs
from drtk.evaluation.measures import parse_measures
from drtk.evaluation.metrics import JudgedRanks
from drtk.evaluation.result_table import format_results
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import log, log_detail, warn
from drtk.runtime.streams import STANDARD, get_source_name

if TYPE_CHECKING:
    from drtk.data.corpus_store import CorpusStore
    from drtk.data.run_blocks import JudgedDocuments

MEASURES = "nDCG@10 RR@10 R@10 R@100 Success@10"
RelevanceSource = Literal["judgments", "answers"]  # what decides which passages are relevant, as named in messages
MIN_BLOCK_BYTES = 1 << 20  # smaller files are read line by line, which is faster than loading numpy


def read_judgments(
    source: str, tracker: InputTracker, *, corpus: CorpusStore | None = None, by_source: bool = False
) -> Judgments:
    """Read relevance judgments; with `corpus`, warn about judged documents that are not in the corpus.

    by_source: the judgments are of source documents, not of passages
    Raises DrtkError for a file without judgments, RecordError (file:line) for an invalid line.
    """
    judgments = load_qrels(source, tracker=tracker)
    if not judgments:
        raise DrtkError(f"{get_source_name(source)}: no judgments found; expected a file of judgments")
    if corpus is not None:
        judged = list({id for grades in judgments.values() for id in grades})
        absent = [id for id in judged if not corpus.has_document(id)] if by_source else corpus.find_missing(judged)
        if absent:
            warn(
                f"{get_source_name(source)}: {len(absent):,} of {len(judged):,} judged {'documents' if by_source else 'passages'} "
                f"are not in the corpus, for example '{min(absent)}'; pass the corpus of these judgments"
            )
    return judgments


def load_judgments(
    qrels: str, corpus: str | None, settings: ScoringSettings, tracker: InputTracker
) -> tuple[Judgments, RankingBuilder]:
    """Return the judgments and a ranking builder. corpus: used to check ids, and to find the documents of passages"""
    by_source = settings.by == "source"
    if corpus is None:
        return read_judgments(qrels, tracker, by_source=by_source), RankingBuilder.from_settings(settings)
    from drtk.data.corpus_store import open_corpus

    store = open_corpus(corpus, tracker)
    judgments = read_judgments(qrels, tracker, corpus=store, by_source=by_source)
    return judgments, RankingBuilder.from_settings(settings, document_of=lru_cache(1 << 20)(store.get_document_id))


@dataclass(frozen=True)
class JudgedRankings:
    """Rankings of the judged queries of a run. ids: ranked document ids by query; tag: run tag"""

    ids: dict[str, list[str]]
    tag: str


def read_rankings(
    run: NamedRun,
    judgments: Judgments,
    builder: RankingBuilder,
    tracker: InputTracker,
    *,
    judged_by: RelevanceSource = "judgments",
) -> JudgedRankings:
    """Read the rankings of the judged queries of a run; warn if the run is empty or retrieves no judged document.

    judged_by: with "answers", do not check whether judged documents are retrieved
    Raises MismatchError if the run has only unjudged queries, UsageError if it ranks passages but documents are judged.
    """
    unjudged: dict[str, None] = {}
    hits_by_query = load_hits(run.source, tracker=tracker, only=judgments, others=unjudged)
    if not hits_by_query and not unjudged:
        warn(f"{run.name}: the run is empty")
    elif not hits_by_query:
        raise MismatchError(
            f"{get_source_name(run.source)}: no query has {judged_by} (run: '{next(iter(unjudged))}', {judged_by}: "
            f"'{next(iter(judgments))}'); pass the {judged_by} of these queries"
        )
    _log_unjudged_queries(run.name, len(unjudged), judged_by)
    tag = next((hits.tags[0] for hits in hits_by_query.values()), "")
    if judged_by == "judgments":
        judged = JudgedHitCounter(run.name, judgments, to_document=builder.by)
        if not any(judged.add(query, hits.doc_ids) for query, hits in hits_by_query.items()):
            judged.report_problem()
    # `pop` frees memory
    return JudgedRankings({query: builder(hits_by_query.pop(query)) for query in list(hits_by_query)}, tag)


def evaluate_run(
    run: NamedRun, evaluator: Evaluator, builder: RankingBuilder, tracker: InputTracker, *, retrieved_only: bool = False
) -> Evaluation:
    """Evaluate a run.

    A large file is read in blocks if the measures depend only on the ranks of judged documents, passages are ranked by
    score, and bad lines are not skipped.
    """
    is_large = (
        run.source != STANDARD and Path(run.source).is_file() and Path(run.source).stat().st_size >= MIN_BLOCK_BYTES
    )
    if (
        is_large
        and not evaluator.needs_rankings
        and builder.by is None
        and builder.order == "score"
        and not tracker.skip_bad
    ):
        from drtk.data.run_blocks import UnsupportedRunError

        try:
            return _evaluate_in_blocks(run, evaluator, builder, tracker, retrieved_only)
        except (UnsupportedRunError, RecordError):  # read line by line, which reports the line of an error
            log_detail(f"{run.name}: reading line by line")
    rankings = read_rankings(run, evaluator.judgments, builder, tracker)
    log_missing_queries(run.name, len(rankings.ids), len(evaluator.judgments), retrieved_only=retrieved_only)
    return evaluator(run.name, rankings.ids, retrieved_only=retrieved_only, tag=rankings.tag)


def evaluate_runs(
    runs: Sequence[NamedRun],
    qrels: str,
    corpus: str | None = None,
    settings: EvalSettings | None = None,
    tracker: InputTracker | None = None,
) -> Iterator[str]:
    """Evaluate runs with a file of judgments; return the lines of the results (see `format_results`)."""
    settings, tracker = settings or EvalSettings(), tracker or InputTracker()
    measures = parse_measures(MEASURES if settings.measures is None else settings.measures, rel=settings.rel)
    judgments, builder = load_judgments(qrels, corpus, settings, tracker)
    evaluator = Evaluator(judgments, measures)
    results = [evaluate_run(run, evaluator, builder, tracker, retrieved_only=settings.retrieved_only) for run in runs]
    log_shallow_runs(results, measures)
    return format_results(results, measures, settings)


def _evaluate_in_blocks(
    run: NamedRun, evaluator: Evaluator, builder: RankingBuilder, tracker: InputTracker, retrieved_only: bool
) -> Evaluation:
    """Evaluate a run that is read in blocks. Raises UnsupportedRunError for a run that must be read line by line."""
    from drtk.data.run_blocks import UnsupportedRunError, iter_judged_documents

    num_unjudged, ranks, tag = 0, {}, ""
    for documents in iter_judged_documents(run.source, evaluator.judgments, tracker):
        if documents is None:
            num_unjudged += 1
            continue
        ranks[documents.query_id] = _find_judged_ranks(documents, evaluator.judgments[documents.query_id], builder)
        tag = tag or documents.tag
    if not any(judged.ranks for judged in ranks.values()):
        raise UnsupportedRunError
    _log_unjudged_queries(run.name, num_unjudged)
    log_missing_queries(run.name, len(ranks), len(evaluator.judgments), retrieved_only=retrieved_only)
    return evaluator.evaluate_judged_ranks(run.name, ranks, retrieved_only=retrieved_only, tag=tag)


def _find_judged_ranks(documents: JudgedDocuments, grades: Mapping[str, int], builder: RankingBuilder) -> JudgedRanks:
    judged = [id for id in documents.ranks if id in grades]
    ranks = JudgedRanks([documents.ranks[id] for id in judged], [grades[id] for id in judged], documents.length)
    if builder.drop_same_id and documents.query_id in documents.ranks:
        ranks = ranks.remove(documents.ranks[documents.query_id])
    return ranks.truncate(builder.depth)


def _log_unjudged_queries(name: str, count: int, judged_by: RelevanceSource = "judgments") -> None:
    if count:
        log_detail(f"{name}: ignored {count:,} {'query' if count == 1 else 'queries'} without {judged_by}")


def log_missing_queries(
    name: str,
    num_present: int,
    num_judged: int,
    *,
    retrieved_only: bool,
    judged_by: RelevanceSource = "judgments",
    where: str = "in the run",
) -> None:
    """Log the number of judged queries without a ranking or prediction, and whether they count as 0.

    where: phrase for the log message, such as "in the run"
    """
    if missing := num_judged - num_present:
        fate = "are ignored" if retrieved_only else "count as 0"
        log(f"{name}: {missing:,} of {num_judged:,} queries with {judged_by} are not {where} and {fate}")

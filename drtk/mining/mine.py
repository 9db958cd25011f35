"""Run a mining job: check the settings, open the inputs, and write training examples, audit and report."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from drtk.config import to_dict
from drtk.data.checks import CorpusOrigin, check_origin, describe_missing_texts, warn_if_texts_missing
from drtk.data.ids import CorpusIds
from drtk.data.readers import read_queries
from drtk.data.rows import dump
from drtk.errors import UsageError
from drtk.indexing.config import RUN_DEPTH
from drtk.mining import MINING
from drtk.mining.audit import Audit, check_target
from drtk.mining.candidates import MiningQuery
from drtk.mining.config import ENCODER_OPTIONS, INDEX_OPTIONS, SCORE_LIMITS, MineSettings, MiningInputs
from drtk.mining.filters import LOOKED_UP, ContentFilter, build_score_filters
from drtk.mining.miner import WITHOUT_ANSWERS, WITHOUT_NEGATIVES, WITHOUT_POSITIVES, Miner
from drtk.mining.policies import Policy
from drtk.mining.sources import QueryStream, Sources, parse_sources, read_judgments
from drtk.runtime.filter_job import FilterJob, WindowResult
from drtk.runtime.manifest import describe_folder
from drtk.runtime.progress import log, warn
from drtk.runtime.streams import STANDARD, is_stream

WINDOW = 100  # queries; each may have thousands of hits in every run


def mine_negatives(
    inputs: MiningInputs,
    settings: MineSettings,
    job: FilterJob,
    *,
    seed: int = 42,
    audit: str | None = None,
    report: str | None = None,
) -> None:
    """Mine hard negatives, and write a training example for each query; optionally write an audit and a report.

    audit: file of JSON lines, one per query, with the outcome of every candidate
    report: file of the report, an HTML page if its name ends in .html, else text; "-" is stdout
    Raises UsageError for a missing input or a setting without effect, DrtkError if there are no examples.
    """
    job.record(settings, **to_dict(inputs), seed=seed, audit=audit, report=report)
    for path in (audit, None if report == STANDARD else report):
        if path is not None:
            check_target(path, job)
    rows: Audit | None = None
    if audit is not None:
        rows = Audit(audit, job, scratch=False)
    elif report is not None:
        rows = Audit(f"{job.output}.report" if report == STANDARD else report, job, scratch=True)
    miner = open_miner(inputs, settings, job, seed=seed, has_report=report is not None)

    def mine_window(window: list[MiningQuery]) -> list[bytes]:
        pools = miner.mine(window)
        if rows is not None:
            rows.add(pools)
        return [dump(pool.example) for pool in pools if pool.example is not None]

    def mine(windows: Iterable[list[MiningQuery]]) -> Generator[WindowResult, None, None]:
        for window in windows:
            yield WindowResult(mine_window(window))
        if rows is not None:
            if report is not None:
                from drtk.mining.report import write_report

                write_report(report, rows.read(), corpus=inputs.corpus, queries=inputs.queries)
            rows.commit()

    def find_problem(num_examples: int) -> str | None:
        textless = describe_missing_texts(job.counts.get(LOOKED_UP, {}), str(inputs.corpus))
        no_examples = None if num_examples else explain_no_examples(job.counts)
        return textless or no_examples or miner.find_id_mismatch()

    job.window = settings.batch_size if miner.queries.indexes else WINDOW
    job.no_input = "there are no queries to mine"
    job.find_problem = find_problem
    with rows or nullcontext():
        job.run_windows(iter(miner.queries), mine, unit="queries")
    warn_if_texts_missing(job.counts.get(LOOKED_UP, {}), str(inputs.corpus))
    for problem in miner.find_unjudged_sources():
        warn(problem)
    passages = job.counts.get("passages", {})
    if num_random := passages.get("random"):
        total, minimum = num_random + passages["kept"], miner.policy.min_negatives
        log(f"added {num_random:,} random passages to reach `min_negatives={minimum}`; {total:,} negatives in all")
    if dropped := job.counts.get("dropped"):
        log("dropped: " + ", ".join(f"{count:,} by {name}" for name, count in dropped.items()))


def open_miner(
    inputs: MiningInputs, settings: MineSettings, job: FilterJob, *, seed: int, has_report: bool = False
) -> Miner:
    """Check the settings, and open sources, judgments, corpus and models.

    has_report: also measure the values that are only used by the report
    Raises UsageError for a missing input or a setting without effect.
    """
    policy: Policy = MINING.load(settings.policy)
    overrides = {name: getattr(settings, name) for name in ("negatives", "min_negatives", "depth", "ce_margin")}
    policy = replace(policy, **{name: value for name, value in overrides.items() if value is not None})
    sources = parse_sources(inputs.sources, job.tracker, name=settings.source_name)
    _check_inputs(inputs, settings, policy, sources, has_report=has_report)
    score_filters = build_score_filters(settings, [name for name in sources.names if name not in sources.examples])
    by_source = settings.by == "source"
    corpus = None if inputs.corpus is None else _read_corpus(inputs.corpus, inputs, sources, job)
    judgments = None
    if inputs.qrels is not None:
        judgments = read_judgments(inputs.qrels, corpus=corpus, by_source=by_source, tracker=job.tracker)
    queries = QueryStream(
        sources, job.tracker, job.counts, corpus, judgments, policy.answers, by_source, queries=inputs.queries
    )
    if sources.indexes:
        from drtk.mining.index_search import IndexSearch

        # If documents were judged, their best-ranked passage may be below the policy's depth: search as deep as a run.
        depth = policy.depth and max(policy.depth, RUN_DEPTH) if by_source else policy.depth
        queries.indexes = IndexSearch(sources.indexes, settings, inputs, depth=depth, corpus=corpus)
        if not queries.indexes.encodes_texts:
            reason = "has no effect: no dense index is searched with `queries`; omit it"
            _check_no_effect(settings, ENCODER_OPTIONS, reason, model=inputs.model)
    job.tracker.inputs += [describe_folder(folder) for folder in (inputs.vectors, inputs.query_vectors) if folder]
    if policy.min_negatives and settings.min_negatives is None and corpus is None:
        log(f"no random passages are added to reach {policy.min_negatives} negatives, because `corpus` is not given")
    miner = Miner(queries, policy, seed, settings.rel, job.counts, not settings.scorer, score_filters)
    _add_content_filters(miner, inputs, settings, job, has_report=has_report)
    from_index = queries.indexes is not None and queries.indexes.needs_text
    needs_text = policy.answers or settings.scorer or has_report or from_index
    if needs_text and inputs.queries is not None and (queries.indexes is None or queries.indexes.stored is not None):
        records = read_queries(inputs.queries, tracker=job.tracker)
        queries.texts = {query.id: query for query in records if queries.may_have_positives(query.id)}
    return miner


def _check_no_effect(settings: MineSettings, names: Iterable[str], reason: str, **inputs: str | None) -> None:
    """Raise UsageError if one of the settings `names` differs from its default, or one of `inputs` is given."""
    changed = [name for name in names if getattr(settings, name) != getattr(MineSettings, name)]
    changed += [name for name, value in inputs.items() if value is not None]
    if changed:
        raise UsageError(f"`{changed[0]}` {reason}")


def _check_inputs(
    inputs: MiningInputs, settings: MineSettings, policy: Policy, sources: Sources, *, has_report: bool
) -> None:
    """Raise UsageError for a missing input or a setting without effect."""
    has_texts = inputs.queries is not None and inputs.corpus is not None
    only_examples = len(sources.examples) == len(sources.names)
    by_ce = policy.ce_margin is not None or settings.ce_max is not None
    reads_texts = bool(policy.answers or settings.scorer or has_report)
    for is_missing, problem in (
        (inputs.qrels is None and not policy.answers and not sources.examples,
         "`qrels` is required, unless a source contains training examples or `policy=nq` is set"),
        (policy.answers and not has_texts, f"`policy={settings.policy}` requires `queries` and `corpus` to match answers"),
        (settings.scorer and not has_texts, "`scorer` requires `queries` and `corpus`"),
        (settings.min_negatives and inputs.corpus is None, "`min_negatives` requires `corpus` to sample random passages from"),
        (settings.max_overlap is not None and inputs.corpus is None, "`max_overlap` requires `corpus`"),
        (settings.max_cosine is not None and inputs.vectors is None,
         "`max_cosine` requires `vectors`, a folder of `drtk encode`"),
        (by_ce and not settings.scorer and (not only_examples or policy.min_negatives),
         "`ce_margin`, `ce_max` and `policy=sbert` require `scorer`, unless all sources are training examples with scores"),
        (inputs.corpus is not None and is_stream(inputs.corpus) and reads_texts,
         "`corpus` is a stream, in which passages cannot be looked up by id; give the path of a file"),
    ):  # fmt: skip
        if is_missing:
            raise UsageError(problem)
    if not (policy.answers or (has_report and has_texts)):
        reason = "requires `policy=nq`, or `report` with `queries` and `corpus`"
        _check_no_effect(settings, ("match", "match_title"), reason)
    if not sources.indexes:
        reason = "requires an index as a source"
        _check_no_effect(settings, INDEX_OPTIONS, reason, model=inputs.model, query_vectors=inputs.query_vectors)
    if only_examples:
        reason = "requires a run or index as a source; filter training examples by `ce_margin` or `ce_max`"
        _check_no_effect(settings, SCORE_LIMITS, reason)
    elif sources.examples:
        limits = ("from_rank", *SCORE_LIMITS)
        names = [f"`{name}`" for name in limits if getattr(settings, name) != getattr(MineSettings, name)]
        if names:
            log(f"{', '.join(names)}: applied to runs and indexes only, not to training examples")


def _read_corpus(corpus: str, inputs: MiningInputs, sources: Sources, job: FilterJob) -> CorpusIds:
    """Return the ids of the corpus. Raises MismatchError if a source was built from another corpus."""
    ids = CorpusIds.load(corpus, job.tracker)
    digest = next((entry.get("digest") for entry in job.tracker.inputs if entry["path"] == corpus), None)
    if digest and not inputs.skip_corpus_check and not is_stream(corpus):
        for path in [*sources.paths, *filter(None, [inputs.vectors])]:
            if not is_stream(path):
                check_origin(path, CorpusOrigin(corpus, digest))
    return ids


def _add_content_filters(
    miner: Miner, inputs: MiningInputs, settings: MineSettings, job: FilterJob, *, has_report: bool
) -> None:
    """Add the content filters that the settings select; with `has_report`, also those that only measure."""
    policy, filters, measures = miner.policy, miner.content_filters, list[ContentFilter]()
    by_ce = policy.ce_margin is not None or settings.ce_max is not None
    reads_texts = policy.answers or settings.scorer or settings.max_overlap is not None or has_report
    if not (reads_texts or by_ce or inputs.vectors is not None):
        return
    from drtk.mining.content_filters import (
        AnswerFilter,
        CosineFilter,
        CrossEncoderFilter,
        OverlapFilter,
        PassageTexts,
        VectorsById,
    )

    if inputs.corpus is not None and reads_texts:
        miner.texts = PassageTexts(inputs.corpus)
        if inputs.queries is not None and (policy.answers or has_report):
            counts = job.counts if policy.answers else {}
            answers = AnswerFilter(miner.texts, settings.match, title=settings.match_title, counts=counts)
            if policy.answers:
                miner.answers = answers
            else:
                measures.append(answers)
        overlap = OverlapFilter(miner.texts, settings.max_overlap)
        (measures if settings.max_overlap is None else filters).append(overlap)
    if inputs.vectors is not None:
        cosine = CosineFilter(VectorsById(inputs.vectors), settings.max_cosine)
        (measures if settings.max_cosine is None else filters).append(cosine)
    if has_report:
        miner.measures += measures
    if settings.scorer or by_ce:
        scorer, title = None, "none"
        if settings.scorer:
            from drtk.models.cross_encoder import load_scorer
            from drtk.models.model_folder import locate

            scorer, title = load_scorer(settings.scorer, settings, device=settings.device)
            job.lookups = (str(locate(settings.scorer)),)  # the output is outdated if this folder changes
        ce = CrossEncoderFilter(scorer, miner.texts, margin=policy.ce_margin, max_value=settings.ce_max, title=title)
        # Without a limit the scores are still computed, because examples contain them.
        (filters if by_ce else miner.measures).append(ce)


def explain_no_examples(counts: Mapping[str, Any]) -> str:
    """Return the error message for an empty output, with the number of skipped queries and candidates by reason."""
    reasons = [name for name in (WITHOUT_ANSWERS, WITHOUT_POSITIVES, WITHOUT_NEGATIVES) if counts.get(name)]
    why = ", ".join(f"{counts[name]:,} {name.replace('_', ' ')}" for name in reasons)
    if counts.get("positives_not_found"):
        why += f" ({counts['positives_not_found']:,} positives not found)"
    passages = counts.get("passages", {})
    outcomes = [f"{count:,} dropped by {name}" for name, count in counts.get("dropped", {}).items()]
    if passages.get("became_positives"):
        outcomes.append(f"{passages['became_positives']:,} became positives")
    if passages.get("not_drawn"):
        outcomes.append(f"{passages['not_drawn']:,} not sampled")
    candidates = f" (of {passages['candidates']:,} candidates {', '.join(outcomes)})" if outcomes else ""
    return f"no training examples were mined: {why}{candidates}"

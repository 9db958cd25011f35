"""Mine hard negatives: filter the candidates of each query, sample negatives, and write training examples."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from random import Random
from typing import Any

from drtk.config import list_changed_fields, require_defaults, to_dict
from drtk.data.checks import (
    JudgedHitCounter,
    check_same_corpus,
    describe_missing_texts,
    warn_if_texts_missing,
)
from drtk.data.corpus_store import open_corpus
from drtk.data.readers import read_queries
from drtk.data.rows import dump
from drtk.errors import UsageError
from drtk.indexing.config import RUN_DEPTH
from drtk.mining import MINING
from drtk.mining.audit import Audit, check_output_path
from drtk.mining.candidates import CE, Candidate, CandidatePool, Hits, MiningQuery, Rejection
from drtk.mining.config import ENCODER_OPTIONS, INDEX_OPTIONS, SCORE_LIMITS, MineSettings, MiningInputs
from drtk.mining.content_filters import (
    AnswerFilter,
    CosineFilter,
    CrossEncoderFilter,
    OverlapFilter,
    PassageCache,
    VectorsById,
)
from drtk.mining.filters import ANSWER_CHECKS, ContentFilter, ScoreFilter, build_score_filters
from drtk.mining.policies import Policy, sample_random_ids
from drtk.mining.sources import IndexSearch, MiningSources, QueryStream, parse_sources, read_judgments
from drtk.records import Example, parse_document_id
from drtk.runtime.filter_job import BatchResult, FilterJob
from drtk.runtime.manifest import describe_folder
from drtk.runtime.progress import log, warn
from drtk.runtime.streams import STANDARD

BATCH_SIZE = 100  # queries; each may have thousands of hits in every run
RANDOM = "random"  # source name of random passages
WITHOUT_ANSWERS, WITHOUT_POSITIVES, WITHOUT_NEGATIVES = "without answers", "without positives", "without negatives"
JUDGED_HITS = "queries with judged hits"  # by source
MAX_ATTEMPTS = 10  # of sampling random passages, if filters reject some


@dataclass
class Miner:
    """Miner of training examples from queries and their hits. Sampling depends only on the seed and the query id.

    rel: minimum relevance grade of a positive
    use_example_scores: use the cross-encoder scores recorded in training examples
    score_filters, content_filters: filters that reject candidates, in the order of application
    answers: filter that finds passages with an answer, which become positives; None: keep them as candidates
    measuring_filters: content filters that reject nothing; their values are written to the audit, and
        cross-encoder scores also to the examples
    passages: passages of the corpus, if a content filter reads them
    """

    queries: QueryStream
    policy: Policy
    seed: int
    rel: int = 1
    use_example_scores: bool = True
    score_filters: Sequence[ScoreFilter] = ()
    answers: ContentFilter | None = None
    content_filters: list[ContentFilter] = field(default_factory=list)
    measuring_filters: list[ContentFilter] = field(default_factory=list)
    passages: PassageCache | None = None
    _judged: dict[str, JudgedHitCounter] = field(default_factory=dict, init=False)

    @property
    def document_of(self) -> Callable[[str], str] | None:
        """Function from passage id to document id if documents were judged; None if passages were judged."""
        corpus = self.queries.corpus
        if not self.queries.by_source:
            return None
        return parse_document_id if corpus is None else corpus.get_document_id

    def mine(self, batch: Sequence[MiningQuery]) -> list[CandidatePool]:
        """Mine a batch of queries; return one pool per query, with an `example` unless the query was skipped."""
        if self.queries.indexes is not None:
            batch = self.queries.indexes.search(batch, self.queries.sources.names)
        pools = [self.build_pool(query) for query in batch]
        if self.answers is not None:
            self.promote_answers(pools, self.answers)
        for pool in pools:
            if not pool.skipped and not pool.positives:
                pool.skipped = WITHOUT_POSITIVES
        active = [pool for pool in pools if not pool.skipped]
        for reject in self.score_filters:
            for pool in active:
                reject(pool)
        for content_filter in self.content_filters:
            rejections = content_filter.find_rejections(active, [pool.unique_candidates() for pool in active])
            for pool, pool_rejections in zip(active, rejections, strict=True):
                pool.reject(pool_rejections)
        for pool in active:
            rng = Random(f"{self.seed}\0{pool.query_id}")
            pool.negatives = self.policy.sample(pool.candidates, self.policy.negatives, rng)
        self.add_random_passages(active)
        for content_filter in self.measuring_filters:
            content_filter.measure_passages(active, [[negative.id for negative in pool.negatives] for pool in active])
        if self.passages is not None:
            self.passages.clear()
        for pool in pools:
            pool.example = self.build_example(pool)
            self._count_judged_hits(pool)
            self._count_outcomes(pool)
        return pools

    def build_pool(self, query: MiningQuery) -> CandidatePool:
        """Return the positives and candidates of a query: all other hits down to rank `policy.depth` of each source.

        If documents were judged, other passages of relevant documents are not candidates.
        """
        relevant = self.find_relevant_ids(query.query_id)
        depth, document_of = self.policy.depth, self.document_of
        judged = relevant if document_of is None else self._find_passage_ids(relevant, query.hits.values(), document_of)
        positives = list(dict.fromkeys((*judged, *query.positives)))
        excluded = {*relevant, *positives}
        candidates = {}
        for source, hits in query.hits.items():
            ids, scores = hits.ids[:depth], hits.scores[:depth]
            candidates[source] = [
                Candidate(id, source, rank, score)
                for rank, (id, score) in enumerate(zip_longest(ids, scores), start=1)
                if id not in excluded and (document_of is None or document_of(id) not in excluded)
            ]
        pool = CandidatePool(query, positives, len(positives), candidates)
        if self.use_example_scores:
            for id, ce in query.ce_scores.items():
                pool.set_value(id, CE, ce)
        pool.num_candidates = len({candidate.id for candidate in pool.all_candidates()})
        return pool

    def find_relevant_ids(self, query_id: str) -> list[str]:
        """Return the ids of relevant passages (or documents, if documents were judged), highest grade first."""
        grades = (self.queries.judgments or {}).get(query_id, {})
        return sorted((id for id in grades if grades[id] >= self.rel), key=grades.__getitem__, reverse=True)

    def _find_passage_ids(
        self, documents: Sequence[str], hits: Iterable[Hits], document_of: Callable[[str], str]
    ) -> list[str]:
        """Return one passage id per document: its top-ranked passage in the first source that retrieved it.

        A document that no source retrieved is represented by its only passage; it is omitted if it has several
        or no corpus is given.
        """
        best: dict[str, str] = {}
        relevant = set(documents)
        for id in (id for source_hits in hits for id in source_hits.ids):
            if (document := document_of(id)) in relevant:
                best.setdefault(document, id)
        positives, corpus = [], self.queries.corpus
        for document in documents:
            passages = [best[document]] if document in best else list(corpus.iter_document(document) if corpus else ())
            if len(passages) == 1:
                positives += passages
            else:
                self._add_count("positives not found")
        return positives

    def promote_answers(self, pools: Sequence[CandidatePool], answers: ContentFilter) -> None:
        """Turn candidates that contain an answer into positives; mark queries without answers as skipped."""
        for pool in pools:
            if not (pool.query.query and any(pool.query.query.answers or ())):
                pool.skipped = WITHOUT_ANSWERS
        active = [pool for pool in pools if not pool.skipped]
        matches = answers.find_rejections(active, [pool.unique_candidates() for pool in active])
        for pool, pool_matches in zip(active, matches, strict=True):
            pool.promote([match.candidate.id for match in pool_matches])

    def add_random_passages(self, pools: Sequence[CandidatePool]) -> None:
        """Add random passages until each query has `policy.min_negatives` negatives.

        Passages that a content filter rejects are replaced by new ones, in up to MAX_ATTEMPTS attempts.
        """
        filters = [*([self.answers] if self.answers else []), *self.content_filters]
        for attempt in range(MAX_ATTEMPTS if filters else 1):
            samples = [self.sample_random(pool, attempt) for pool in pools]
            pools = [pool for pool, passages in zip(pools, samples, strict=True) if passages]
            samples = [passages for passages in samples if passages]
            rejected: list[dict[str, Rejection]] = [{} for _ in pools]
            for content_filter in filters:
                for by_id, rejections in zip(rejected, content_filter.find_rejections(pools, samples), strict=True):
                    for rejection in rejections:
                        by_id.setdefault(rejection.candidate.id, rejection)
            for pool, passages, by_id in zip(pools, samples, rejected, strict=True):
                pool.negatives = [*pool.negatives, *(passage for passage in passages if passage.id not in by_id)]
                pool.rejected_random |= by_id
            pools = [pool for pool, by_id in zip(pools, rejected, strict=True) if by_id]
            if not pools:
                break

    def sample_random(self, pool: CandidatePool, attempt: int = 0) -> list[Candidate]:
        """Sample the random passages that the pool needs for `policy.min_negatives`; fewer if the corpus is too small.

        Without a corpus, return []. Positives, rejected passages and candidates are excluded. As a random passage, a
        candidate would lose the rank and score by which the audit detects false negatives.

        attempt: number of earlier attempts for the pool
        """
        corpus, missing = self.queries.corpus, self.policy.min_negatives - len(pool.negatives)
        if missing <= 0 or corpus is None:
            return []
        positives = {*self.find_relevant_ids(pool.query_id), *pool.positives}
        excluded = {candidate.id for candidate in (*pool.negatives, *pool.all_candidates())}
        excluded |= positives | pool.rejected.keys() | pool.rejected_random.keys()
        rng = Random(f"{self.seed}\0{pool.query_id}\0fill" + (f"\0{attempt}" if attempt else ""))
        document_of = self.document_of
        is_allowed = None if document_of is None else lambda passage: document_of(passage) not in positives
        ids = sample_random_ids(len(corpus), corpus.get_id, missing, rng, excluded=excluded, is_allowed=is_allowed)
        return [Candidate(id, RANDOM, 0, None) for id in ids]

    def build_example(self, pool: CandidatePool) -> Example | None:
        """Return the training example of a query; None if the query was skipped or has no negatives."""
        if not pool.skipped and not pool.negatives:
            pool.skipped = WITHOUT_NEGATIVES
        if pool.skipped:
            self._add_count(pool.skipped)
            return None
        positives, negatives = tuple(pool.positives), tuple([negative.id for negative in pool.negatives])
        scores = None
        if all(CE in pool.values.get(id, {}) for id in (*positives, *negatives)):
            scores = {
                "positives": [pool.values[id][CE] for id in positives],
                "negatives": [pool.values[id][CE] for id in negatives],
            }
        sources = {"negatives": [negative.source for negative in pool.negatives]}
        return Example(pool.query_id, positives, negatives, scores, sources, dict(pool.query.extra))

    def _add_count(self, name: str, number: int = 1, *, group: str | None = None) -> None:
        counts = self.queries.counts if group is None else self.queries.counts.setdefault(group, {})
        counts[name] = counts.get(name, 0) + number

    def _count_outcomes(self, pool: CandidatePool) -> None:
        """Count the sampled, rejected and unused candidates of a query, unless the query was skipped before filtering."""
        if pool.skipped not in ("", WITHOUT_NEGATIVES):
            return
        if self.queries.corpus is not None and not pool.skipped and len(pool.negatives) < self.policy.min_negatives:
            self._add_count("with fewer than min_negatives")
        self.queries.counts.setdefault("dropped", {})
        for rejection in pool.rejected.values():
            self._add_count(rejection.filter, group="dropped")
        outcomes = {
            "candidates": pool.num_candidates,
            "kept": len(pool.negatives) - pool.num_random,
            "dropped": len(pool.rejected),
            "not_sampled": pool.num_not_sampled,
            "became_positives": len(pool.promoted),
            "random": pool.num_random,
        }
        if pool.rejected_random:
            outcomes["random_rejected"] = len(pool.rejected_random)
        for name, number in outcomes.items():
            self._add_count(name, number, group="passages")

    def _count_judged_hits(self, pool: CandidatePool) -> None:
        """Count, for each source, the queries with a judged document among its hits or among the positives
        read from training examples.

        The numbers are part of `queries.counts`, because a resumed run restores it and skips the earlier queries.
        """
        if self.queries.judgments is None:
            return
        judged = self.queries.counts.setdefault(JUDGED_HITS, {})
        for name, hits in pool.query.hits.items():
            check = self._judged.setdefault(
                name, JudgedHitCounter(name, self.queries.judgments, to_document=self.document_of)
            )
            if check.add(pool.query_id, [*hits.ids, *pool.query.positives]):
                judged[name] = judged.get(name, 0) + 1
            elif check.describe_problem():
                judged.setdefault(name, 0)

    def describe_sources_without_judged_hits(self) -> list[str]:
        """Return a warning for each source that retrieved none of the judged documents."""
        sources = [name for name, has_judged in self.queries.counts.get(JUDGED_HITS, {}).items() if not has_judged]
        problems = [self._judged[name].describe_problem() if name in self._judged else None for name in sources]
        return [
            problem or f"{name}: no judged document was retrieved"
            for name, problem in zip(sources, problems, strict=True)
        ]

    def describe_id_mismatch(self) -> str | None:
        """Return an error message if no source retrieved a judged document and no corpus is given to check ids."""
        problems = self.describe_sources_without_judged_hits()
        if self.queries.corpus is not None or not problems or any(self.queries.counts[JUDGED_HITS].values()):
            return None
        return f"{problems[0]}. Judged documents could become negatives; give `corpus` to check all ids"


def mine_negatives(
    inputs: MiningInputs,
    settings: MineSettings,
    job: FilterJob,
    *,
    seed: int = 42,
    audit: str | None = None,
    report: str | None = None,
) -> None:
    """Mine hard negatives, and write a training example for each query with positives and negatives to `job`'s output.

    audit: also write this file, JSON lines with positives, negatives and rejected candidates, one line per query
    report: also write this report, an HTML page if its name ends in .html, else text; "-" is stdout
    Raises UsageError for a missing input or a setting without effect, DrtkError if there are no examples.
    """
    job.record(settings, **to_dict(inputs), seed=seed, audit=audit, report=report)
    for path in (audit, None if report == STANDARD else report):
        if path is not None:
            check_output_path(path, job)
    rows: Audit | None = None
    if audit is not None:
        rows = Audit(audit, job, scratch=False)
    elif report is not None:
        rows = Audit(f"{job.output}.report" if report == STANDARD else report, job, scratch=True)
    miner = open_miner(inputs, settings, job, seed=seed, has_report=report is not None)

    def mine(batches: Iterable[list[MiningQuery]]) -> Generator[BatchResult, None, None]:
        for batch in batches:
            pools = miner.mine(batch)
            if rows is not None:
                rows.add(pools)
            yield BatchResult([dump(pool.example) for pool in pools if pool.example is not None])
        if rows is not None:
            if report is not None:
                from drtk.mining.report import write_report

                write_report(report, rows.read(), corpus=inputs.corpus, queries=inputs.queries)
            rows.commit()

    def find_problem(num_examples: int) -> str | None:
        textless = describe_missing_texts(job.counts.get(ANSWER_CHECKS, {}), str(inputs.corpus))
        no_examples = None if num_examples else explain_no_examples(job.counts)
        return textless or no_examples or miner.describe_id_mismatch()

    indexes = miner.queries.indexes
    job.batch_size = settings.batch_size or indexes.get_batch_size() if indexes is not None else BATCH_SIZE
    job.no_input_warning = "there are no queries to mine"
    job.find_problem = find_problem
    with rows or nullcontext():
        job.run_batches(iter(miner.queries), mine, unit="queries")
    warn_if_texts_missing(job.counts.get(ANSWER_CHECKS, {}), str(inputs.corpus))
    for problem in miner.describe_sources_without_judged_hits():
        warn(problem)
    passages = job.counts.get("passages", {})
    if num_random := passages.get("random"):
        total, minimum = num_random + passages["kept"], miner.policy.min_negatives
        log(
            f"{num_random:,} of {total:,} negatives are random passages, because some queries had fewer than {minimum:,} "
            "candidates left; `min_negatives=0` adds none"
        )
    if dropped := job.counts.get("dropped"):
        log("dropped: " + ", ".join(f"{count:,} by {name}" for name, count in dropped.items()))


def open_miner(
    inputs: MiningInputs, settings: MineSettings, job: FilterJob, *, seed: int, has_report: bool = False
) -> Miner:
    """Check the settings, open sources, judgments, corpus and models, and return the miner.

    has_report: also compute the similarities and answer matches that are only used by the report
    Raises UsageError for a missing input or a setting without effect, MismatchError if a source or `vectors` was made from
    another corpus.
    """
    policy: Policy = MINING.load(settings.policy)
    overrides = {name: getattr(settings, name) for name in ("negatives", "min_negatives", "depth", "ce_margin")}
    policy = replace(policy, **{name: value for name, value in overrides.items() if value is not None})
    if settings.negatives is not None and settings.min_negatives is None:
        policy = replace(policy, min_negatives=min(policy.min_negatives, settings.negatives))
    sources = parse_sources(inputs.sources, job.tracker)
    _check_inputs(inputs, settings, policy, sources, has_report=has_report)
    score_filters = build_score_filters(settings, [name for name in sources.names if name not in sources.examples])
    by_source = settings.by == "source"
    corpus = judgments = None
    if inputs.corpus is not None:
        corpus = open_corpus(inputs.corpus, job.tracker)
        for path in [*sources.paths, *filter(None, [inputs.vectors])]:
            check_same_corpus(path, inputs.corpus, skip=inputs.skip_corpus_check)
    if inputs.qrels is not None:
        judgments = read_judgments(inputs.qrels, corpus=corpus, by_source=by_source, tracker=job.tracker)
    queries = QueryStream(
        sources, job.tracker, job.counts, corpus, judgments, policy.answers, by_source, queries=inputs.queries
    )
    if sources.indexes:
        # If documents were judged, their best-ranked passage may be below the policy's depth: search as deep as a run.
        depth = policy.depth and max(policy.depth, RUN_DEPTH) if by_source else policy.depth
        queries.indexes = IndexSearch(sources.indexes, settings, inputs, depth=depth, corpus=corpus)
        if not queries.indexes.encodes_texts:
            reason = "has no effect: no dense index is searched with `queries`; omit it"
            require_defaults(settings, reason, names=ENCODER_OPTIONS)
            require_defaults(inputs, reason, names=("model",))
    job.tracker.inputs += [describe_folder(folder) for folder in (inputs.vectors, inputs.query_vectors) if folder]
    if policy.min_negatives and settings.min_negatives is None and corpus is None:
        log(f"no random passages are added to reach {policy.min_negatives} negatives, because `corpus` is not given")
    miner = Miner(queries, policy, seed, settings.rel, not settings.scorer, score_filters)
    _add_content_filters(miner, inputs, settings, job, has_report=has_report)
    from_index = queries.indexes is not None and queries.indexes.needs_text
    needs_text = policy.answers or settings.scorer or has_report or from_index
    if needs_text and inputs.queries is not None and (queries.indexes is None or queries.indexes.stored is not None):
        records = read_queries(inputs.queries, tracker=job.tracker)
        queries.queries_by_id = {query.id: query for query in records if queries.may_have_positives(query.id)}
    return miner


def _check_inputs(
    inputs: MiningInputs, settings: MineSettings, policy: Policy, sources: MiningSources, *, has_report: bool
) -> None:
    """Raise UsageError for a missing input or a setting without effect."""
    has_texts = inputs.queries is not None and inputs.corpus is not None
    only_examples = len(sources.examples) == len(sources.names)
    by_ce = policy.ce_margin is not None or settings.ce_max is not None
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
         "`ce_margin`, `ce_max` and `policy=sbert` require `scorer`, unless all sources are examples with scores and `min_negatives` is 0"),
    ):  # fmt: skip
        if is_missing:
            raise UsageError(problem)
    if not (policy.answers or (has_report and has_texts)):
        reason = "requires `policy=nq`, or `report` with `queries` and `corpus`"
        require_defaults(settings, reason, names=("match", "match_title"))
    if not sources.indexes:
        require_defaults(settings, "requires an index as a source", names=INDEX_OPTIONS)
        require_defaults(inputs, "requires an index as a source", names=("model", "query_vectors"))
    if only_examples:
        reason = "requires a run or index as a source; filter training examples by `ce_margin` or `ce_max`"
        require_defaults(settings, reason, names=SCORE_LIMITS)
    elif sources.examples:
        names = [f"`{name}`" for name in list_changed_fields(settings) if name in ("from_rank", *SCORE_LIMITS)]
        if names:
            log(f"{', '.join(names)}: applied to runs and indexes only, not to training examples")


def _add_content_filters(
    miner: Miner, inputs: MiningInputs, settings: MineSettings, job: FilterJob, *, has_report: bool
) -> None:
    """Add the content filters that the settings select; with `has_report`, also filters that only compute values."""
    policy, filters, measuring_filters = miner.policy, miner.content_filters, list[ContentFilter]()
    by_ce = policy.ce_margin is not None or settings.ce_max is not None
    reads_texts = policy.answers or settings.scorer or settings.max_overlap is not None or has_report
    if inputs.corpus is not None and reads_texts:
        miner.passages = PassageCache(inputs.corpus)
        if inputs.queries is not None and (policy.answers or has_report):
            counts = job.counts if policy.answers else {}
            answers = AnswerFilter(miner.passages, settings.match, title=settings.match_title, counts=counts)
            if policy.answers:
                miner.answers = answers
            else:
                measuring_filters.append(answers)
        overlap = OverlapFilter(miner.passages, settings.max_overlap)
        (measuring_filters if settings.max_overlap is None else filters).append(overlap)
    if inputs.vectors is not None:
        cosine = CosineFilter(VectorsById(inputs.vectors), settings.max_cosine)
        (measuring_filters if settings.max_cosine is None else filters).append(cosine)
    if has_report:
        miner.measuring_filters += measuring_filters
    if settings.scorer or by_ce:
        scorer, title = None, "none"
        if settings.scorer:
            from drtk.models.cross_encoder import load_scorer
            from drtk.models.model_folder import resolve_model_folder

            scorer, title = load_scorer(settings.scorer, settings, device=settings.device)
            job.lookups = (str(resolve_model_folder(settings.scorer)),)  # the output is outdated if this folder changes
        ce = CrossEncoderFilter(scorer, miner.passages, margin=policy.ce_margin, limit=settings.ce_max, title=title)
        # Without a limit the scores are still computed, because examples contain them.
        (filters if by_ce else miner.measuring_filters).append(ce)


def explain_no_examples(counts: Mapping[str, Any]) -> str:
    """Return the error message for an empty output, with the numbers of skipped queries and of rejected candidates by reason.

    counts: the counters of the job
    """
    reasons = [name for name in (WITHOUT_ANSWERS, WITHOUT_POSITIVES, WITHOUT_NEGATIVES) if counts.get(name)]
    skipped = ", ".join(f"{counts[name]:,} {name}" for name in reasons)
    if counts.get("positives not found"):
        skipped += f" ({counts['positives not found']:,} positives not found)"
    passages = counts.get("passages", {})
    outcomes = [f"{count:,} dropped by {name}" for name, count in counts.get("dropped", {}).items()]
    if passages.get("became_positives"):
        outcomes.append(f"{passages['became_positives']:,} became positives")
    if passages.get("not_sampled"):
        outcomes.append(f"{passages['not_sampled']:,} not sampled")
    candidates = f" (of {passages['candidates']:,} candidates {', '.join(outcomes)})" if outcomes else ""
    advice = (
        "; give `min_negatives` and `corpus` to add random passages"
        if WITHOUT_NEGATIVES in reasons and not outcomes
        else ""
    )
    return f"no training examples were mined: {skipped}{candidates}{advice}"

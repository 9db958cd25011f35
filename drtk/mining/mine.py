"""Mine hard negatives: from sources and judgements to training examples.

`mine_negatives` runs the job, `open_miner` checks the options and opens the files, and `Miner.mine` is the loop: for each
window of queries, collect the candidates, reject those that may be positives, sample negatives, and build the examples.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from random import Random
from typing import Any

from drtk.data.checks import JudgedHits, Origin, check_origin, describe_textless, warn_of_textless
from drtk.data.ids import CorpusIds, document_id
from drtk.data.jsonl import dump, read_queries
from drtk.errors import UsageError
from drtk.indexing.config import RUN_DEPTH
from drtk.mining import MINING
from drtk.mining.audit import Audit, check_target
from drtk.mining.candidates import Candidate, Hits, MiningQuery, Pool, Rejection
from drtk.mining.config import ENCODER_OPTIONS, INDEX_OPTIONS, SCORE_LIMITS, MineSettings, MiningInputs
from drtk.mining.filters import (
    LOOKED_UP,
    AnswerFilter,
    ContentFilter,
    CosineFilter,
    CrossEncoderFilter,
    OverlapFilter,
    PassageTexts,
    ScoreFilter,
    VectorsById,
    build_score_filters,
)
from drtk.mining.policies import Policy, sample_random_ids
from drtk.mining.report import write_report
from drtk.mining.sources import IndexSearch, QueryStream, Sources, read_judgements, sort_sources
from drtk.records import Example
from drtk.runtime.filter_job import Done, FilterJob
from drtk.runtime.manifest import folder_entry
from drtk.runtime.progress import log, warn
from drtk.runtime.streams import STANDARD, is_stream

RANDOM = "random"  # the source of negatives that no source retrieved
WITHOUT_ANSWERS, WITHOUT_POSITIVES, WITHOUT_NEGATIVES = "without_answers", "without_positives", "without_negatives"
WINDOW = 100  # queries: each may have thousands of hits in every run
ROUNDS = 10  # of sampling random passages, if filters reject some


def mine_negatives(
    inputs: MiningInputs,
    settings: MineSettings,
    job: FilterJob,
    *,
    seed: int = 42,
    audit: str | None = None,
    report: str | None = None,
) -> None:
    """Write a training example for each query, and optionally the fate of every candidate and a report.

    audit: file of JSON lines, one per query. report: file, as a page if it ends in .html, else as text; "-" is stdout.
    Raises UsageError for a missing input or an option without effect, DrtkError if no query makes an example.
    """
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

    def mine(windows: Iterable[list[MiningQuery]]) -> Generator[Done, None, None]:
        for window in windows:
            yield Done(mine_window(window))
        if rows is not None:
            if report is not None:
                write_report(report, rows.read(), corpus=inputs.corpus, queries=inputs.queries)
            rows.commit()

    def find_problem(num_examples: int) -> str | None:
        textless = describe_textless(job.counts.get(LOOKED_UP, {}), str(inputs.corpus))
        no_examples = None if num_examples else explain_no_examples(job.counts)
        return textless or no_examples or miner.find_id_mismatch()

    job.window = settings.batch if miner.queries.indexes else WINDOW
    job.no_input = "no query came in, so nothing is mined"
    job.find_problem = find_problem
    with rows or nullcontext():
        job.run_windows(iter(miner.queries), mine, unit="queries")
    warn_of_textless(job.counts.get(LOOKED_UP, {}), str(inputs.corpus))
    for problem in miner.find_unjudged_sources():
        warn(problem)
    passages = job.counts.get("passages", {})
    if num_random := passages.get("random"):
        total, floor = num_random + passages["kept"], miner.policy.floor
        log(f"random: {num_random:,} of the {total:,} negatives, to fill lists up to `floor` {floor}")
    if dropped := job.counts.get("dropped"):
        log("dropped: " + ", ".join(f"{number:,} by {name}" for name, number in dropped.items()))


def open_miner(
    inputs: MiningInputs, settings: MineSettings, job: FilterJob, *, seed: int, has_report: bool = False
) -> Miner:
    """Check the options and open sources, judgements, corpus and models.

    has_report: measure what the report shows. Raises UsageError for a missing input or an option without effect.
    """
    policy: Policy = MINING.load(settings.policy)
    own = {name: getattr(settings, name) for name in ("keep", "floor", "depth", "ce_margin")}
    policy = replace(policy, **{name: value for name, value in own.items() if value is not None})
    sources = sort_sources(inputs.sources, job.intake, name=settings.source_name)
    _check_inputs(inputs, settings, policy, sources, has_report=has_report)
    score_filters = build_score_filters(settings, [name for name in sources.names if name not in sources.examples])
    by_source = settings.positives == "source"
    corpus = None if inputs.corpus is None else _read_corpus(inputs.corpus, inputs, sources, job)
    judgements = None
    if inputs.qrels is not None:
        judgements = read_judgements(inputs.qrels, corpus=corpus, by_source=by_source, intake=job.intake)
    queries = QueryStream(
        sources, job.intake, job.counts, corpus, judgements, policy.answers, by_source, queries=inputs.queries
    )
    if sources.indexes:
        # For judgements of documents, as deep as a run: the best-ranked passage may be below the policy's depth.
        depth = policy.depth and max(policy.depth, RUN_DEPTH) if by_source else policy.depth
        queries.indexes = IndexSearch(sources.indexes, settings, inputs, depth=depth, corpus=corpus)
        if not queries.indexes.encodes_texts:
            reason = "goes with a dense index that is searched with `queries`, not `query_vectors`"
            _check_no_effect(settings, ENCODER_OPTIONS, reason, model=inputs.model)
    job.intake.inputs += [folder_entry(folder) for folder in (inputs.vectors, inputs.query_vectors) if folder]
    if policy.floor and settings.floor is None and corpus is None:
        log(f"mine-negatives: no `corpus`, so lists are not filled up to {policy.floor} negatives")
    miner = Miner(queries, policy, seed, settings.rel, job.counts, not settings.scorer, score_filters)
    _add_content_filters(miner, inputs, settings, job, has_report=has_report)
    from_index = queries.indexes is not None and queries.indexes.needs_text
    needs_text = policy.answers or settings.scorer or has_report or from_index
    if needs_text and inputs.queries is not None and (queries.indexes is None or queries.indexes.stored is not None):
        read = read_queries(inputs.queries, intake=job.intake)
        queries.texts = {query.id: query for query in read if queries.may_have_positives(query.id)}
    return miner


def _check_no_effect(settings: MineSettings, names: Iterable[str], reason: str, **inputs: str | None) -> None:
    """Raise UsageError if an option is given that has no effect: a setting that is not the default, or an input."""
    changed = [name for name in names if getattr(settings, name) != getattr(MineSettings, name)]
    changed += [name for name, value in inputs.items() if value is not None]
    if changed:
        raise UsageError(f"`{changed[0]}` {reason}")


def _check_inputs(
    inputs: MiningInputs, settings: MineSettings, policy: Policy, sources: Sources, *, has_report: bool
) -> None:
    """Raise UsageError for a missing input, and for an option without effect."""
    has_texts = inputs.queries is not None and inputs.corpus is not None
    only_examples = len(sources.examples) == len(sources.names)
    by_ce = policy.ce_margin is not None or settings.ce_max is not None
    reads_texts = bool(policy.answers or settings.scorer or has_report)
    for is_missing, problem in (
        (inputs.qrels is None and not policy.answers and not sources.examples,
         "`qrels` is required: it says what is positive; only examples and `policy` nq do without"),
        (policy.answers and not has_texts, f"`policy` {settings.policy} matches answers: `queries` and `corpus` are required"),
        (settings.scorer and not has_texts, "`scorer` reads texts: `queries` and `corpus` are required"),
        (settings.floor and inputs.corpus is None, "`floor` adds random passages: `corpus` is required"),
        (settings.max_overlap is not None and inputs.corpus is None, "`max_overlap` compares texts: `corpus` is required"),
        (settings.max_cosine is not None and inputs.vectors is None,
         "`max_cosine` compares vectors: `vectors`, a folder of drtk encode, is required"),
        (by_ce and not settings.scorer and (not only_examples or policy.floor),
         "`ce_margin`, `ce_max` and `policy` sbert compare cross-encoder scores, which only examples hold: `scorer` is required"),
        (inputs.corpus is not None and is_stream(inputs.corpus) and reads_texts,
         "`corpus`: texts are looked up in a file, not in a stream"),
    ):  # fmt: skip
        if is_missing:
            raise UsageError(problem)
    if not (policy.answers or (has_report and has_texts)):
        reason = "has no effect unless answers are matched: `policy` nq, or `report` with `queries` and `corpus`"
        _check_no_effect(settings, ("match", "match_title"), reason)
    if not sources.indexes:
        reason = "goes with an index among the sources"
        _check_no_effect(settings, INDEX_OPTIONS, reason, model=inputs.model, query_vectors=inputs.query_vectors)
    if only_examples:
        reason = (
            "compares scores of a retriever, which examples lack; `ce_margin` and `ce_max` compare a cross-encoder's"
        )
        _check_no_effect(settings, SCORE_LIMITS, reason)
    elif sources.examples:
        given = [
            name for name in ("from_rank", *SCORE_LIMITS) if getattr(settings, name) != getattr(MineSettings, name)
        ]
        if given:
            names = ", ".join(f"`{name}`" for name in given)
            log(f"mine-negatives: {names} apply to runs and indexes, not to examples")


def _read_corpus(corpus: str, inputs: MiningInputs, sources: Sources, job: FilterJob) -> CorpusIds:
    """Return the ids of the corpus. Raises MismatchError if a source is known to be made from another corpus."""
    ids = CorpusIds.read(corpus, job.intake)
    digest = next((entry.get("digest") for entry in job.intake.inputs if entry["path"] == corpus), None)
    if digest and not inputs.another_corpus and not is_stream(corpus):
        for path in [*sources.paths, *filter(None, [inputs.vectors])]:
            if not is_stream(path):
                check_origin(path, Origin(corpus, digest))
    return ids


def _add_content_filters(
    miner: Miner, inputs: MiningInputs, settings: MineSettings, job: FilterJob, *, has_report: bool
) -> None:
    """Add the content filters that the settings select, and measures without a limit that the report shows."""
    policy, filters, measures = miner.policy, miner.content_filters, list[ContentFilter]()
    reads_texts = policy.answers or settings.scorer or settings.max_overlap is not None or has_report
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
    by_ce = policy.ce_margin is not None or settings.ce_max is not None
    if settings.scorer or by_ce:
        scorer, title = None, "none"
        if settings.scorer:
            from drtk.models.config import ScoringSettings
            from drtk.models.cross_encoder import Scorer, title_of
            from drtk.models.model_folder import locate

            title = title_of(settings.scorer, settings.scorer_title, sealed=True)
            scorer = Scorer(
                settings.scorer,
                device=settings.device,
                settings=ScoringSettings(batch_tokens=settings.scorer_batch_tokens, dtype=settings.scorer_dtype),
                logits=settings.scorer_logits,
                option="--scorer-batch-tokens",
            )
            job.lookups = (str(locate(settings.scorer)),)  # another model in this folder: not up to date
        ce = CrossEncoderFilter(scorer, miner.texts, margin=policy.ce_margin, max_value=settings.ce_max, title=title)
        # Without a limit the scores are still computed: they are written into the examples.
        (filters if by_ce else miner.measures).append(ce)


@dataclass
class Miner:
    """Turn queries with their hits into training examples. Sampling depends only on the seed and the query id.

    rel: lowest grade of a positive. use_example_scores: take the cross-encoder scores that examples bring along.
    answers: turns candidates that contain an answer into positives. measures: content filters without a limit.
    counts: receives what was skipped, rejected and kept.
    """

    queries: QueryStream
    policy: Policy
    seed: int
    rel: int = 1
    counts: dict[str, Any] = field(default_factory=dict)
    use_example_scores: bool = True
    score_filters: Sequence[ScoreFilter] = ()
    answers: ContentFilter | None = None
    content_filters: list[ContentFilter] = field(default_factory=list)
    measures: list[ContentFilter] = field(default_factory=list)
    texts: PassageTexts | None = None
    _judged: dict[str, JudgedHits] = field(default_factory=dict, init=False)

    @property
    def document_of(self) -> Callable[[str], str] | None:
        """What maps a passage to the document that judgements name; None if they name passages."""
        return (self.queries.corpus or document_id) if self.queries.by_source else None

    def mine(self, window: Sequence[MiningQuery]) -> list[Pool]:
        """Mine a window of queries; return a pool for each, with its `example` unless it is `skipped`."""
        if self.queries.indexes is not None:
            window = self.queries.indexes.search(window, self.queries.sources.names)
        pools = [self.build_pool(query) for query in window]
        if self.answers is not None:
            self.promote_answers(pools, self.answers)
        for pool in pools:
            if not pool.skipped and not pool.positives:
                pool.skipped = WITHOUT_POSITIVES
        active = [pool for pool in pools if not pool.skipped]
        self.reject_candidates(active)
        for pool in active:
            rng = Random(f"{self.seed}\0{pool.query_id}")
            pool.negatives = self.policy.sample(pool.candidates, self.policy.keep, rng)
        self.add_random_passages(active)
        for measure in self.measures:
            measure.measure(active, [[one.id for one in pool.negatives] for pool in active])
        if self.texts is not None:
            self.texts.clear()
        for pool in pools:
            pool.example = self.build_example(pool)
            self._count_judged(pool)
            self._count(pool)
        return pools

    def build_pool(self, query: MiningQuery) -> Pool:
        """Return a query's positives, and as candidates all other hits within the policy's depth."""
        relevant = self.find_relevant(query.query_id)
        judged = relevant
        if self.document_of is not None:
            judged = self._find_passages(relevant, query.hits.values(), self.document_of)
        positives = list(dict.fromkeys((*judged, *query.positives)))
        excluded = {*relevant, *positives}
        depth, document_of = self.policy.depth, self.document_of
        candidates = {}
        for source, hits in query.hits.items():
            ids, scores = hits.ids[:depth], hits.scores[:depth]
            candidates[source] = [
                Candidate(id, source, rank, score)
                for rank, (id, score) in enumerate(zip_longest(ids, scores), start=1)
                if id not in excluded and (document_of is None or document_of(id) not in excluded)
            ]
        pool = Pool(query, positives, len(positives), candidates)
        if self.use_example_scores:
            for id, ce in query.ce_scores.items():
                pool.set_value(id, CrossEncoderFilter.name, ce)
        pool.num_candidates = len({one.id for one in pool.all_candidates()})
        return pool

    def find_relevant(self, query_id: str) -> list[str]:
        """Return the passages, or documents, judged relevant, the highest grade first."""
        grades = (self.queries.judgements or {}).get(query_id, {})
        return sorted((id for id in grades if grades[id] >= self.rel), key=grades.__getitem__, reverse=True)

    def _find_passages(
        self, documents: Sequence[str], hits: Iterable[Hits], document_of: Callable[[str], str]
    ) -> list[str]:
        """Return the best-ranked passage of each document in the first source that has one; else its only passage."""
        best: dict[str, str] = {}
        wanted = set(documents)
        for id in (id for found in hits for id in found.ids):
            if (document := document_of(id)) in wanted:
                best.setdefault(document, id)
        positives = []
        for document in documents:
            corpus = self.queries.corpus
            passage = best.get(document) or (None if corpus is None else corpus.only_passage(document))
            if passage is None:
                self._add_count("positives_not_found")
            else:
                positives.append(passage)
        return positives

    def promote_answers(self, pools: Sequence[Pool], answers: ContentFilter) -> None:
        """Turn candidates with an answer into positives; skip queries without answers."""
        for pool in pools:
            if not (pool.query.query and any(pool.query.query.answers or ())):
                pool.skipped = WITHOUT_ANSWERS
        active = [pool for pool in pools if not pool.skipped]
        candidates = [pool.unique_candidates() for pool in active]
        answers.measure(active, [[one.id for one in some] for some in candidates])
        for pool, some in zip(active, candidates, strict=True):
            pool.promote([rejection.candidate.id for rejection in answers.find_rejected(pool, some)])

    def reject_candidates(self, pools: Sequence[Pool]) -> None:
        """Apply the filters in order; what one source makes suspicious is rejected from all of them."""
        for reject in self.score_filters:
            for pool in pools:
                reject(pool)
        for content_filter in self.content_filters:
            candidates = [pool.unique_candidates() for pool in pools]
            content_filter.measure(pools, [[one.id for one in some] for some in candidates])
            for pool, some in zip(pools, candidates, strict=True):
                pool.reject(content_filter.find_rejected(pool, some))

    def add_random_passages(self, pools: Sequence[Pool]) -> None:
        """Fill up to the policy's floor with random passages; those that a content filter rejects are sampled again."""
        filters = [*([self.answers] if self.answers else []), *self.content_filters]
        for number in range(ROUNDS if filters else 1):
            sampled = [(pool, new) for pool in pools if (new := self.sample_random(pool, number))]
            for content_filter in filters:
                content_filter.measure([pool for pool, _ in sampled], [[one.id for one in new] for _, new in sampled])
            pools = []
            for pool, new in sampled:
                rejected: dict[str, Rejection] = {}
                for content_filter in filters:
                    for rejection in content_filter.find_rejected(pool, new):
                        rejected.setdefault(rejection.candidate.id, rejection)
                pool.negatives = [*pool.negatives, *(one for one in new if one.id not in rejected)]
                if rejected:
                    pool.rejected_random |= rejected
                    pools.append(pool)
            if not pools:
                break

    def sample_random(self, pool: Pool, number: int = 0) -> list[Candidate]:
        """Sample the random passages that a query lacks; fewer if the corpus has no more. number: of the round.

        No passage is positive, rejected, or a candidate: a candidate that was not sampled would lose the rank and the score
        that tell how suspicious it is.
        """
        corpus, missing = self.queries.corpus, self.policy.floor - len(pool.negatives)
        if missing <= 0 or corpus is None:
            return []
        positives = {*self.find_relevant(pool.query_id), *pool.positives}
        excluded = {one.id for one in pool.negatives} | {one.id for one in pool.all_candidates()}
        excluded |= positives | pool.rejected.keys() | pool.rejected_random.keys()
        rng = Random(f"{self.seed}\0{pool.query_id}\0fill" + (f"\0{number}" if number else ""))
        document_of = self.document_of
        is_allowed = None if document_of is None else lambda passage: document_of(passage) not in positives
        ids = sample_random_ids(corpus.ids, missing, rng, excluded=excluded, is_allowed=is_allowed)
        return [Candidate(id, RANDOM, 0, None) for id in ids]

    def build_example(self, pool: Pool) -> Example | None:
        """Return the training example of a pool; None if it is skipped or has no negatives."""
        if not pool.skipped and not pool.negatives:
            pool.skipped = WITHOUT_NEGATIVES
        if pool.skipped:
            self._add_count(pool.skipped)
            return None
        ids = tuple(one.id for one in pool.negatives)
        ce, scores = CrossEncoderFilter.name, None
        if all(ce in pool.values.get(id, {}) for id in (*pool.positives, *ids)):
            scores = {
                "positives": [pool.values[id][ce] for id in pool.positives],
                "negatives": [pool.values[id][ce] for id in ids],
            }
        sources = {"negatives": [one.source for one in pool.negatives]}
        return Example(pool.query_id, tuple(pool.positives), ids, scores, sources, dict(pool.query.extra))

    def _add_count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def _count(self, pool: Pool) -> None:
        """Add what became of the candidates to `counts`; queries that came to no filter are left out."""
        if pool.skipped not in ("", WITHOUT_NEGATIVES):
            return
        if self.queries.corpus is not None and not pool.skipped and len(pool.negatives) < self.policy.floor:
            self._add_count("below_floor")
        dropped = self.counts.setdefault("dropped", {})
        for rejection in pool.rejected.values():
            dropped[rejection.filter] = dropped.get(rejection.filter, 0) + 1
        passages = self.counts.setdefault("passages", {})
        for name, number in (
            ("candidates", pool.num_candidates),
            ("kept", len(pool.negatives) - pool.num_random),
            ("dropped", len(pool.rejected)),
            ("not_drawn", pool.num_not_sampled),
            ("became_positives", len(pool.promoted)),
            ("random", pool.num_random),
        ):
            passages[name] = passages.get(name, 0) + number
        if pool.rejected_random:
            passages["random_refused"] = passages.get("random_refused", 0) + len(pool.rejected_random)

    def _count_judged(self, pool: Pool) -> None:
        """Record for each source whether it retrieved a judged document (1) or not yet (0).

        The result is in `counts`, because a resumed run does not see the earlier windows again.
        """
        if self.queries.judgements is None:
            return
        judged = self.counts.setdefault("judged_found", {})
        for name, hits in pool.query.hits.items():
            if not judged.get(name):
                check = self._judged_hits(name)
                check.add(pool.query_id, [*hits.ids, *pool.query.positives])
                if check.found or check.problem():
                    judged[name] = check.found

    def _judged_hits(self, name: str) -> JudgedHits:
        if name not in self._judged:
            judgements = self.queries.judgements or {}
            self._judged[name] = JudgedHits(name, judgements, of=self.document_of, by_source="`positives` source")
        return self._judged[name]

    def find_unjudged_sources(self) -> list[str]:
        """Return a message for each source that retrieved none of the judged documents."""
        missing = [name for name, found in self.counts.get("judged_found", {}).items() if not found]
        return [self._judged_hits(name).problem() or f"{name}: no judged document was retrieved" for name in missing]

    def find_id_mismatch(self) -> str | None:
        """Return a message if no source retrieved a judged document, and no corpus says that the ids exist."""
        problems = self.find_unjudged_sources()
        if self.queries.corpus is not None or not problems or any(self.counts["judged_found"].values()):
            return None
        return f"{problems[0]}. Judged documents would become negatives; `corpus` checks all ids"


def explain_no_examples(counts: Mapping[str, Any]) -> str:
    """Return one line about why no query made an example: how many for which reason, and the fates of the candidates."""
    reasons = [name for name in (WITHOUT_ANSWERS, WITHOUT_POSITIVES, WITHOUT_NEGATIVES) if counts.get(name)]
    why = ", ".join(f"{counts[name]:,} {name.replace('_', ' ')}" for name in reasons)
    if counts.get("positives_not_found"):
        why += f" ({counts['positives_not_found']:,} positives not found)"
    passages = counts.get("passages", {})
    fates = [f"{number:,} dropped by {name}" for name, number in counts.get("dropped", {}).items()]
    others = [name for name in ("became_positives", "not_drawn") if passages.get(name)]
    fates += [f"{passages[name]:,} {name.replace('_', ' ')}" for name in others]
    candidates = f" (of {passages['candidates']:,} candidates {', '.join(fates)})" if fates else ""
    return f"no query makes an example: {why}{candidates}"

"""Mine negatives over files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from drtk.data.checks import JudgedHits, Origin, check_origin
from drtk.data.ids import CorpusIds, document_id
from drtk.data.jsonl import read_queries
from drtk.data.trec import Judgements, read_qrels
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.indexing.config import RUN_DEPTH
from drtk.mining import MINING
from drtk.mining.config import MinedIndexSettings, MineSettings
from drtk.mining.filters import (
    AnswerCheck,
    CosineCheck,
    CrossEncoderCheck,
    Filter,
    OverlapCheck,
    Texts,
    VectorsById,
    place_filters,
    place_flags,
)
from drtk.mining.from_examples import Remined, example_items, joined
from drtk.mining.policies import Policy
from drtk.mining.pool import Asked, Pool, Ranked
from drtk.mining.sampler import WITHOUT_ANSWERS, WITHOUT_NEGATIVES, Check, Miner, Stages
from drtk.mining.sources import Aligned, Indexes, Sources, Unknown, check_indexes, run_items, sources_of
from drtk.records import Example, Query
from drtk.retrieval.queries import StoredQuery
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.inputs import Intake
from drtk.runtime.manifest import folder_entry
from drtk.runtime.progress import log, warn
from drtk.runtime.streams import is_stream, name_of

_ANYWHERE = ("threads", "device")  # true of a run without an index too
_ENCODING = ("model", "prompt", "max_length")


def check_index_options(settings: MineSettings, model: str | None, *, has_index: bool, encodes: bool) -> None:
    """Raise UsageError for an option of indexes where there is none, or of an encoder where none is asked.

    encodes: whether texts of queries are made vectors
    """
    given = ["model"] if model is not None else []
    given += [
        item.name
        for item in fields(MinedIndexSettings)
        if item.name not in _ANYWHERE and getattr(settings, item.name) != item.default
    ]
    for name in given:
        flag = "--" + name.replace("_", "-")
        if not has_index:
            raise UsageError(f"{flag}: only with an index among the sources")
        if name in _ENCODING and not encodes:
            raise UsageError(f"{flag}: only with an index of vectors that is asked with --queries, not --query-vectors")


def check_answer_options(settings: MineSettings, *, looks_for_answers: bool) -> None:
    """Raise UsageError for what says how answers are looked for, where nobody looks."""
    for flag, changed in (("--match", settings.match != MineSettings.match), ("--match-title", settings.match_title)):
        if changed and not looks_for_answers:
            raise UsageError(
                f"{flag}: only where answers are looked for: --policy nq, or --report with --queries and --corpus"
            )


def check_place_options(settings: MineSettings, sources: Sources) -> None:
    """Refuse filters by rank and score that would pass over everything; say it where they pass over a part."""
    flags = place_flags(settings)
    if not flags or not sources.examples:
        return
    if len(sources.examples) < len(sources.names):
        one = len(flags) == 1
        log(f"mine-negatives: {', '.join(flags)} {'goes' if one else 'go'} by what runs and indexes say, not examples")
        return
    by_score = [flag for flag in flags if flag != "--from-rank"]
    if by_score:
        raise UsageError(
            f"{by_score[0]} goes by scores of a retriever, which examples lack: name its run; --ce-margin and --ce-max "
            "go by those of a cross-encoder"
        )


NO_GRADES: Mapping[str, int] = {}


def policy_of(settings: MineSettings, *, has_corpus: bool) -> Policy:
    """The policy that settings name, with what they say otherwise.

    Raises UsageError where random passages are asked for and there is no corpus to draw them from.
    """
    policy: Policy = MINING.load(settings.policy)
    if settings.floor and not has_corpus:
        raise UsageError("--floor fills up with random passages: name their --corpus")
    own = {name: getattr(settings, name) for name in ("keep", "floor", "depth", "ce_margin")}
    return replace(policy, **{name: value for name, value in own.items() if value is not None})


def read_judgements(qrels: str, *, corpus: CorpusIds | None, by_source: bool, intake: Intake) -> Judgements:
    """Grades by query. Raises RecordError for a pair judged twice and ids the corpus lacks, DrtkError for an empty file."""
    judgements: Judgements = {}
    unknown = Unknown(intake, "document" if by_source else "passage")
    for number, qrel in read_qrels(qrels, intake=intake):
        place = f"{name_of(qrels)}:{number}"
        grades = judgements.setdefault(qrel.query_id, {})
        known = corpus is None or (corpus.has_document(qrel.doc_id) if by_source else qrel.doc_id in corpus)
        if qrel.doc_id in grades:
            problem = f"document '{qrel.doc_id}' is judged a second time for query '{qrel.query_id}'"
            intake.forgive(RecordError(place, problem))
        elif not known and corpus is not None and corpus.has_document(qrel.doc_id):
            problem = f"'{qrel.doc_id}' is a document of the corpus, not a passage; use --positives source"
            intake.forgive(RecordError(place, problem))
        elif not known:
            unknown.note(place, qrel.doc_id)
        else:
            grades[qrel.doc_id] = qrel.grade
    unknown.check()
    if not judgements:
        raise DrtkError(f"{name_of(qrels)}: holds no judgements")
    return judgements


class Mining:
    """One run of mine-negatives: `queries` walks the sources, `pools` brings a window of them to their negatives.

    The first source (or the queries, where indexes are asked) sets the order; the others are read beside it, and held only
    as far as their order differs. judgements: None where examples or answers say what is positive.
    texts: queries by id, where texts are needed and no index is asked. `counts` is told what was left out.
    Raises RecordError (file:line) for an id the corpus or the queries do not have, MismatchError where no query is judged.
    """

    def __init__(
        self,
        sources: Sources,
        stages: Stages,
        *,
        judgements: Judgements | None,
        intake: Intake,
        counts: dict[str, Any],
        corpus: CorpusIds | None = None,
        indexes: Indexes | None = None,
        queries: str | None = None,
        needs_text: bool = False,
    ) -> None:
        self.sources, self.stages, self.counts = sources, stages, counts
        self.judgements = judgements
        self._indexes = indexes
        self._intake, self._corpus = intake, corpus
        self._queries_file = queries
        self._answers = stages.promote is not None
        self._by_source = stages.miner.by_source
        self._judged: dict[str, JudgedHits] = {}
        self._texts: dict[str, Query] | None = None
        if needs_text and queries is not None and (indexes is None or indexes.stored is not None):
            texts = read_queries(queries, intake=intake)
            self._texts = {query.id: query for query in texts if self._may_have_positives(query.id)}

    def _may_have_positives(self, query_id: str) -> bool:
        return self.judgements is None or self._answers or bool(self.sources.examples) or query_id in self.judgements

    def _streams(self) -> dict[str, Iterator[tuple[str, Any]]]:
        runs, examples = self.sources.runs, self.sources.examples
        found: dict[str, Iterator[tuple[str, Any]]] = {}
        for name in self.sources.names:
            if name in runs:
                found[name] = run_items(runs[name], self._corpus, self._intake, lacks=self._lacks)
            elif name in examples:
                found[name] = example_items(name, examples[name], self._corpus, self._intake, lacks=self._lacks)
        return found

    def _lacks(self, query_id: str) -> bool:
        """Whether a query of a source has no text, though one is needed."""
        return self._texts is not None and query_id not in self._texts and self._may_have_positives(query_id)

    def queries(self) -> Iterator[Asked]:
        """The queries that may have positives, with what runs and examples have for them; others are counted."""
        seen: set[str] = set()
        unjudged = 0
        told, example = False, ""
        for asked in self._all():
            if not (self.judgements is None or self._answers or asked.positives or asked.query_id in self.judgements):
                unjudged += 1
                example = example or asked.query_id
                continue
            seen.add(asked.query_id)
            if not self._by_source and not told and self._name_documents(asked):
                warn(f"query '{asked.query_id}': judgements name documents, not passages: --positives source")
                told = True
            yield asked
        if unjudged and not seen and self.judgements is not None:
            raise MismatchError(
                f"{name_of(self._first)}: no query of the runs has judgements "
                f"(runs: '{example}', judgements: '{next(iter(self.judgements))}'); pass the judgements of these queries"
            )
        # Told once, at the end: these are counts of what was read, which a resumed run reads again.
        missing = len(self.judgements.keys() - seen) if self.judgements is not None else 0
        for what, number in (("without_judgements", unjudged), ("not_retrieved", missing)):
            if number:
                self.counts[what] = number

    @property
    def _first(self) -> str:
        return self.sources.paths[0]

    def _all(self) -> Iterator[Asked]:
        streams = self._streams()
        only = None if self._answers or self.judgements is None or self.sources.examples else self.judgements
        if self._indexes is None:
            name, driver = next(iter(streams.items()))
            others = {other: Aligned(items, only=only) for other, items in streams.items() if other != name}
            for query_id, item in driver:
                yield self._asked(query_id, {name: item} | _taken(others, query_id))
            for query_id in dict.fromkeys(one for aligned in others.values() for one in aligned.rest()):
                yield self._asked(query_id, _taken(others, query_id))
            return
        others = {other: Aligned(items, only=only) for other, items in streams.items()}
        for query_id, query, stored in self._asked_first():
            row = None if stored is None else (stored.shard, stored.row)
            yield self._asked(query_id, _taken(others, query_id), query, row)
        lost = len({one for aligned in others.values() for one in aligned.rest()})
        if lost:
            self.counts["not_in_queries"] = lost

    def _asked_first(self) -> Iterator[tuple[str, Query | None, StoredQuery | None]]:
        """The queries that indexes are asked, as texts, as vectors, or as both."""
        assert self._indexes is not None
        stored = self._indexes.stored
        if stored is None:
            assert self._queries_file is not None
            for query in read_queries(self._queries_file, intake=self._intake):
                yield query.id, query, None
            return
        for one in stored:
            if self._lacks(one.id):
                raise MismatchError(
                    f"{name_of(str(self._queries_file))}: has no query '{one.id}', whose vector there is"
                )
            yield one.id, None, one

    def _asked(
        self, query_id: str, items: dict[str, Any], query: Query | None = None, row: tuple[int, int] | None = None
    ) -> Asked:
        runs = {name: item for name, item in items.items() if not isinstance(item, Remined)}
        old = joined([Remined({}, (), {}, {}), *(item for item in items.values() if isinstance(item, Remined))])
        found: dict[str, Ranked] = {}
        for name, item in items.items():  # in the order in which sources were named
            found |= {name: runs[name]} if name in runs else {one: old.found[one] for one in item.found}
        found |= runs  # which know ranks and scores
        if query is None and self._texts is not None:
            query = self._texts.get(query_id)
        return Asked(query_id, found, query, old.positives, old.ce, old.extra, row)

    def _name_documents(self, asked: Asked) -> bool:
        """Whether a chunk of a judged document would become a negative of its own document's query."""
        grades = self.grades_of(asked.query_id)
        return any(document_id(id) in grades and id not in grades for one in asked.found.values() for id in one.ids)

    def grades_of(self, query_id: str) -> Mapping[str, int]:
        """A query's judgements; none where it has none."""
        return (self.judgements or {}).get(query_id, NO_GRADES)

    def pools(self, window: Iterable[Asked]) -> list[Pool]:
        """The pools of a window of queries, in order, brought to their negatives."""
        asked = list(window)
        if self._indexes is not None:
            found = self._indexes(asked)
            asked = [replace(one, found=self._in_order(its | one.found)) for one, its in zip(asked, found, strict=True)]
        pools = [self.stages.miner.pool(one, self.grades_of(one.query_id)) for one in asked]
        if self._answers:
            for pool in pools:
                if not (pool.asked.query and any(pool.asked.query.answers or ())):
                    pool.left_out = WITHOUT_ANSWERS
        self.stages(pools, self.grades_of)
        return pools

    def _in_order(self, found: dict[str, Ranked]) -> dict[str, Ranked]:
        """In the order in which sources were named: a passage of several counts for the first."""
        return {name: found[name] for name in self.sources.names if name in found} | found

    def examples(self, window: Iterable[Asked], *, tell: Callable[[Pool], None] = lambda pool: None) -> list[Example]:
        """The examples of a window of queries, in order; `tell` hears of each pool."""
        found = []
        for pool in self.pools(window):
            self._record_judged(pool)
            example = self.stages.miner.example(pool)
            self._count(pool)
            tell(pool)
            if example is not None:
                found.append(example)
        return found

    def _record_judged(self, pool: Pool) -> None:
        """Record per source whether a judged document is among its hits and the known positives (1), or not yet (0).

        Stored in the counts because a resumed run does not see the earlier windows again.
        """
        if self.judgements is None:
            return
        judged = self.counts.setdefault("judged_found", {})
        for name, ranked in pool.asked.found.items():
            if not judged.get(name):
                hits = self._judged_hits(name)
                hits.add(pool.query_id, [*ranked.ids, *pool.asked.positives])
                if hits.found or hits.problem():
                    judged[name] = hits.found

    def _judged_hits(self, name: str) -> JudgedHits:
        if name not in self._judged:
            of = (self._corpus or document_id) if self._by_source else None
            assert self.judgements is not None
            self._judged[name] = JudgedHits(name, self.judgements, of=of, by_source="--positives source")
        return self._judged[name]

    def unjudged_sources(self) -> list[str]:
        """Return a message for each source that retrieved none of the judged documents."""
        lacking = [name for name, found in self.counts.get("judged_found", {}).items() if not found]
        return [self._judged_hits(name).problem() or f"{name}: no judged document was retrieved" for name in lacking]

    def id_mismatch(self) -> str | None:
        """Describe an id mismatch between sources and judgements; None if the ids agree or were checked with a corpus."""
        problems = self.unjudged_sources()
        if self._corpus is not None or not problems or any(self.counts["judged_found"].values()):
            return None
        return f"{problems[0]}. Judged documents would become negatives; --corpus FILE checks all ids"

    def _count(self, pool: Pool) -> None:
        if pool.left_out and pool.left_out != WITHOUT_NEGATIVES:
            return  # it came to no filter
        miner = self.stages.miner
        if miner.corpus is not None and not pool.left_out and len(pool.kept) < miner.policy.floor:
            self.counts["below_floor"] = self.counts.get("below_floor", 0) + 1
        dropped = self.counts.setdefault("dropped", {})
        for drop in pool.dropped.values():
            dropped[drop.by] = dropped.get(drop.by, 0) + 1
        mined = self.counts.setdefault("passages", {})
        from_sources = sum(one.rank > 0 for one in pool.kept)
        for what, number in (
            ("candidates", pool.seen),
            ("kept", from_sources),
            ("dropped", len(pool.dropped)),
            ("not_drawn", pool.seen - from_sources - len(pool.dropped) - len(pool.promoted)),
            ("became_positives", len(pool.promoted)),
            ("random", len(pool.kept) - from_sources),
        ):
            mined[what] = mined.get(what, 0) + number
        if pool.refused:
            mined["random_refused"] = mined.get("random_refused", 0) + len(pool.refused)


def _taken(others: Mapping[str, Aligned[Any]], query_id: str) -> dict[str, Any]:
    found = {name: aligned.take(query_id) for name, aligned in others.items()}
    return {name: item for name, item in found.items() if item is not None}


@dataclass(frozen=True)
class Inputs:
    """The files and folders of a run, as the command line names them; looks: measure what was kept, for a report."""

    arguments: list[str]
    qrels: str | None = None
    corpus: str | None = None
    queries: str | None = None
    query_vectors: str | None = None
    vectors: str | None = None
    model: str | None = None
    another_corpus: bool = False
    looks: bool = False


def set_up(inputs: Inputs, settings: MineSettings, job: FilterJob, *, seed: int) -> Mining:
    """The walk over the sources, ready to go. Raises UsageError where something is asked for that something else lacks for."""
    policy = policy_of(settings, has_corpus=inputs.corpus is not None)
    sources = sources_of(inputs.arguments, job.intake, name=settings.source_name)
    check_indexes(sources.indexes, inputs.queries, inputs.query_vectors)
    _check_inputs(inputs, settings, policy, sources)
    check_place_options(settings, sources)
    reads_both = inputs.queries is not None and inputs.corpus is not None
    check_answer_options(settings, looks_for_answers=policy.answers or (inputs.looks and reads_both))
    if not sources.indexes:
        check_index_options(settings, inputs.model, has_index=False, encodes=False)
    filters = place_filters(settings, [name for name in sources.names if name not in sources.examples])
    corpus = None if inputs.corpus is None else _read_corpus(inputs, sources, job)
    by_source = settings.positives == "source"
    judgements: Judgements | None = None
    if inputs.qrels is not None:
        judgements = read_judgements(inputs.qrels, corpus=corpus, by_source=by_source, intake=job.intake)
    miner = Miner(policy, seed, settings.rel, by_source, corpus, job.counts, rescored=bool(settings.scorer))
    indexes = None
    if sources.indexes:
        indexes = Indexes(
            sources.indexes,
            settings,
            depth=_searched(policy.depth) if by_source else policy.depth,
            query_vectors=inputs.query_vectors,
            model=inputs.model,
            corpus=corpus,
        )
        check_index_options(settings, inputs.model, has_index=True, encodes=indexes.encodes)
        if indexes.needs_text and inputs.queries is None:
            raise UsageError("--query-vectors asks indexes of vectors; one of words is asked with --queries FILE")
    job.intake.inputs += [folder_entry(folder) for folder in (inputs.vectors, inputs.query_vectors) if folder]
    stages = _stages(inputs, settings, policy, miner, filters, job.counts if policy.answers else {})
    job.lookups = _models(settings)
    if policy.floor and settings.floor is None and inputs.corpus is None:
        log(f"mine-negatives: no --corpus, so nothing is filled up to {policy.floor} negatives")
    needs_text = bool(policy.answers or settings.scorer or inputs.looks or (indexes and indexes.needs_text))
    return Mining(
        sources,
        stages,
        judgements=judgements,
        intake=job.intake,
        counts=job.counts,
        corpus=corpus,
        indexes=indexes,
        queries=inputs.queries,
        needs_text=needs_text,
    )


def _searched(depth: int | None) -> int | None:
    """How deep indexes are searched for the best-ranked passages of documents: as deep as a run has them by default."""
    return None if depth is None else max(depth, RUN_DEPTH)


def _check_inputs(inputs: Inputs, settings: MineSettings, policy: Policy, sources: Sources) -> None:
    if inputs.qrels is None and not policy.answers and not sources.examples:
        raise UsageError("--qrels FILE says what is positive; only examples and --policy nq do without")
    if policy.answers and (inputs.queries is None or inputs.corpus is None):
        raise UsageError(
            f"--policy {settings.policy} looks for answers: --queries FILE has them, --corpus FILE the texts"
        )
    if settings.scorer and (inputs.queries is None or inputs.corpus is None):
        raise UsageError("--scorer reads texts: name --queries FILE and --corpus FILE")
    if settings.max_overlap is not None and inputs.corpus is None:
        raise UsageError("--max-overlap compares texts: name their --corpus FILE")
    if settings.max_cosine is not None and inputs.vectors is None:
        raise UsageError("--max-cosine compares vectors: name a folder of drtk encode, --vectors DIR")
    by_score = policy.ce_margin is not None or settings.ce_max is not None
    if by_score and not settings.scorer and (len(sources.examples) < len(sources.names) or policy.floor):
        flag = "--ce-max" if settings.ce_max is not None else "--ce-margin"
        flag = f"--policy {settings.policy}" if settings.ce_margin is None and settings.ce_max is None else flag
        raise UsageError(
            f"{flag} goes by scores of a cross-encoder, which runs and random passages lack: --scorer MODEL"
        )
    if inputs.corpus is not None and is_stream(inputs.corpus) and (policy.answers or settings.scorer or inputs.looks):
        raise UsageError("--corpus: texts are looked up in a file, not in a stream")


def _read_corpus(inputs: Inputs, sources: Sources, job: FilterJob) -> CorpusIds:
    """The ids of the corpus. Raises MismatchError where something is known to be made from another one."""
    assert inputs.corpus is not None
    found = CorpusIds.read(inputs.corpus, job.intake)
    entry: dict[str, Any] = next((one for one in job.intake.inputs if one["path"] == inputs.corpus), {})
    if entry.get("digest") and not inputs.another_corpus and not is_stream(inputs.corpus):
        for path in [*sources.paths, *filter(None, [inputs.vectors])]:
            if not is_stream(path):
                check_origin(path, Origin(inputs.corpus, entry["digest"]))
    return found


def _stages(
    inputs: Inputs,
    settings: MineSettings,
    policy: Policy,
    miner: Miner,
    filters: Sequence[Filter],
    counts: dict[str, Any],
) -> Stages:
    wants_texts = policy.answers or settings.scorer or settings.max_overlap is not None or inputs.looks
    texts = Texts(inputs.corpus) if inputs.corpus is not None and wants_texts else None
    vectors = VectorsById(inputs.vectors) if inputs.vectors is not None else None
    promote: Check | None = None
    checks: list[Check] = []
    looks: list[Check] = []
    if texts is not None and inputs.queries is not None:
        answers = AnswerCheck(texts, settings.match, title=settings.match_title, counts=counts)
        if policy.answers:
            promote = answers
        elif inputs.looks:
            looks.append(answers)
    if texts is not None:
        found = OverlapCheck(texts, settings.max_overlap)
        (looks if settings.max_overlap is None else checks).append(found)
    if vectors is not None:
        near = CosineCheck(vectors, settings.max_cosine)
        (looks if settings.max_cosine is None else checks).append(near)
    by_score = policy.ce_margin is not None or settings.ce_max is not None
    if settings.scorer or by_score:
        scorer, title = _scorer(settings)
        judge = CrossEncoderCheck(scorer, texts, margin=policy.ce_margin, most=settings.ce_max, title=title)
        (checks if by_score else looks).append(judge)
    # What nobody is to see is not measured, but scores go into the examples.
    looks = looks if inputs.looks else [one for one in looks if isinstance(one, CrossEncoderCheck)]
    return Stages(miner, filters, promote, checks, looks, texts)


def _models(settings: MineSettings) -> tuple[str, ...]:
    """The folder of the cross-encoder: with another one in its place, what was made is not up to date."""
    if not settings.scorer:
        return ()
    from drtk.models.model_folder import locate

    return (str(locate(settings.scorer)),)


def _scorer(settings: MineSettings) -> tuple[Any, str]:
    """The cross-encoder, where one is named, and how it reads titles: what `drtk score` would do."""
    if not settings.scorer:
        return None, "none"
    from drtk.models.config import ScoringSettings
    from drtk.models.cross_encoder import Scorer, title_of

    title = title_of(settings.scorer, settings.scorer_title, sealed=True)
    wanted = ScoringSettings(batch_tokens=settings.scorer_batch_tokens, dtype=settings.scorer_dtype)
    found = Scorer(
        settings.scorer,
        device=settings.device,
        settings=wanted,
        logits=settings.scorer_logits,
        option="--scorer-batch-tokens",
    )
    return found, title

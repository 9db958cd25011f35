"""A run of mine-negatives put together: what was asked for checked, sources, filters and checks made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drtk.errors import UsageError
from drtk.io.corpus_ids import CorpusIds
from drtk.io.filtering import FilterJob
from drtk.io.lineage import Origin, check_origin
from drtk.io.manifest import folder_entry
from drtk.io.progress import log
from drtk.io.streams import is_stream
from drtk.io.trec import Judgements
from drtk.retrieval.mining.asking import Indexes
from drtk.retrieval.mining.checks import Filter, place_filters
from drtk.retrieval.mining.crossencoder import CrossEncoderCheck
from drtk.retrieval.mining.idle import check_answer_options, check_index_options, check_place_options
from drtk.retrieval.mining.miner import Miner
from drtk.retrieval.mining.policies import Policy
from drtk.retrieval.mining.sources import Sources, check_indexes, sources_of
from drtk.retrieval.mining.stages import Check, Stages
from drtk.retrieval.mining.texts import AnswerCheck, OverlapCheck, Texts
from drtk.retrieval.mining.vectors import CosineCheck, VectorsById
from drtk.retrieval.mining.walk import Mining, policy_of, read_judgements
from drtk.settings.mining import MineSettings
from drtk.settings.retrieval import RUN_DEPTH


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
    job.looked_up = _models(settings)
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
                check_origin(path, Origin(inputs.corpus, entry["digest"]), override="--another-corpus")
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
    from drtk.models.hub import locate

    return (str(locate(settings.scorer)),)


def _scorer(settings: MineSettings) -> tuple[Any, str]:
    """The cross-encoder, where one is named, and how it reads titles: what `drtk score` would do."""
    if not settings.scorer:
        return None, "none"
    from drtk.models.crossencoder import Scorer
    from drtk.models.reranker import title_of
    from drtk.settings.scoring import ScoringSettings

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

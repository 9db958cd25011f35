"""drtk train-reranker: train a model to rerank the first documents of a ranking."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from drtk.cli.decorators import TRAINING_MAY_DIFFER, folder_command
from drtk.cli.options import (
    Corpus,
    Device,
    Folder,
    Queries,
    Seed,
    SkipCorpusCheck,
    make_argument,
    make_option,
    with_settings,
)
from drtk.config import EVALUATION
from drtk.errors import MismatchError, UsageError
from drtk.runtime.folder_job import FolderJob
from drtk.training.config import RerankerConfig

if TYPE_CHECKING:
    from drtk.evaluation.dev_evaluation import RerankingEvaluator


@with_settings(RerankerConfig, preset=True)
@folder_command("model", resume=True, data=True, may_differ=(*TRAINING_MAY_DIFFER, "micro_batch_size"))
def train_reranker(
    examples: Annotated[str, make_argument("EXAMPLES", "Training examples, or a TREC run (hlatr); - is stdin.")],
    output: Folder,
    corpus: Corpus | None = None,
    queries: Queries | None = None,
    model: Annotated[str | None, make_option("--model MODEL", "Model to start from, a folder or Hub name.")] = None,
    vectors: Annotated[
        str | None,
        make_option("--vectors DIR", "Pair vectors of the run, a folder from drtk rerank --save-vectors (hlatr)."),
    ] = None,
    qrels: Annotated[str | None, make_option("--qrels FILE", "Judgments of the run (hlatr).")] = None,
    dev: Annotated[
        str | None,
        make_option("--dev DIR", "BEIR folder, irds:ID or hf:NAME to select the best checkpoint.", panel=EVALUATION),
    ] = None,
    dev_run: Annotated[
        str | None,
        make_option("--dev-run RUN", "TREC run of the --dev queries, to be reranked in evaluation.", panel=EVALUATION),
    ] = None,
    skip_corpus_check: SkipCorpusCheck = False,
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: RerankerConfig,
    job: FolderJob,
) -> None:
    """Train a cross-encoder from training examples, or a list reranker (HLATR) from a run.

    Writes a model folder for drtk rerank. A cross-encoder also works with drtk score and the CrossEncoder class of
    sentence-transformers. The loss is logged in log.jsonl.

    Examples:
    drtk train-reranker examples.jsonl --corpus corpus.jsonl --queries queries.jsonl --model bert-base-uncased -o reranker
    drtk train-reranker train.run --preset hlatr --vectors vectors --qrels train.tsv -o hlatr
    """
    hlatr = settings.kind == "hlatr"
    texts = {"corpus": corpus, "queries": queries, "model": model}
    lists = {"vectors": vectors, "qrels": qrels}
    for name, value in (texts if hlatr else lists).items():
        if value is not None:
            raise UsageError(f"`{name}` cannot be combined with `kind={settings.kind}`; omit it")
    for name, value in (lists if hlatr else texts).items():
        if value is None:
            more = {"vectors": "; make it with drtk rerank RUN --save-vectors DIR", "model": ""}.get(
                name, "; or give --data DIR"
            )
            raise UsageError(f"`{name}` is required by `kind={settings.kind}`{more}")
    if (dev is None) != (dev_run is None):
        raise UsageError("`dev` and `dev_run` must be given together")
    if hlatr and skip_corpus_check:
        raise UsageError("`skip_corpus_check` cannot be combined with `kind=hlatr`; omit it")
    from drtk.data.checks import check_examples, check_first_record, check_run, check_same_corpus, warn_of_other_kind
    from drtk.data.readers import read_examples, read_passages, read_queries
    from drtk.models.model_folder import resolve_model_folder
    from drtk.training.preflight import check_training_inputs

    files = (examples, queries, vectors, qrels, dev, dev_run, settings.dev_vectors)
    check_training_inputs(settings.trainer, device, *files, local_files=[corpus])
    if hlatr:
        check_run(examples)
    else:
        check_examples(examples)
        warn_of_other_kind(passages=corpus, queries=queries)
        resolve_model_folder(str(model))
    probe = None if dev is None or dev_run is None else _build_probe(dev, dev_run, settings, job)
    if hlatr:
        _train_on_lists(examples, str(vectors), str(qrels), dev, probe, seed, device, settings, job)
    else:
        check_same_corpus(examples, str(corpus), skip=skip_corpus_check)
        for source, read in ((examples, read_examples), (corpus, read_passages), (queries, read_queries)):
            check_first_record(str(source), read, job.tracker)
        _train_on_pairs(examples, str(corpus), str(queries), str(model), dev, probe, seed, device, settings, job)


def _build_probe(dev: str, run: str, settings: RerankerConfig, job: FolderJob) -> RerankingEvaluator:
    from drtk.data.beir import find_qrels
    from drtk.data.readers import load_qrels
    from drtk.evaluation.dev_evaluation import RerankingEvaluator

    judgments = load_qrels(str(find_qrels(Path(dev), settings.dev_split)), tracker=job.tracker)
    depth = min(settings.dev_depth, settings.depth) if settings.kind == "hlatr" else settings.dev_depth
    return RerankingEvaluator(run, judgments, depth=depth, limit=settings.dev_queries, tracker=job.tracker)


def _train_on_pairs(
    source: str,
    corpus: str,
    queries: str,
    model: str,
    dev: str | None,
    probe: RerankingEvaluator | None,
    seed: int,
    device: str,
    settings: RerankerConfig,
    job: FolderJob,
) -> None:
    from drtk.models.cross_encoder import PAIRING, check_not_query_reranker, init_cross_encoder, resolve_title_format
    from drtk.models.model_folder import resolve_model_folder
    from drtk.runtime.manifest import find_inputs
    from drtk.training.examples import load_examples
    from drtk.training.folds import digest_question
    from drtk.training.reranker import MAX_LENGTH, plan_reranker_schedule, train_reranker
    from drtk.training.text_pairs import warn_of_overlap

    check_not_query_reranker(model)
    data = load_examples(
        source,
        queries=queries,
        corpus=corpus,
        tracker=job.tracker,
        negatives=settings.negatives_per_step,
        first_positive=settings.first_positive,
    )
    plan_reranker_schedule(data.examples, settings, source=data.source)
    title = resolve_title_format(model, settings.title, strict=False, default="colon")
    start = init_cross_encoder(model, max_length=settings.max_length, seed=seed, default_length=MAX_LENGTH)
    dev_queries = dev_corpus = None
    if probe is not None and dev is not None:
        dev_queries, dev_corpus = _load_dev_texts(dev, probe, corpus, job)
        warn_of_overlap(
            map(digest_question, dev_queries.values()),
            {digest_question(data.queries[id]) for id in data.examples.query_ids},
            "evaluation queries",
            file=dev,
            source=data.source,
        )

    facts = train_reranker(
        data,
        job.begin(),
        start=start,
        title=title,
        config=settings,
        dev=probe,
        dev_queries=dev_queries,
        dev_corpus=dev_corpus,
        seed=seed,
        device=device,
    )
    best = facts.pop("best", None)
    job.tracker.inputs += find_inputs({"corpus": corpus, "model": str(resolve_model_folder(model))})
    job.counts |= {"examples": len(data.examples), **facts}
    job.finish(**{PAIRING: {"title": title, "max_length": start.max_length}, "best": best})


def _load_dev_texts(dev: str, probe: RerankingEvaluator, corpus: str, job: FolderJob) -> tuple[dict[str, str], Any]:
    """Return the texts of the development queries, and the corpus of the candidates: the one in `dev`, or else `corpus`."""
    from drtk.data.beir import find_file, require_file
    from drtk.data.corpus_store import CorpusStore
    from drtk.data.readers import read_queries

    folder = Path(dev)
    wanted = {query for query, _ in probe.candidates}
    queries = require_file(folder, "queries.jsonl")
    texts = {query.id: query.text for query in read_queries(queries, tracker=job.tracker) if query.id in wanted}
    unknown = [query for query, _ in probe.candidates if query not in texts]
    _check_missing(queries, "query", unknown, len(wanted), "queries")
    place = str(find_file(folder, "corpus.jsonl") or corpus)
    store = CorpusStore.open(place)
    named = list(dict.fromkeys(id for _, ids in probe.candidates for id in ids))
    _check_missing(place, "passage", list(store.find_missing(named)), len(named), "corpus")
    return texts, store


def _check_missing(place: str | Path, kind: str, missing: list[str], total: int, file: str) -> None:
    """Raise MismatchError if a file lacks queries or passages of `dev_run`."""
    if missing:
        more = f"; {len(missing):,} of {total:,} are missing" if len(missing) > 1 else ""
        raise MismatchError(f"{place}: {kind} '{missing[0]}' of `dev_run` is missing{more}; use the {file} of that run")


def _train_on_lists(
    source: str,
    vectors: str,
    qrels: str,
    dev: str | None,
    probe: RerankingEvaluator | None,
    seed: int,
    device: str,
    settings: RerankerConfig,
    job: FolderJob,
) -> None:
    from drtk.data.embeddings import PairVectors
    from drtk.data.readers import load_qrels
    from drtk.retrieval.rerank import check_same_scorer
    from drtk.runtime.manifest import find_inputs
    from drtk.runtime.progress import log
    from drtk.training.list_reranker import plan_list_schedule, read_candidate_lists, train_list_reranker
    from drtk.training.text_pairs import warn_of_overlap

    opened = PairVectors(vectors)
    others = None if settings.dev_vectors is None else PairVectors(settings.dev_vectors)
    if others is not None:
        check_same_scorer(vectors, opened.scorer, str(settings.dev_vectors), others.scorer)
    judgments = load_qrels(qrels, tracker=job.tracker)
    data = read_candidate_lists(source, vectors=opened, judgments=judgments, depth=settings.depth, tracker=job.tracker)
    opened.warn_if_order_differs(data.source)
    if data.num_without_relevant:
        log(
            f"excluded {data.num_without_relevant:,} queries that have no positive among their first {settings.depth} documents"
        )
    if data.num_unjudged:
        log(f"excluded {data.num_unjudged:,} of {data.num_queries:,} queries, because they have no judgments")
    plan_list_schedule(data, settings)
    if probe is not None and dev is not None:  # there are no texts to compare
        dev_ids = [query for query, _ in probe.candidates]
        warn_of_overlap(dev_ids, data.query_ids, "evaluation queries", file=dev, source=data.source)
    facts = train_list_reranker(
        data,
        job.begin(),
        vectors=opened,
        config=settings,
        candidates=probe,
        dev_vectors=others,
        seed=seed,
        device=device,
    )
    best = facts.pop("best", None)
    job.tracker.inputs += find_inputs({"vectors": vectors, "dev_vectors": settings.dev_vectors})
    job.counts |= {
        "lists": len(data.lists),
        "without a positive": data.num_without_relevant,
        "without a judgment": data.num_unjudged,
        **facts,
    }
    job.finish(scorer=opened.scorer, best=best)

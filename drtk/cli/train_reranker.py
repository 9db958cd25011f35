"""drtk train-reranker: a model learns to put the head of a ranking into order."""

from __future__ import annotations

from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drtk.cli.decorators import OF_TRAINING, folder_maker
from drtk.cli.options import AnotherCorpus, Device, Folder, Seed, with_settings
from drtk.errors import UsageError
from drtk.records import Query
from drtk.runtime.folder_job import FolderJob
from drtk.training.config import RerankerSettings

if TYPE_CHECKING:
    from drtk.evaluation.probes import RerankingProbe


@with_settings(RerankerSettings, preset=True)
@folder_maker("model", resume=True, may_differ=(*OF_TRAINING, "micro_batch"))
def train_reranker(
    examples: Annotated[
        str, typer.Argument(metavar="EXAMPLES", help="Training examples, or for hlatr a TREC run; - is stdin.")
    ],
    output: Folder,
    corpus: Annotated[
        str | None, typer.Option("--corpus", metavar="FILE", help="Passages, in any format drtk reads.")
    ] = None,
    queries: Annotated[
        str | None, typer.Option("--queries", metavar="FILE", help="Queries, in any format drtk reads.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="Encoder or cross-encoder to start from: a folder, or hub name."),
    ] = None,
    vectors: Annotated[
        str | None, typer.Option("--vectors", metavar="DIR", help="hlatr: vectors of the run's pairs, by drtk rerank.")
    ] = None,
    qrels: Annotated[
        str | None, typer.Option("--qrels", metavar="FILE", help="hlatr: judgements, BEIR TSV or TREC qrels.")
    ] = None,
    dev: Annotated[
        str | None,
        typer.Option("--dev", metavar="DIR", help="Measure with this BEIR folder, and keep the best weights."),
    ] = None,
    dev_run: Annotated[
        str | None, typer.Option("--dev-run", metavar="RUN", help="--dev: the run whose head is put into order.")
    ] = None,
    dev_split: Annotated[
        str, typer.Option("--dev-split", metavar="NAME", help="--dev: its judgements, qrels/NAME.tsv.")
    ] = "dev",
    dev_vectors: Annotated[
        str | None,
        typer.Option("--dev-vectors", metavar="DIR", help="hlatr: vectors of the dev run, if not --vectors."),
    ] = None,
    another_corpus: AnotherCorpus = False,
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: RerankerSettings,
    job: FolderJob,
) -> None:
    """Train a re-ranker from queries, their passages and hard negatives.

    Makes a folder that rerank, score and sentence-transformers' CrossEncoder load; log.jsonl in it is the loss.
    """
    texts = {"--corpus": corpus, "--queries": queries, "--model": model}
    lists = {"--vectors": vectors, "--qrels": qrels}
    hlatr = settings.kind == "hlatr"
    for flag, value in (texts if hlatr else lists | {"--dev-vectors": dev_vectors}).items():
        if value is not None:
            raise UsageError(f"{flag}: is not for --kind {settings.kind}")
    for flag, value in (lists if hlatr else texts).items():
        if value is None:
            more = "; drtk rerank RUN --vectors DIR makes it" if flag == "--vectors" else ""
            raise UsageError(f"{flag}: --kind {settings.kind} needs it{more}")
    if (dev is None) != (dev_run is None):
        raise UsageError("--dev and --dev-run go together: the judgements, and the run that is measured")
    if dev is None and settings.patience is not None:
        raise UsageError("--patience: needs something to measure with: --dev and --dev-run")
    if dev is None and dev_split != "dev":
        raise UsageError("--dev-split: names judgements of --dev")
    if hlatr and another_corpus:
        raise UsageError("--another-corpus: is not for --kind hlatr, which reads vectors, not texts")
    settings.check()
    from drtk.data.checks import check_examples, check_run, warn_if_swapped
    from drtk.training.preflight import check_beforehand

    files = (examples, queries, vectors, qrels, dev, dev_run, dev_vectors)
    check_beforehand(settings.trainer, device, *files, kept=[corpus])
    if hlatr:
        check_run(examples)
    else:
        check_examples(examples)
        warn_if_swapped(str(corpus), str(queries))
    if model is not None:
        from drtk.models.model_folder import locate

        locate(model)
    probe = None if dev is None or dev_run is None else _probe(dev, dev_run, dev_split, settings, job)
    if hlatr:
        _lists(examples, str(vectors), str(qrels), dev, dev_vectors, probe, seed, device, settings, job)
    else:
        from drtk.data.checks import check_looked_up

        check_looked_up(examples, str(corpus), another=another_corpus)
        _pairs(examples, str(corpus), str(queries), str(model), dev, probe, seed, device, settings, job)


def _probe(dev: str, run: str, split: str, settings: RerankerSettings, job: FolderJob) -> RerankingProbe:
    from drtk.data.beir import find_qrels
    from drtk.data.trec import load_qrels
    from drtk.evaluation.probes import RerankingProbe

    judgements = load_qrels(str(find_qrels(Path(dev), split)), intake=job.intake)
    depth = min(settings.dev_depth, settings.depth) if settings.kind == "hlatr" else settings.dev_depth
    return RerankingProbe(run, judgements, depth=depth, limit=settings.dev_queries, intake=job.intake)


def _pairs(
    source: str,
    corpus: str,
    queries: str,
    model: str,
    dev: str | None,
    probe: RerankingProbe | None,
    seed: int,
    device: str,
    settings: RerankerSettings,
    job: FolderJob,
) -> None:
    from drtk.data.corpus_store import CorpusStore
    from drtk.data.jsonl import read_examples, read_queries
    from drtk.models.cross_encoder import PAIRING, start_crossencoder, title_of
    from drtk.models.generator_input import text_of
    from drtk.models.model_folder import locate
    from drtk.models.query_reranker_input import refuse_query_reranker
    from drtk.runtime.manifest import find_inputs
    from drtk.runtime.streams import name_of
    from drtk.training.example_order import check_readable
    from drtk.training.examples import PackedExamples
    from drtk.training.reranker import GPU_TOKENS, GROUP_TOKENS, LENGTH, Measuring, plan, train_reranker
    from drtk.training.text_pairs import questions_in_both, warn_of_overlap

    refuse_query_reranker(model, locate(model))
    packed = PackedExamples(
        read_examples(source, intake=job.intake),
        line=lambda: job.intake.line,
        first_positive=settings.first_positive,
    )
    plan(packed, settings, source=name_of(source))
    wanted = set(packed.query_ids)
    texts = {query.id: query.text for query in read_queries(queries, intake=job.intake) if query.id in wanted}
    store = CorpusStore.open(corpus)
    packed.check(
        name_of(source),
        queries=texts,
        corpus=store,
        negatives=settings.negatives_in_a_step,
        instead="--loss bce does without",
        forgive=job.intake.forgive,
    )
    plan(packed, settings, source=name_of(source))  # again, as --skip-bad may have left out some
    title = title_of(model, settings.title, sealed=False, default="colon")
    check_readable(packed.passage_ids, store, called=corpus, read=lambda passage: text_of(passage, title))
    start = start_crossencoder(model, max_length=settings.max_length, seed=seed, default=LENGTH)
    measuring = None
    if probe is not None and dev is not None:
        asked, passages = _dev_texts(dev, probe, corpus, job)
        trained = (Query(id, texts[id]) for id in dict.fromkeys(packed.query_ids))
        both = questions_in_both(trained, starmap(Query, asked.items()))
        warn_of_overlap(both, len(asked), "measured queries", dev=dev, source=name_of(source))

        def measuring(scorer: Any, tokenizing: Any) -> Measuring:
            on_cpu = next(scorer.parameters()).device.type == "cpu"
            return Measuring(
                scorer,
                probe,
                queries=asked,
                corpus=passages,
                tokenizing=tokenizing,
                title=title,
                budget=GROUP_TOKENS if on_cpu else GPU_TOKENS,
            )

    facts = train_reranker(
        packed,
        job.begin(),
        start=start,
        title=title,
        queries=texts,
        corpus=store,
        settings=settings,
        measuring=measuring,
        seed=seed,
        device=device,
    )
    best = facts.pop("best", None)
    job.intake.inputs += find_inputs({"corpus": corpus, "model": str(locate(model))})
    job.counts |= {"examples": len(packed), **facts}
    job.finish(**{PAIRING: {"title": title, "max_length": start.max_length}, "best": best})


def _dev_texts(dev: str, probe: RerankingProbe, corpus: str, job: FolderJob) -> tuple[dict[str, str], Any]:
    """The texts of the measured queries, and where their candidates are looked up: the folder's corpus, or --corpus."""
    from drtk.data.beir import find_file, require_file
    from drtk.data.corpus_store import CorpusStore
    from drtk.data.jsonl import read_queries
    from drtk.errors import MismatchError

    folder = Path(dev)
    wanted = {query for query, _ in probe.candidates}
    queries = require_file(folder, "queries.jsonl")
    texts = {query.id: query.text for query in read_queries(queries, intake=job.intake) if query.id in wanted}
    unknown = [query for query, _ in probe.candidates if query not in texts]
    if unknown:
        by = f"which the dev run and its judgements name{_among(len(unknown), len(wanted))}"
        raise MismatchError(f"{queries}: has no '{unknown[0]}', {by}")
    place = str(find_file(folder, "corpus.jsonl") or corpus)
    store = CorpusStore.open(place)
    named = list(dict.fromkeys(id for _, ids in probe.candidates for id in ids))
    absent = list(store.missing(named))
    if absent:
        raise MismatchError(f"{place}: has no '{absent[0]}', which the dev run names{_among(len(absent), len(named))}")
    return texts, store


def _among(absent: int, named: int) -> str:
    return f"; {absent:,} of the {named:,} that are measured are not there" if absent > 1 else ""


def _lists(
    source: str,
    vectors: str,
    qrels: str,
    dev: str | None,
    dev_vectors: str | None,
    probe: RerankingProbe | None,
    seed: int,
    device: str,
    settings: RerankerSettings,
    job: FolderJob,
) -> None:
    from drtk.cli.rerank import check_same_scorer
    from drtk.data.embeddings import PairVectors
    from drtk.data.trec import load_qrels
    from drtk.runtime.manifest import find_inputs
    from drtk.runtime.progress import log
    from drtk.runtime.streams import name_of
    from drtk.training.list_reranker import plan, read_lists, train_list_reranker
    from drtk.training.text_pairs import warn_of_overlap

    opened = PairVectors(vectors)
    others = None if dev_vectors is None else PairVectors(dev_vectors)
    if others is not None:
        check_same_scorer(vectors, opened.scorer, str(dev_vectors), others.scorer)
    judgements = load_qrels(qrels, intake=job.intake)
    lists = read_lists(source, vectors=opened, judgements=judgements, depth=settings.depth, intake=job.intake)
    opened.warn_of_another_order(name_of(source))
    if lists.without:
        log(f"{lists.without:,} queries have no positive among their first {settings.depth} documents: left out")
    if lists.unjudged:
        log(f"{lists.unjudged:,} of {lists.queries:,} queries have no judgement: left out")
    plan(lists, settings, source=name_of(source))
    if probe is not None and dev is not None:  # texts are not at hand: by ids
        both = sum(query in lists.asked for query, _ in probe.candidates)
        warn_of_overlap(both, len(probe.candidates), "measured queries", dev=dev, source=name_of(source))
    facts = train_list_reranker(
        lists,
        job.begin(),
        vectors=opened,
        settings=settings,
        probe=probe,
        dev_vectors=others,
        seed=seed,
        device=device,
    )
    best = facts.pop("best", None)
    job.intake.inputs += find_inputs({"vectors": vectors, "dev_vectors": dev_vectors})
    job.counts |= {
        "lists": len(lists.found),
        "without a positive": lists.without,
        "without a judgement": lists.unjudged,
        **facts,
    }
    job.finish(scorer=opened.scorer, best=best)

"""drtk train-retriever: an encoder learns from examples."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from drtk.cli.decorators import OF_TRAINING, folder_maker
from drtk.cli.options import AnotherCorpus, Corpus, Device, Folder, Queries, Seed, with_settings
from drtk.records import Query
from drtk.runtime.folder_job import FolderJob
from drtk.training.config import RetrieverSettings


@with_settings(RetrieverSettings, preset=True)
@folder_maker("model", resume=True, may_differ=(*OF_TRAINING, "cache_chunk"))
def train_retriever(
    examples: Annotated[str, typer.Argument(metavar="EXAMPLES", help="Training examples; - is stdin.")],
    corpus: Corpus,
    queries: Queries,
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="Model to start from: a folder, or hub name[@revision].")
    ],
    output: Folder,
    dev: Annotated[
        str | None,
        typer.Option(
            "--dev", metavar="DIR", help="Keep the weights with the best nDCG@10 on a BEIR folder with qrels/dev.tsv."
        ),
    ] = None,
    another_corpus: AnotherCorpus = False,
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: RetrieverSettings,
    job: FolderJob,
) -> None:
    """Train a retriever from queries, their passages and hard negatives.

    Makes a model folder that encode, search, transformers and sentence-transformers load; log.jsonl in it is the loss.
    """
    from drtk.errors import UsageError
    from drtk.losses import RETRIEVER_LOSSES

    for name in (settings.loss, settings.contrastive):
        RETRIEVER_LOSSES.check(name)
    if settings.patience is not None and dev is None:
        raise UsageError("--patience needs something to measure with: --dev")
    settings.check()
    from drtk.data.beir import choose_dev_split
    from drtk.data.checks import check_examples, check_looked_up, warn_if_swapped
    from drtk.models.model_folder import locate
    from drtk.training.preflight import check_beforehand

    check_beforehand(settings.trainer, device, examples, queries, kept=[corpus])
    check_examples(examples)
    warn_if_swapped(corpus, queries)
    locate(model)
    if settings.aux != "none":
        locate(settings.aux_generator)
    split = choose_dev_split(dev) if dev is not None else ""
    check_looked_up(examples, corpus, another=another_corpus)
    from drtk.data.corpus_store import CorpusStore
    from drtk.data.jsonl import read_examples, read_queries
    from drtk.models.generator_input import text_of
    from drtk.runtime.manifest import find_inputs
    from drtk.runtime.streams import name_of
    from drtk.training.example_order import check_readable
    from drtk.training.examples import PackedExamples
    from drtk.training.retriever import check, plan, start_towers, train_retriever
    from drtk.training.retriever_loss import learns_from_teacher

    check(settings)
    packed = PackedExamples(
        read_examples(examples, intake=job.intake),
        line=lambda: job.intake.line,
        scored=learns_from_teacher(settings.loss),
    )
    if settings.train_fraction < 1:
        packed.thinned(settings.train_fraction, seed=seed)
    plan(len(packed), settings, source=name_of(examples))
    wanted = set(packed.query_ids)
    texts = {query.id: query.text for query in read_queries(queries, intake=job.intake) if query.id in wanted}
    store = CorpusStore.open(corpus)
    packed.check(
        name_of(examples), queries=texts, corpus=store, negatives=settings.negatives, forgive=job.intake.forgive
    )
    plan(len(packed), settings, source=name_of(examples))  # again, as --skip-bad may have left out some
    towers = start_towers(model, settings)
    title = towers["passage"].recipe.title
    check_readable(packed.passage_ids, store, called=corpus, read=lambda passage: text_of(passage, title))
    look = None
    if dev is not None:
        asked = [Query(id, texts[id]) for id in dict.fromkeys(packed.query_ids)]
        look = _look(dev, split, towers, asked, name_of(examples), settings, seed, job)
    facts = train_retriever(
        packed,
        job.begin(),
        towers=towers,
        queries=texts,
        corpus=store,
        settings=settings,
        seed=seed,
        device=device,
        dev=look,
    )
    named = {"corpus": corpus, "model": str(locate(model)), "generator": settings.aux_generator}
    job.intake.inputs += find_inputs(named)
    best = facts.pop("best", None)
    job.counts |= {"examples": len(packed), **facts}
    passage = towers["passage"].recipe
    job.finish(encoding=passage.to_dict(), towers=sorted(towers) if len(towers) > 1 else None, best=best)


def _look(
    folder: str,
    split: str,
    towers: dict[str, Any],
    trained: list[Query],
    source: str,
    settings: RetrieverSettings,
    seed: int,
    job: FolderJob,
) -> Any:
    """What is asked of the towers now and then: {"dev_nDCG@10", "dev_accuracy"}; `trained` are the queries of `source`."""
    from functools import partial
    from pathlib import Path

    from drtk.evaluation.probes import RankingProbe
    from drtk.models.checkpoint import compared
    from drtk.runtime.progress import round_significant
    from drtk.text.rng import uniform
    from drtk.training.text_pairs import questions_in_both, warn_of_overlap

    probe = RankingProbe(
        Path(folder),
        split=split,
        intake=job.intake,
        queries=settings.dev_queries,
        pool=settings.dev_pool,
        lot=partial(uniform, seed, "dev"),
    )
    both = questions_in_both(trained, probe.queries)
    warn_of_overlap(both, len(probe.queries), f"measured queries (qrels/{split}.tsv)", dev=folder, source=source)

    def look() -> dict[str, float]:
        found = probe.figures(partial(compared, towers), batch=settings.batch)
        return {f"dev_{name}": round_significant(value) for name, value in found.items()}

    return look

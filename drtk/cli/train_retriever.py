"""drtk train-retriever: an encoder learns from examples."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.jobs import OF_TRAINING, folder_maker
from drtk.cli.options import Corpus, Device, Folder, Queries, Seed, with_settings
from drtk.io.folders import FolderJob
from drtk.settings.finetuning import RetrieverSettings


@with_settings(RetrieverSettings, preset=True)
@folder_maker("model", resume=True, may_differ=OF_TRAINING)
def train_retriever(
    examples: Annotated[str, typer.Argument(metavar="EXAMPLES", help="Training examples; - is stdin.")],
    corpus: Corpus,
    queries: Queries,
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="Model to start from: a folder, or hub name[@revision].")
    ],
    output: Folder,
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: RetrieverSettings,
    job: FolderJob,
) -> None:
    """Train a retriever from queries, their passages and hard negatives.

    Makes a model folder that encode, search, transformers and sentence-transformers load; log.jsonl in it is the loss.
    """
    from drtk.losses import RETRIEVER_LOSSES

    RETRIEVER_LOSSES.check(settings.loss)
    from drtk.io.jsonl import read_examples, read_queries
    from drtk.io.manifest import inputs_named
    from drtk.io.store import CorpusStore
    from drtk.models.hub import locate
    from drtk.training.examples import PackedExamples
    from drtk.training.retriever import plan, start_towers, train_retriever

    packed = PackedExamples(read_examples(examples, intake=job.intake), line=lambda: job.intake.line)
    plan(len(packed), settings)
    wanted = set(packed.query_ids)
    texts = {query.id: query.text for query in read_queries(queries, intake=job.intake) if query.id in wanted}
    store = CorpusStore.open(corpus)
    packed.check(examples, queries=texts, corpus=store, negatives=settings.negatives)
    towers = start_towers(model, settings)
    facts = train_retriever(
        packed,
        job.begin(),
        towers=towers,
        queries=texts,
        corpus=store,
        settings=settings,
        seed=seed,
        device=device,
    )
    job.intake.inputs += inputs_named({"corpus": corpus, "model": str(locate(model))})
    job.counts |= {"examples": len(packed), **facts}
    passage = towers["passage"].recipe
    job.finish(encoding=passage.to_dict(), towers=sorted(towers) if len(towers) > 1 else None)

"""drtk train-retriever: train an encoder on examples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from drtk.cli.decorators import TRAINING_MAY_DIFFER, folder_command
from drtk.cli.options import (
    Corpus,
    DevFolder,
    Device,
    Folder,
    Queries,
    Seed,
    SkipCorpusCheck,
    make_argument,
    make_option,
    with_settings,
)
from drtk.errors import UsageError
from drtk.runtime.folder_job import FolderJob
from drtk.training.config import RetrieverConfig

if TYPE_CHECKING:
    from drtk.models.checkpoint import TextEncoder
    from drtk.training.examples import TrainingData
    from drtk.training.retriever import AuxiliaryTask


@with_settings(RetrieverConfig, preset=True)
@folder_command("model", resume=True, data=True, may_differ=(*TRAINING_MAY_DIFFER, "grad_cache"))
def train_retriever(
    examples: Annotated[str, make_argument("EXAMPLES", "Training examples; - is stdin.")],
    model: Annotated[str, make_option("--model MODEL", "Model to start from, a folder or Hub name[@revision].")],
    output: Folder,
    corpus: Corpus | None = None,
    queries: Queries | None = None,
    dev: DevFolder | None = None,
    skip_corpus_check: SkipCorpusCheck = False,
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: RetrieverConfig,
    job: FolderJob,
) -> None:
    """Train a dense or sparse retriever from queries, positives and hard negatives.

    Writes a model folder for drtk encode, transformers and sentence-transformers. Its log.jsonl has the loss.

    Examples:
    drtk train-retriever examples.jsonl --data squad --model bert-base-uncased -o retriever
    drtk train-retriever scored.jsonl --loss kl --corpus corpus.jsonl --queries queries.jsonl --model simlm --dev dev -o distilled
    """
    from drtk.losses import RETRIEVER_LOSSES

    for name in (settings.loss, settings.contrastive):
        RETRIEVER_LOSSES.check_name(name)
    if corpus is None or queries is None:
        option = "corpus" if corpus is None else "queries"
        kind = "passages" if corpus is None else "queries"
        advice = f"if the examples contain texts, create the file with drtk convert --as {kind}"
        raise UsageError(f"--{option} FILE or --data DIR is required; {advice}")
    from drtk.data.beir import choose_dev_split
    from drtk.data.checks import check_examples, check_first_record, check_same_corpus, warn_of_other_kind
    from drtk.data.readers import read_examples, read_passages, read_queries
    from drtk.models.model_folder import resolve_model_folder
    from drtk.training.preflight import check_training_inputs

    check_training_inputs(settings.trainer, device, examples, queries, local_files=[corpus])
    check_examples(examples)
    warn_of_other_kind(passages=corpus, queries=queries)
    resolve_model_folder(model)
    if settings.aux != "none":
        resolve_model_folder(settings.aux_generator)
    split = choose_dev_split(dev) if dev is not None else ""
    check_same_corpus(examples, corpus, skip=skip_corpus_check)
    for source, read in ((examples, read_examples), (corpus, read_passages), (queries, read_queries)):
        check_first_record(source, read, job.tracker)
    from drtk.training.retriever import train_from_files

    def build_evaluator(towers: dict[str, TextEncoder], data: TrainingData) -> Callable[[], dict[str, float]]:
        from drtk.evaluation.dev_evaluation import RetrievalEvaluator
        from drtk.models.checkpoint import embed_for_dot_product
        from drtk.runtime.progress import round_significant
        from drtk.training.best_checkpoint import Metrics
        from drtk.training.folds import digest_question
        from drtk.training.text_pairs import warn_of_overlap

        probe = RetrievalEvaluator(
            Path(str(dev)),
            split=split,
            tracker=job.tracker,
            max_queries=settings.dev_queries,
            max_passages=settings.dev_pool,
            seed=seed,
        )
        warn_of_overlap(
            [digest_question(query.text) for query in probe.queries],
            {digest_question(data.queries[id]) for id in data.examples.query_ids},
            f"evaluation queries (qrels/{split}.tsv)",
            file=str(dev),
            source=data.source,
        )

        def evaluate() -> dict[str, float]:
            values = probe.compute_metrics(partial(embed_for_dot_product, towers), batch_size=settings.batch_size)
            return Metrics(
                {f"dev_{name}": round_significant(value) for name, value in values.items()},
                {f"dev_{name}": interval for name, interval in values.intervals.items()},
            )

        return evaluate

    def build_auxiliary(towers: dict[str, TextEncoder]) -> AuxiliaryTask:
        from drtk.pretraining.auxiliary import DiffCSE

        return DiffCSE(towers, settings, seed=seed)

    train_from_files(
        examples,
        corpus,
        queries,
        model,
        settings,
        job,
        seed=seed,
        device=device,
        build_evaluator=None if dev is None else build_evaluator,
        build_auxiliary=build_auxiliary if settings.aux == "diffcse" else None,
    )

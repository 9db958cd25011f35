"""drtk termweight: add a weight to each word piece of a passage."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from drtk.cli.decorators import filter_command
from drtk.cli.options import Device, Output, Seed, make_argument, make_option, with_settings
from drtk.config import METHOD, list_changed_fields, require_defaults, to_dict
from drtk.errors import UsageError
from drtk.expansion.config import WeightingSettings, WeightTrainingConfig
from drtk.expansion.term_weights import TERM_WEIGHTS
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.runners import RunnerSettings
from drtk.runtime.sharding import WHOLE_INPUT
from drtk.runtime.streams import STANDARD

# Settings and arguments that are valid with --collect, --merge and --train. --merge accepts the settings of --collect, so
# that both can be called with the same options.
_COUNTING = {
    *("words", "stemmer", "stopwords", "title", "emit", "sub2word", "gather", "saturation"),
    *("max_length", "batch_tokens", "precision", "tokenizer", "num_workers"),
}
_VALID_NAMES = {
    "collect": _COUNTING | {"INPUT", "collect", "with", "shard", "runner", "runner_workers", "ray_address"},
    "merge": _COUNTING | {"merge", "collection"},
    "train": {"title", "max_length", "expand"},
}
_PURPOSES = {
    "collect": "--collect, which writes statistics",
    "merge": "--merge, which sums the files of --collection",
    "train": "--train, which trains a model",
}


@with_settings(WeightingSettings)
@with_settings(RunnerSettings, name="runner_settings")
@with_settings(WeightTrainingConfig, name="training")
@filter_command("corpus", passages=True, bare=True, sharded=True, model_parameter="train")
def termweight(
    method: Annotated[
        str, make_option("--method METHOD", f"Weighting method: {', '.join(TERM_WEIGHTS)}.", panel=METHOD)
    ],
    source: Annotated[str, make_argument("INPUT", "Passages to weight; - is stdin.")] = "-",
    output: Output = "-",
    model: Annotated[
        str | None,
        make_option(
            "--model MODEL",
            "Encoder (bprop, --train) or term-weighting model (deepct, deepimpact), a folder or Hub name.",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        make_option(
            "--tokenizer NAME", "Tokenizer of the output word pieces, a folder or Hub name. [default: that of --model]"
        ),
    ] = None,
    collection: Annotated[
        list[str] | None,
        make_option("--collection FILE", "Collection statistics from --collect; repeatable, several files are summed."),
    ] = None,
    collect: Annotated[
        bool, make_option("--collect", "Write collection statistics instead of term weights.", panel=METHOD)
    ] = False,
    merge: Annotated[
        bool, make_option("--merge", "Merge the files of --collection into one; reads no corpus.", panel=METHOD)
    ] = False,
    stopword_share: Annotated[
        bool,
        make_option(
            "--stopword-share",
            "Log the share of stop words and punctuation among tokens masked as in ROM.",
            panel=METHOD,
        ),
    ] = False,
    train: Annotated[
        str | None,
        make_option(
            "--train EXAMPLES", "Train --model on these examples; -o names the output folder (deepct, deepimpact)."
        ),
    ] = None,
    corpus: Annotated[
        str | None, make_option("--corpus FILE", "Corpus with the passages of the --train examples.")
    ] = None,
    queries: Annotated[str | None, make_option("--queries FILE", "Queries of the --train examples.")] = None,
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: WeightingSettings,
    runner_settings: RunnerSettings,
    training: WeightTrainingConfig,
    job: FilterJob | FolderJob,
) -> None:
    """Add term weights to each passage.

    Writes each passage with "weights": [...], one per word piece of its text, and "title_weights" for its title. Method
    deepimpact also writes "impacts", a number per word.

    Examples:
    drtk termweight corpus.jsonl --method bprop --model bert-base-uncased -o weighted.jsonl
    drtk termweight corpus.jsonl --method idf --tokenizer bert-base-uncased -o weighted.jsonl
    """
    TERM_WEIGHTS.check_name(method)
    if collect and merge:
        raise UsageError("--collect and --merge cannot be combined; give one")
    work = "train" if isinstance(job, FolderJob) else "collect" if collect else "merge" if merge else "weigh"
    given: dict[str, Any] = {
        "INPUT": source != STANDARD,
        "tokenizer": tokenizer,
        "collection": collection,
        "collect": collect,
        "merge": merge,
        "stopword_share": stopword_share,
    }
    if isinstance(job, FilterJob):
        given |= {"bare": job.bare, "with": job.side_files, "shard": job.shard != WHOLE_INPUT}
    names = [
        *list_changed_fields(settings),
        *list_changed_fields(runner_settings),
        *(name for name, value in given.items() if value),
    ]
    for name in names if work in _VALID_NAMES else ():
        if name not in _VALID_NAMES[work]:
            raise UsageError(
                f"{name if name == 'INPUT' else f'`{name}`'} cannot be combined with {_PURPOSES[work]}; omit it"
            )
    if isinstance(job, FolderJob):
        if corpus is None or queries is None or model is None:
            raise UsageError("--train requires --corpus, --queries and --model")
        _train_model(str(train), corpus, queries, model, method, settings, training, seed, device, job)
        return
    require_defaults(training, "requires --train")
    if corpus is not None or queries is not None:
        raise UsageError("--corpus and --queries require --train")
    if stopword_share and output == STANDARD and sys.stdout.isatty():
        raise UsageError("--stopword-share requires --output if stdout is a terminal")
    from drtk.expansion.term_weights import compute

    plan = compute.make_weighting_plan(method, settings, tokenizer=tokenizer, model=model, device=device, seed=seed)
    if collect:
        compute.collect_statistics(source, plan, runner_settings=runner_settings, job=job)
    elif merge:
        compute.merge_statistics(collection or [], plan, job)
    else:
        compute.weigh_corpus(
            source, plan, collection or [], report=stopword_share, runner_settings=runner_settings, job=job
        )


def _train_model(
    examples: str,
    corpus: str,
    queries: str,
    model: str,
    method: str,
    settings: WeightingSettings,
    training: WeightTrainingConfig,
    seed: int,
    device: str,
    job: FolderJob,
) -> None:
    from drtk.models.model_folder import resolve_model_folder
    from drtk.training.preflight import check_training_inputs

    training = training.resolve(method)
    check_training_inputs(training.trainer, device, examples, queries, local_files=[corpus])
    resolve_model_folder(model)
    from drtk.expansion.term_weights.train import check_added_texts, plan_training, train_term_weighter
    from drtk.models.term_weighter import init_term_weight_model
    from drtk.runtime.manifest import find_inputs
    from drtk.training.examples import load_examples

    negatives = 1 if method == "deepimpact" else 0
    data = load_examples(examples, queries=queries, corpus=corpus, tracker=job.tracker, negatives=negatives)
    plan_training(data.examples, method, training, source=data.source)
    if method == "deepimpact":
        check_added_texts(data.examples.passage_ids, data.corpus, settings.expand)
    weigher = init_term_weight_model(Path(resolve_model_folder(model)), method, seed=seed)
    counts, facts = train_term_weighter(
        data, job.begin(), weigher=weigher, settings=settings, training=training, seed=seed, device=device
    )
    job.tracker.inputs += find_inputs({"corpus": corpus, "model": str(resolve_model_folder(model))})
    job.counts |= {"examples": len(data.examples), **counts}
    job.finish(encoding=to_dict(weigher.encoder.encoding), term_weights=facts)

"""drtk pretrain: pre-train an encoder on passages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from drtk.cli.decorators import TRAINING_MAY_DIFFER, folder_command
from drtk.cli.options import DevFolder, Device, Seed, make_argument, make_option, with_settings
from drtk.config import CONTROL, EVALUATION, METHOD, TRAINING
from drtk.pretraining.config import PretrainSettings
from drtk.runtime.folder_job import FolderJob

_VARYING = ("micro_batch_size", "attention", "packed", "compile", "report_to", "export_steps", "eval_steps")
MAY_DIFFER = (*TRAINING_MAY_DIFFER, *_VARYING)
MAX_HELD_OUT = 0.1  # share of the corpus, if the preset sets `held_out`: presets are made for millions of passages


@with_settings(PretrainSettings, preset=True, recipe="recipe", panel=TRAINING)
@folder_command("model", resume=True, passages=True, may_differ=MAY_DIFFER)
def pretrain(
    passages: Annotated[list[str], make_argument("PASSAGES…", "Passage files, in any supported format.")],
    model: Annotated[str, make_option("--model MODEL", "Encoder to start from, a folder or Hub name[@revision].")],
    output: Annotated[
        str, make_option("--output -o DIR", "Output folder (not needed with --dry-run).", show_default=False)
    ] = "",
    generator: Annotated[
        str | None,
        make_option(
            "--generator MODEL", "Masked language model that proposes replacement tokens. [default: the preset's]"
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        make_option(
            "--set PATH=VALUE",
            "Change a value of the preset, such as slots.encoder.rate=0.4; repeatable.",
            panel=METHOD,
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        make_option(
            "--drop NAME", "Remove an objective or a group of objectives from the preset; repeatable.", panel=METHOD
        ),
    ] = None,
    dev: DevFolder | None = None,
    dev_sts: Annotated[
        str | None,
        make_option(
            "--dev-sts FILE",
            "Rated sentence pairs, to select the best checkpoint by Spearman correlation.",
            panel=EVALUATION,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        make_option(
            "--dry-run", "Print objectives, inputs (slots), parameters and tokens per step, then exit.", panel=CONTROL
        ),
    ] = False,
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: PretrainSettings,
    recipe: dict[str, Any],
    job: FolderJob,
) -> None:
    """Pre-train an encoder: SimLM, MASTER, ROM, CoT-MAE, coCondenser, DiffCSE, or your own combination of objectives.

    Writes a model folder for drtk train-retriever, transformers and sentence-transformers. Its log.jsonl has all losses.

    Examples:
    drtk pretrain passages.jsonl --preset simlm --model bert-base-uncased -o simlm
    drtk pretrain passages.jsonl --preset cotmae --model bert-base-uncased --set slots.passage.rate=0.4 --dry-run
    """
    from drtk.data.beir import choose_dev_split
    from drtk.data.checks import check_first_record, warn_of_other_kind
    from drtk.data.readers import read_passages
    from drtk.errors import UsageError
    from drtk.models.model_folder import resolve_model_folder
    from drtk.pretraining.parse import apply_changes, parse_composition
    from drtk.training.preflight import check_training_inputs

    place = str(recipe["name"])
    content = apply_changes(recipe, changes or [])
    if generator is not None:
        if "generator" not in content:
            raise UsageError(f"--generator: preset '{place}' has no generator; remove the option")
        content["generator"] = content["generator"] | {"model": generator}
    plan = parse_composition(content, place)
    if drop:
        plan = plan.drop_objectives(drop)
    if generator is not None and plan.generator is None:
        raise UsageError(
            f"--generator: no model input of preset '{place}' needs a generator after --set and --drop; omit it"
        )
    if dev is not None and dev_sts is not None:
        raise UsageError("--dev and --dev-sts cannot be combined; give one")
    check_training_inputs(settings.trainer, device, dev_sts, local_files=[*passages, *job.side_files])
    folder = resolve_model_folder(model)
    split = choose_dev_split(dev) if dev is not None else ""
    for source in passages:
        check_first_record(source, read_passages, job.tracker)
        warn_of_other_kind(passages=source)
    from drtk.models.device import AttentionBackend
    from drtk.pretraining.assembly import (
        build_network,
        check_composition,
        check_lengths,
        load_training_modules,
        warn_of_equal_vectors,
    )
    from drtk.pretraining.dataset import PretrainingData
    from drtk.pretraining.trainer import check_batch
    from drtk.pretraining.trainer import pretrain as train
    from drtk.runtime.manifest import find_inputs
    from drtk.text.token_dataset import TokenCorpus
    from drtk.training.arguments import check_reporting, choose_training_device, resolve_precision

    fields = check_composition(plan, place=place)
    check_reporting(settings.report_to)
    chosen = choose_training_device(device)
    half = resolve_precision(settings.precision, chosen) != "float32"
    attention = AttentionBackend(settings.attention, chosen, half, settings.packed)
    attention.check()
    network, tokenizer = build_network(plan, folder, seed=seed, place=place, attention=attention)
    check_lengths(network, settings.max_length)
    warn_of_equal_vectors(network)
    check_batch(settings, network)
    num_loaded = load_training_modules(network, folder)
    corpus = TokenCorpus.open(passages, model, fields=fields, side_files=job.side_files, tracker=job.tracker)
    held_out_of_preset = recipe.get("settings", {}).get("held_out")
    data = PretrainingData(
        corpus,
        plan,
        settings,
        tokenizer,
        seed,
        max_held_out=MAX_HELD_OUT if settings.held_out == held_out_of_preset else 0.5,
    )
    evaluate = _build_probe(dev, split, dev_sts, job)
    data.check_slots()
    if dry_run:
        from drtk.pretraining.preview import describe_training

        for line in describe_training(plan, data, network):
            typer.echo(line)
        return
    facts = train(data, job.begin(), network=network, tokenizer=tokenizer, device=device, probe=evaluate)
    job.tracker.inputs += find_inputs({"model": str(folder)})
    micro_batch, best = facts.pop("micro_batch"), facts.pop("best", None)
    job.counts |= {"passages": len(corpus), **facts}
    job.counts |= {
        name: count for name, count in (("short", corpus.counts["short"]), ("tensors loaded", num_loaded)) if count
    }
    job.finish(encoding=None, preset=place, micro_batch=micro_batch, best=best)


def _build_probe(folder: str | None, split: str, pairs: str | None, job: FolderJob) -> Any:
    """Return a function that evaluates an encoder on --dev or --dev-sts; None if neither is given."""
    from drtk.evaluation.dev_evaluation import RatingProbe, RetrievalEvaluator
    from drtk.models.checkpoint import embed_texts

    if folder is None and pairs is None:
        return None
    probe: Any
    if folder is not None:
        probe = RetrievalEvaluator(Path(folder), split=split, tracker=job.tracker)
    else:
        probe = RatingProbe(str(pairs), tracker=job.tracker)
    return lambda model: probe(lambda items, role: embed_texts(model, items, role=role))

"""drtk pretrain: an encoder learns from passages alone."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from drtk.cli.decorators import OF_TRAINING, folder_maker
from drtk.cli.options import Device, Seed, with_settings
from drtk.pretraining.composition import Generator
from drtk.pretraining.config import PretrainSettings
from drtk.runtime.folder_job import FolderJob

MAY_DIFFER = (*OF_TRAINING, "micro_batch", "attention", "compile", "report_to", "checkpoint_every", "eval_every")
SPARED = 0.1  # of a corpus, at most, where a preset says how much to hold out: presets are for millions of passages
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change the preset: slots.encoder.rate=0.4; repeatable."),
]
Dropped = Annotated[
    list[str] | None,
    typer.Option("--drop", metavar="NAME", help="Leave out an objective, or all of a group; repeatable."),
]


def _title_types(settings: dict[str, Any]) -> dict[str, Any]:
    """Record that titled passages have token types, which they did not have in earlier versions."""
    return {"title_types": True} if "segment" in repr([settings["recipe"], settings["changes"]]) else {}


@with_settings(PretrainSettings, preset=True, recipe="recipe")
@folder_maker("model", resume=True, passages=True, may_differ=MAY_DIFFER, also=_title_types)
def pretrain(
    passages: Annotated[
        list[str], typer.Argument(metavar="PASSAGES", help="Files of passages, in any format drtk reads.")
    ],
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="Encoder to start from: a folder, or hub name[@revision].")
    ],
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="DIR", help="Folder to make; --dry-run needs none.", show_default=False),
    ] = "",
    generator: Annotated[
        str | None, typer.Option("--generator", metavar="MODEL", help="Masked language model that proposes tokens.")
    ] = None,
    changes: Changes = None,
    drop: Dropped = None,
    probe: Annotated[
        str | None,
        typer.Option(
            "--probe",
            metavar="DIR",
            help="Keep the encoder with the best nDCG@10 on a small BEIR folder with qrels/dev.tsv.",
        ),
    ] = None,
    probe_sts: Annotated[
        str | None,
        typer.Option("--probe-sts", metavar="FILE", help="Keep that with the best Spearman on rated sentence pairs."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what would be trained, and how large it is; train nothing.")
    ] = False,
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: PretrainSettings,
    recipe: dict[str, Any],
    job: FolderJob,
) -> None:
    """Pre-train an encoder: SimLM, MASTER, ROM, CoT-MAE, coCondenser, DiffCSE, or a mixture of your own.

    Makes a model folder that train-retriever, transformers and sentence-transformers load; log.jsonl in it has every loss.
    """
    from drtk.data.beir import choose_dev_split
    from drtk.errors import UsageError
    from drtk.models.model_folder import locate
    from drtk.pretraining.parse import composition, with_changes
    from drtk.training.preflight import check_beforehand

    place = str(recipe["name"])
    content = with_changes(recipe, changes or [])
    if generator is not None:
        if "generator" not in content:
            raise UsageError(f"--generator: preset '{place}' has no generator")
        content["generator"] = content["generator"] | {"model": generator}
    plan = composition(content, place)
    if drop:
        plan = plan.without(drop)
    if generator is not None:
        _check_asked(plan.generator, place)
    if probe is not None and probe_sts is not None:
        raise UsageError("--probe and --probe-sts choose the best encoder, each by another figure: one of them")
    check_beforehand(settings.trainer, device, probe_sts, kept=[*passages, *job.side_files])
    folder = locate(model)
    split = choose_dev_split(probe) if probe is not None else ""
    from drtk.models.device import Attention, choose_device
    from drtk.pretraining.assembly import assembled, check_lengths, checked, warn_of_twins
    from drtk.pretraining.dataset import Material, notice
    from drtk.pretraining.export import take_up
    from drtk.pretraining.trainer import pretrain as train
    from drtk.pretraining.trainer import shares
    from drtk.runtime.manifest import find_inputs
    from drtk.text.token_dataset import TokenCorpus
    from drtk.training.arguments import check_reporting, precision_of, trains_on_gpu

    wants = checked(plan, place=place)
    check_reporting(settings.report_to)
    on_gpu = trains_on_gpu(device)
    half = precision_of(settings.precision, on_gpu=on_gpu) != "float32"
    attention = Attention(settings.attention, choose_device("cuda" if on_gpu else "cpu"), half)
    attention.check()
    network, tokenizer = assembled(plan, folder, seed=seed, place=place, attention=attention)
    check_lengths(network, settings.max_length)
    warn_of_twins(network)
    shares(settings, network)  # complains before anything is written
    fitted = take_up(network, folder)
    corpus = TokenCorpus.open(passages, model, wants=wants, side_files=job.side_files, intake=job.intake)
    of_preset = {name for name, value in recipe.get("settings", {}).items() if getattr(settings, name) == value}
    material = Material(
        corpus,
        plan,
        settings,
        tokenizer,
        seed,
        spared=SPARED if "held_out" in of_preset else 0.5,
        batch_of=f"preset '{place}'" if "batch" in of_preset else "",
    )
    look = _probe(probe, split, probe_sts, job)
    noticed = notice(material)  # what a view or masking cannot do with this corpus is said before anything begins
    if dry_run:
        from drtk.pretraining.preview import explained

        for line in explained(plan, material, network, at_once=_at_once(material, network, device)):
            typer.echo(line)
        return
    facts = train(material, job.begin(), network=network, tokenizer=tokenizer, device=device, probe=look)
    job.intake.inputs += find_inputs({"model": str(folder)})
    at_once, best = facts.pop("micro_batch"), facts.pop("best", None)
    job.counts |= {"passages": len(corpus), **noticed, **facts}
    if fitted:
        job.counts["tensors taken up"] = fitted
    job.finish(encoding=None, preset=place, micro_batch=at_once, best=best)


def _at_once(material: Any, network: Any, device: str) -> int:
    """Examples that a training on this machine would have in memory together."""
    from drtk.models.device import choose_device
    from drtk.pretraining.cost_model import fitted
    from drtk.pretraining.trainer import projected, shares

    settings = material.settings
    share, micro = shares(settings, network)
    if settings.micro_batch is not None:
        return micro
    place = choose_device(device)
    half = settings.precision in ("float16", "bfloat16") or (settings.precision == "auto" and place.type == "cuda")
    return fitted(material, network, place, share=share, half=half, whole=projected(network))


def _check_asked(wanted: Generator | None, place: str) -> None:
    """Raise UsageError where the model that --generator names would not be looked at."""
    from drtk.errors import UsageError

    if wanted is None:
        raise UsageError(f"--generator: nothing in preset '{place}', as it is changed here, asks a generator")
    if wanted.init == "copy":
        raise UsageError(
            '--generator: generator.init = "copy" begins with a copy of the encoder; leave one of them out'
        )


def _probe(folder: str | None, split: str, pairs: str | None, job: FolderJob) -> Any:
    """What is asked of the encoder now and then: a function of it; None where nothing is."""
    from pathlib import Path

    from drtk.evaluation.probes import RankingProbe, RatingProbe
    from drtk.models.checkpoint import embedded

    if folder is None and pairs is None:
        return None
    probe: Any
    if folder is not None:
        probe = RankingProbe(Path(folder), split=split, intake=job.intake)
    else:
        probe = RatingProbe(str(pairs), intake=job.intake)
    return lambda model: probe(lambda items, role: embedded(model, items, role=role))

"""Pre-training of an encoder by a composition of objectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from drtk.errors import DrtkError
from drtk.io.progress import log
from drtk.io.rounding import significant
from drtk.models.checkpoint import TextEncoder
from drtk.objectives.network import Network
from drtk.settings.pretraining import PretrainSettings
from drtk.training import memory
from drtk.training.arguments import training_arguments
from drtk.training.callbacks import MeasureTheStart, ShowProgress
from drtk.training.distributed import share_batch_norm, world_size
from drtk.training.fitting import fitted
from drtk.training.material import Material
from drtk.training.measuring import AT_ONCE, measured
from drtk.training.memory import allow_checkpointing, within_memory
from drtk.training.pretrained import Keeper, SaveEncoders
from drtk.training.pretrainer import Pretrainer
from drtk.training.selection import Selection

LOG = "log.jsonl"
WAITED_LONG = 0.1  # of the time: making batches holds training up
MICRO_FILE = "micro_batch"  # among the checkpoints: what was chosen
Probe = Callable[[TextEncoder], float]


def pretrain(
    material: Material,
    folder: Path,
    *,
    network: Network,
    tokenizer: Any,
    device: str = "auto",
    probe: Probe | None = None,
) -> dict[str, Any]:
    """Train, write the encoder and what was trained beside it into `folder` (rank zero), and return counts of the run.

    folder: where checkpoints (taken away at the end), log.jsonl and the model go; where it holds a whole checkpoint,
            training goes on from there
    probe: a figure of the encoder, higher is better, taken every --eval-every steps; the best encoder is kept
    The counts hold `micro_batch`, the examples in memory at once: as the settings say, or what fits.
    Raises DrtkError where the loss ceases to be a number or memory is too small.
    """
    settings, composition = material.settings, material.composition
    share, micro = shares(settings, network)
    checkpoints = folder / "checkpoints"
    arguments = training_arguments(
        checkpoints,
        steps=material.steps,
        batch=share,
        lr=settings.lr,
        warmup=settings.warmup,
        weight_decay=settings.weight_decay,
        seed=material.seed,
        device=device,
        precision=settings.precision,
        log_every=settings.log_every,
        save_every=settings.checkpoint_every,
        others=settings.trainer,
        fused=settings.fused,
        report_to=settings.report_to,
    )
    if settings.micro_batch is None:
        micro = fitted(
            material,
            network,
            arguments.device,
            share=share,
            half=arguments.bf16 or arguments.fp16,
            whole=projected(network),
            memory=checkpoints / MICRO_FILE,
        )
    advice = relief(settings, network, micro=micro)
    if settings.gradient_checkpointing:
        allow_checkpointing(network.backbone)
    if settings.compile:
        for layer in network.anatomy.layers:
            layer.compile(dynamic=True)
    if world_size() > 1:
        share_batch_norm(network)
    if network.generator is not None:
        with within_memory(arguments.device, advice):
            network.generator.to(arguments.device)
    store = Keeper(folder, network, tokenizer, composition, settings)
    batches = material.held_out_batches(AT_ONCE) if len(material.held_out) > 1 else []

    def look() -> dict[str, float]:
        found = measured(network, batches, arguments.device) if batches else {}
        if probe is not None:
            found["probe"] = probe(store.encoder())
            network.train()
        log("pretrain: " + ", ".join(f"{name} {value:z.4f}" for name, value in found.items()))
        return {name: significant(value) for name, value in found.items()}

    watch: Any = None
    if probe is not None:
        watch = Selection(network, look, checkpoints, by="probe", every=settings.eval_every)
    elif batches:
        watch = Measuring(look, every=settings.eval_every)
    with within_memory(arguments.device, advice):
        trainer = Pretrainer(
            log=folder / LOG,
            steps_per_epoch=material.steps_per_epoch,
            probe=watch,
            model=network,
            args=arguments,
            train_dataset=material.dataset(),
            data_collator=material.parts(micro),
            callbacks=[
                ShowProgress("pretrain", material.steps),
                *([SaveEncoders(store, every=settings.save_every)] if settings.save_every else []),
            ],
        )
    trainer.relief = advice
    if watch is not None:
        trainer.add_callback(MeasureTheStart(trainer))

    def save() -> None:
        network.cpu().eval()
        store.save(folder)

    facts = trainer.finish(save)
    facts["waiting_for_data"] = round(waited := trainer.waiting.share(), 4)
    if waited > WAITED_LONG:
        log(
            f"pretrain: {waited:.0%} of the time was spent waiting for data; --trainer dataloader_num_workers=4 may help"
        )
    return facts | {"micro_batch": micro}


def shares(settings: PretrainSettings, network: Network) -> tuple[int, int]:
    """Examples a device and step, and examples in memory at once. Raises DrtkError for a batch that cannot be shared so."""
    devices = world_size()
    if settings.batch % devices:
        raise DrtkError(f"--batch {settings.batch} cannot be shared by {devices} processes")
    share = settings.batch // devices
    micro = min(settings.micro_batch or share, share)
    if network.contrasted and settings.batch < 2:
        raise DrtkError("--batch 1 leaves nothing to tell a text's partner from")
    if projected(network) and micro < share:
        raise DrtkError(
            f"a projector with batch norm needs its batch in one part: --micro-batch {share} or a smaller --batch"
        )
    return share, micro


def relief(settings: PretrainSettings, network: Network, *, micro: int) -> str:
    """What makes a step smaller: first what a run can go on with, then what it must begin anew with."""
    whole = projected(network)
    anew = "a smaller --batch or --max-length" if whole else "a shorter --max-length"
    return memory.relief(anew=anew, micro=1 if whole else micro, checkpointing=settings.gradient_checkpointing)


def projected(network: Network) -> bool:
    """Whether vectors go through a projector with batch norm, which wants a device's whole share of the batch at once."""
    projectors = network.composition.projectors
    return any(projectors[name].of_the_batch for name in network.projectors)


class Measuring:
    """Measures what was held out every so many steps, and keeps no weights (drtk.training.trainer.Probe)."""

    enough = False

    def __init__(self, look: Callable[[], dict[str, float]], *, every: int) -> None:
        self._look, self.every = look, every

    def measure(self, step: int) -> dict[str, float]:
        """The numbers."""
        return self._look()

    def save(self, checkpoint: Path) -> None:
        """Nothing is remembered."""

    def restore(self, checkpoint: Path | None) -> None:
        """Nothing is remembered."""


def trainable(network: Network) -> Sequence[tuple[str, int]]:
    """Parameters by part, for people: encoder, its head, what each term adds to them, projectors, generator."""
    seen: set[int] = set()

    def size(module: torch.nn.Module | None) -> int:
        fresh = [] if module is None else [each for each in module.parameters() if id(each) not in seen]
        seen.update(map(id, fresh))
        return sum(each.numel() for each in fresh)

    parts: list[tuple[str, torch.nn.Module | None]] = [("the encoder", network.backbone)]
    parts.append(("its language-model head", network.head))
    parts += [(f"term {name}", module) for name, module in network.recoveries.items()]
    parts += [(f"projector {name}", module) for name, module in network.projectors.items()]
    parts.append(("the generator", network.generator))
    return [(name, count) for name, module in parts if (count := size(module))]

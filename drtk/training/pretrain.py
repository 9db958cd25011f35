"""Pre-training of an encoder by a composition of objectives."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from drtk.errors import DrtkError
from drtk.io.progress import log, warn
from drtk.io.rounding import significant
from drtk.models.checkpoint import TextEncoder, save_encoder
from drtk.models.encoder import Encoder
from drtk.models.heads import HEADS, head_file
from drtk.models.lm_head import save_lm_head
from drtk.models.recipe import Recipe
from drtk.objectives.batch import Batch, collator_of
from drtk.objectives.network import Network
from drtk.settings.composition import Composition
from drtk.settings.pretraining import PretrainSettings
from drtk.text.draws import uniform
from drtk.text.slots import SlotBuilder, Slotted, frame_of
from drtk.text.token_corpus import TokenCorpus
from drtk.training.distributed import share_batch_norm, wait_for_all, world_size
from drtk.training.fitting import fitted
from drtk.training.measuring import AT_ONCE, measured
from drtk.training.pretrainer import Pretrainer
from drtk.training.rows import Parts, Rows
from drtk.training.selection import Selection
from drtk.training.trainer import (
    DrtkTrainer,
    ShowProgress,
    allow_checkpointing,
    save_weights,
    training_arguments,
    within_memory,
)

LOG, READERS_FILE, BEST = "log.jsonl", "readers", "best"
WAITED_LONG = 0.1  # of the time: making batches holds training up
MICRO_FILE = "micro_batch"  # among the checkpoints: what was chosen
Probe = Callable[[TextEncoder], float]


class Material:
    """The rows of a corpus that a composition is trained on, and those held out.

    spared: the largest share of them that is held out, whatever the settings ask for
    batch_of: who says how large a batch is, where the user did not
    Raises DrtkError where so few are left that they fill no batch.
    """

    def __init__(
        self,
        corpus: TokenCorpus,
        composition: Composition,
        settings: PretrainSettings,
        tokenizer: Any,
        seed: int,
        *,
        spared: float = 0.5,
        batch_of: str = "",
    ) -> None:
        self.corpus, self.composition, self.settings, self.seed = corpus, composition, settings, seed
        by_document = composition.example == "document"
        rows = corpus.shared_documents if by_document else np.arange(len(corpus))
        self._first = partial(_first_id if by_document else _own_id, corpus)  # travels to workers that are spawned
        held = min(settings.held_out, int(len(rows) * spared))
        self.held_out, self.rows = self._parted(rows, held)
        what = "documents of several passages" if by_document else "passages"
        if settings.held_out:
            fewer = f" ({settings.held_out:,} were asked for)" if len(self.held_out) < settings.held_out else ""
            log(
                f"pretrain: {len(self.held_out):,} of {len(rows):,} {what} are held out{fewer}, "
                f"{len(self.rows):,} remain to train on"
            )
        if len(self.rows) < settings.batch:
            whose = f", which is that of {batch_of}" if batch_of else ""
            raise DrtkError(
                f"{len(self.rows):,} {what} do not fill one batch of {settings.batch:,}{whose}; "
                f"--batch {max(1, len(self.rows))} or less would do"
            )
        self.steps_per_epoch = len(self.rows) // settings.batch
        self.steps = settings.steps or max(1, round(settings.epochs * self.steps_per_epoch))
        self._frame = frame_of(tokenizer)
        self._pad = int(tokenizer.pad_token_id or 0)
        examples = self.dataset()
        for number in range(min(16, len(examples))):  # what cannot be made is said before anything is written
            examples[number]

    def _parted(self, rows: np.ndarray, held: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows that are held out, drawn by their ids, and those to train on.

        Where views read neighbours, passages are held out with the whole of their document; what the last of these
        documents has too many is in neither. At least half of all passages stay in training.
        """
        if not held:
            return rows[:0], rows
        if self.composition.example == "document" or "documents" not in self.corpus.wants:
            order = sorted(rows.tolist(), key=lambda row: uniform(self.seed, "held-out", self._first(row)))
            return np.array(order[:held]), np.array(sorted(order[held:]))
        taken: list[np.ndarray] = []
        room = len(rows) // 2
        first = partial(_first_id, self.corpus)
        for document in sorted(
            range(self.corpus.documents), key=lambda each: uniform(self.seed, "held-out", first(each))
        ):
            span = self.corpus.span(document)
            if len(span) <= room:
                taken.append(span)
                room -= len(span)
            if len(rows) // 2 - room >= held:
                break
        if not taken:
            warn(f"{self.corpus.sources}: nothing is held out: no document is small enough to be spared whole")
            return rows[:0], rows
        away = np.concatenate(taken)
        return away[:held], rows[~np.isin(rows, away)]

    def _builder(self, seed: int) -> SlotBuilder:
        return SlotBuilder(
            self.composition,
            self.corpus,
            self._frame,
            ids=self._first,
            max_length=self.settings.max_length,
            seed=seed,
        )

    def dataset(self) -> Rows:
        """The examples of all steps."""
        settings = self.settings
        return Rows(
            self._builder(self.seed), self.rows, self._first, batch=settings.batch, steps=self.steps, seed=self.seed
        )

    def glance(self, count: int) -> list[Mapping[str, Slotted]]:
        """The slots of up to `count` of the rows, evenly spread, each as another step would see it."""
        builder = self._builder(self.seed)
        chosen = self.rows[np.linspace(0, len(self.rows) - 1, min(count, len(self.rows))).astype(int)]
        return [builder(int(row), epoch=0, step=step) for step, row in enumerate(chosen)]

    def parts(self, micro: int) -> Parts:
        """What makes batches of them."""
        collator = collator_of(self.composition, pad=self._pad, max_length=self.settings.max_length, seed=self.seed)
        return Parts(collator, micro=micro)

    def held_out_batches(self, size: int) -> list[Batch]:
        """Batches of what was held out, drawn the same in every run of a seed."""
        # A step each, so that what a step draws (a view of several) is drawn for every one of them.
        count = len(self.held_out)
        rows = Rows(self._builder(self.seed + 1), self.held_out, self._first, batch=1, steps=max(1, count), seed=0)
        seen = [rows[number] for number in range(count)]
        starts = [*range(0, count, size)]
        if len(starts) > 1 and count - starts[-1] == 1:  # one alone has no other vector to be set against
            starts.pop()
        parts = self.parts(size)
        groups = [seen[start:stop] for start, stop in zip(starts, [*starts[1:], count], strict=True)]
        return [parts.batch(group) for group in groups if len(group) > 1]


def _own_id(corpus: TokenCorpus, row: int) -> str:
    return corpus.id(row)


def _first_id(corpus: TokenCorpus, document: int) -> str:
    return corpus.id(int(corpus.span(document)[0]))


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
        watch = Selection(network, look, folder / BEST, by="probe", every=settings.eval_every)
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
    facts: dict[str, Any] = {"steps": trainer.go_on(), "epochs": round(material.steps / material.steps_per_epoch, 4)}
    facts["waiting_for_data"] = round(waited := trainer.waiting.share(), 4)
    if waited > WAITED_LONG:
        log(
            f"pretrain: {waited:.0%} of the time was spent waiting for data; --trainer dataloader_num_workers=4 may help"
        )
    facts["micro_batch"] = micro
    if trainer.is_world_process_zero():
        if isinstance(watch, Selection):
            best = watch.put_back(network)
            facts |= {"best_step": best.step, "best_probe": best.value}
        network.cpu().eval()
        store.save(folder)
        for passing in (checkpoints, folder / BEST):
            shutil.rmtree(passing, ignore_errors=True)
    wait_for_all()
    return facts


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
    ways = []
    if micro > 1 and not projected(network):
        ways.append(f"a smaller --micro-batch (it is {micro})")
    if not settings.gradient_checkpointing:
        ways.append("--gradient-checkpointing")
    anew = "a smaller --batch or --max-length" if projected(network) else "a shorter --max-length"
    return ", ".join(ways) + (" or, begun anew, " if ways else "beginning anew with ") + anew


def projected(network: Network) -> bool:
    """Whether vectors go through a projector with batch norm, which wants a device's whole share of the batch at once."""
    projectors = network.composition.projectors
    return any(projectors[name].of_the_batch for name in network.projectors)


class Keeper:
    """Writes the encoder of a network as a folder that AutoModel and SentenceTransformer load, and its heads beside it."""

    def __init__(
        self, folder: Path, network: Network, tokenizer: Any, composition: Composition, settings: PretrainSettings
    ) -> None:
        self.folder, self.network, self.tokenizer = folder, network, tokenizer
        self.recipe = Recipe(
            pooling=(composition.pooling,),
            query_length=settings.max_length,
            passage_length=settings.max_length,
            title=composition.title,
        )

    def encoder(self) -> TextEncoder:
        """The encoder as it is now."""
        return TextEncoder(Encoder(self.network.backbone, pooling=self.recipe.pooling), self.tokenizer, self.recipe)

    def save(self, folder: Path) -> None:
        """Write encoder, masked-LM head, and everything else that was trained."""
        save_encoder(self.encoder(), folder)
        save_lm_head(self.network.head, folder)
        others = beside(self.network)
        if others:
            save_weights(others, head_file(folder, READERS_FILE))


def beside(network: Network) -> dict[str, Any]:
    """What is trained beside encoder and masked-LM head, by name."""
    known = {
        value.data_ptr()
        for part in (network.backbone, network.head)
        for value in part.state_dict().values()
        if value.numel()
    }
    return {name: value for name, value in network.state_dict().items() if value.data_ptr() not in known}


def take_up(network: Network, model: Path) -> int:
    """Put what an earlier pre-training left in `model` beside its encoder into the network; how many tensors fitted."""
    path = model / HEADS / f"{READERS_FILE}.safetensors"
    if not path.exists():
        return 0
    mine = network.state_dict()
    found = {name: value for name, value in load_file(path).items() if name in mine and mine[name].shape == value.shape}
    network.load_state_dict(found, strict=False)
    return len(found)


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


class MeasureTheStart(TrainerCallback):
    """Measures before the first step, so that a log tells what training changed."""

    def __init__(self, trainer: DrtkTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:
            self._trainer.evaluate()


class SaveEncoders(TrainerCallback):
    """Writes the encoder as OUT/step-N every so many steps, for learning curves."""

    def __init__(self, store: Keeper, *, every: int) -> None:
        self._store, self._every = store, every

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step
        if state.is_world_process_zero and step % self._every == 0 and step < state.max_steps:
            self._store.save(self._store.folder / f"step-{step}")


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

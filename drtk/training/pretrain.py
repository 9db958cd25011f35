"""Pre-training of an encoder by a composition of objectives."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from drtk.errors import DrtkError
from drtk.io.manifest import write_json
from drtk.io.progress import log
from drtk.models.checkpoint import TextEncoder, save_encoder, writing_weights
from drtk.models.encoder import Encoder
from drtk.models.heads import HEADS, head_file
from drtk.models.lm_head import save_lm_head
from drtk.models.recipe import Recipe
from drtk.objectives.batch import Batch, collator_of
from drtk.objectives.network import Network
from drtk.settings.composition import Composition
from drtk.settings.pretraining import PretrainSettings
from drtk.text.corruption import Vocabulary
from drtk.text.draws import uniform
from drtk.text.slots import Frame, SlotBuilder
from drtk.text.token_corpus import TokenCorpus
from drtk.training.distributed import wait_for_all, world_size
from drtk.training.measuring import measured
from drtk.training.pretrainer import Pretrainer, unique_weights
from drtk.training.rows import Parts, Rows
from drtk.training.trainer import (
    ShowProgress,
    allow_checkpointing,
    cut_log,
    last_checkpoint,
    training_arguments,
)

LOG, READERS_FILE, BEST = "log.jsonl", "readers", "best"
Probe = Callable[[TextEncoder], float]


class Material:
    """The rows of a corpus that a composition is trained on, and those held out.

    Raises DrtkError where so few are left that they fill no batch.
    """

    def __init__(
        self, corpus: TokenCorpus, composition: Composition, settings: PretrainSettings, tokenizer: Any, seed: int
    ) -> None:
        self.corpus, self.composition, self.settings, self.seed = corpus, composition, settings, seed
        by_document = composition.example == "document"
        rows = corpus.shared_documents if by_document else np.arange(len(corpus))
        self._first: Callable[[int], str] = lambda row: corpus.id(int(corpus.span(row)[0]) if by_document else row)
        held = min(settings.held_out, len(rows) // 2)
        order = sorted(range(len(rows)), key=lambda at: uniform(seed, "held-out", self._first(int(rows[at]))))
        self.held_out, self.rows = rows[order[:held]], rows[sorted(order[held:])]
        if len(self.rows) < settings.batch:
            what = "documents of several passages" if by_document else "passages"
            raise DrtkError(
                f"{len(self.rows):,} {what} do not fill one batch; --batch {max(1, len(self.rows))} or less would do"
            )
        self.steps_per_epoch = len(self.rows) // settings.batch
        self.steps = settings.steps or max(1, round(settings.epochs * self.steps_per_epoch))
        vocabulary = Vocabulary(len(tokenizer), tokenizer.mask_token_id, frozenset(tokenizer.all_special_ids))
        first, last = tokenizer("")["input_ids"][0], tokenizer("")["input_ids"][-1]
        self._frame = Frame(first, last, vocabulary)
        self._pad = int(tokenizer.pad_token_id or 0)

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

    def parts(self, micro: int) -> Parts:
        """What makes batches of them."""
        collator = collator_of(self.composition, pad=self._pad, max_length=self.settings.max_length, seed=self.seed)
        return Parts(collator, micro=micro)

    def held_out_batches(self, size: int) -> list[Batch]:
        """Batches of what was held out, drawn the same in every run of a seed."""
        rows = Rows(
            self._builder(self.seed + 1), self.held_out, self._first, batch=max(1, len(self.held_out)), steps=1, seed=0
        )
        seen = [rows[number] for number in range(len(self.held_out))]
        parts = self.parts(size)
        groups = [seen[start : start + size] for start in range(0, len(seen), size)]
        return [parts.batch(group) for group in groups if len(group) > 1]


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
    Raises DrtkError where the loss ceases to be a number or memory is too small.
    """
    settings, composition = material.settings, material.composition
    share, micro = _shares(settings, network)
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
    )
    if settings.gradient_checkpointing:
        allow_checkpointing(network.backbone)
    if settings.compile:
        for layer in network.anatomy.layers:
            layer.compile(dynamic=True)
    if world_size() > 1:
        network = torch.nn.SyncBatchNorm.convert_sync_batchnorm(network) if arguments.device.type == "cuda" else network
    if network.generator is not None:
        network.generator.to(arguments.device)
    store = Keeper(folder, network, tokenizer, composition, settings)
    watch = Watch(store, material, network, probe, size=micro, device=arguments.device)
    trainer = Pretrainer(
        log=folder / LOG,
        steps_per_epoch=material.steps_per_epoch,
        model=network,
        args=arguments,
        train_dataset=material.dataset(),
        data_collator=material.parts(micro),
        callbacks=[ShowProgress("pretrain", material.steps), watch],
    )
    start = last_checkpoint(checkpoints)
    if trainer.is_world_process_zero():
        step = 0 if start is None else int(start.name.rpartition("-")[2])
        cut_log(folder / LOG, step=step)
        watch.begin(step)
        if start is not None:
            log(f"going on after step {step:,} of {material.steps:,}")
    wait_for_all()
    try:
        result = trainer.train(resume_from_checkpoint=str(start) if start else None)
    except torch.OutOfMemoryError as error:
        raise DrtkError(
            f"{arguments.device}: out of memory; a smaller --micro-batch, --gradient-checkpointing or a shorter "
            "--max-length may help. The last checkpoint is kept: --resume goes on from it"
        ) from error
    facts: dict[str, Any] = {"steps": result.global_step, "epochs": round(material.steps / material.steps_per_epoch, 4)}
    if trainer.is_world_process_zero():
        facts |= watch.take_best()
        network.cpu().eval()
        store.save(folder)
        shutil.rmtree(checkpoints, ignore_errors=True)
    wait_for_all()
    return facts


def _shares(settings: PretrainSettings, network: Network) -> tuple[int, int]:
    """Examples a device and step, and examples in memory at once."""
    devices = world_size()
    if settings.batch % devices:
        raise DrtkError(f"--batch {settings.batch} cannot be shared by {devices} processes")
    share = settings.batch // devices
    micro = min(settings.micro_batch or share, share)
    if network.contrasted and settings.batch < 2:
        raise DrtkError("--batch 1 leaves nothing to tell a text's partner from")
    projected = any(getattr(objective, "projector", "") for objective in network.composition.objectives)
    if projected and micro < share:
        raise DrtkError(f"a projector needs its batch in one part: --micro-batch {share} or a smaller --batch")
    return share, micro


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
        others = {
            name: value.cpu().contiguous()
            for name, value in unique_weights(self.network).items()
            if not name.startswith(("backbone.", "head."))
        }
        if others:
            path = head_file(folder, READERS_FILE)
            with writing_weights(path):
                save_file(others, path)


def take_up(network: Network, model: Path) -> int:
    """Put what an earlier pre-training left in `model` beside its encoder into the network; how many tensors fitted."""
    path = model / HEADS / f"{READERS_FILE}.safetensors"
    if not path.exists():
        return 0
    mine = unique_weights(network)
    found = {name: value for name, value in load_file(path).items() if name in mine and mine[name].shape == value.shape}
    network.load_state_dict(found, strict=False)
    return len(found)


class Watch(TrainerCallback):
    """Every so many steps: measures what was held out, asks the probe, keeps the best encoder, writes encoders to look at later."""

    def __init__(
        self,
        store: Keeper,
        material: Material,
        network: Network,
        probe: Probe | None,
        *,
        size: int,
        device: torch.device,
    ) -> None:
        self._store, self._settings, self._network, self._probe = store, material.settings, network, probe
        self._batches = material.held_out_batches(max(2, min(size, 64))) if len(material.held_out) > 1 else []
        self._device = device
        self._best: dict[str, Any] = {}

    @property
    def _best_files(self) -> tuple[Path, Path]:
        folder = self._store.folder / "checkpoints"
        return folder / f"{BEST}.safetensors", folder / f"{BEST}.json"

    def begin(self, step: int) -> None:
        """Know the best of an interrupted run, where it was found before the checkpoint it goes on from."""
        weights, note = self._best_files
        if note.exists():
            found = json.loads(note.read_text())
            if found["step"] <= step and weights.exists():
                self._best = found
        if step == 0 and self._batches:
            self._write(0, measured(self._network.to(self._device), self._batches, self._device))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        step, settings = state.global_step, self._settings
        if settings.save_every and step % settings.save_every == 0 and step < state.max_steps:
            self._store.save(self._store.folder / f"step-{step}")
        if step % settings.eval_every and step != state.max_steps:
            return
        found = measured(self._network, self._batches, self._device) if self._batches else {}
        if self._probe is not None:
            found["probe"] = self._probe(self._store.encoder())
            self._network.train()
            self._keep(step, found["probe"])
        if found:
            self._write(step, found)

    def _write(self, step: int, found: dict[str, float]) -> None:
        entry = {"step": step} | {name: round(value, 6) for name, value in found.items()}
        with open(self._store.folder / LOG, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        log(f"pretrain: step {step:,}: " + ", ".join(f"{name} {value:.4f}" for name, value in found.items()))

    def _keep(self, step: int, value: float) -> None:
        if self._best and self._best["value"] >= value:
            return
        weights, note = self._best_files
        weights.parent.mkdir(parents=True, exist_ok=True)
        part = weights.with_suffix(".part")
        save_file({name: value.cpu().contiguous() for name, value in unique_weights(self._network).items()}, part)
        part.replace(weights)
        self._best = {"step": step, "value": value}
        write_json(note, self._best)

    def take_best(self) -> dict[str, Any]:
        """Bring back the best weights, where a probe chose some; what to note about it."""
        if not self._best:
            return {}
        self._network.load_state_dict(load_file(self._best_files[0]), strict=False)
        return {"best_step": self._best["step"], "best_probe": round(self._best["value"], 6)}


def trainable(network: Network) -> Sequence[tuple[str, int]]:
    """Parameters by part, for people: encoder, head, each reader, projectors, generator."""
    seen: set[int] = set()

    def size(module: torch.nn.Module | None) -> int:
        fresh = [] if module is None else [each for each in module.parameters() if id(each) not in seen]
        seen.update(map(id, fresh))
        return sum(each.numel() for each in fresh)

    parts: list[tuple[str, torch.nn.Module | None]] = [("encoder", network.backbone), ("head", network.head)]
    parts += [*network.recoveries.items(), *network.projectors.items(), ("generator", network.generator)]
    return [(name, count) for name, module in parts if (count := size(module))]

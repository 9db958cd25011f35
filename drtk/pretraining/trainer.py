"""Pre-train an encoder with a composition of objectives."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drtk.errors import DrtkError
from drtk.models.checkpoint import TextEncoder
from drtk.pretraining.batch import Batch
from drtk.pretraining.config import PretrainSettings
from drtk.pretraining.cost_model import fitted
from drtk.pretraining.dataset import Material
from drtk.pretraining.evaluation import AT_ONCE, measured
from drtk.pretraining.export import Keeper, SaveEncoders
from drtk.pretraining.network import Network, Outcome, Sums, compared_terms, moved, without_rivals
from drtk.runtime.progress import log, round_significant, warn
from drtk.training import fit as memory
from drtk.training.arguments import training_arguments
from drtk.training.best_checkpoint import Selection
from drtk.training.distributed import gather, mean_of_processes, rank, share_batch_norm, world_size
from drtk.training.fit import DrtkTrainer, MeasureTheStart, Ruined, ShowProgress, allow_checkpointing, within_memory
from drtk.training.sampling import seed_of_step


class Waiting:
    """Clocks what happens within `with waiting:` against all the time since the first such wait began.

    clock: seconds that only grow
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._first: float | None = None
        self._began = self._waited = 0.0
        self._last = (0.0, 0.0)  # when, and waited by then, at the last look

    def __enter__(self) -> Waiting:
        self._began = self._clock()
        if self._first is None:
            self._first = self._began
            self._last = (self._began, 0.0)
        return self

    def __exit__(self, *_: Any) -> None:
        self._waited += self._clock() - self._began

    def share(self) -> float:
        """The share of all the time, 0 to 1; 0 where nothing was waited for."""
        return 0.0 if self._first is None else _share(self._waited, self._clock() - self._first)

    def share_since_last(self) -> float:
        """The share of the time since this was last asked."""
        now = self._clock()
        when, waited = self._last
        self._last = (now, self._waited)
        return 0.0 if self._first is None else _share(self._waited - waited, now - when)


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 0.0


_PARTS = 1 << 20  # more than there ever are of one step


class Pretrainer(DrtkTrainer):
    """A DrtkTrainer over batches in parts.

    Token losses of a step are divided by the labels of all its parts and processes (methods: section 0.4, rules 1 and 4).
    Where vectors are compared and there are several parts, their gradients are cached (methods: section 5.3): vectors
    without a graph, the loss on all of them, then each part again under the same draws of dropout.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(objective=_unused, **given)
        self._facts: Sums = {}
        self._lone_told = False
        self.waiting = Waiting()

    def get_batch_samples(self, *given: Any, **named: Any) -> Any:
        """The parts of the next step; the time until they are there is noted."""
        with self.waiting:
            return super().get_batch_samples(*given, **named)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *given: Any, **named: Any) -> Tensor:
        """One step; the weighted sum of the terms, for the log."""
        model.train()
        network: Network = self.accelerator.unwrap_model(model)
        parts = [moved(part, self.args.device) for part in inputs["parts"]]
        counts = _over_processes(_added([network.counts(part) for part in parts]))
        cached = self._cached_gradients(model, network, parts) if len(parts) > 1 and network.contrasted else None
        total = torch.zeros((), device=self.args.device)
        start = 0
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            wrapped: Any = model
            waiting = nullcontext() if last or not hasattr(model, "no_sync") else wrapped.no_sync()
            with waiting:
                self._seed(number)
                with self.compute_loss_context_manager():
                    outcome, vectors = model(part, counts)
                terms = {name: value * world_size() for name, value in outcome.terms.items()}
                surrogate = None
                if cached is not None:
                    size = len(next(iter(vectors.values())))
                    gradients, compared = cached
                    surrogate = torch.stack(
                        [(vectors[name].float() * gradients[name][start : start + size]).sum() for name in vectors]
                    ).sum()
                    start += size
                    if last:
                        terms |= compared
                elif vectors:
                    terms |= self._compared(network, vectors, [part])
                loss = self._weighed(network, terms, exclude=() if cached is None else tuple(cached[1]))
                whole = loss if surrogate is None else loss + surrogate
                self._check(whole, terms | (cached[1] if cached else {}), inputs["ids"][number])
                self.accelerator.backward(whole)
            self._note(terms, outcome)
            total += self._weighed(network, terms).detach()
        self._steps_of_terms += 1
        return total

    def _seed(self, part: int) -> None:
        torch.manual_seed(seed_of_step(self.args.seed, self.state.global_step * _PARTS + part, rank()))

    def _cached_gradients(
        self, model: nn.Module, network: Network, parts: Sequence[Batch]
    ) -> tuple[dict[str, Tensor], Sums]:
        """Gradients of the contrastive terms with respect to the vectors, (rows, hidden) by slot, and the terms."""
        found: list[dict[str, Tensor]] = []
        with torch.no_grad():
            for number, part in enumerate(parts):
                self._seed(number)
                with self.compute_loss_context_manager():
                    found.append(model(part, compared=True))
        whole = {name: torch.cat([each[name].float() for each in found]).requires_grad_() for name in found[0]}
        terms = self._compared(network, whole, parts)
        self._weighed(network, terms).backward()
        gradients = {name: torch.zeros_like(rows) if rows.grad is None else rows.grad for name, rows in whole.items()}
        return gradients, {name: value.detach() for name, value in terms.items()}

    def _compared(self, network: Network, vectors: dict[str, Tensor], parts: Sequence[Batch]) -> Sums:
        with torch.autocast(self.args.device.type, enabled=False):
            present = {name: gather(torch.cat([part[name].present for part in parts])) for name in network.contrasted}
            self._tell_of_lone_pairs(network, present)
            return compared_terms(
                network.composition, {name: gather(rows.float()) for name, rows in vectors.items()}, present
            )

    def _tell_of_lone_pairs(self, network: Network, present: dict[str, Tensor]) -> None:
        """Say, the first time only, that a contrast had nothing to tell a partner from."""
        lone = [] if self._lone_told else without_rivals(network.composition, present)
        if lone and rank() == 0:
            warn(
                f"step {self.state.global_step + 1:,}: one example of the batch alone has both texts of {', '.join(lone)}, and nothing "
                "to tell them from: the loss is 0 there; a larger --batch helps (this is said once)"
            )
        self._lone_told |= bool(lone)

    def _weighed(self, network: Network, terms: Sums, exclude: Sequence[str] = ()) -> Tensor:
        weights = network.weights
        parts = [weights[name] * value for name, value in terms.items() if name not in exclude]
        return torch.stack(parts).sum() if parts else torch.zeros((), device=self.args.device, requires_grad=True)

    def _check(self, loss: Tensor, terms: Sums, ids: Sequence[str]) -> None:
        if bool(torch.isfinite(loss)):
            return
        bad = [name for name, value in terms.items() if not bool(torch.isfinite(value))]
        raise Ruined(
            f"the loss ({', '.join(bad)}) is {loss.item()} at step {self.state.global_step + 1}, on passages "
            f"{', '.join(ids[:3])}{' …' if len(ids) > 3 else ''}; a lower --lr or --precision float32 may help"
        )

    def _note(self, terms: Sums, outcome: Outcome) -> None:
        for name, value in terms.items():
            self._terms[name] = self._terms.get(name, torch.zeros((), device=value.device)) + value.detach()
        for name, value in outcome.facts.items():
            self._facts[name] = self._facts.get(name, torch.zeros(2, device=value.device)) + value

    def log(self, logs: dict[str, float], *given: Any, **named: Any) -> None:
        """Add what all processes found: terms are means of theirs, facts are shares over all."""
        if "loss" in logs:
            for name in self._terms:
                self._terms[name] = mean_of_processes(self._terms[name])
            shares = {name: _summed(value) for name, value in self._facts.items()}
            logs |= {name: (value[0] / value[1].clamp(min=1)).item() for name, value in shares.items()}
            self._facts.clear()
            logs["waiting"] = round(self.waiting.share_since_last(), 4)
        super().log(logs, *given, **named)


def _unused(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor]:
    raise AssertionError("the step computes its own loss")


def _added(sums: Sequence[Sums]) -> Sums:
    return {name: torch.stack([each[name] for each in sums]).sum() for name in sums[0]}


def _over_processes(counts: Sums) -> Sums:
    return {name: _summed(value) for name, value in counts.items()}


def _summed(value: Tensor) -> Tensor:
    if dist.is_available() and dist.is_initialized():
        value = value.clone()
        dist.all_reduce(value)
    return value


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
        return {name: round_significant(value) for name, value in found.items()}

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
    """Measures what was held out every so many steps, and keeps no weights (drtk.training.fit.Probe)."""

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

"""The training step of a composition: token losses in parts, contrastive losses over the whole batch (gradient caching)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drtk.io.progress import warn
from drtk.objectives.batch import Batch
from drtk.objectives.network import Network, Outcome, Sums, compared_terms, without_rivals
from drtk.objectives.views import moved
from drtk.training.distributed import gather, mean_of_processes, rank, world_size
from drtk.training.sampling import seed_of_step
from drtk.training.soundness import Ruined
from drtk.training.trainer import DrtkTrainer
from drtk.training.waiting import Waiting

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

"""The training step of a retriever, whole or by gradient caching (methods: section 5.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drtk.models.biencoder import BiEncoder
from drtk.pretraining.auxiliary import ROLES, WithAuxiliary, slot_of
from drtk.training.distributed import rank, world_size
from drtk.training.fit import DrtkTrainer
from drtk.training.retriever_loss import OF_GOAL, Goal, temperature_at
from drtk.training.sampling import seed_of_step

_PARTS = 1 << 20  # more than there ever are of one step


class Chunk(NamedTuple):
    """Some texts of a role: their rows, and the tokens of the longest."""

    role: str
    rows: Tensor
    width: int


class RetrieverTrainer(DrtkTrainer):
    """A DrtkTrainer that minimises a goal.

    cache_chunk: texts that are in memory at once. Vectors are then made without a graph, the loss and its gradients with
    respect to them found for the whole batch, and each chunk encoded again, under the same draws of dropout, to carry its
    rows' gradients on. Gradients are those of the whole batch; memory is that of a chunk. The parts of the model are called
    one by one, not its `forward`, which alone accelerate has compute in half precision: `autocast` is for them to ask.
    """

    def __init__(
        self, *, goal: Goal, cache_chunk: int | None = None, warm_temperature: bool = False, **given: Any
    ) -> None:
        super().__init__(objective=self._terms_of, **given)
        self.goal, self.cache_chunk, self._warm = goal, cache_chunk, warm_temperature

    @property
    def temperature(self) -> float:
        """That of the present step."""
        if not self._warm:
            return self.goal.temperature
        return temperature_at(self.state.global_step, last=self.goal.temperature, steps=int(self.args.warmup_steps))

    def _terms_of(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        mine = {name: value for name, value in inputs.items() if name not in OF_GOAL}
        queries, passages, *others = model(**mine)
        found = self.goal.terms(queries, passages, inputs, temperature=self.temperature)
        return found | (others[0] if others else {})

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *given: Any, **named: Any) -> Tensor:
        """One step; the loss, for the log."""
        if self.cache_chunk is None:
            return super().training_step(model, inputs, *given, **named)
        model.train()
        inputs = self._prepare_inputs(inputs)
        whole = self.accelerator.unwrap_model(model)  # gradients are averaged below, once, by hand
        pair: BiEncoder = whole.pair if isinstance(whole, WithAuxiliary) else whole
        chunks = [chunk for role in ROLES for chunk in chunks_of(inputs, role, self.cache_chunk)]
        found = self._vectors(pair, inputs, chunks)
        leaves = {role: rows.requires_grad_() for role, rows in found.items()}
        terms = self.goal.terms(leaves["query"], leaves["passage"], inputs, temperature=self.temperature)
        self.weighed(terms).backward()
        total = {name: value.detach() for name, value in terms.items()}
        counts = {}
        if isinstance(whole, WithAuxiliary):
            counts = {role: whole.count(role, slot_of(inputs, role)) for role in ROLES}
        for number, chunk in enumerate(chunks):
            self._seed(number)
            with self.accelerator.autocast():
                vectors = encoded(pair, inputs, chunk)
                slope = leaves[chunk.role].grad
                assert slope is not None
                surrogate = (vectors.float() * slope[chunk.rows]).sum()
                if isinstance(whole, WithAuxiliary):
                    slot = slot_of(inputs, chunk.role, chunk.rows)
                    more = whole.term(chunk.role, slot, vectors, counts[chunk.role])
                    surrogate = surrogate + self.weighed(more)
                    for name, value in more.items():
                        total[name] = total.get(name, torch.zeros_like(value)) + value.detach()
            self.accelerator.backward(surrogate)
        average_gradients(model.parameters())
        return self.noted(total).detach()

    def _vectors(self, pair: BiEncoder, inputs: Mapping[str, Tensor], chunks: list[Chunk]) -> dict[str, Tensor]:
        """Vectors of all texts by role, float32, without a graph."""
        found: dict[str, Tensor] = {}
        with torch.no_grad():
            for number, chunk in enumerate(chunks):
                self._seed(number)
                with self.accelerator.autocast():
                    vectors = encoded(pair, inputs, chunk).float()
                rows = len(inputs[f"{chunk.role}_input_ids"])
                found.setdefault(chunk.role, vectors.new_empty(rows, vectors.shape[1]))[chunk.rows] = vectors
        return found

    def _seed(self, part: int) -> None:
        torch.manual_seed(seed_of_step(self.args.seed, self.state.global_step * _PARTS + part, rank()))


def chunks_of(inputs: Mapping[str, Tensor], role: str, size: int) -> list[Chunk]:
    """The texts of a role in parts of like length, the longest first, so that a part too large for memory shows at once."""
    lengths = inputs[f"{role}_attention_mask"].sum(dim=1)
    order = lengths.argsort(descending=True, stable=True)
    return [Chunk(role, rows, int(lengths[rows[0]])) for rows in order.split(size)]


def encoded(pair: BiEncoder, inputs: Mapping[str, Tensor], chunk: Chunk) -> Tensor:
    """The vectors of a chunk, (rows, dimension)."""
    ids, mask = (inputs[f"{chunk.role}_{name}"][chunk.rows] for name in ("input_ids", "attention_mask"))
    types = inputs.get(f"{chunk.role}_token_type_ids")
    width = chunk.width if bool(mask[:, 0].all()) else mask.shape[1]  # padding on the left cannot be cut off
    types = None if types is None else types[chunk.rows, :width]
    return pair.encode(chunk.role, ids[:, :width], mask[:, :width], types)


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Put the mean over all processes in the place of each gradient."""
    if world_size() == 1 or not dist.is_initialized():
        return
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size()

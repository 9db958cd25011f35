"""The training step of a retriever, with optional gradient caching (docs/methods/cocondenser.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drtk.losses.sparsity import compute_flops_ramp
from drtk.models.biencoder import BiEncoder
from drtk.training.distributed import get_world_size, has_process_group
from drtk.training.fit import DrtkTrainer
from drtk.training.retriever_loss import FLOPS_TERMS, LOSS_INPUTS, RetrieverLoss, compute_warmup_temperature

ROLES = ("query", "passage")


class Chunk(NamedTuple):
    """Texts to encode in one forward pass. role: "query" or "passage"    rows: text indices    width: maximum length in tokens"""

    role: str
    rows: Tensor
    width: int


class RetrieverTrainer(DrtkTrainer):
    """A DrtkTrainer with a RetrieverLoss and optional gradient caching.

    Gradient caching encodes all texts without a graph, and computes the loss of the whole batch and the gradients of the
    loss with respect to the vectors. Then it encodes the texts again in chunks, with the same dropout, and backpropagates
    the gradients of the chunk's vectors. The result is the gradient of the whole batch, with the memory of one chunk.

    micro_batch: texts in memory at once; None: no gradient caching
    warm_up_temperature: start at temperature 1 and lower it during the warm-up of the learning rate
    flops_warmup: steps of the quadratic ramp of the FLOPS weights; a value below 1 is a fraction of all steps
    """

    micro_batch_field = "grad_cache"

    def __init__(
        self,
        *,
        loss: RetrieverLoss,
        micro_batch: int | None = None,
        warm_up_temperature: bool = False,
        flops_warmup: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(objective=self._compute_terms, **kwargs)
        self.loss, self.micro_batch, self._warm_up_temperature = loss, micro_batch, warm_up_temperature
        self._ramp_steps = round(flops_warmup * self.args.max_steps if flops_warmup < 1 else flops_warmup)
        self._max_texts = 0  # texts of the largest step so far

    def compute_smaller_micro_batch(self) -> int | None:
        """Return half the micro-batch size, or without gradient caching half the texts of a step; None if that is below 1."""
        return (self.micro_batch or self._max_texts) // 2 or None

    @property
    def temperature(self) -> float:
        """The temperature of the current step."""
        if not self._warm_up_temperature:
            return self.loss.temperature
        return compute_warmup_temperature(
            self.state.global_step, final=self.loss.temperature, warmup_steps=int(self.args.warmup_steps)
        )

    def get_term_weight(self, name: str) -> float:
        """Return the weight of a loss term at the current step; the weights of FLOPS rise quadratically."""
        factor = compute_flops_ramp(self.state.global_step + 1, self._ramp_steps) if name in FLOPS_TERMS else 1.0
        return factor * super().get_term_weight(name)

    def _compute_terms(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        texts = {name: value for name, value in inputs.items() if name not in LOSS_INPUTS}
        queries, passages, *auxiliary = model(**texts)
        terms = self.loss.compute_terms(queries, passages, inputs, temperature=self.temperature)
        return terms | (auxiliary[0] if auxiliary else {})

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Run one training step; return the loss, a scalar, for the log."""
        self._max_texts = max(self._max_texts, sum(len(inputs[f"{role}_input_ids"]) for role in ROLES))
        if self.micro_batch is None:
            return super().training_step(model, inputs, *args, **kwargs)
        model.train()
        inputs = self._prepare_inputs(inputs)
        bare: Any = self.accelerator.unwrap_model(model)  # without the DDP wrapper: gradients are averaged once, below
        auxiliary: Any = None if isinstance(bare, BiEncoder) else bare  # the model of AuxiliaryTask.wrap
        biencoder: BiEncoder = bare if auxiliary is None else auxiliary.pair
        chunks = [chunk for role in ROLES for chunk in split_by_length(inputs, role, self.micro_batch)]
        leaves = {role: rows.requires_grad_() for role, rows in self._encode_all(biencoder, inputs, chunks).items()}
        terms = self.loss.compute_terms(leaves["query"], leaves["passage"], inputs, temperature=self.temperature)
        self.sum_terms(terms).backward()
        total = {name: value.detach() for name, value in terms.items()}
        roles = () if auxiliary is None else ROLES
        counts = {role: auxiliary.count_labels(role, auxiliary.build_slot(inputs, role)) for role in roles}
        for number, chunk in enumerate(chunks):
            self.seed_part(number)
            with self.accelerator.autocast():
                vectors = encode_chunk(biencoder, inputs, chunk)
                gradient = leaves[chunk.role].grad
                assert gradient is not None
                surrogate = (vectors.float() * gradient[chunk.rows]).sum()
                if auxiliary is not None:
                    slot = auxiliary.build_slot(inputs, chunk.role, chunk.rows)
                    auxiliary_terms = auxiliary.compute_loss(chunk.role, slot, vectors, counts[chunk.role])
                    surrogate = surrogate + self.sum_terms(auxiliary_terms)
                    for name, value in auxiliary_terms.items():
                        total[name] = total.get(name, torch.zeros_like(value)) + value.detach()
            self.accelerator.backward(surrogate)
        for parameter in model.parameters() if has_process_group() else ():
            if parameter.grad is not None:  # the mean over all processes
                dist.all_reduce(parameter.grad)
                parameter.grad /= get_world_size()
        return self.record_terms(total).detach()

    def _encode_all(self, biencoder: BiEncoder, inputs: Mapping[str, Tensor], chunks: list[Chunk]) -> dict[str, Tensor]:
        """Return the vectors of all texts, {role: (texts, dimension) float32}, without a graph."""
        by_role: dict[str, Tensor] = {}
        with torch.no_grad():
            for index, chunk in enumerate(chunks):
                self.seed_part(index)
                with self.accelerator.autocast():
                    vectors = encode_chunk(biencoder, inputs, chunk).float()
                rows = len(inputs[f"{chunk.role}_input_ids"])
                by_role.setdefault(chunk.role, vectors.new_empty(rows, vectors.shape[1]))[chunk.rows] = vectors
        return by_role


def split_by_length(inputs: Mapping[str, Tensor], role: str, size: int) -> list[Chunk]:
    """Split the texts of a role ("query" or "passage") into chunks of at most `size` texts of similar length.

    The longest texts come first, so that an out-of-memory error occurs early.
    """
    lengths = inputs[f"{role}_attention_mask"].sum(dim=1)
    order = lengths.argsort(descending=True, stable=True)
    return [Chunk(role, rows, int(lengths[rows[0]])) for rows in order.split(size)]


def encode_chunk(biencoder: BiEncoder, inputs: Mapping[str, Tensor], chunk: Chunk) -> Tensor:
    """Return the vectors of the texts of a chunk, (rows, dimension). inputs: model inputs of the whole step"""
    ids, mask = (inputs[f"{chunk.role}_{name}"][chunk.rows] for name in ("input_ids", "attention_mask"))
    types = inputs.get(f"{chunk.role}_token_type_ids")
    width = chunk.width if bool(mask[:, 0].all()) else mask.shape[1]  # left padding cannot be cut off
    types = None if types is None else types[chunk.rows, :width]
    return biencoder.encode(chunk.role, ids[:, :width], mask[:, :width], types)

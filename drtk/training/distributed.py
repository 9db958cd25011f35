"""Training with several processes: gathering with gradients, reductions, and synchronized batch norm."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from drtk.runtime.sharding import get_rank as get_rank
from drtk.runtime.sharding import get_world_size as get_world_size


def has_process_group() -> bool:
    """Return whether torch.distributed is initialized with several processes."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def wait_for_all() -> None:
    """Block until every process has called this function."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()


class _Gather(torch.autograd.Function):
    """Autograd function that gathers the rows of all processes.

    Backward returns the sum, over all processes, of the gradients of this process's rows. With `is_same_loss`, every process
    computes the same loss from all rows, so the sum is the gradient times the number of processes, which DDP divides by.
    """

    @staticmethod
    def forward(context: Any, rows: Tensor, is_same_loss: bool) -> Tensor:
        start = dist.get_rank() * len(rows)
        context.own, context.is_same_loss = slice(start, start + len(rows)), is_same_loss
        gathered = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, rows.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        if context.is_same_loss:
            return gradients[0][context.own] * dist.get_world_size(), None
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return total[context.own], None


class SharedBatchNorm(torch.nn.BatchNorm1d):
    """Batch norm over the rows of all processes, on any device (torch's SyncBatchNorm requires a GPU)."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalized rows of this process, (n, features). input: (n, features), with n equal in all processes"""
        if not self.training or not has_process_group():
            return super().forward(input)
        start = dist.get_rank() * len(input)
        return super().forward(_Gather.apply(input, False))[start : start + len(input)]


def share_batch_norm(network: torch.nn.Module) -> None:
    """Convert every BatchNorm1d of a network to SharedBatchNorm, in place."""
    for module in network.modules():
        if type(module) is torch.nn.BatchNorm1d:
            module.__class__ = SharedBatchNorm


def gather_rows(rows: Tensor) -> Tensor:
    """Return the rows of all processes in the order of ranks, (processes * n, …).

    Gradients flow back to this process's rows, for a loss that every process computes from all rows. With one process,
    `rows` is returned unchanged.
    rows: (n, …), with n equal in all processes
    """
    if not has_process_group():
        return rows
    return _Gather.apply(rows, True)


def all_reduce_sum(value: Tensor) -> Tensor:
    """Return the elementwise sum of a tensor over all processes, without gradient; with one process, `value`."""
    if not has_process_group():
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


def all_reduce_mean(value: Tensor) -> Tensor:
    """Return the elementwise mean of a tensor over all processes, without gradient if there are several."""
    return all_reduce_sum(value) / get_world_size()


def gather_items(items: list[Any]) -> list[Any]:
    """Return the whole list in order. items: the items r, r + n, r + 2 n, … of process r of n"""
    if not has_process_group():
        return items
    parts: list[list[Any]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, items)
    merged: list[Any] = [None] * sum(map(len, parts))
    for number, part in enumerate(parts):
        merged[number :: len(parts)] = part
    return merged

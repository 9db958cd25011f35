"""Several processes as one: a gather that gradients pass through, and who may write."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from drtk.runtime.sharding import rank as rank
from drtk.runtime.sharding import world_size as world_size


def wait_for_all() -> None:
    """Return once every process has come here; at once where there is one."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()


class _Gather(torch.autograd.Function):
    """All processes' rows; backward gives the slice of this process, times the number of processes.

    That is the exact gradient under two conditions which contrastive losses here fulfil: every process computes the same
    loss from the gathered rows, and gradients of parameters are *averaged* over processes (DDP) afterwards.
    """

    @staticmethod
    def forward(context: Any, rows: Tensor) -> Tensor:
        size = dist.get_world_size()
        context.size, context.rank, context.rows = size, dist.get_rank(), len(rows)
        gathered = [torch.empty_like(rows) for _ in range(size)]
        dist.all_gather(gathered, rows.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        start = context.rank * context.rows
        return gradients[0][start : start + context.rows] * context.size


class _GatherForAll(torch.autograd.Function):
    """All processes' rows, of which each process uses some: backward adds up what all of them found for the own rows."""

    @staticmethod
    def forward(context: Any, rows: Tensor) -> Tensor:
        context.start, context.rows = dist.get_rank() * len(rows), len(rows)
        gathered = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, rows.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return total[context.start : context.start + context.rows]


class SharedBatchNorm(torch.nn.BatchNorm1d):
    """Batch norm by the statistics of all processes' rows (methods, section 0.4, rule 4), on any device."""

    def forward(self, input: Tensor) -> Tensor:
        """(n, features) of this process to the same; n must agree everywhere."""
        if not self.training or _alone():
            return super().forward(input)
        start = dist.get_rank() * len(input)
        return super().forward(_GatherForAll.apply(input))[start : start + len(input)]


def share_batch_norm(network: torch.nn.Module) -> None:
    """Let every batch norm below `network` be one of all processes; parameters and buffers stay the same tensors."""
    for module in network.modules():
        if type(module) is torch.nn.BatchNorm1d:
            module.__class__ = SharedBatchNorm


def gather(rows: Tensor) -> Tensor:
    """The rows of all processes in the order of their ranks, (processes * n, …) from (n, …); n must agree everywhere.

    Gradients flow back to this process's rows (methods, section 0.4, rule 4). Without several processes, `rows` itself.
    """
    if _alone():
        return rows
    gathered: Tensor = _Gather.apply(rows)
    return gathered


def _alone() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1


def summed(value: Tensor) -> Tensor:
    """The sum of a number over all processes; no gradient passes through it."""
    if _alone():
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


def least(value: int, device: torch.device) -> int:
    """The smallest of a number over all processes; `device`: where they exchange it."""
    if _alone():
        return value
    found = torch.tensor(value, device=device)
    dist.all_reduce(found, op=dist.ReduceOp.MIN)
    return int(found)


def mean_of_processes(value: Tensor) -> Tensor:
    """The mean of a number over all processes; no gradient passes through it."""
    return summed(value) / world_size()


def collected(items: list[Any]) -> list[Any]:
    """The items of all processes, those of process r of n at places r, r + n, r + 2n, …: what `items[rank::size]` took apart."""
    if _alone():
        return items
    parts: list[list[Any]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, items)
    whole: list[Any] = [None] * sum(map(len, parts))
    for number, part in enumerate(parts):
        whole[number :: len(parts)] = part
    return whole

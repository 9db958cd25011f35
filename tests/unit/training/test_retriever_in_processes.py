"""Two processes train a retriever as one: gathered negatives, masks, a teacher, gradient caching, a further task."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from tests.running import torchrun
from tests.unit.training.test_caching import GOALS, place, stage_of

__all__ = ["place"]  # the fixture
BATCH = 8


def check(rank: int, folder: str, store: str, path: list[str]) -> None:
    sys.path[:] = path
    torch.set_num_threads(1)
    stages = {name: stage_of(Path(folder), name) for name in GOALS}
    batches = {
        name: [stage.inputs(range(BATCH)), *halves(stage.inputs(range(BATCH)))] for name, stage in stages.items()
    }
    trainers = {
        (name, chunk): stage.trainer(Path(folder) / f"{name}-{rank}-{chunk}", cache_chunk=chunk)
        for name, stage in stages.items()
        for chunk in (None, 3)
    }
    alone = {name: stage.step(trainers[name, None], batches[name][0]) for name, stage in stages.items()}
    os.environ |= torchrun(rank=rank, processes=2)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for (name, chunk), trainer in trainers.items():
        stage, (loss, expected) = stages[name], alone[name]
        together = torch.nn.parallel.DistributedDataParallel(stage.model)
        for _ in range(2):  # the second step would fail if a weight had waited for a gradient in the first
            mine, found = stage.step(trainer, batches[name][1 + rank], together)
        part = torch.tensor(mine)
        dist.all_reduce(part)
        assert abs(float(part) / 2 - loss) < 1e-5 * max(1, abs(loss)), (name, chunk, float(part) / 2, loss)
        assert found.keys() == expected.keys(), name
        for weight, slope in expected.items():
            apart = float((found[weight] - slope).abs().max())
            assert apart < 3e-3 * max(1e-3, float(slope.abs().max())), (name, chunk, weight, apart)
    dist.barrier()
    os._exit(0)  # not by way of gloo's destructors: seen once to wait for a thread that had ended


def halves(inputs: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The inputs of each of two processes, padded as those of both: padding counts where a task has it so."""
    return [{name: value.chunk(2)[rank] for name, value in inputs.items()} for rank in range(2)]


def test_two_processes_agree_with_one(place: Path, tmp_path: Path):
    processes.spawn(check, args=(str(place), str(tmp_path / "store"), sys.path), nprocs=2)

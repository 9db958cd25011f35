"""Two processes train as one (methods: section 0.4, rule 4): token means, gathered contrasts, batch norm, weights no term needs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from drtk.training.distributed import share_batch_norm
from tests.pretraining import Stage, World
from tests.running import torchrun

BATCH, MICRO = 8, 2  # so two parts in each of two processes
JOINT = "simlm, joint generator"
PRESETS = ["mlm", "cocondenser", "qac-cocondenser", "simcse", "simlm-rtd", "diffcse-sts-bert", JOINT, "master"]


def stage_of(world: World, preset: str) -> Stage:
    changes = ("generator.mode=joint", "generator.slot=encoder") if preset == JOINT else ()
    stage = world.stage(preset.partition(",")[0], *changes, batch=BATCH).redrawn().without_dropout()
    share_batch_norm(stage.network)  # as the command does
    return stage


def examples_of(stage: Stage, preset: str) -> list[int]:
    """What is trained on; of master the first half, one process's share, has no next passage, and the other has."""
    if preset != "master":
        return [*range(BATCH)]
    there = {number: stage.seen(number)[0].slots["next"].present for number in range(len(stage.rows))}
    found = [next_one for has in (False, True) for next_one in [n for n in there if there[n] is has][: BATCH // 2]]
    assert [there[number] for number in found] == [False] * 4 + [True] * 4
    return found


def gradients_of(stage: Stage) -> dict[str, torch.Tensor]:
    return {name: weight.grad.clone() for name, weight in stage.network.named_parameters() if weight.grad is not None}


def check(rank: int, folder: str, store: str, path: list[str]) -> None:
    sys.path[:] = path
    torch.set_num_threads(1)
    os.environ["DRTK_CACHE"] = f"{folder}/cache"
    world = World(Path(folder) / "model", Path(folder) / "generator", Path(folder) / "corpus.jsonl")
    stages = {preset: stage_of(world, preset) for preset in PRESETS}
    trainers = {preset: stage.trainer(Path(folder) / f"{preset}-{rank}") for preset, stage in stages.items()}
    examples = {preset: examples_of(stage, preset) for preset, stage in stages.items()}
    alone = {preset: stage.step(trainers[preset], examples[preset], micro=BATCH) for preset, stage in stages.items()}
    os.environ |= torchrun(rank=rank, processes=2)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    share = BATCH // 2
    for preset, stage in stages.items():
        loss, expected = alone[preset]
        micro = share if preset == "diffcse-sts-bert" else MICRO  # batch norm wants its batch in one part
        stage.network.zero_grad()
        together = torch.nn.parallel.DistributedDataParallel(stage.network)
        for _ in range(2):  # the second step would fail if a weight had waited for a gradient in the first
            stage.network.zero_grad()
            mine = stage.seen(*examples[preset][rank * share : rank * share + share])
            part = trainers[preset].training_step(together, stage.data.collator(micro)(mine)).clone()
        dist.all_reduce(part)
        assert abs(float(part) / 2 - loss) < 1e-5 * max(1, abs(loss)), (preset, float(part) / 2, loss)
        found = gradients_of(stage)
        assert found.keys() == expected.keys(), preset
        for name in expected:
            apart = float((found[name] - expected[name]).abs().max())
            assert apart < 3e-5 * max(1.0, float(expected[name].abs().max())), (preset, name, apart)
    dist.barrier()
    os._exit(0)  # not by way of gloo's destructors: seen once to wait for a thread that had ended


def test_two_processes_agree_with_one(world: World, tmp_path: Path):
    processes.spawn(check, args=(str(world.model.parent), str(tmp_path / "store"), sys.path), nprocs=2)

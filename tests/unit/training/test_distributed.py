"""Two processes give the loss and the gradients of one (methods, section 0.4, rule 4)."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from drtk.losses.contrastive import infonce
from drtk.models.biencoder import BiEncoder, load_towers
from drtk.records import Passage
from drtk.training.distributed import gather
from drtk.training.retriever import Drawn, collate, contrastive_terms
from tests.tiny import collection, tiny_model

OBJECTIVE = partial(contrastive_terms, loss=infonce, similarity="cosine", temperature=0.05, mask_duplicates=True)


def batch(towers, start: int, stop: int) -> dict[str, torch.Tensor]:
    """Examples start … stop with one negative; the positives of 0 and 5 are one passage."""
    texts, queries, examples = collection(12)
    drawn = []
    for number in range(start, stop):
        positive = 0 if number == 5 else number
        numbers = [positive, int(examples[number]["negatives"][0][1:])]
        found = [Passage(texts[n]["_id"], texts[n]["text"], texts[n]["title"]) for n in numbers]
        drawn.append(Drawn(queries[number]["text"], numbers, found))
    tower = towers["passage"]
    return collate(drawn, query=tower.tokenizing("query"), passage=tower.tokenizing("passage"))


def loss_and_gradients(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[float, list[torch.Tensor]]:
    model.zero_grad()
    loss = OBJECTIVE(model, inputs)["contrastive"]
    loss.backward()
    return loss.item(), [weights.grad for weights in model.parameters() if weights.grad is not None]


def check(rank: int, folder: str, store: str, path: list[str]) -> None:
    sys.path[:] = path
    torch.set_num_threads(1)
    towers = load_towers(folder, wishes={}, untied=False)  # in eval mode: no dropout
    model = BiEncoder(towers["passage"].encoder, group_tokens=64)
    alone, expected = loss_and_gradients(model, batch(towers, 0, 8))
    expected = [gradient.clone() for gradient in expected]
    assert sum(float(gradient.abs().sum()) for gradient in expected) > 0
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    together = torch.nn.parallel.DistributedDataParallel(model)
    found, gradients = loss_and_gradients(together, batch(towers, 4 * rank, 4 * rank + 4))
    assert abs(found - alone) < 1e-6, (found, alone)
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    dist.barrier()
    os._exit(0)  # not by way of gloo's destructors: seen once to wait for a thread that had ended


def test_two_processes_agree_with_one(tmp_path: Path):
    folder = tiny_model(tmp_path / "m")
    processes.spawn(check, args=(str(folder), str(tmp_path / "store"), sys.path), nprocs=2)


def test_one_process_gathers_its_own_rows():
    rows = torch.ones(3, 2, requires_grad=True)
    assert gather(rows) is rows

"""Two processes give the loss and the gradients of one (methods, section 0.4, rule 4)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from drtk.losses.contrastive import infonce
from drtk.models.biencoder import BiEncoder, load_towers
from drtk.models.seq2seq import Writer, load_writer
from drtk.records import Passage
from drtk.training.distributed import collected, gather
from drtk.training.example_order import Drawn, collate
from drtk.training.fit import Objective
from drtk.training.generator import WritingTest, teacher_forced
from drtk.training.generator import collate as collate_pairs
from drtk.training.retriever_loss import OF_GOAL, Goal
from drtk.training.text_pairs import Pair
from tests.running import torchrun
from tests.tiny import collection, tiny_model, tiny_writer

PAIRS = [
    Pair("rivers riverer", "river"),
    Pair("engines", "engined"),
    Pair("violins", "violiner " * 6),
    Pair("a", "b c"),
]
GOAL = Goal("cosine", 0.05, infonce, masked="duplicates")


def contrastive(model: torch.nn.Module, inputs: dict[str, torch.Tensor], goal: Goal = GOAL) -> dict[str, torch.Tensor]:
    mine = {name: value for name, value in inputs.items() if name not in OF_GOAL}
    return goal.terms(*model(**mine), inputs)


TEACHING = partial(teacher_forced, smoothing=0.1)


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


def loss_and_gradients(
    model: torch.nn.Module, inputs: dict[str, torch.Tensor], objective: Objective = contrastive
) -> tuple[float, list[torch.Tensor]]:
    model.zero_grad()
    (loss,) = objective(model, inputs).values()
    loss.backward()
    return loss.item(), [weights.grad for weights in model.parameters() if weights.grad is not None]


def pairs_of(writer: Writer, start: int, stop: int) -> dict[str, torch.Tensor]:
    return collate_pairs(PAIRS[start:stop], writer=writer, room=12, target_room=9)


def measured(writer: Writer) -> dict[str, float]:
    """Loss on the pairs held out, and a number that depends on the order in which texts are written."""

    def score(written: Sequence[str], wanted: Sequence[str]) -> dict[str, float]:
        assert list(wanted) == [pair.target for pair in PAIRS]
        return {"read": float(sum(place * len(text) for place, text in enumerate(written)))}

    collating = partial(collate_pairs, writer=writer, room=12, target_room=9)
    return WritingTest(writer, PAIRS, collate=collating, score=score, rows=2, longest=5)()


def check(rank: int, folder: str, writing: str, store: str, path: list[str]) -> None:
    sys.path[:] = path
    torch.set_num_threads(1)
    towers = load_towers(folder, wishes={}, untied=False)  # in eval mode: no dropout
    model = BiEncoder(towers["passage"].encoder, group_overhead=4)
    alone, expected = loss_and_gradients(model, batch(towers, 0, 8))
    expected = [gradient.clone() for gradient in expected]
    assert sum(float(gradient.abs().sum()) for gradient in expected) > 0
    writer = load_writer(Path(writing))
    lonely, wanted = loss_and_gradients(writer.model, pairs_of(writer, 0, 4), TEACHING)
    wanted = [gradient.clone() for gradient in wanted]
    numbers = measured(writer)
    os.environ |= torchrun(rank=rank, processes=2)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    together = torch.nn.parallel.DistributedDataParallel(model)
    found, gradients = loss_and_gradients(together, batch(towers, 4 * rank, 4 * rank + 4))
    assert abs(found - alone) < 1e-5, (found, alone)
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    # a writing model: the halves of the batch have different numbers of target tokens, so a mean of means would differ
    half = pairs_of(writer, 2 * rank, 2 * rank + 2)
    part, gradients = loss_and_gradients(torch.nn.parallel.DistributedDataParallel(writer.model), half, TEACHING)
    parts = [torch.zeros(()) for _ in range(2)]
    dist.all_gather(parts, torch.tensor(part))
    assert abs(float(sum(parts)) / 2 - lonely) < 1e-5, (parts, lonely)
    assert abs(float(parts[0] - parts[1])) > 0.1
    for mine, theirs in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    together_measured = measured(writer)
    assert abs(together_measured["dev_loss"] - numbers["dev_loss"]) < 1e-5
    assert together_measured["read"] == numbers["read"]
    assert collected(["a", "c"] if rank == 0 else ["b"]) == ["a", "b", "c"]
    dist.barrier()
    os._exit(0)  # not by way of gloo's destructors: seen once to wait for a thread that had ended


def test_two_processes_agree_with_one(tmp_path: Path):
    folder = tiny_model(tmp_path / "m")
    writing = tiny_writer(tmp_path / "w", "t5")
    processes.spawn(check, args=(str(folder), str(writing), str(tmp_path / "store"), sys.path), nprocs=2)


def test_one_process_gathers_its_own_rows():
    rows = torch.ones(3, 2, requires_grad=True)
    assert gather(rows) is rows

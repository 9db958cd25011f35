"""What is masked of an example depends on seed, epoch and id, and on nothing else."""

from __future__ import annotations

import pickle
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler

from drtk.config import load_preset, preset_names
from drtk.pretraining.batch import Example
from drtk.pretraining.example_builder import SlotExample
from tests.pretraining import Stage, World

PRESETS = [name for name in preset_names() if load_preset(name).command == "pretrain"]


def equal(one: SlotExample, two: SlotExample) -> bool:
    return all((a is None and b is None) or np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def by_key(seen: Iterable[Example]) -> dict[tuple, Example]:
    return {each.key: each for each in seen}


def all_of(stage: Stage) -> list[Example]:
    return [stage.rows[number] for number in range(len(stage.rows))]


@pytest.mark.parametrize("preset", PRESETS)
def test_an_example_is_masked_alike_in_batches_of_every_size(preset: str, world: World):
    """Batches of 4 and of 6 give an example another place, step and neighbours, and what it is masked by stays."""
    by_the_step = {"qac-cotmae-mixed": "context", "qac-cocondenser-mixed": "b"}  # what is drawn depends on the step
    draw = [f"slots.{by_the_step[preset]}.draw=example"] if preset in by_the_step else []
    small = by_key(all_of(world.stage(preset, *draw, batch=4, steps=2)))
    large = by_key(all_of(world.stage(preset, *draw, batch=6, steps=2)))
    both = small.keys() & large.keys()
    assert len(both) >= 6
    for key in both:
        one, two = small[key].slots, large[key].slots
        assert one.keys() == two.keys()
        assert all(equal(one[name], two[name]) for name in one)


def test_another_epoch_and_another_seed_mask_otherwise(world: World):
    stage = world.stage("cocondenser", batch=5, steps=6)
    rows = all_of(stage)
    epochs = sorted({each.key[1] for each in rows})
    assert len(epochs) > 1
    assert masks_apart(rows, rows, epochs[0], epochs[1])
    other = all_of(world.stage("cocondenser", batch=9, steps=6, seed=8))
    assert masks_apart(rows, other, 0, 0)


def masks_apart(some: list[Example], others: list[Example], epoch: int, other: int) -> bool:
    """Whether examples that occur in both are read otherwise, most of them."""
    one = {each.key[2]: each for each in some if each.key[1] == epoch}
    two = {each.key[2]: each for each in others if each.key[1] == other}
    both = one.keys() & two.keys()
    assert len(both) > 2
    return sum(not equal(one[key].slots["a"], two[key].slots["a"]) for key in both) > len(both) / 2


def test_every_epoch_has_an_order_of_its_own_and_every_row_at_most_once(world: World):
    rows = all_of(world.stage("mlm", batch=5, steps=10))
    by_epoch: dict[int, list[str]] = {}
    for each in rows:
        by_epoch.setdefault(each.key[1], []).append(each.key[2])
    assert len(by_epoch) > 1
    assert all(len(set(ids)) == len(ids) for ids in by_epoch.values())
    assert by_epoch[0] != by_epoch[1]


def test_workers_make_the_batches_that_one_process_makes(world: World):
    stage = world.stage("retromae", batch=4, steps=3)  # whose collator draws, too: who sees whom

    def batches(workers: int) -> list:
        loader = DataLoader(
            stage.rows,
            batch_size=4,
            sampler=SequentialSampler(stage.rows),
            collate_fn=stage.data.collator(4),
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )
        return [each["parts"][0] for each in loader]

    torch.manual_seed(0)
    alone = batches(0)
    torch.manual_seed(1)  # workers take their seeds from here
    together = batches(2)
    for one, two in zip(alone, together, strict=True):
        for name, slot in one.items():
            for item, value in vars(slot).items():
                found = getattr(two[name], item)
                assert (value is None and found is None) or torch.equal(value, found), (name, item)


def test_who_sees_whom_does_not_depend_on_the_part(world: World):
    stage = world.stage("retromae", batch=8)
    seen = stage.seen(*range(8))
    whole = stage.data.collator(8).collate(seen)["decoder"]
    alone = stage.data.collator(1).collate(seen[3:4])["decoder"]
    size = int(alone.attention.sum())
    assert whole.visible is not None
    assert alone.visible is not None
    assert torch.equal(whole.visible[3, :size, :size], alone.visible[0])


def test_a_replaced_token_does_not_depend_on_the_batch(world: World):
    """The generator draws by numbers that come with the example."""
    stage = world.stage("simlm").redrawn()
    whole = stage.batch(*range(6))
    ids = stage.views(whole).ids("decoder")
    alone = stage.batch(4)
    found = stage.views(alone).ids("decoder")[0]
    assert torch.equal(ids[4, : len(found)], found)


def test_processes_share_the_examples_of_a_step(world: World):
    """A process takes its share of each step; together they are what one process sees."""
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler

    stage = world.stage("mlm", batch=6, steps=3)
    size = 3  # 6 examples a step, 2 processes
    shards = [
        [*BatchSamplerShard(BatchSampler(SequentialSampler(stage.rows), size, drop_last=True), 2, rank)]
        for rank in range(2)
    ]
    for step in range(3):
        assert [*shards[0][step], *shards[1][step]] == [*range(6 * step, 6 * step + 6)]


def test_rows_travel_to_other_processes(world: World):
    """As where workers are spawned, not forked."""
    for preset, slot in (("rom", "passage"), ("cocondenser", "a")):
        rows = world.stage(preset).rows
        assert equal(pickle.loads(pickle.dumps(rows))[1].slots[slot], rows[1].slots[slot])

"""Examples depend on seed, epoch and id only; what is held out."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler

from drtk.config import load_preset, preset_names
from drtk.errors import MismatchError
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


@pytest.mark.parametrize("preset", ["master", "cocondenser", "qac-cotmae-mixed", "diffcse-sts-bert", "ict"])
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


def test_rows_travel_to_other_processes(world: World):
    """As where workers are spawned, not forked."""
    for preset, slot in (("rom", "passage"), ("cocondenser", "a")):
        rows = world.stage(preset).rows
        assert equal(pickle.loads(pickle.dumps(rows))[1].slots[slot], rows[1].slots[slot])


@pytest.mark.parametrize("preset", ["cotmae", "master", "qac-cotmae-mixed"])
def test_passages_are_held_out_with_their_whole_document(preset: str, world: World) -> None:
    material = world.stage(preset, held_out=6).data
    held, trained = ({material.corpus.document(row) for row in rows} for rows in (material.held_out, material.rows))
    assert len(material.held_out) == 6
    assert held
    assert trained
    assert not held & trained
    assert len(material.rows) >= len(material.corpus) // 2


def test_no_token_of_a_passage_held_out_is_in_what_is_trained_on(world: World) -> None:
    material = world.stage("cotmae", held_out=6).data
    away = {tuple(material.corpus.text(row).ids.tolist()) for row in material.held_out}
    rows = material.dataset()
    seen = {tuple(slot.clean[1:-1].tolist()) for at in range(len(rows)) for slot in rows[at].slots.values()}
    assert len(seen) > 10
    assert not {text for text in away for other in seen if text[:5] == other[:5]}


def test_what_a_step_draws_is_drawn_for_every_passage_held_out(world: World) -> None:
    """Otherwise mixed context would be measured on queries alone, or on neighbours alone, as the seed has it."""
    material = world.stage("qac-cotmae-mixed", held_out=12).data
    contexts = {
        tuple(each[each != 0].tolist()) for batch in material.held_out_batches(4) for each in batch["context"].clean
    }
    rows = material.held_out
    queries = {tuple(text.ids.tolist()) for row in rows for text in material.corpus.queries(row)}
    of_queries = sum(any(context[1 : 1 + len(one)] == one for one in queries) for context in contexts)
    assert 0 < of_queries < len(contexts)


@pytest.mark.parametrize(("held", "sizes"), [(8, [4, 4]), (9, [4, 5]), (10, [4, 4, 2]), (1, [])])
def test_the_last_passage_held_out_is_measured_with_others(held: int, sizes: list[int], world: World) -> None:
    stage = world.stage("mlm", held_out=held)
    assert [len(batch["passage"].clean) for batch in stage.data.held_out_batches(4)] == sizes


def test_documents_are_held_out_where_a_row_is_a_document(world: World) -> None:
    material = world.stage("cocondenser", batch=2, held_out=3).data
    assert len(material.held_out) == 3
    assert not {*material.held_out.tolist()} & {*material.rows.tolist()}


def test_one_document_alone_stays_in_training(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = world.corpus.read_text().splitlines()
    one = world.corpus.with_name("one.jsonl")
    first = json.loads(lines[0])["_id"].partition("#")[0]
    one.write_text("\n".join(line for line in lines if json.loads(line)["_id"].startswith(f"{first}#")))
    told: list[str] = []
    monkeypatch.setattr("drtk.pretraining.dataset.warn", told.append)
    material = World(world.model, world.generator, one).stage("cotmae", batch=1, held_out=2).data
    assert len(material.held_out) == 0
    assert told == [f"{one}: nothing is held out: every document has more than half of all passages"]


@pytest.mark.parametrize(
    ("preset", "told"),
    [
        ("master", " have no text for slot 'next'; they take no part in the terms that need it"),
        ("qac-cocondenser", " passages have no text for slot 'b'"),
        ("mlm", ""),
    ],
)
def test_slots_that_lack_texts_are_logged(
    preset: str, told: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = world.stage(preset).data
    messages: list[str] = []
    monkeypatch.setattr("drtk.pretraining.dataset.log", messages.append)
    data.check_slots()
    assert told in " ".join(messages)
    assert bool(messages) == bool(told)


def test_a_slot_without_any_text_is_rejected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    data = world.stage("qac-cotmae").data
    monkeypatch.setattr(type(data.corpus), "queries", lambda corpus, row: [])
    with pytest.raises(MismatchError, match=r"none of .* passages has a text for slot"):
        data.check_slots()

"""Examples depend on seed, epoch and id only; held-out passages."""

import json
import os
import pickle
import resource

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler

from drtk.errors import MismatchError
from drtk.pretraining.dataset import Batch
from drtk.pretraining.example_builder import TokenizedSlot
from drtk.text.rng import sample_uniform
from tests.pretraining_setup import PretrainingFiles, PretrainingSetup


def are_equal(one: TokenizedSlot, two: TokenizedSlot) -> bool:
    return all((a is None and b is None) or np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def collect_examples(stage: PretrainingSetup) -> dict[tuple[object, ...], dict[str, TokenizedSlot]]:
    """Return the slots of all examples by key, (seed, epoch, id)."""
    return {stage.rows[number].key: stage.rows[number].slots for number in range(len(stage.rows))}


@pytest.mark.parametrize("preset", ["master", "cocondenser", "qac-cotmae-mixed", "diffcse-sts-bert"])
def test_example_does_not_depend_on_its_batch(preset: str, files: PretrainingFiles):
    changes = ["slots.context.draw=example"] * (preset == "qac-cotmae-mixed")
    stages = (files.prepare(preset, *changes, batch_size=batch, max_steps=2) for batch in (4, 6))
    small, large = map(collect_examples, stages)
    both = small.keys() & large.keys()
    assert len(both) >= 6
    for key in both:
        assert small[key].keys() == large[key].keys()
        assert all(are_equal(small[key][name], large[key][name]) for name in small[key])


def test_masks_differ_between_epochs_and_seeds(files: PretrainingFiles):
    examples = collect_examples(files.prepare("cocondenser", batch_size=5, max_steps=6))
    others = collect_examples(files.prepare("cocondenser", batch_size=9, max_steps=6, seed=8))
    first, second, third = (
        {key[2]: slots["a"] for key, slots in rows.items() if key[1] == epoch}
        for rows, epoch in ((examples, 0), (examples, 1), (others, 0))
    )
    for other in (second, third):
        both = first.keys() & other.keys()
        assert len(both) > 2
        assert sum(not are_equal(first[key], other[key]) for key in both) > len(both) / 2


def load_steps(stage: PretrainingSetup, batch_size: int, *, micro: int, workers: int) -> list[list[Batch]]:
    """Return the micro-batches of all steps. workers: processes; 0 loads in this process"""
    loader = DataLoader(
        stage.rows,
        batch_size=batch_size,
        sampler=SequentialSampler(stage.rows),
        collate_fn=stage.data.build_collator(micro),
        num_workers=workers,
        timeout=300 if workers else 0,  # without it, a worker that cannot open a file would block the loader forever
        multiprocessing_context="fork" if workers else None,
    )
    return [step["batches"].unpack() for step in loader]


def test_batches_do_not_depend_on_the_number_of_workers(files: PretrainingFiles):
    stage = files.prepare("retromae", batch_size=4, max_steps=3)  # its collator samples visible tokens
    torch.manual_seed(0)
    alone = load_steps(stage, 4, micro=4, workers=0)
    torch.manual_seed(1)  # workers take their seeds from here
    together = load_steps(stage, 4, micro=4, workers=2)
    for (one,), (two,) in zip(alone, together, strict=True):
        for name, slot in one.items():
            for item, value in vars(slot).items():
                actual = getattr(two[name], item)
                assert (value is None and actual is None) or torch.equal(value, actual), (name, item)


def test_micro_batches_have_texts_of_similar_length_the_longest_first(files: PretrainingFiles):
    stage = files.prepare("cocondenser", batch_size=8)
    examples = stage.get_examples(*range(8))
    lengths = {str(each.key[-1]): sum(len(slot.input_ids) for slot in each.slots.values()) for each in examples}
    assert list(lengths.values()) != sorted(lengths.values(), reverse=True)
    batches = stage.data.build_collator(3)(examples)
    ids = [id for batch in batches["ids"] for id in batch]
    assert [lengths[id] for id in ids] == sorted(lengths.values(), reverse=True)
    sizes = [sum(int(slot.attention.sum()) for slot in batch.values()) for batch in batches["batches"].unpack()]
    assert sizes == [sum(lengths[id] for id in batch) for batch in batches["ids"]]


def test_a_step_of_many_micro_batches_needs_few_file_descriptors(files: PretrainingFiles):
    """Data workers send each tensor through a file descriptor; a step of cotmae in 24 micro-batches has hundreds of tensors."""
    stage = files.prepare("cotmae", batch_size=24, max_steps=4)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 64, limits[1]))
    try:
        steps = load_steps(stage, 24, micro=1, workers=2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [len(batches) for batches in steps] == [24] * 4


def test_visibility_matrices_do_not_depend_on_the_micro_batch(files: PretrainingFiles):
    stage = files.prepare("retromae", batch_size=8)
    examples = stage.get_examples(*range(8))
    whole = stage.data.build_collator(8).collate(examples)["decoder"].attention_mask
    alone = stage.data.build_collator(1).collate(examples[3:4])["decoder"].attention_mask
    assert whole is not None
    assert alone is not None
    size = alone.shape[1]
    assert torch.equal(whole[3, :size, :size], alone[0])


def test_replaced_tokens_do_not_depend_on_the_batch(files: PretrainingFiles):
    stage = files.prepare("simlm").randomize_weights()
    ids = stage.views(stage.batch(*range(6))).get_ids("decoder")
    alone = stage.views(stage.batch(4)).get_ids("decoder")[0]
    assert torch.equal(ids[4, : len(alone)], alone)


def test_examples_can_be_pickled_for_worker_processes(files: PretrainingFiles):
    rows = files.prepare("cocondenser").rows
    assert are_equal(pickle.loads(pickle.dumps(rows))[1].slots["a"], rows[1].slots["a"])


def test_whole_documents_are_held_out(files: PretrainingFiles) -> None:
    data = files.prepare("cotmae", held_out=6).data
    held, trained = ({data.corpus.get_document(row) for row in rows} for rows in (data.held_out, data.rows))
    assert len(data.held_out) == 6
    assert held
    assert trained
    assert not held & trained
    assert len(data.rows) >= len(data.corpus) // 2
    data = files.prepare("cocondenser", batch_size=2, held_out=3).data  # its rows are documents
    assert len(data.held_out) == 3
    assert not {*data.held_out.tolist()} & {*data.rows.tolist()}


def test_passages_and_documents_are_held_out_by_a_hash_of_their_ids(files: PretrainingFiles) -> None:
    for preset, batch_size in (("mlm", 4), ("cocondenser", 2)):
        data = files.prepare(preset, batch_size=batch_size, held_out=3).data
        rows = np.sort(np.concatenate([data.held_out, data.rows])).tolist()
        builder = data.build_dataset()._builder
        rows.sort(key=lambda row: sample_uniform(data.seed, "held-out", builder.get_id(row)))
        assert data.held_out.tolist() == rows[:3]


def test_views_sampled_per_step_are_sampled_per_held_out_passage(files: PretrainingFiles) -> None:
    data = files.prepare("qac-cotmae-mixed", held_out=12).data
    (batch,) = data.build_held_out_batches(12)
    contexts = {tuple(each[each != 0].tolist()) for each in batch["context"].original_ids}
    queries = {tuple(text.ids.tolist()) for row in data.held_out for text in data.corpus.get_queries(row)}
    of_queries = sum(any(context[1 : 1 + len(one)] == one for one in queries) for context in contexts)
    assert 0 < of_queries < len(contexts)


def test_single_last_held_out_passage_joins_the_previous_batch(files: PretrainingFiles) -> None:
    sizes = {}
    for held in (8, 9, 10, 1):
        batches = files.prepare("mlm", held_out=held).data.build_held_out_batches(4)
        sizes[held] = [len(batch["passage"].original_ids) for batch in batches]
    assert sizes == {8: [4, 4], 9: [4, 5], 10: [4, 4, 2], 1: []}


def test_single_document_is_not_held_out(files: PretrainingFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = files.corpus.read_text().splitlines()
    one = files.corpus.with_name("one.jsonl")
    first = json.loads(lines[0])["_id"].partition("#")[0]
    one.write_text("\n".join(line for line in lines if json.loads(line)["_id"].startswith(f"{first}#")))
    told: list[str] = []
    monkeypatch.setattr("drtk.pretraining.dataset.warn", told.append)
    data = PretrainingFiles(files.model, files.generator, one).prepare("cotmae", batch_size=1, held_out=2).data
    assert len(data.held_out) == 0
    assert told == [f"{one}: no passages are held out, because all passages belong to one document"]


def test_slots_without_text_are_logged(files: PretrainingFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {
        "master": " have no text for slot 'next'; objectives on slot 'next' skip them",
        "qac-cocondenser": " passages have no text for slot 'b'",
        "mlm": "",
    }
    messages: list[str] = []
    monkeypatch.setattr("drtk.pretraining.dataset.log", messages.append)
    for preset, message in expected.items():
        messages.clear()
        files.prepare(preset).data.check_slots()
        assert message in " ".join(messages)
        assert bool(messages) == bool(message)
    data = files.prepare("qac-cotmae").data
    monkeypatch.setattr(type(data.corpus), "get_queries", lambda corpus, row: [])
    with pytest.raises(MismatchError, match=r"none of .* sampled passages has a text for slot"):
        data.check_slots()

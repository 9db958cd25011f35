"""What is held out is seen in training by no view, neighbours of a passage included."""

from __future__ import annotations

import json

import pytest

from tests.pretraining import World


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
    assert told == [f"{one}: nothing is held out: no document is small enough to be spared whole"]

"""What is said of a corpus before training: texts that slots lack, and passages that are longer than what is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drtk.cli.main import app
from drtk.errors import MismatchError
from drtk.pretraining.dataset import cropped, notice
from drtk.runtime.integrity import read_json
from tests.pretraining import Stage, World


def longer(stage: Stage, room: int, *, more: int = 0) -> int:
    """Passages of more word pieces than `room`, counted one by one; more: pieces that stand before each text."""
    corpus = stage.data.corpus
    return sum(len(corpus.text(row).ids) + more > room for row in range(len(corpus)))


@pytest.mark.parametrize(
    ("preset", "changes", "room"),
    [
        ("mlm", [], 10),  # 12 tokens less the two special ones
        ("mlm", ["slots.passage.max_length=16"], 14),
        ("cotmae", ["slots.context.max_length=15"], 13),  # one slot shows more than the other
        ("qac-cotmae", [], 10),  # queries are no passages
        ("mlm", ["slots.passage.view=halves.a"], 20),  # two halves of 10
        ("crop", [], 10**6),  # parts are cut out anyway
    ],
)
def test_a_passage_is_cropped_where_no_slot_has_room_for_it(preset: str, changes: list[str], room: int, world: World):
    stage = world.stage(preset, *changes, max_length=12)
    assert int(cropped(stage.data).sum()) == longer(stage, room)
    assert 0 < longer(stage, 10) < len(stage.data.corpus)


@pytest.mark.parametrize(("title", "between"), [("join", 0), ("sep", 1), ("segment", 1)])
def test_a_title_before_the_text_takes_room(world: World, title: str, between: int):
    stage = world.stage("mlm", f"title={title}", max_length=12)
    corpus = stage.data.corpus
    (pieces,) = {len(corpus.title(row).ids) for row in range(len(corpus))}
    assert pieces > 0
    assert int(cropped(stage.data).sum()) == longer(stage, 10, more=pieces + between)
    assert longer(stage, 10, more=pieces + between) > longer(stage, 10)


def test_the_share_that_lacks_a_text_is_said_once_for_slots_that_lack_it_together(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    stage = world.stage("master")
    corpus, total = stage.data.corpus, len(stage.data.corpus)
    without = sum(not corpus.queries(row) for row in range(total))
    last = sum(corpus.following(row) is None for row in range(total))
    assert 0 < without < total
    assert 0 < last < total
    said = []
    monkeypatch.setattr("drtk.pretraining.dataset.log", said.append)
    assert notice(stage.data) == {}
    slots = stage.data.composition.slots
    (queries,) = [name for name, slot in slots.items() if slot.view[0].startswith("quer")]
    (following,) = [name for name, slot in slots.items() if slot.view[0] == "next"]
    for count, name in ((without, queries), (last, following)):
        line = (
            f"{count} of {total} passages have no text for slot '{name}'; they take no part in the terms that need it"
        )
        assert [each for each in said if each.endswith(line)]
    assert len(said) == 2


def test_of_many_passages_some_are_looked_at(world: World, monkeypatch: pytest.MonkeyPatch):
    stage = world.stage("qac-cotmae")
    said = []
    monkeypatch.setattr("drtk.pretraining.dataset.log", said.append)
    monkeypatch.setattr("drtk.pretraining.dataset.LOOKED_AT", 9)
    looked = stage.data.glance(9)
    missing = sum(not slots["context"].present for slots in looked)
    assert 0 < missing < 9
    notice(stage.data)
    assert f"about {missing / 9:.0%} of the passages have no text for slot 'context'" in said[0]


def test_a_slot_that_no_passage_has_a_text_for_is_refused(world: World, tmp_path: Path):
    """Neighbours there are, but every second passage is missing, so that none has the one that follows."""
    rows = [json.loads(line) for line in world.corpus.read_text().splitlines()]
    kept = [row for row in rows if row["metadata"]["position"] != 1]
    path = tmp_path / "gaps.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    command = [
        "pretrain",
        str(path),
        "--preset",
        "master",
        "--model",
        str(world.model),
        "-o",
        str(tmp_path / "m"),
        "-q",
    ]
    with pytest.raises(MismatchError, match=rf"none of {len(kept)} passages looked at has a text for slot '.*'"):
        app([*command, "--batch", "4", "--steps", "1", "--max-length", "24"], standalone_mode=False)
    assert not (tmp_path / "m").exists()


def test_the_counts_of_short_and_cropped_passages_are_in_the_manifest(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "with-short.jsonl"
    path.write_text(world.corpus.read_text() + '{"_id": "short", "title": "", "text": "river"}\n')
    command = ["pretrain", str(path), "--preset", "mlm", "--model", str(world.model), "-o", str(tmp_path / "m")]
    app([*command, "--batch", "6", "--steps", "1", "--max-length", "12"], standalone_mode=False)
    count = longer(world.stage("mlm"), 10)
    total = len(world.stage("mlm").data.corpus)
    said = capsys.readouterr().err
    assert said.count("cropped\n") == 1
    assert f"{count} of {total} passages are longer than any slot shows (--max-length 12); they are cropped" in said
    assert "1 passages of fewer than 3 word pieces are left out" in said
    counts = read_json(tmp_path / "m" / "meta.json")["counts"]
    assert (counts["passages"], counts["short"], counts["cropped"]) == (total, 1, count)

"""Examples: what their masks and views depend on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drtk.config import load_preset
from drtk.errors import MismatchError, UsageError
from drtk.pretraining.example_builder import ExampleBuilder, SlotExample, SpecialTokens, fields_of
from drtk.pretraining.parse import apply_changes, parse_composition
from drtk.text.rng import generator
from drtk.text.token_dataset import TokenCorpus
from drtk.text.tokenizers import load_tokenizer
from drtk.text.word_pieces import WordPieceTokenizer
from tests.enriched import enriched_corpus
from tests.pretraining import Stage, World
from tests.tiny import TOPICS, tiny_model, words_of

EDITS = [
    f"slots.{name}.{change}" for name in ("changed_one", "changed_two") for change in ("corruption=any", "rate=0.3")
]


class Shelf:
    def __init__(self, folder: Path) -> None:
        self.model = str(tiny_model(folder / "model"))
        self.corpus_file = str(enriched_corpus(folder / "corpus.jsonl", Path(self.model)))
        self.tokenizer = load_tokenizer(self.model)

    def __call__(self, preset: str, *changes: str, seed: int = 1, max_length: int = 32) -> Any:
        plan = parse_composition(apply_changes(load_preset(preset).content, changes), preset)
        corpus = TokenCorpus.open(self.corpus_file, self.model, wants=fields_of(plan))
        return ExampleBuilder(
            plan, corpus, SpecialTokens.of(self.tokenizer), ids=corpus.id, max_length=max_length, seed=seed
        )


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("shelf"))


def kind_of(slot: SlotExample, whole: int) -> str:
    """Which edit was made of a text of `whole` tokens."""
    if slot.edited is None:
        return "replaced"
    return "inserted" if len(slot.given) > whole else "deleted"


def test_any_edit_is_one_of_three_drawn_for_each_example_alike_often(shelf: Shelf) -> None:
    build = shelf("diffcse-sts-bert", *EDITS)
    seen = []
    for epoch in range(10):
        for row in range(36):
            slots = build(row, epoch=epoch, step=0)
            seen.append(kind_of(slots["changed_one"], len(slots["one"].given)))
    counts = {kind: seen.count(kind) for kind in ("replaced", "inserted", "deleted")}
    # 360 draws: 120 each, a standard deviation of sqrt(360 x 1/3 x 2/3) = 8.9; five of them are 45.
    assert all(75 < count < 165 for count in counts.values()), counts


def test_each_edit_is_what_it_is_by_itself(shelf: Shelf) -> None:
    build = shelf("diffcse-sts-bert", *EDITS)
    for row in range(36):
        slots = build(row, epoch=0, step=0)
        whole, slot = slots["one"], slots["changed_one"]
        kind = kind_of(slot, len(whole.given))
        pieces = len(whole.given) - 2
        if kind == "replaced":
            assert (slot.clean == whole.clean).all()
            assert (slot.noise is not None, slot.edited) == (True, None)
            continue
        assert slot.edited is not None
        share = round(0.3 * pieces)
        assert len(slot.given) - len(whole.given) == (share if kind == "inserted" else -share)
        assert int(slot.hidden.sum()) == (share if kind == "inserted" else 0)
        assert (slot.edited[slot.hidden] == 1).all()
    short = shelf("diffcse-sts-bert", *EDITS, max_length=12)  # an insertion fits into the length
    assert max(len(short(row, epoch=0, step=0)["changed_one"].given) for row in range(36)) <= 12


def test_a_context_drawn_by_the_step_is_of_one_kind_in_all_examples_of_a_step(shelf: Shelf) -> None:
    build = shelf("qac-cotmae-mixed")
    kinds = {}
    for step in range(40):
        lengths = [len(build(row, epoch=0, step=step)["context"].given) for row in range(0, 9, 3)]
        kinds[step] = max(lengths) > 5  # a query is of 3 words, a passage of 6 or more
    assert set(kinds.values()) == {True, False}


def test_a_passage_without_successor_gets_a_placeholder(shelf: Shelf) -> None:
    found = shelf("master")(2, epoch=0, step=0)["next"]  # the third of three passages of its document
    assert not found.present
    assert (len(found.given), int(found.content.sum()), int(found.hidden.sum())) == (2, 0, 0)


def test_missing_parts_and_weights_are_reported_with_the_slot(shelf: Shelf) -> None:
    with pytest.raises(UsageError, match=r"\[slots.context\]: there is no view 'pair'; choose from pair.a, pair.b"):
        shelf("cotmae", "slots.context.view=pair")(0, epoch=0, step=0)
    with pytest.raises(MismatchError, match=r"\[slots.context\]: passage 'd0#0': masking by 'rom' needs weights"):
        shelf("qac-cotmae", "slots.context.masking=rom")(0, epoch=0, step=0)


Make = Callable[..., Stage]


WORDS = [word for topic in TOPICS for word in words_of(topic)]


@pytest.fixture
def one(world: World, tmp_path: Path) -> Make:
    """Stage a preset, changed, on a passage of so many words of one piece each."""

    def make(preset: str, count: int, *changes: str, length: int = 150) -> Stage:
        tokenizer = WordPieceTokenizer(str(world.model))
        whole = [word for word in WORDS if len(tokenizer([word])[0].ids) == 1]
        text = " ".join(whole[number % len(whole)] for number in range(count))
        file = tmp_path / "one.jsonl"
        file.write_text(json.dumps({"_id": "p", "text": text}) + "\n")
        return replace(world, corpus=file).stage(preset, *changes, batch=1, max_length=length)

    return make


def slots_of(stage: Stage) -> dict[str, SlotExample]:
    return dict(stage.seen(0)[0].slots)


class Pinned:
    """Random numbers of .5, and permutations that begin with given items."""

    def __init__(self, *first: int) -> None:
        self._first = first

    def random(self, size: int, dtype: Any = np.float64) -> np.ndarray:
        return np.full(size, 0.5, dtype)

    def permutation(self, of: Any) -> np.ndarray:
        items = np.arange(of) if isinstance(of, (int, np.integer)) else np.asarray(of)
        rest = [item for item in items.tolist() if item not in self._first]
        return np.array([*self._first, *rest])


def pin(monkeypatch: pytest.MonkeyPatch, **draws: Pinned) -> None:
    """Let slots draw what is known."""

    def drawn(*key: Any) -> Any:
        return draws[key[-1]] if "slot" in key and key[-1] in draws else generator(*key)

    monkeypatch.setattr("drtk.pretraining.example_builder.generator", drawn)


def hidden(slot: SlotExample) -> list[int]:
    """Numbers of the pieces that are hidden, [CLS] apart."""
    return [int(place) - 1 for place in slot.hidden.nonzero()[0]]


@pytest.mark.parametrize(
    ("preset", "slot", "words", "rate", "budget"),
    [
        ("mlm", "passage", 142, 0.15, 21),  # the rate is of the pieces alone
        ("condenser", "passage", 144, 0.30, 43),
        ("simlm", "encoder", 140, 0.15, 21),  # of the special tokens too: n = 142
        ("simlm", "encoder", 142, 0.30, 43),  # n = 144
        ("simlm", "encoder", 8, 0.15, 2),  # n = 10
    ],
)
def test_budgets(preset: str, slot: str, words: int, rate: float, budget: int, one: Make):
    changes = [f"slots.{slot}.rate={rate}"] + ["slots.decoder.rate=1.0"] * (preset == "simlm")
    assert len(hidden(slots_of(one(preset, words, *changes))[slot])) == budget


@pytest.mark.parametrize(
    ("encoder", "decoder", "inner", "extra"),
    [
        (0.30, 0.50, 43, 41),  # p_x = .285714, of n = 142 round(40.57)
        (0.30, 0.30, 43, 0),
        (0.30, 1.00, 43, 140),  # everything but the special tokens
    ],
)
def test_simlms_decoder_hides_what_the_encoder_does_and_a_draw_of_its_own(
    encoder: float, decoder: float, inner: int, extra: int, one: Make, monkeypatch: pytest.MonkeyPatch
):
    """The encoder takes words from the front, the decoder's own draw from the back."""
    pin(monkeypatch, encoder=Pinned(*range(140)), decoder=Pinned(*range(139, -1, -1)))
    slots = slots_of(one("simlm", 140, f"slots.encoder.rate={encoder}", f"slots.decoder.rate={decoder}"))
    assert hidden(slots["encoder"]) == [*range(inner)]
    assert hidden(slots["decoder"]) == sorted({*range(inner), *range(140 - extra, 140)})


CHANGED = "slots.changed_one."


def asked(stage: Stage) -> tuple[list[int], list[int]]:
    """What DiffCSE's discriminator reads of the first changed text, and the labels it is asked for."""
    batch = stage.batch(0)
    ids = stage.views(batch).ids("changed_one")
    with torch.no_grad():
        labels = stage.network.recoveries["difference"].target.labels(batch["changed_one"], ids)
    size = int(batch["changed_one"].attention.sum())
    assert not labels[0, size:].any()  # the mean is over padding too, where nothing was done
    return ids[0, :size].tolist(), labels[0, :size].tolist()


def test_diffcses_deletion(one: Make, monkeypatch: pytest.MonkeyPatch):
    """[CLS] a b c d e [SEP] minus b and e is [CLS] a c d [SEP], labels 0 0 1 0 1."""
    pin(monkeypatch, changed_one=Pinned(2, 5))
    stage = one("diffcse-sts-bert", 5, f"{CHANGED}corruption=deleted", f"{CHANGED}rate=0.4", length=32)
    first, a, b, c, d, e, last = slots_of(stage)["one"].clean.tolist()
    assert len({a, b, c, d, e}) == 5
    assert asked(stage) == ([first, a, c, d, last], [0, 0, 1, 0, 1])


def test_diffcses_insertion(one: Make, monkeypatch: pytest.MonkeyPatch):
    """Ten words at .15 get two: here before the third word and before [SEP]."""
    pin(monkeypatch, changed_one=Pinned(3, 11))
    stage = one("diffcse-sts-bert", 10, f"{CHANGED}corruption=inserted", f"{CHANGED}rate=0.15", length=32)
    text = slots_of(stage)["one"].clean.tolist()
    mask = stage.tokenizer.mask_token_id
    assert slots_of(stage)["changed_one"].given.tolist() == [*text[:3], mask, *text[3:11], mask, *text[11:]]
    read, labels = asked(stage)
    assert labels == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert [token for token, label in zip(read, labels, strict=True) if not label] == text
    assert len(read) == 14

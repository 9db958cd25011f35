"""What a composition names is looked for before anything is loaded, and what is missing is told with its place."""

from __future__ import annotations

import pytest

from drtk.config import load_preset
from drtk.errors import UsageError
from drtk.pretraining.assembly import check_composition
from drtk.pretraining.parse import apply_changes, parse_composition


def look(preset: str, *changes: str) -> set[str]:
    return check_composition(parse_composition(apply_changes(load_preset(preset).content, changes), "mine.toml"), place="mine.toml")


@pytest.mark.parametrize(
    ("preset", "needs"),
    [
        ("simlm", set()),
        ("rom", {"weights"}),
        ("qac-cotmae", {"queries"}),
        ("cotmae", {"documents"}),
        ("cocondenser", {"documents"}),
        ("corom", {"documents", "weights"}),
        ("master", {"documents", "queries", "continuations", "weights"}),
        ("ict", {"sentences"}),
    ],
)
def test_a_preset_says_what_passages_must_bring(preset: str, needs: set[str]) -> None:
    assert look(preset) == needs


def test_weights_behind_titles_are_needed_with_those_of_titles() -> None:
    assert look("rom", "title=join") == {"weights", "title_weights"}


WRONG = [
    ("rom", "slots.passage.view=passages", "[slots.passage]: unknown view 'passages'; choose from passage, next, "),
    ("rom", "slots.passage.limit=3", "[slots.passage]: unknown key 'limit', of the slot and of its view; choose from corruption, count, crop, "),
    ("qac-cotmae", "slots.context.limit=0", "[slots.context]: view 'query': limit = 0 is not a whole number of 1 or more or nothing"),
    ("rom", "slots.passage.masking=rim", "[slots.passage]: unknown masking strategy 'rim'; choose from random, bernoulli, "),
    ("rom", "slots.passage.masking.scael=max", "[slots.passage]: masking 'rom' has no option 'scael'; choose from scale, weight_scale, whole_word"),
    ("rom", "slots.passage.masking.scale=maximum", "[slots.passage]: masking 'rom': scale = 'maximum' is not one of max, minmax, sum"),
    ("mlm", "slots.passage.masking=complement", "[slots.passage] is masked by 'complement' of another slot: of = "),
    ("simlm", "slots.decoder.rate=0.2", "[slots.decoder]: rate 0.2 is less than the 0.3 of 'encoder', which it extends"),
    ("simlm", "objective.decoder.reader.use=decoders", "objective 'decoder': unknown reader 'decoders'; choose from encoder, decoder, "),
    ("simlm", "objective.decoder.reader.layer=1", "objective 'decoder': reader 'decoder' has no option 'layer'; choose from layers, init"),
    ("simlm", "objective.decoder.reader.init=zero", "objective 'decoder': reader 'decoder': init = 'zero' is not one of random, copy"),
    ("simlm", "objective.decoder.source=[]", None),
    ("mlm", "objective.mlm.reader=decoder", "objective 'mlm': reader 'decoder' needs 'source': the slot whose vector it starts from"),
    ("simlm", "objective.encoder.source=decoder", "objective 'encoder': reader 'encoder' looks at no other slot's vector: there can be no 'source'"),
    ("mlm", "example=document", '[slots.passage]: example = "document" and view = "pair.a" or "pair.b" with distinct spans go together'),
    ("cocondenser", "slots.b.spans=random", '[slots.b]: example = "document" and view'),
    ("cotmae", "slots.context.spans=distinct", '[slots.context]: example = "document" and view'),
]  # fmt: skip


@pytest.mark.parametrize(("preset", "change", "told"), WRONG, ids=[each[1] for each in WRONG])
def test_what_does_not_exist_is_told_in_one_line(preset: str, change: str, told: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        look(preset, change)
    found = str(caught.value)
    assert found.startswith("mine.toml: ")
    assert "\n" not in found
    assert told is None or found.removeprefix("mine.toml: ").startswith(told)

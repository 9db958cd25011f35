"""Compositions from TOML: parsing, checks and changes."""

import tomllib
from typing import Any

import pytest

from drtk.config import load_preset
from drtk.errors import UsageError
from drtk.pretraining.assembly import check_composition
from drtk.pretraining.composition import (
    Composition,
    ContrastiveObjective,
    DecoderSpec,
    GeneratorSpec,
    ProjectorSpec,
    TokenObjective,
)
from drtk.pretraining.parse import SETTINGS, apply_changes, parse_composition
from drtk.runtime.progress import name_options

SLOTS = """
[slots]
one = { view = "passage", masking = "whole-word", rate = 0.3, corruption = "bert" }
two = { view = "passage", masking = "extension", of = "one", rate = 0.5, corruption = "mask" }
plain = { view = "passage" }
"""
MLM = """
[[objective]]
use = "recover"
decoder = "encoder"
slot = "one"
name = "mlm"
group = "words"
"""
CONTRAST = """
[[objective]]
use = "contrast"
a = "one"
b = "plain"
name = "contrast"
"""
DECODER = """
[[objective]]
use = "recover"
decoder = { use = "decoder", layers = 1 }
slot = "two"
source = "one"
name = "decoder"
"""


def parse_parts(*parts: str) -> Composition:
    return parse_composition(tomllib.loads("".join(parts)), "mine.toml")


def get_error_message(function: Any, *arguments: Any) -> str:
    """Return the one-line message of the UsageError that a function raises."""
    with pytest.raises(UsageError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return name_options(str(caught.value))


def test_composition_has_slots_decoders_and_objectives_of_toml() -> None:
    actual = parse_parts(SLOTS, '[slots.queries]\nview = "query"\n', MLM, DECODER, CONTRAST)
    assert list(actual.slots) == ["one", "two", "plain"]  # not the slot that nothing uses
    assert actual.slots["one"].view == ("passage",)
    assert [each.name for each in actual.objectives] == ["mlm", "decoder", "contrast"]
    _, decoder, contrast = actual.objectives
    assert isinstance(decoder, TokenObjective)
    assert isinstance(contrast, ContrastiveObjective)
    assert actual.decoders[decoder.decoder] == DecoderSpec("decoder", {"layers": 1})
    assert (decoder.source, decoder.weight, decoder.target) == (("one",), 1.0, "masked")
    assert (decoder.token_slots, decoder.vector_slots) == (("two",), ("one",))
    assert contrast.vector_slots == ("one", "plain")


def test_unknown_keys_of_a_slot_become_view_or_masking_options() -> None:
    actual = parse_parts(
        '[slots]\nq = { view = "query", limit = 5, masking = { use = "rom", scale = "sum" }, rate = 0.1 }\n',
        MLM.replace('"one"', '"q"'),
    )
    assert actual.slots["q"].view_options == {"limit": 5}
    assert (actual.slots["q"].masking, actual.slots["q"].masking_options) == ("rom", {"scale": "sum"})


def test_objectives_get_unique_names_and_can_share_a_decoder() -> None:
    nameless = MLM.replace('name = "mlm"\n', "")
    actual = parse_parts(SLOTS, nameless, nameless, CONTRAST.replace('name = "contrast"\n', ""))
    assert [each.name for each in actual.objectives] == ["one_masked", "one_masked_2", "contrast"]
    shared = '[decoders]\nmine = { use = "decoder", layers = 2 }\n'
    by_name = DECODER.replace('{ use = "decoder", layers = 1 }', '"mine"')
    actual = parse_parts(SLOTS, shared, by_name, by_name.replace('name = "decoder"', 'name = "again"'))
    assert [each.decoder for each in actual.token_objectives] == ["mine", "mine"]
    assert actual.decoders == {"mine": DecoderSpec("decoder", {"layers": 2})}


WRONG = {
    "no objective": ((SLOTS,), "there is no objective; add an [[objective]] table"),
    "objectives as a table": ((SLOTS, '[objective]\nuse = "recover"\n'), "'objective' must be a list of tables; write [[objective]]"),
    "slots as a list": (('slots = ["one"]\n', MLM), "[slots] must contain tables"),
    "a slot without a view": (("[slots]\none = { rate = 0.3 }\n", MLM), "[slots.one]: 'view' is missing"),
    "a key nobody knows": (("colour = 3\n", SLOTS, MLM), "unknown key 'colour'; choose from crop, example, pooling, title"),
    "a rate above 1": (('[slots]\none = { view = "passage", rate = 1.5 }\n', MLM), "[slots.one]: rate 1.5 must be between 0 and 1"),
    "no view at all": (("[slots]\none = { view = [] }\n", MLM), "[slots.one]: view: expected a name or a list of names, got []"),
    "corruption without masking": (('[slots]\none = { view = "passage", corruption = "bert" }\n', MLM), "[slots.one]: corruption 'bert' requires a masking"),
    "a slot without room": (('[slots]\none = { view = "passage", max_length = 2 }\n', MLM), "[slots.one]: max_length 2 is too small; use 3 or more"),
    "a slot that refers to none": ((SLOTS.replace('of = "one"', 'of = "zero"'), MLM), "[slots.two]: of: there is no slot 'zero'; choose from one, plain, two"),
    "a slot that refers to another view": ((SLOTS.replace('two = { view = "passage"', 'two = { view = "next"'), MLM), "[slots.two]: of = \"one\" requires the same view and max_length in both slots"),
    "a circle": ((SLOTS.replace('one = { view = "passage",', 'one = { view = "passage", of = "two",'), MLM), "slots one -> two -> one refer to each other in a cycle"),
    "replaced without a generator": ((SLOTS.replace('"bert"', '"replaced"'), MLM), "[slots.one]: corruption 'replaced' requires a generator; add a [generator] table"),
    "a joint generator of no slot": (('[generator]\nmode = "joint"\n', SLOTS, MLM), "[generator]: mode \"joint\" requires 'slot', the slot whose masked tokens train the generator"),
    "a joint generator of a plain slot": (('[generator]\nmode = "joint"\nslot = "plain"\n', SLOTS, MLM, CONTRAST), "[generator]: slot 'plain' has no masked tokens to train the generator on"),
    "a frozen generator that begins at random": (('[generator]\ninit = "random"\n', SLOTS, MLM), "[generator]: init \"random\" requires mode \"joint\"; for a frozen generator use init"),
    "a slot and itself": ((SLOTS, CONTRAST.replace('"plain"', '"one"')), "objective 'contrast': slot 'one' is compared with itself; define a second slot"),
    "a projector of nothing": (('[projectors]\nhead = { slots = ["one"] }\n', SLOTS, MLM, 'projector = "head"\n'), "objective 'mlm': 'projector' requires 'source'"),
    "classes of words": ((SLOTS, MLM, "classes = 2\n"), "objective 'mlm': 'classes' requires target 'edited'"),
    "a mean of words over padding": ((SLOTS, MLM, 'reduction = "mean_all"\n'), "objective 'mlm': reduction 'mean_all' requires target 'edited'"),
    "another objective": ((SLOTS, MLM.replace("recover", "discover")), "objective 1: unknown objective 'discover'; did you mean recover? Choose from recover, contrast"),
    "a key of an objective": ((SLOTS, MLM, "wieght = 2.0\n"), "objective 1: unknown key 'wieght'; choose from "),
    "an objective without a decoder": ((SLOTS, MLM.replace('decoder = "encoder"\n', "")), "objective 1: 'decoder' is missing"),
    "a decoder without a kind": ((SLOTS, MLM.replace('"encoder"', "{ layers = 2 }")), "objective 1: 'use' is missing; set it to a name, such as use = \"decoder\""),
    "a temperature of 0": ((SLOTS, CONTRAST, "temperature = 0\n"), "objective 'contrast': temperature 0.0 is not positive"),
    "a weight below 0": ((SLOTS, MLM, "weight = -1\n"), "objective 'mlm': weight -1.0 is negative"),
    "a name with a dot": ((SLOTS, MLM.replace('"mlm"', '"m.l.m"')), "objective name 'm.l.m' is not valid"),
    "a name twice": ((SLOTS, MLM, MLM), "two objectives have the name 'mlm'"),
    "a projector there is not": ((SLOTS, CONTRAST, 'projector = "head"\n'), "objective 'contrast': there is no projector 'head'; define one"),
    "a projector of other slots": (('[projectors]\nhead = { slots = ["one"] }\n', SLOTS, CONTRAST, 'projector = "head"\n'), "objective 'contrast': projector 'head' does not include slot 'plain'"),
    "too many sources": ((SLOTS, DECODER.replace('source = "one"', 'source = ["one", "plain"]')), "objective 'decoder': 2 sources for 1 slots"),
    "nothing edited": ((SLOTS, MLM, 'target = "edited"\n'), "objective 'mlm': slot 'one' has no edits"),
    "a mask of no other slot": ((SLOTS.replace('of = "one", ', ""), MLM), "[slots.two]: masking 'extension' requires 'of'"),
    "less than what is extended": ((SLOTS.replace("0.5", "0.2"), MLM), "[slots.two]: rate 0.2 is below the rate of 'one'; use 0.3 or more"),
    "nothing masked": ((SLOTS, MLM.replace('"one"', '"plain"')), "objective 'mlm': target \"masked\" requires a masking; set the masking of slot 'plain'"),
    "other tokens than its view": (('[slots]\none = { view = "passage", corruption = "deleted", rate = 0.3 }\n', MLM, 'target = "all"\n'), "objective 'mlm': target \"all\" is impossible for slot 'one', which has inserted or deleted tokens"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_malformed_compositions_are_rejected_with_location(case: str) -> None:
    parts, message = WRONG[case]
    assert get_error_message(parse_parts, *parts).startswith(f"mine.toml: {message}")


CONTENT: dict[str, Any] = tomllib.loads(SLOTS + MLM + DECODER + CONTRAST) | {"name": "mine.toml"}


@pytest.mark.parametrize(
    ("change", "get_value", "value"),
    [
        ("slots.one.rate=0.4", lambda found: found.slots["one"].rate, 0.4),
        ("slots.two.rate=1", lambda found: found.slots["two"].rate, 1.0),
        ("slots.plain.limit=5", lambda found: found.slots["plain"].view_options, {"limit": 5}),
        ("slots.plain.view=[\"passage\", \"next\"]", lambda found: found.slots["plain"].view, ("passage", "next")),
        ("slots.one.view=next", None, None),
        ("objective.2.weight=0.5", lambda found: found.objectives[1].weight, 0.5),
        ("objective.decoder.weight=0.5", lambda found: found.objectives[1].weight, 0.5),
        ("objective.decoder.decoder.layers=3", lambda found: found.decoders["decoder 2"].options, {"layers": 3}),
        ("title=segment", lambda found: found.title, "segment"),
        ("projectors.head={slots=[\"one\"], kind=\"none\"}", lambda found: found.projectors["head"], ProjectorSpec(("one",), "none")),
    ],
)  # fmt: skip
def test_change_is_applied_to_a_copy_of_the_preset(change: str, get_value: Any, value: Any) -> None:
    before = repr(CONTENT)
    changed = apply_changes(CONTENT, [change])
    assert repr(CONTENT) == before
    if get_value is None:  # two reads the view of one, which is another now
        with pytest.raises(UsageError, match="requires the same view"):
            parse_composition(changed, "mine.toml")
    else:
        assert get_value(parse_composition(changed, "mine.toml")) == value


CHANGES_WRONG = {
    "no value": ("slots.one.rate", "--set slots.one.rate: expected PATH=VALUE"),
    "the number 0": ("objective.0.weight=1", "--set objective.0.weight: there is no '0'; choose from 1, 2, 3, contrast, decoder, mlm"),
    "no such name": ("objective.mkp.weight=1", "--set objective.mkp.weight: there is no 'mkp'; choose from 1, 2, 3, contrast, decoder, mlm"),
    "no such table": ("slot.one.rate=0.4", "--set slot.one.rate: there is no 'slot'; choose from decoders, generator, objective, projectors, slots"),
    "an objective as a whole": ("objective.2=1", "--set objective.2: incomplete path; add the key of an objective, as in objective.1.weight"),
    "parts of a number": ("slots.one.rate.high=1", "--set slots.one.rate.high: 'rate' is 0.3, not a table; end the path at 'rate'"),
    "a former name": ("settings.micro_batch=8", "--set settings.micro_batch: no such setting; choose from " + ", ".join(sorted(SETTINGS))),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES_WRONG)
def test_change_of_an_unknown_path_is_rejected(case: str) -> None:
    change, message = CHANGES_WRONG[case]
    assert get_error_message(apply_changes, CONTENT, [change]) == message


def test_drop_removes_objectives_and_their_unused_parts() -> None:
    whole = parse_parts(SLOTS, MLM, DECODER)
    for dropped in ("words", "mlm"):
        left = whole.drop_objectives([dropped])
        assert [each.name for each in left.objectives] == ["decoder"]
        assert list(left.slots) == ["one", "two"]  # 'one' is the decoder's source
    for names, message in (
        (["decoders"], "--drop decoders: unknown objective or group; choose from decoder, mlm, words"),
        (["mlm", "decoder"], "--drop removes all objectives; keep at least one"),
    ):
        assert get_error_message(whole.drop_objectives, names) == message
    diffcse = parse_composition(load_preset("diffcse-sts-bert").content, "x")
    left, alone = diffcse.drop_objectives(["difference"]), diffcse.drop_objectives(["contrast"])
    assert (list(left.slots), left.generator, list(left.projectors)) == (["one", "two"], None, ["head"])
    assert list(alone.slots) == ["one", "two", "changed_one", "changed_two"]
    assert isinstance(alone.generator, GeneratorSpec)


def test_unused_frozen_generator_is_removed_and_joint_generator_kept() -> None:
    masks = ["slots.encoder.corruption=mask", "slots.decoder.corruption=mask"]
    frozen = apply_changes(load_preset("simlm").content, masks)
    assert parse_composition(frozen, "x").generator is None
    joint = apply_changes(frozen, ["generator.mode=joint", "generator.slot=encoder"])
    assert parse_composition(joint, "x").generator is not None


def test_groups_of_master_match_the_papers_ablation_table() -> None:
    whole = parse_composition(load_preset("master").content, "master")

    def get_remaining(group: str) -> set[str]:
        return {each.name for each in whole.drop_objectives([group]).objectives}

    every = {each.name for each in whole.objectives}
    assert every - get_remaining("cpr") == {"mkp", "cmp", "mlm_cmp"}
    assert every - get_remaining("rpr") == {"npr", "mlm_npr"}
    assert every - get_remaining("por") == {"dor", "gor"}


def list_fields(preset: str, *changes: str) -> set[str]:
    return check_composition(
        parse_composition(apply_changes(load_preset(preset).content, changes), "mine.toml"), place="mine.toml"
    )


def test_required_corpus_fields_follow_views_and_maskings() -> None:
    for preset, changes, fields in (
        ("simlm", [], ""),
        ("rom", [], "weights"),
        ("rom", ["title=join"], "weights title_weights"),
        ("master", [], "documents queries continuations weights"),
        ("ict", [], "sentences"),
        ("cocondenser", [], "documents"),
    ):
        assert list_fields(preset, *changes) == set(fields.split()), preset


UNKNOWN = [
    ("rom", "slots.passage.view=passages", "[slots.passage]: unknown view 'passages'; did you mean passage? Choose from passage, next, "),
    ("rom", "slots.passage.limit=3", "[slots.passage]: neither the slot nor its view has a key 'limit'; choose from corruption, count, crop, "),
    ("qac-cotmae", "slots.context.limit=true", "[slots.context]: view 'query': limit = True is not a whole number of 1 or more"),
    ("crop", "slots.one.longest=5", "[slots.one]: view 'crop-pair': longest = 5 is not a number from 0.0 to 1.0"),
    ("qac-cotmae", "slots.context.limit=0", "[slots.context]: view 'query': limit = 0 is not a whole number of 1 or more"),
    ("rom", "slots.passage.masking=rim", "[slots.passage]: unknown masking strategy 'rim'; did you mean rom? Choose from random, bernoulli, "),
    ("rom", "slots.passage.masking.scael=max", "[slots.passage]: masking 'rom' has no option 'scael'; choose from scale, weight_scale, whole_word"),
    ("rom", "slots.passage.masking.scale=maximum", "[slots.passage]: masking 'rom': scale = 'maximum' is not one of max, minmax, sum"),
    ("simlm", "objective.decoder.decoder.use=decoders", "objective 'decoder': unknown decoder 'decoders'; did you mean decoder? Choose from encoder, decoder, "),
    ("simlm", "objective.decoder.decoder.layer=1", "objective 'decoder': decoder 'decoder' has no option 'layer'; choose from layers, init"),
    ("simlm", "objective.decoder.decoder.init=zero", "objective 'decoder': decoder 'decoder': init = 'zero' is not one of random, copy"),
    ("simlm", "objective.decoder.source=[]", "objective 2: source: expected a name or a list of names, got []"),
    ("mlm", "objective.mlm.decoder=decoder", "objective 'mlm': decoder 'decoder' requires 'source'; set it to the slot whose vector the decoder gets"),
    ("simlm", "objective.encoder.source=decoder", "objective 'encoder': decoder 'encoder' does not use a text vector; remove 'source'"),
    ("mlm", "example=document", '[slots.passage]: example = "document" and view "pair" with spans = "distinct" must be set together'),
    ("cotmae", "slots.context.spans=distinct", '[slots.context]: example = "document" and view "pair"'),
]  # fmt: skip


@pytest.mark.parametrize(("preset", "change", "message"), UNKNOWN, ids=[each[1] for each in UNKNOWN])
def test_unknown_parts_and_options_are_rejected(preset: str, change: str, message: str) -> None:
    assert get_error_message(list_fields, preset, change).startswith(f"mine.toml: {message}")

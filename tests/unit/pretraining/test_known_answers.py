"""Known answers of the methods (sections 5 and 11) through the shipped presets: slots, weights and reductions, not formulas alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drtk.pretraining.network import compute_batch_terms
from drtk.pretraining.parse import parse_composition
from tests.pretraining import Stage, World, gradients, planted, slot_of

LN_V = math.log(30522)  # 10.326203
WORDS = ["condenser", "cocondenser", "qac-cotmae-released", "simlm-ae", "retromae", "master", "mixture-example"]
COMPARED = {"cocondenser": True, "corom": True, "qac-cocondenser": True}  # both sides ask, all others are candidates
COMPARED |= dict.fromkeys(("simcse", "crop", "ict", "diffcse-sts-bert", "mixture-example"), False)


def values(stage: Stage, batch: Any) -> dict[str, float]:
    with torch.no_grad():
        return {name: value.item() for name, value in stage.terms(batch).items()}


def indifferent(stage: Stage) -> Stage:
    """With a head of BERT's size that finds every word alike."""
    head = stage.network.head
    head.own_weight = nn.Parameter(torch.zeros(30522, 16))
    head.bias = nn.Parameter(torch.zeros(30522))
    return stage


def alike(stage: Stage) -> Stage:
    """With an encoder that makes the same of every text."""
    with torch.no_grad():
        stage.network.backbone.encoder.layer[-1].output.LayerNorm.weight.zero_()
        stage.network.backbone.encoder.layer[-1].output.LayerNorm.bias.fill_(0.5)
    return stage


def close(value: float) -> Any:
    return pytest.approx(value, abs=5e-6, rel=2e-6)


@pytest.mark.parametrize("preset", WORDS)
def test_every_term_of_words_is_ln_v_where_all_words_are_alike(preset: str, world: World):
    stage = indifferent(world.stage(preset))
    found = values(stage, stage.batch())
    words = [each.name for each in stage.network.composition.objectives if each.name != "contrast"]
    assert words
    assert [found[name] for name in words] == [close(LN_V)] * len(words)


@pytest.mark.parametrize(
    ("preset", "changes", "total"),
    [
        ("simlm", (), 20.652406),  # 2 ln 30522
        ("simlm-ae", (), 10.326203),  # the encoder has no loss of its own
        ("master", (), 82.609624),  # 3 masked LMs + 5 decoders
        ("master-printed", (), 61.957218),  # 1 masked LM + 5 decoders
    ],
)
def test_totals_where_all_words_are_alike(preset: str, changes: tuple[str, ...], total: float, world: World):
    stage = indifferent(world.stage(preset, *changes))
    assert values(stage, stage.batch())["total"] == pytest.approx(total, abs=1e-5)


def test_a_joint_generator_counts_a_fifth(world: World):
    stage = indifferent(world.stage("simlm", "generator.mode=joint", "generator.slot=encoder"))
    head = stage.network.generator.head  # a copy of the head before; its vocabulary is the encoder's
    with torch.no_grad():
        head.norm.weight.zero_()
        head.norm.bias.zero_()
        head.bias.zero_()
    found = values(stage, stage.batch())
    own = math.log(len(head.weight))
    assert found["generator"] == close(own)
    assert found["total"] == pytest.approx(2 * LN_V + 0.2 * own, abs=1e-5)


def test_a_head_that_knows_nothing_of_replacements_is_at_ln_2(world: World):
    stage = world.stage("simlm-rtd")
    for term in ("encoder", "decoder"):
        silence(stage, term)
    found = values(stage, stage.batch())
    assert found == {"encoder": close(math.log(2)), "decoder": close(math.log(2)), "total": close(2 * math.log(2))}


def silence(stage: Stage, term: str) -> None:
    for layer in stage.network.recoveries[term].target.head.modules():
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)


def test_a_sum_over_32_undecided_tokens_is_32_ln_2(world: World):
    stage = world.stage("diffcse-sts-bert", "objective.2.reduction=sum")
    silence(stage, "difference")
    batch = {
        "one": slot_of(6, 6),
        "two": slot_of(6, 6),
        "changed_one": slot_of(20, 12),
        "changed_two": slot_of(9, 9, missing=[0, 1]),
    }
    found = values(stage, batch)
    assert found["difference"] == pytest.approx(22.180710, abs=1e-5)
    assert found["total"] == pytest.approx(found["contrast"] + 0.005 * 22.180710, abs=1e-5)


@pytest.mark.parametrize("preset", COMPARED)
def test_where_all_vectors_are_alike_every_candidate_is_as_likely(preset: str, world: World):
    stage = alike(world.stage(preset))
    batch = stage.batch(*range(9))
    (wanted,) = [each for each in stage.network.composition.objectives if each.name == "contrast"]
    pairs = int((batch[wanted.a].present & batch[wanted.b].present).sum())
    assert pairs > 2
    candidates = 2 * pairs - 1 if COMPARED[preset] else pairs  # all but oneself; or the other side alone
    assert values(stage, batch)["contrast"] == close(math.log(candidates))


def compared(preset: str, world: World, *changes: str, **vectors: Tensor) -> float:
    """The contrast of a shipped preset on vectors of one's own."""
    plan = parse_composition(world.content(preset, *changes), preset)
    (wanted,) = [each for each in plan.objectives if each.name == "contrast"]
    names = dict(zip(vectors, wanted.vectors_of, strict=True))
    present = {names[side]: torch.ones(len(rows), dtype=torch.bool) for side, rows in vectors.items()}
    key = f"{wanted.projector}({{}})" if wanted.projector else "{}"
    return compute_batch_terms(plan, {key.format(names[side]): rows for side, rows in vectors.items()}, present)[
        "contrast"
    ].item()


@pytest.mark.parametrize(
    ("preset", "rows", "answer"),
    [("cocondenser", 2048, 8.317522), ("simcse", 64, 4.158883)],  # ln 4095, ln 64
)
def test_a_batch_of_the_papers_size_with_vectors_alike(preset: str, rows: int, answer: float, world: World):
    assert compared(preset, world, a=torch.ones(rows, 2), b=torch.ones(rows, 2)) == close(answer)


A, B = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.8, 0.6], [0.6, 0.8]])


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ((), 0.957474),  # rows .818925 1.096023 .818925 1.096023
        (("objective.3.symmetric=false",), 0.818925),  # of the first texts: rows 0 and 2
        (("objective.3.symmetric=false", "objective.3.candidates=other"), 0.598139),
    ],
)
def test_cocondensers_pairs(changes: tuple[str, ...], answer: float, world: World):
    assert compared("cocondenser", world, *changes, a=A, b=B) == close(answer)


def test_a_pair_with_a_gap_neither_asks_nor_is_found(world: World):
    plan = parse_composition(world.content("qac-cocondenser"), "qac-cocondenser")
    strange = torch.tensor([[9.0, 9.0]])  # would be everybody's best candidate
    vectors = {"a": torch.cat([A, strange]), "b": torch.cat([B, strange])}
    present = {"a": torch.ones(3, dtype=torch.bool), "b": torch.tensor([True, True, False])}
    assert compute_batch_terms(plan, vectors, present)["contrast"].item() == close(0.957474)
    nobody = {name: torch.zeros(3, dtype=torch.bool) for name in "ab"}
    assert compute_batch_terms(plan, vectors, nobody)["contrast"].item() == 0


FIRST, SECOND = torch.eye(2), torch.tensor([[0.8, 0.6], [0.28, 0.96]])  # cosines .8 .28 / .6 .96


@pytest.mark.parametrize(
    ("changes", "answer"), [(("objective.1.temperature=1",), 0.497917), ((), 0.000388370)]
)  # rows .466573 .529260
def test_diffcses_cosines_ask_in_one_direction(changes: tuple[str, ...], answer: float, world: World):
    lengths = torch.tensor([[3.0], [0.5]])  # which cosines do not see
    found = compared("diffcse-sts-bert", world, *changes, a=FIRST * lengths, b=SECOND * lengths)
    assert found == pytest.approx(answer, rel=1e-4)


def test_simlm_counts_every_token_that_is_not_special(world: World):
    """-ln of .7 .2 .5 and of .6 .1 .4, a mean each: .886420 + 1.243234; the changed token alone would give 3.912023."""
    stage = world.stage("simlm")
    planted(stage, [0.7, 0.2, 0.5], [0.6, 0.1, 0.4])
    seen = slot_of(5, hidden=[[2]], changed=[[2]])
    assert values(stage, {"encoder": seen, "decoder": seen}) == {
        "encoder": pytest.approx(0.886420, abs=1e-5),
        "decoder": pytest.approx(1.243234, abs=1e-5),
        "total": pytest.approx(2.129654, abs=1e-5),
    }
    planted(stage, [0.2], [0.1])
    masked = world.stage("simlm-mlm")
    planted(masked, [0.2], [0.1])
    assert values(masked, {"encoder": seen, "decoder": seen})["total"] == pytest.approx(3.912023, abs=1e-5)


def test_tokens_are_averaged_over_the_batch_and_not_by_text(world: World):
    """Losses 1, 2, 3 and 6: 3.0; the mean of means would be 4.0."""
    stage = world.stage("mlm")
    planted(stage, [math.exp(-1), math.exp(-2), math.exp(-3), math.exp(-6)])
    batch = {"passage": slot_of(7, 4, hidden=[[1, 3, 5], [2]])}
    assert values(stage, batch)["mlm"] == pytest.approx(3.0, abs=1e-5)


def test_two_tasks_add_up_as_means_of_their_own(world: World):
    """2.0 over 10 tokens and 1.0 over 30: 3.0; pooled it would be 1.25."""
    stage = world.stage("simlm-mlm")
    planted(stage, [math.exp(-2)] * 10, [math.exp(-1)] * 30)
    batch = {
        "encoder": slot_of(22, 12, hidden=[[*range(1, 11)], []]),
        "decoder": slot_of(22, 12, hidden=[[*range(1, 21)], [*range(1, 11)]]),
    }
    assert values(stage, batch)["total"] == pytest.approx(3.0, abs=1e-5)


def test_both_texts_of_a_pair_are_one_mean(world: World):
    """3 tokens of loss 2.0 and one of 1.0: 1.75, neither the sum of two means (3.0) nor theirs (1.5)."""
    stage = world.stage("corom")
    planted(stage, [math.exp(-2)] * 3, [math.exp(-1)])
    batch = {"a": slot_of(6, 6, hidden=[[1, 2], [4]]), "b": slot_of(5, 5, hidden=[[], [1]])}
    assert values(stage, batch)["mlm"] == pytest.approx(1.75, abs=1e-5)


@pytest.mark.parametrize(
    ("reduction", "answer"),
    [("mean", 0.299001), ("sum", 2 * 1.196005), ("mean_all", 0.216432)],  # two views: sums add up, means do not
)
def test_diffcse_tells_replaced_tokens(reduction: str, answer: float, world: World):
    """P(original) .9 .8 .3 .6, the third one replaced: .105361 .223144 .356675 .510826; two pads at .95: .051293 each."""
    stage = world.stage("diffcse-sts-bert", f"objective.2.reduction={reduction}")
    shares = torch.tensor([0.9, 0.8, 0.3, 0.6, 0.95, 0.95])[: 6 if reduction == "mean_all" else 4]
    head = stage.network.recoveries["difference"].target
    head.head = Said(torch.stack([shares, 1 - shares], dim=1).log())
    changed = slot_of(4, changed=[[2]], padding=2)
    found = values(stage, {"one": slot_of(5), "two": slot_of(5), "changed_one": changed, "changed_two": changed})
    assert found["difference"] == pytest.approx(answer, abs=1e-5)


class Said(nn.Module):
    """Answers what it was given, whatever it is asked."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, hidden: Tensor) -> Tensor:
        assert len(hidden) == len(self.answer)
        return self.answer


def test_a_sample_that_is_the_original_is_not_replaced(world: World):
    stage = world.stage("simlm-rtd")
    said = Said(torch.tensor([[-1.0], [2.0], [0.5]]))  # logits of "replaced"
    for term in ("encoder", "decoder"):
        stage.network.recoveries[term].target.head = said
    seen = slot_of(5, hidden=[[2, 3]], changed=[[2]])  # 3 was masked, and the generator drew the original
    wanted = sum(math.log1p(math.exp(signed)) for signed in (-1.0, -2.0, 0.5)) / 3
    found = values(stage, {"encoder": seen, "decoder": seen})
    assert found == {"encoder": close(wanted), "decoder": close(wanted), "total": close(2 * wanted)}


class Same(nn.Module):
    """A layer that changes nothing."""

    def forward(self, hidden: Tensor, mask: Any) -> Tensor:
        return hidden


def test_a_condenser_that_skips_from_the_last_layer_is_the_encoder(world: World):
    stage = world.stage("condenser", "objective.2.reader.skip=4").redrawn()
    stage.network.recoveries["head"].reader.layers = nn.ModuleList([Same(), Same()])
    found = values(stage, stage.batch())
    assert found["head"] == found["mlm"] > 1


def test_of_the_late_states_condenser_sees_the_first_alone(world: World):
    stage = world.stage("condenser").redrawn()
    batch = stage.batch()
    views = stage.views(batch)
    late = views.states("passage")[-1]
    slope = torch.autograd.grad(stage.network.recoveries["head"](views), late)[0]
    assert bool(slope[:, 0].abs().sum(dim=1).gt(0).all())
    assert float(slope[:, 1:].abs().max()) == 0


@pytest.mark.parametrize("preset", ["cotmae", "qac-cotmae-released"])
def test_another_context_changes_its_own_term_alone(preset: str, world: World):
    stage = world.stage(preset).redrawn()
    rows = [row for row in range(20) if stage.seen(row)[0].slots["context"].present][:6]
    batch = stage.batch(*rows)
    other = batch | {"context": stage.batch(*rows[::-1])["context"]}
    before, after = values(stage, batch), values(stage, other)
    assert after["mlm"] == before["mlm"]
    assert abs(after["context"] - before["context"]) > 1e-3


def test_a_causal_decoder_forgets_what_is_three_tokens_back(world: World):
    """Changing token 2 changes what is said at 2, 3 and 4, and nothing before or after."""
    stage = world.stage("qac-cotmae-released").redrawn()
    batch = {"passage": slot_of(6, hidden=[[2]]), "context": slot_of(10)}
    other = batch | {"context": slot_of(10, changed=[[2]])}
    reader = stage.network.recoveries["context"].reader
    with torch.no_grad():
        vector = stage.views(batch).vector("passage")
        one, two = (reader(stage.views(each).decoder_input("context"), vector)[0] for each in (batch, other))
    changed = (one - two).abs().amax(dim=1) > 1e-6
    assert changed.nonzero()[:, 0].tolist() == [2, 3, 4]


def test_position_0_is_the_vector_and_says_the_first_word(world: World):
    stage = world.stage("qac-cotmae-released")
    planted(stage, [0.5], [0.25] * 3 + [1e-9])  # the passage's hidden token; three words, and [SEP] which is not WORD
    batch = {"passage": slot_of(6, hidden=[[2]]), "context": slot_of(5)}  # positions 0 to 3 have a next token
    others = (1 - 1e-9) / (len(stage.network.head.weight) - 1)
    wanted = (3 * -math.log(0.25) - math.log(others)) / 4
    assert values(stage, batch)["context"] == pytest.approx(wanted, abs=1e-5)


def test_equal_rates_give_simlm_one_mask(world: World):
    batch = world.stage("simlm", "slots.decoder.rate=0.3").batch()
    assert bool((batch["encoder"].hidden == batch["decoder"].hidden).all())
    wider = world.stage("simlm").batch()
    assert bool((~wider["encoder"].hidden | wider["decoder"].hidden).all())  # one is part of the other
    assert int(wider["decoder"].hidden.sum()) > int(wider["encoder"].hidden.sum())
    everything = world.stage("simlm", "slots.decoder.rate=1.0").batch()["decoder"]
    assert bool((everything.hidden == everything.content).all())


def test_rom_without_weights_hides_at_random(world: World, tmp_path: Path):
    rows = [json.loads(line) for line in world.corpus.read_text().splitlines()]
    flat = tmp_path / "flat.jsonl"
    flat.write_text("".join(json.dumps(row | {"weights": [0.0] * len(row["weights"])}) + "\n" for row in rows))
    bare = replace(world, corpus=flat)
    masks = [
        bare.stage("rom", *changes).batch()["passage"].hidden for changes in ((), ("slots.passage.masking=random",))
    ]
    assert bool((masks[0] == masks[1]).all())
    assert bool((masks[0] != world.stage("rom").batch()["passage"].hidden).any())


def test_masters_complement_is_what_the_encoder_saw(world: World):
    batch = world.stage("master").batch()
    apart = batch["half"].hidden ^ batch["complement"].hidden
    assert bool((apart == batch["half"].content).all())
    assert int(batch["half"].hidden.sum()) > 0


def test_an_auto_encoder_reads_the_text_and_rebuilds_it_from_masks_alone(world: World):
    stage = world.stage("simlm-ae")
    batch = stage.batch()
    assert bool((batch["encoder"].given == batch["encoder"].clean).all())
    decoder = batch["decoder"]
    assert bool((decoder.given[decoder.content] == stage.tokenizer.mask_token_id).all())
    special = decoder.attention.bool() & ~decoder.content
    assert bool((decoder.given[special] == decoder.clean[special]).all())


def test_a_weight_counts_what_a_preset_says(world: World):
    stage = world.stage("diffcse-transfer-roberta").redrawn()
    found = values(stage, stage.batch())
    assert found["total"] == pytest.approx(found["contrast"] + 0.05 * found["difference"], abs=2e-6)


def test_a_generator_that_replaces_everything_spares_the_first_token_alone(world: World):
    """Released DiffCSE: argmax at every position, [SEP] too; what it reads is 80/10/10."""
    stage = world.stage("diffcse-sts-bert", "slots.changed_one.rate=0.9").redrawn()
    batch = stage.batch(*range(12))
    slot, ids = batch["changed_one"], stage.views(batch).ids("changed_one")
    assert bool((ids[:, 0] == slot.clean[:, 0]).all())
    last = slot.attention.sum(dim=1) - 1
    assert bool((ids[torch.arange(len(ids)), last] != stage.tokenizer.sep_token_id).any())
    assert bool((ids == slot.given)[~slot.attention.bool()].all())
    shown = slot.given[slot.hidden]
    masked = float((shown == stage.tokenizer.mask_token_id).float().mean())
    assert 0.7 < masked < 0.9
    assert bool((shown == slot.clean[slot.hidden]).any())


def test_simlms_generator_reads_masks_and_draws_for_each_side_anew(world: World):
    stage = world.stage("simlm").redrawn()
    batch = stage.batch(*range(12))
    views = stage.views(batch)
    both = batch["encoder"].hidden & batch["decoder"].hidden
    for name in ("encoder", "decoder"):
        slot = batch[name]
        assert bool((slot.given[slot.hidden] == stage.tokenizer.mask_token_id).all())
        assert bool((views.ids(name) == slot.clean)[~slot.hidden].all())
    assert bool((views.ids("encoder")[both] != views.ids("decoder")[both]).any())


def test_no_gradient_reaches_what_is_masked_of_the_encoder_by_way_of_the_generator(world: World):
    stage = world.stage("simlm", "generator.mode=joint", "generator.slot=encoder").redrawn()
    terms = stage.terms(stage.batch())
    of_words = gradients(stage, terms["encoder"] + terms["decoder"])
    own = gradients(stage, terms["generator"])
    for name in of_words:
        if name.startswith("generator."):
            assert float(of_words[name].abs().sum()) == 0, name
        else:
            assert float(own[name].abs().sum()) == 0, name
    assert sum(float(slope.abs().sum()) for slope in own.values()) > 0

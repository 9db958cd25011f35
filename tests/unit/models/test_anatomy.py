"""An encoder taken apart gives what transformers gives for the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from drtk.errors import MismatchError
from drtk.models.backbone import BackboneAdapter
from tests.families import FAMILIES, masked_lm, padded
from tests.tiny import minilm

ABSOLUTE = [family for family in FAMILIES if family != "modernbert"]


def base(model: Any) -> Any:
    return getattr(model, model.base_model_prefix)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_states_are_the_hidden_states_of_transformers(family: str, attention: str) -> None:
    backbone = base(masked_lm(family, attention=attention))
    ids, seen = padded(backbone)
    types = (torch.arange(ids.shape[1]) > 2).long() * seen  # of no effect where the family has none
    typed = {"token_type_ids": types} if hasattr(backbone.embeddings, "token_type_embeddings") else {}
    expected = backbone(input_ids=ids, attention_mask=seen, output_hidden_states=True, **typed).hidden_states
    anatomy = BackboneAdapter(backbone)
    states = anatomy.encode(ids, seen, types)
    assert len(states) == len(expected) == 1 + anatomy.depth
    for found, wanted in zip(states, expected, strict=True):
        torch.testing.assert_close(found, wanted)
    assert anatomy.hidden_size == states[0].shape[-1]


@torch.no_grad()
def test_minilm_too() -> None:
    from transformers import AutoModel

    backbone = AutoModel.from_pretrained(minilm()).eval()
    ids, seen = padded(backbone, lengths=(12, 5))
    expected = backbone(input_ids=ids, attention_mask=seen, output_hidden_states=True).hidden_states
    for found, wanted in zip(BackboneAdapter(backbone).encode(ids, seen), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_mask_for_every_row_may_say_what_one_for_all_says(family: str, attention: str) -> None:
    anatomy = BackboneAdapter(base(masked_lm(family, attention=attention)))
    ids, seen = padded(anatomy.backbone)
    rows = seen.unsqueeze(1).expand(-1, ids.shape[1], -1).bool()
    whole = anatomy.encode(ids, seen)[-1]
    found = anatomy.finish(anatomy.run(anatomy.layers, anatomy.embed(ids), anatomy.mask(rows))[-1])
    torch.testing.assert_close(found[seen.bool()], whole[seen.bool()])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_row_does_not_see_what_its_mask_hides(family: str, attention: str) -> None:
    # One layer; row 5 may not look at column 2, row 4 may. Another token 2 changes row 4 and not row 5.
    anatomy = BackboneAdapter(base(masked_lm(family, attention=attention)))
    ids, _ = padded(anatomy.backbone, lengths=(7,))
    rows = torch.ones(1, 7, 7, dtype=torch.bool)
    rows[0, 5, 2] = False
    others = ids.clone()
    others[0, 2] = ids[0, 2] % 90 + 5 + 1
    layer = list(anatomy.layers)[:1]
    first, second = (anatomy.run(layer, anatomy.embed(each), anatomy.mask(rows))[0] for each in (ids, others))
    torch.testing.assert_close(first[0, 5], second[0, 5])
    assert (first[0, 4] - second[0, 4]).abs().max() > 1e-4


def test_attention_that_knows_no_mask_for_every_row_is_refused() -> None:
    anatomy = BackboneAdapter(base(masked_lm("bert")))
    anatomy.config._attn_implementation = "flash_attention_2"
    with pytest.raises(MismatchError, match="flash_attention_2 knows no mask for every row"):
        anatomy.mask(torch.ones(1, 4, 4, dtype=torch.bool))


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "distilbert"])
@torch.no_grad()
def test_embeddings_are_the_norm_of_word_and_position_and_type(family: str) -> None:
    anatomy = BackboneAdapter(base(masked_lm(family)))
    ids, _ = padded(anatomy.backbone, lengths=(8,))
    table = anatomy.backbone.embeddings
    types = table.token_type_embeddings.weight[0] if hasattr(table, "token_type_embeddings") else 0.0
    expected = table.LayerNorm(anatomy.words(ids) + anatomy.positions(8) + types)
    torch.testing.assert_close(anatomy.embed(ids), expected)


@torch.no_grad()
def test_electras_narrow_vectors_are_widened_without_the_bias() -> None:
    # widened(w + p) - bias = widened without bias(w) + widened without bias(p): the projection is linear
    anatomy = BackboneAdapter(base(masked_lm("electra")))
    backbone = anatomy.backbone
    ids, _ = padded(backbone, lengths=(8,))
    narrow = backbone.embeddings.word_embeddings(ids) + backbone.embeddings.position_embeddings.weight[:8]
    expected = backbone.embeddings_project(narrow) - backbone.embeddings_project.bias
    assert narrow.shape[-1] == 16
    torch.testing.assert_close(anatomy.words(ids) + anatomy.positions(8), expected)


def test_positions_that_are_not_there_are_refused() -> None:
    assert BackboneAdapter(base(masked_lm("bert"))).positions(64).shape == (64, 32)
    with pytest.raises(MismatchError, match="has 64 positions; 65 were asked for"):
        BackboneAdapter(base(masked_lm("bert"))).positions(65)
    # RoBERTa's padding token is number 1, so its first position is row 2 of 64.
    with pytest.raises(MismatchError, match="has 62 positions; 63 were asked for"):
        BackboneAdapter(base(masked_lm("roberta"))).positions(63)
    modern = BackboneAdapter(base(masked_lm("modernbert")))
    assert not modern.has_positions
    with pytest.raises(MismatchError, match="modernbert has no position vectors"):
        modern.positions(3)


def test_other_families_are_refused_by_name() -> None:
    from transformers import MPNetConfig, MPNetModel

    other = MPNetModel(MPNetConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2))
    with pytest.raises(MismatchError, match="type mpnet cannot be taken apart; those that can: bert, roberta"):
        BackboneAdapter(other)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_copies_compute_what_the_last_layers_compute_and_share_nothing(family: str) -> None:
    anatomy = BackboneAdapter(base(masked_lm(family)))
    ids, seen = padded(anatomy.backbone)
    states, mask = anatomy.encode(ids, seen), anatomy.mask(seen)
    copies = anatomy.copies(2)
    found = anatomy.finish(anatomy.run(copies, states[-3], mask)[-1])
    torch.testing.assert_close(found, states[-1])
    own = {id(parameter) for parameter in anatomy.backbone.parameters()}
    assert not own & {id(parameter) for parameter in copies.parameters()}


def test_more_copies_than_layers_are_refused() -> None:
    with pytest.raises(MismatchError, match="has 3 layers; copies of its last 4"):
        BackboneAdapter(base(masked_lm("bert"))).copies(4)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_fresh_layers_are_drawn_anew_with_the_spread_of_the_configuration(family: str) -> None:
    anatomy = BackboneAdapter(base(masked_lm(family)))
    torch.manual_seed(3)
    first = anatomy.fresh(2)
    torch.manual_seed(3)
    again = anatomy.fresh(2)
    assert type(first[0]) is type(anatomy.layers[-1])
    for one, same in zip(first.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, same)
    matrices = [[parameter for parameter in layer.parameters() if parameter.dim() == 2] for layer in first]
    assert not torch.equal(matrices[0][0], matrices[1][0])
    spread = torch.cat([parameter.flatten() for layer in matrices for parameter in layer]).std().item()
    # normal(0, .02); ModernBERT cuts at 2 sd, which leaves .88 of it, and writes back with .02 / sqrt(2 * 4 layers)
    assert spread == pytest.approx(0.02, rel=0.05) if family != "modernbert" else 0.008 < spread < 0.018
    for module in first.modules():
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
    hidden = anatomy.run(first, torch.randn(2, 5, 32), anatomy.mask(torch.ones(2, 5)))[-1]
    assert hidden.shape == (2, 5, 32)


@torch.no_grad()
def test_fresh_layers_of_modernbert_look_everywhere() -> None:
    # The encoder's own second layer sees 2 places to each side; a fresh one, made for a decoder, sees position 0 from 8.
    anatomy = BackboneAdapter(base(masked_lm("modernbert")))
    hidden = torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(1))
    other = hidden.clone()
    other[0, 0] = other[0, 0].flip(0)  # a constant would not pass the norm
    mask = anatomy.mask(torch.ones(1, 9))
    for layers, sees in ((anatomy.fresh(1), True), (list(anatomy.layers)[1:2], False)):
        first, second = (anatomy.run(layers, each, mask)[0][0, 8] for each in (hidden, other))
        assert torch.equal(first, second) is not sees


def test_a_layer_of_bert_base_has_7087872_parameters() -> None:
    # 4 (768^2 + 768) + 768 * 3072 + 3072 + 3072 * 768 + 768 + 4 * 768 = 7,087,872 (methods, section 5.0)
    from transformers import BertConfig, BertModel

    with torch.device("meta"):
        anatomy = BackboneAdapter(BertModel(BertConfig()))
    count = sum(parameter.numel() for parameter in anatomy.fresh(1).parameters())
    assert count == 4 * (768**2 + 768) + 2 * 768 * 3072 + 3072 + 768 + 4 * 768 == 7_087_872
    assert all(parameter.is_meta for parameter in anatomy.fresh(1).parameters())


def test_gradient_checkpointing_reaches_the_layers_run_here() -> None:
    backbone = base(masked_lm("bert")).train()
    anatomy = BackboneAdapter(backbone)
    ids, seen = padded(backbone)
    torch.manual_seed(0)
    plain = anatomy.encode(ids, seen)[-1]
    backbone.activation_checkpointing_enable()
    torch.manual_seed(0)
    calls = []
    handle = backbone.encoder.layer[0].intermediate.register_forward_hook(lambda *_: calls.append(1))
    thrifty = anatomy.encode(ids, seen)[-1]
    torch.testing.assert_close(thrifty, plain)
    thrifty.sum().backward()
    handle.remove()
    assert len(calls) == 2  # forwards, and again for the backward pass

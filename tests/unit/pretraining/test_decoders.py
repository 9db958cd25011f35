"""Decoders of every encoder family. For their outputs see test_against_references.py."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import BertConfig, BertModel

from drtk.errors import MismatchError
from drtk.models.backbone import BackboneAdapter
from drtk.pretraining.decoders import DECODERS, CondenserHead, DecoderInput, build_visible_mask
from tests.backbone_families import FAMILIES, create_masked_lm, create_padded_batch

ABSOLUTE = [family for family in FAMILIES if family != "modernbert"]
SERVED = [(name, "bert") for name in DECODERS] + [("condenser", "modernbert"), ("causal", "distilbert")]
SERVED += [("decoder", family) for family in FAMILIES[1:]]
SERVED += [("two-stream", family) for family in ABSOLUTE[1:]] + [("discriminator", family) for family in FAMILIES[1:]]


def make_adapter(family: str = "bert", **changes: Any) -> BackboneAdapter:
    model = create_masked_lm(family, **changes)
    return BackboneAdapter(getattr(model, model.base_model_prefix))


def make_decoder(name: str, adapter: BackboneAdapter, **options: Any) -> Any:
    torch.manual_seed(5)
    return DECODERS.load(name)(adapter, **options).eval()


def make_input(adapter: BackboneAdapter, ids: Tensor, attention: Tensor) -> DecoderInput:
    visible = torch.ones(*ids.shape, ids.shape[1], dtype=torch.bool)
    return DecoderInput(adapter, ids, ids, attention, None, lambda: adapter.encode(ids, attention), visible)


def make_batch(adapter: BackboneAdapter, *lengths: int) -> DecoderInput:
    return make_input(adapter, *create_padded_batch(adapter.backbone, lengths=lengths or (9, 6, 4)))


def make_vector(batch: int = 3, *, seed: int = 1) -> Tensor:
    return torch.randn(batch, 32, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("name", "family"), SERVED)
def test_every_decoder_satisfies_the_interface(name: str, family: str) -> None:
    """Padding and other rows have no effect, and all parameters of the decoder get gradients."""
    adapter = make_adapter(family)
    decoder = make_decoder(name, adapter)
    batch, equal_lengths = make_batch(adapter), make_batch(adapter, 7, 7, 7)
    padded = make_input(adapter, F.pad(batch.ids, (0, 2), value=41), F.pad(batch.attention, (0, 2)))
    flipped = make_input(adapter, equal_lengths.ids.flip(0), equal_lengths.attention)
    with torch.no_grad():
        output = decoder(batch, make_vector())
        is_token = batch.attention.bool()
        torch.testing.assert_close(decoder(padded, make_vector())[:, :9][is_token], output[is_token])
        torch.testing.assert_close(
            decoder(flipped, make_vector().flip(0)).flip(0), decoder(equal_lengths, make_vector())
        )
    assert output.shape == (3, 9, 32)
    decoder(batch, make_vector()).square().sum().backward()
    parameters = dict(decoder.named_parameters())
    assert [name for name, parameter in parameters.items() if parameter.grad is None] == []
    assert not {*map(id, parameters.values())} & {*map(id, adapter.backbone.parameters())}


def test_condenser_skip_must_be_an_encoder_layer() -> None:
    adapter = make_adapter("bert", num_hidden_layers=6)
    assert CondenserHead(adapter).skip == 3
    assert CondenserHead(adapter, skip=0).skip == 0
    with pytest.raises(MismatchError, match="skip = 7 must be between 0 and 6"):
        CondenserHead(adapter, skip=7)


def test_number_of_decoder_parameters_for_bert_base() -> None:
    # A layer: 768 * 2304 + 2304 + 768^2 + 768 + 2 * 768 * 3072 + 3072 + 768 + 4 * 768 = 7,087,872; so has GPT-2's block.
    layer = 7_087_872
    added = {"decoder": 2 * layer, "condenser": 2 * layer, "two-stream": layer, "encoder": 0, "causal": layer + 2 * 768}
    with torch.device("meta"):
        adapter = BackboneAdapter(BertModel(BertConfig()))
        decoders = {name: DECODERS.load(name)(adapter) for name in added}
    assert {name: sum(each.numel() for each in decoder.parameters()) for name, decoder in decoders.items()} == added
    for name in ("causal", "two-stream"):
        with pytest.raises(MismatchError, match=f"'{name}' requires position embeddings, which modernbert lacks"):
            make_decoder(name, make_adapter("modernbert"))


def test_two_stream_attention_mask_has_known_value() -> None:
    # All drawn visible; three tokens and one of padding: position 0, and neither itself nor padding.
    seen = build_visible_mask(torch.ones(1, 4, 4, dtype=torch.bool), torch.tensor([[1, 1, 1, 0]]))[0].int().tolist()
    assert seen == [[1, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
    nothing = build_visible_mask(torch.zeros(1, 3, 3, dtype=torch.bool), torch.ones(1, 3))[0].int().tolist()
    assert nothing == [[1, 0, 0], [1, 0, 0], [1, 0, 0]]


def test_causal_attention_mask_has_known_value() -> None:
    decoder = make_decoder("causal", make_adapter())
    # Position 0 and the last three tokens are visible, padding is not.
    mask = decoder.build_visible_mask(torch.tensor([[1, 1, 1, 1, 1, 0]]))[0, 0].int().tolist()
    assert mask[:3] == [[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]]
    assert mask[3:] == [[1, 1, 1, 1, 0, 0], [1, 0, 1, 1, 1, 0], [1, 0, 0, 1, 1, 0]]


@pytest.mark.parametrize("family", ABSOLUTE)
@torch.no_grad()
def test_two_stream_position_uses_only_visible_original_tokens(family: str) -> None:
    adapter = make_adapter(family)
    decoder, batch = make_decoder("two-stream", adapter), make_batch(adapter, 7)
    assert batch.attention_mask is not None
    batch.attention_mask[0, 4, 5] = False
    changed_ids = batch.ids.clone()
    changed_ids[0, 5] = batch.ids[0, 5] % 90 + 6
    outputs = [
        decoder(replace(batch, ids=torch.full_like(batch.ids, 7), original_ids=ids), make_vector(1))
        for ids in (batch.ids, changed_ids)
    ]
    changed = (outputs[0] != outputs[1]).any(dim=-1)[0]
    assert changed.tolist()[1:] == [True, True, True, False, False, True]  # neither row 4 nor token 5 itself


@pytest.mark.parametrize("name", ["decoder", "condenser", "causal", "two-stream", "discriminator"])
def test_decoders_train_under_autocast(name: str) -> None:
    adapter = make_adapter()
    decoder, batch = make_decoder(name, adapter), make_batch(adapter)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = decoder(batch, make_vector())
    expected = decoder(batch, make_vector())
    assert (output.float() - expected).norm() < 0.02 * expected.norm()

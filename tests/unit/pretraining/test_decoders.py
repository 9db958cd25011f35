"""Readers: what they see, their parameters and gradients (docs/methods/readers.md, docs/methods/diffcse.md)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from drtk.errors import MismatchError
from drtk.losses.language import linear_cross_entropy
from drtk.models.backbone import BackboneAdapter
from drtk.models.lm_head import LMHead
from drtk.pretraining.decoders import DECODERS, CausalDecoder, CondenserHead, build_visible_mask
from tests.backbone_families import FAMILIES, DecoderSlot, create_masked_lm, create_padded_batch

ABSOLUTE = [family for family in FAMILIES if family != "modernbert"]
SERVED = [
    (name, family) for name in DECODERS for family in (ABSOLUTE if name in ("causal", "two-stream") else FAMILIES)
]


def make_adapter(family: str = "bert", **changes: Any) -> BackboneAdapter:
    model = create_masked_lm(family, **changes)
    return BackboneAdapter(getattr(model, model.base_model_prefix))


def make_decoder(name: str, adapter: BackboneAdapter, **options: Any) -> Any:
    torch.manual_seed(5)
    return DECODERS.load(name)(adapter, **options).eval()


def make_input(adapter: BackboneAdapter, *, lengths: tuple[int, ...] = (9, 6, 4), seed: int = 0) -> DecoderSlot:
    ids, attention = create_padded_batch(adapter.backbone, lengths=lengths, seed=seed)
    return DecoderSlot(adapter, ids, attention)


def make_vector(batch: int = 3, *, seed: int = 1) -> Tensor:
    return torch.randn(batch, 32, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("name", "family"), SERVED)
def test_every_decoder_satisfies_the_interface(name: str, family: str) -> None:
    """Neither padding nor other rows matter, and all parameters are trained, none of which is the encoder's."""
    adapter = make_adapter(family)
    read = make_decoder(name, adapter)
    short, one = make_input(adapter), make_input(adapter, lengths=(7, 7, 7))
    more = torch.cat([short.ids, torch.full((3, 2), 41)], dim=1), F.pad(short.attention, (0, 2))
    with torch.no_grad():
        found, longer = read(short, make_vector()), read(DecoderSlot(adapter, *more), make_vector())
        turned = read(DecoderSlot(adapter, one.ids.flip(0), one.attention), make_vector().flip(0)).flip(0)
        torch.testing.assert_close(turned, read(one, make_vector()))
    assert found.shape == (3, 9, 32)
    real = short.attention.bool()
    torch.testing.assert_close(longer[:, :9][real], found[real])
    read(short, make_vector()).square().sum().backward()
    own = dict(read.named_parameters())
    assert [name for name, parameter in own.items() if parameter.grad is None] == []
    assert not {id(value) for value in own.values()} & {id(value) for value in adapter.backbone.parameters()}


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_decoder_of_copied_layers_equals_last_encoder_layers(family: str) -> None:
    # The states before the last two layers in place of the embeddings: copies of these layers finish the encoder's work.
    adapter = make_adapter(family)
    view = make_input(adapter)
    states = adapter.encode(view.ids, view.attention)
    read = make_decoder("decoder", adapter, layers=2, init="copy")
    adapter.embed = lambda ids, types: states[-3]  # type: ignore[method-assign]
    torch.testing.assert_close(read(view, states[-3][:, 0]), states[-1])


@torch.no_grad()
def test_vector_enters_the_decoder_unchanged() -> None:
    # Without layers to run, position 0 is the vector itself: no position, no norm; the others are the embeddings.
    adapter = make_adapter()
    read, view = make_decoder("decoder", adapter, layers=1), make_input(adapter)
    read.layers = nn.ModuleList([IdentityLayer()])
    found = read(view, make_vector())
    torch.testing.assert_close(found[:, 0], make_vector())
    torch.testing.assert_close(found[:, 1:], adapter.embed(view.ids)[:, 1:])


class IdentityLayer(nn.Module):
    """A layer that returns its input."""

    def forward(self, hidden: Tensor, mask: Any) -> Tensor:
        return hidden


def language_loss(head: LMHead, hidden: Tensor, view: DecoderSlot) -> Tensor:
    where = view.attention.bool()
    return linear_cross_entropy(head.features(hidden[where]), head.weight, head.bias, view.ids[where])


def encoder_gradients(adapter: BackboneAdapter) -> list[bool]:
    """For each layer of the encoder, whether any of its parameters has a gradient that is not zero."""
    return [
        any(parameter.grad is not None and bool((parameter.grad != 0).any()) for parameter in layer.parameters())
        for layer in adapter.layers
    ]


def test_condenser_gradient_reaches_late_layers_only_through_cls() -> None:
    # 12 layers, skip from 6: with states[-1][:, 0] detached layers 7-12 have no gradient and layers 1-6 have one.
    for detached in (False, True):
        model = create_masked_lm("bert", num_hidden_layers=12)
        adapter, head = BackboneAdapter(model.bert), LMHead(model, model.bert)
        read, view = make_decoder("condenser", adapter), make_input(adapter)
        assert read.skip == 6
        states = adapter.encode(view.ids, view.attention)
        states[-1].retain_grad()
        view.given = [*states[:-1], states[-1].detach() if detached else states[-1]]
        language_loss(head, read(view), view).backward()
        assert encoder_gradients(adapter) == [True] * 6 + [not detached] * 6
        if not detached:  # with respect to the last states, row 0 alone
            assert states[-1].grad is not None
            assert (states[-1].grad[:, 0] != 0).any()
            assert (states[-1].grad[:, 1:] == 0).all()


def test_condenser_with_identity_layers_equals_masked_lm() -> None:
    model = create_masked_lm("bert")
    adapter, head = BackboneAdapter(model.bert), LMHead(model, model.bert)
    read, view = make_decoder("condenser", adapter, skip=adapter.depth), make_input(adapter)
    read.layers = nn.ModuleList([IdentityLayer(), IdentityLayer()])
    mlm = language_loss(head, make_decoder("encoder", adapter)(view), view)
    assert language_loss(head, read(view), view).item() == mlm.item()


def test_condenser_skip_must_be_an_encoder_layer() -> None:
    adapter = make_adapter("bert", num_hidden_layers=6)
    assert CondenserHead(adapter).skip == 3
    assert CondenserHead(adapter, skip=0).skip == 0
    with pytest.raises(MismatchError, match="skip = 7 is not between 0 and 6"):
        CondenserHead(adapter, skip=7)


@pytest.mark.parametrize("family", ABSOLUTE)
@torch.no_grad()
def test_causal_decoder_attends_to_window_of_three(family: str) -> None:
    # Token 2 is seen at 2, 3, 4 (itself among the three most recent) and neither before nor at 5 and later.
    adapter = make_adapter(family)
    read, view = make_decoder("causal", adapter, layers=1, window=3), make_input(adapter, lengths=(9,))
    other = DecoderSlot(adapter, view.ids.clone(), view.attention)
    other.ids[0, 2] = view.ids[0, 2] % 90 + 6
    changed = (read(view, make_vector(1)) != read(other, make_vector(1))).any(dim=-1)[0]
    assert changed.tolist() == [False, False, True, True, True, False, False, False, False]
    assert (read(view, make_vector(1)) != read(view, make_vector(1, seed=2))).any(dim=-1).all()  # all see the vector


def test_causal_attention_mask_has_known_value() -> None:
    # window 2, four tokens and one of padding
    read = CausalDecoder(make_adapter(), window=2)
    seen = read.build_visible_mask(torch.tensor([[1, 1, 1, 1, 0]]))[0, 0].int().tolist()
    assert seen == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 1, 1, 0], [1, 0, 0, 1, 0]]


def test_number_of_decoder_parameters_for_bert_base() -> None:
    # A layer: 768 * 2304 + 2304 + 768^2 + 768 + 2 * 768 * 3072 + 3072 + 768 + 4 * 768 = 7,087,872; so has GPT-2's block.
    layer = 7_087_872
    added = {"decoder": 2 * layer, "condenser": 2 * layer, "two-stream": layer, "encoder": 0, "causal": layer + 2 * 768}
    with torch.device("meta"):
        adapter = BackboneAdapter(BertModel(BertConfig()))
        readers = {name: DECODERS.load(name)(adapter) for name in added}
    assert {name: sum(each.numel() for each in read.parameters()) for name, read in readers.items()} == added
    for name in ("causal", "two-stream"):
        with pytest.raises(MismatchError, match=f"'{name}' requires position embeddings, which modernbert lacks"):
            make_decoder(name, make_adapter("modernbert"))


def test_two_stream_attention_mask_has_known_value() -> None:
    # All drawn visible; three tokens and one of padding: position 0, and neither itself nor padding.
    seen = build_visible_mask(torch.ones(1, 4, 4, dtype=torch.bool), torch.tensor([[1, 1, 1, 0]]))[0].int().tolist()
    assert seen == [[1, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
    nothing = build_visible_mask(torch.zeros(1, 3, 3, dtype=torch.bool), torch.ones(1, 3))[0].int().tolist()
    assert nothing == [[1, 0, 0], [1, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("family", ABSOLUTE)
@torch.no_grad()
def test_two_stream_position_uses_only_visible_original_tokens(family: str) -> None:
    # Row 3 sees token 5, row 4 does not; no row sees itself; what is masked in the input ids is not looked at.
    adapter = make_adapter(family)
    read, view = make_decoder("two-stream", adapter), make_input(adapter, lengths=(7,))
    view.seen = torch.ones(1, 7, 7, dtype=torch.bool)
    view.seen[0, 4, 5] = False
    view.clean = view.ids
    masked = DecoderSlot(adapter, torch.full_like(view.ids, 7), view.attention, view.ids, view.seen)
    torch.testing.assert_close(read(masked, make_vector(1)), read(view, make_vector(1)))
    other = DecoderSlot(adapter, view.ids, view.attention, view.ids.clone(), view.seen)
    assert other.clean is not None
    other.clean[0, 5] = view.ids[0, 5] % 90 + 6
    changed = (read(view, make_vector(1)) != read(other, make_vector(1))).any(dim=-1)[0]
    assert changed.tolist()[1:] == [True, True, True, False, False, True]  # not 4, not itself (5)


@pytest.mark.parametrize("family", ABSOLUTE)
@torch.no_grad()
def test_two_stream_layer_equals_encoder_layer_for_equal_streams(family: str) -> None:
    # With positions of zero every query is the vector; a layer over content whose rows are all the vector has these queries,
    # too, and keys that are alike, so attention is a mean and its result the value of the vector.
    adapter = make_adapter(family)
    read, view = make_decoder("two-stream", adapter), make_input(adapter, lengths=(5, 5))
    source = make_vector(2)
    adapter.embed_positions = lambda length: torch.zeros(length, 32)  # type: ignore[method-assign]
    adapter.embed = lambda ids, types: source.unsqueeze(1).expand(-1, 5, -1)  # type: ignore[method-assign]
    expected = adapter.run_layers(
        [read.layer], source.unsqueeze(1).expand(-1, 5, -1), adapter.build_attention_mask(view.attention)
    )[0]
    torch.testing.assert_close(read(view, source), expected)


@torch.no_grad()
def test_discriminator_equals_encoder_with_replaced_first_embedding() -> None:
    adapter = make_adapter()
    read, view = make_decoder("discriminator", adapter), make_input(adapter)
    same = read(view, adapter.embed(view.ids)[:, 0])
    torch.testing.assert_close(same, adapter.encode(view.ids, view.attention)[-1])


@pytest.mark.parametrize("name", ["decoder", "condenser", "causal", "two-stream", "discriminator"])
def test_decoders_train_under_autocast(name: str) -> None:
    adapter = make_adapter()
    read, view = make_decoder(name, adapter), make_input(adapter)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = read(view, make_vector())
    exact = read(view, make_vector())
    assert (found.float() - exact).norm() < 0.02 * exact.norm()

"""The backbone adapter and the whole encoder of transformers have equal outputs; attention implementations."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import MPNetConfig, MPNetModel

import drtk.models.device as device_module
from drtk.errors import DrtkError, MismatchError, MissingDependency
from drtk.models.backbone import BackboneAdapter
from drtk.models.device import AttentionBackend
from drtk.pretraining.assembly import build_network
from drtk.pretraining.parse import parse_composition
from drtk.training.fit import enable_gradient_checkpointing
from tests.backbone_families import FAMILIES, create_masked_lm, create_padded_batch
from tests.pretraining_setup import PretrainingFiles

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def get_base_model(model: Any) -> Any:
    return getattr(model, model.base_model_prefix)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_states_are_the_hidden_states_of_transformers(family: str, attention: str) -> None:
    backbone = get_base_model(create_masked_lm(family, attention=attention))
    ids, seen = create_padded_batch(backbone)
    types = (torch.arange(ids.shape[1]) > 2).long() * seen  # no effect without token types
    typed = {"token_type_ids": types} if hasattr(backbone.embeddings, "token_type_embeddings") else {}
    expected = backbone(input_ids=ids, attention_mask=seen, output_hidden_states=True, **typed).hidden_states
    adapter = BackboneAdapter(backbone)
    states = adapter.encode(ids, seen, types)
    assert len(states) == len(expected) == 1 + adapter.depth
    for mine, theirs in zip(states, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert adapter.hidden_size == states[0].shape[-1]
    # copies of the last layers compute the same, and share nothing
    copies = adapter.create_layers(2, "copy")
    last = adapter.run_layers(copies, states[-3], adapter.build_attention_mask(seen))[-1]
    torch.testing.assert_close(adapter.apply_final_norm(last), states[-1])
    assert not {*map(id, backbone.parameters())} & {*map(id, copies.parameters())}


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
@torch.no_grad()
def test_embeddings_are_the_norm_of_word_position_and_type(family: str) -> None:
    adapter = BackboneAdapter(get_base_model(create_masked_lm(family)))
    ids, _ = create_padded_batch(adapter.backbone, lengths=(8,))
    table = adapter.backbone.embeddings
    if family == "electra":  # it projects embeddings; positions without the bias
        projection, narrow = adapter.backbone.embeddings_project, table.position_embeddings.weight[:8]
        torch.testing.assert_close(adapter.embed_positions(8), projection(narrow) - projection.bias)
    else:
        types = table.token_type_embeddings.weight[0] if hasattr(table, "token_type_embeddings") else 0.0
        expected = table.LayerNorm(table.word_embeddings(ids) + adapter.embed_positions(8) + types)
        torch.testing.assert_close(adapter.embed(ids), expected)


def test_what_a_backbone_lacks_is_rejected() -> None:
    other = MPNetModel(MPNetConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2))
    with pytest.raises(MismatchError, match="type mpnet; use one of type bert, roberta"):
        BackboneAdapter(other)
    bert, modern = (BackboneAdapter(get_base_model(create_masked_lm(name))) for name in ("bert", "modernbert"))
    assert bert.embed_positions(64).shape == (64, 32)
    assert not modern.has_positions
    with pytest.raises(MismatchError, match="cannot copy 4 layers of an encoder with 3 layers"):
        bert.create_layers(4, "copy")


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_random_layers_have_the_spread_of_the_configuration(family: str) -> None:
    adapter = BackboneAdapter(get_base_model(create_masked_lm(family)))
    torch.manual_seed(3)
    first = adapter.create_layers(2)
    assert type(first[0]) is type(adapter.layers[-1])
    matrices = [[parameter for parameter in layer.parameters() if parameter.dim() == 2] for layer in first]
    assert not torch.equal(matrices[0][0], matrices[1][0])
    spread = torch.cat([parameter.flatten() for layer in matrices for parameter in layer]).std().item()
    # normal(0, .02); ModernBERT cuts at 2 sd, which leaves .88 of it, and writes back with .02 / sqrt(2 * 4 layers)
    assert spread == pytest.approx(0.02, rel=0.05) if family != "modernbert" else 0.008 < spread < 0.018
    assert all(bool((each.weight == 1).all()) for each in first.modules() if isinstance(each, nn.LayerNorm))


@torch.no_grad()
def test_random_layers_of_modernbert_use_full_attention() -> None:
    # The encoder's own second layer attends to 2 positions on each side; a new one sees position 0 from 8.
    adapter = BackboneAdapter(get_base_model(create_masked_lm("modernbert")))
    hidden = torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(1))
    other = hidden.clone()
    other[0, 0] = other[0, 0].flip(0)  # a constant would not pass the norm
    mask = adapter.build_attention_mask(torch.ones(1, 9))
    for layers, sees in ((adapter.create_layers(1), True), (list(adapter.layers)[1:2], False)):
        first, second = (adapter.run_layers(layers, each, mask)[0][0, 8] for each in (hidden, other))
        assert torch.equal(first, second) is not sees


def test_gradient_checkpointing_reaches_the_layers_of_the_adapter() -> None:
    backbone = get_base_model(create_masked_lm("bert")).train()
    adapter = BackboneAdapter(backbone)
    ids, seen = create_padded_batch(backbone)
    torch.manual_seed(0)
    plain = adapter.encode(ids, seen)[-1]
    enable_gradient_checkpointing(backbone)
    torch.manual_seed(0)
    calls = []
    backbone.encoder.layer[0].intermediate.register_forward_hook(lambda *_: calls.append(1))
    saving = adapter.encode(ids, seen)[-1]
    torch.testing.assert_close(saving, plain)
    saving.sum().backward()
    assert len(calls) == 2  # forward, and again for the backward pass


def test_auto_uses_flash_attention_on_a_gpu_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "_is_installed", lambda name: name == "flash_attention_3")
    for device, half in ((CPU, True), (GPU, False)):
        model = get_base_model(create_masked_lm("bert", attention="eager"))
        assert AttentionBackend("auto", device, half=half).apply(model) == "eager"
    model = get_base_model(create_masked_lm("bert"))

    def set_attention(name: str) -> None:
        model.config._attn_implementation_internal = name

    monkeypatch.setattr(model, "set_attn_implementation", set_attention)
    assert AttentionBackend("auto", GPU, half=True).apply(model) == "flash_attention_3"
    monkeypatch.setattr(type(model), "_supports_flash_attn", False)
    model.config._attn_implementation_internal = "sdpa"
    assert AttentionBackend("auto", GPU, half=True).apply(model) == "sdpa"
    assert AttentionBackend("eager", CPU, half=False).apply(get_base_model(create_masked_lm("roberta"))) == "eager"


def test_attention_that_is_not_available_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    model = get_base_model(create_masked_lm("bert"))
    monkeypatch.setattr(type(model), "_supports_flash_attn", False)
    with pytest.raises(MismatchError, match=r"`attention` flash_attention_2: .*not support Flash Attention") as error:
        AttentionBackend("flash_attention_2", GPU, half=True).apply(model)
    assert "\n" not in str(error.value)
    monkeypatch.setattr(device_module, "_is_installed", lambda name: False)
    for device, half, kind, message in (
        (CPU, True, DrtkError, "`attention` flash_attention_2: requires a CUDA GPU"),
        (GPU, False, DrtkError, "supports 16-bit dtypes only; use `precision` bfloat16"),
        (GPU, True, MissingDependency, "`attention` flash_attention_2 needs flash-attn, which is not installed"),
    ):
        with pytest.raises(kind, match=message):
            AttentionBackend("flash_attention_2", device, half=half).check()
    AttentionBackend("sdpa", CPU, half=False).check()


def test_decoders_and_the_generator_use_the_attention_backend_of_the_encoder(files: PretrainingFiles) -> None:
    composition = parse_composition(files.content("simlm"), "simlm")
    network, _ = build_network(composition, files.model, seed=1, attention=AttentionBackend("eager", CPU, half=False))
    decoders = [recovery.reader for recovery in network.recoveries.values() if hasattr(recovery.reader, "layers")]
    assert decoders
    layers = [layer for decoder in decoders for layer in decoder.layers]
    assert {layer.attention.self.config._attn_implementation for layer in layers} == {"eager"}
    assert network.generator.backbone.config._attn_implementation == "eager"

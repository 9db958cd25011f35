"""Implementations of attention: which one is taken, what is refused, and that it changes no vector."""

from __future__ import annotations

import pytest
import torch

import drtk.models.device as attending
from drtk.errors import DrtkError, MismatchError, MissingDependency
from drtk.models.device import Attention
from drtk.pretraining.assembly import build_network
from drtk.pretraining.parse import parse_composition
from tests.families import FAMILIES, masked_lm, padded
from tests.pretraining import World

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("family", FAMILIES)
def test_eager_and_sdpa_give_the_same_states(family: str):
    model = masked_lm(family).base_model
    ids, attention = padded(model)
    found = {}
    for name in ("eager", "sdpa"):
        assert Attention(name, CPU, half=False).given_to(model) == name
        with torch.no_grad():
            found[name] = model(input_ids=ids, attention_mask=attention).last_hidden_state[attention.bool()]
    torch.testing.assert_close(found["eager"], found["sdpa"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("device", "half"), [(CPU, True), (GPU, False)])
def test_auto_leaves_an_encoder_as_it_was_loaded_without_a_gpu_or_16_bits(
    device: torch.device, half: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(attending, "_installed", lambda name: True)
    assert Attention("auto", device, half=half).given_to(masked_lm("bert", attention="eager").base_model) == "eager"


def test_auto_takes_the_flash_attention_that_is_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attending, "_installed", lambda name: name == "flash_attention_3")
    model = masked_lm("bert").base_model
    asked: list[str] = []

    def taken(name: str) -> None:
        asked.append(name)
        model.config._attn_implementation_internal = name

    monkeypatch.setattr(model, "set_attn_implementation", taken)
    assert Attention("auto", GPU, half=True).given_to(model) == "flash_attention_3"
    assert asked == ["flash_attention_3"]
    monkeypatch.setattr(type(model), "_supports_flash_attn", False)
    model.config._attn_implementation_internal = "sdpa"
    assert Attention("auto", GPU, half=True).given_to(model) == "sdpa"


def test_what_cannot_run_here_is_told(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(DrtkError, match="--attention flash_attention_2: needs a CUDA GPU; sdpa runs everywhere"):
        Attention("flash_attention_2", CPU, half=True).check()
    with pytest.raises(DrtkError, match="computes with 16 bits; --precision bfloat16"):
        Attention("flash_attention_2", GPU, half=False).check()
    monkeypatch.setattr(attending, "_installed", lambda name: False)
    with pytest.raises(
        MissingDependency, match="--attention flash_attention_2 needs flash-attn, which is not installed"
    ):
        Attention("flash_attention_2", GPU, half=True).check()
    Attention("sdpa", CPU, half=False).check()


def test_an_encoder_that_cannot_attend_so_is_told(monkeypatch: pytest.MonkeyPatch):
    model = masked_lm("bert").base_model
    monkeypatch.setattr(type(model), "_supports_flash_attn", False)
    with pytest.raises(
        MismatchError, match=r"--attention flash_attention_2: .*does not support Flash Attention"
    ) as caught:
        Attention("flash_attention_2", GPU, half=True).given_to(model)
    assert "\n" not in str(caught.value)


def test_copied_layers_and_the_generator_attend_as_the_encoder_does(world: World):
    plan = parse_composition(world.content("simlm"), "simlm")
    network, _ = build_network(plan, world.model, seed=1, attention=Attention("eager", CPU, half=False))
    readers = [recovery.reader for recovery in network.recoveries.values() if hasattr(recovery.reader, "layers")]
    assert readers
    for reader in readers:
        for layer in reader.layers:
            assert layer.attention.self.config._attn_implementation == "eager"
    assert network.generator.backbone.config._attn_implementation == "eager"

"""LoRA: only adapters are trained, and they are merged at the end."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from drtk.errors import MismatchError, MissingDependency
from drtk.models.checkpoint import embed_texts, load_encoder, save_encoder
from drtk.models.encoder import Dense
from drtk.models.lora import add_adapters, merge_adapters
from tests.tiny_models import make_passages, save_tiny_encoder


@pytest.fixture
def model(tmp_path: Path) -> Any:
    return load_encoder(save_tiny_encoder(tmp_path / "m"), strict=False)


def test_adapters_start_without_effect_and_are_merged(model: Any, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    before = embed_texts(model, make_passages(6), role="passage")
    names = set(model.encoder.backbone.state_dict())
    add_adapters(model.encoder, rank=2)
    assert abs(embed_texts(model, make_passages(6), role="passage") - before).max() < 1e-5
    trained = [name for name, weight in model.encoder.named_parameters() if weight.requires_grad]
    assert trained
    assert all("lora_" in name and "pooler" not in name for name in trained)
    assert len(trained) == 2 * 2 * 6  # A and B of six linear layers (attention 4, MLP 2) in two layers
    with torch.no_grad():
        for name, weight in model.encoder.named_parameters():
            if "lora_B" in name:
                weight.normal_(generator=torch.Generator().manual_seed(0))
    changed = embed_texts(model, make_passages(6), role="passage")
    assert abs(changed - before).max() > 1e-3
    merge_adapters(model.encoder)
    assert set(model.encoder.backbone.state_dict()) == names
    save_encoder(model, tmp_path / "merged")
    actual = embed_texts(load_encoder(tmp_path / "merged", strict=False), make_passages(6), role="passage")
    assert abs(actual - changed).max() < 1e-5


def test_layers_can_be_chosen_and_dense_modules_are_frozen(model: Any) -> None:
    pytest.importorskip("peft")
    model.encoder.dense.append(Dense({"in_features": 32, "out_features": 16}, torch.nn.Tanh()))
    message = "`lora_target` nothing: unknown layer; choose from dense, key, query, value"
    with pytest.raises(MismatchError, match=message):
        add_adapters(model.encoder, rank=2, targets=["nothing"])
    add_adapters(model.encoder, rank=3, targets=["query", "value"])
    trained = {name for name, weight in model.encoder.named_parameters() if weight.requires_grad}
    assert len(trained) == 2 * 2 * 2
    assert all("lora_" in name and (".query." in name or ".value." in name) for name in trained)


def test_a_missing_library_is_reported_with_the_install_command(model: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingDependency, match=r"`lora` needs peft.* -m pip install peft"):
        add_adapters(model.encoder, rank=2)

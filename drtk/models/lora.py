"""LoRA adapters (peft) in an encoder's linear layers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from drtk.errors import MismatchError, convert_import_error
from drtk.models.encoder import Encoder

_KINDS = (nn.Linear, nn.Embedding)


def import_peft() -> Any:
    """Import peft. Raises MissingDependency if it is not installed."""
    with convert_import_error("peft", "`lora`"):
        import peft
    return peft


def add_adapters(
    encoder: Encoder,
    *,
    rank: int,
    alpha: float | None = None,
    dropout: float = 0.0,
    targets: Sequence[str] = (),
    seed: int = 0,
) -> None:
    """Add LoRA adapters to the backbone and freeze all other weights, including Dense layers and LM head.

    The vectors do not change until the adapters are trained.

    rank: rank of the adapters    alpha: adapters are scaled by alpha / rank; None: 2 * rank
    targets: names of layers, or their last components such as "query"; empty: all linear layers except the pooler
    Raises MissingDependency without peft, MismatchError for an unknown layer.
    """
    peft = import_peft()
    backbone = encoder.backbone
    if targets:
        kinds = {name: type(module) for name, module in backbone.named_modules() if isinstance(module, _KINDS)}
        for target in targets:
            if not any(name == target or name.endswith(f".{target}") for name in kinds):
                ends = sorted({name.rpartition(".")[2] for name, kind in kinds.items() if kind is nn.Linear})
                raise MismatchError(f"`lora_target` {target}: unknown layer; choose from {', '.join(ends)}")
    poolers = {name for name, _ in backbone.named_modules() if "pooler" in name.split(".")}
    linear = [name for name, module in backbone.named_modules() if type(module) is nn.Linear and name not in poolers]
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        lora_dropout=dropout,
        target_modules=list(targets) or linear,
        exclude_modules=sorted(poolers) or None,
        bias="none",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with warnings.catch_warnings():  # peft uses a deprecated name of transformers
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
            encoder.backbone = peft.get_peft_model(backbone, config)
    for module in (encoder.dense, encoder.head):
        if module is not None:
            module.requires_grad_(False)


def merge_adapters(encoder: Encoder) -> None:
    """Merge the LoRA adapters into the backbone's weights."""
    encoder.backbone = encoder.backbone.merge_and_unload()

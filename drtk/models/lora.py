"""Low-rank adapters in an encoder's linear layers (LoRA), by peft; merged into the weights when training ends."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from drtk.errors import MismatchError, MissingDependency, pip_install
from drtk.models.encoder import Encoder

_KINDS = (nn.Linear, nn.Embedding)


def need_peft() -> Any:
    """The module peft. Raises MissingDependency where it is not installed."""
    try:
        import peft
    except ImportError as error:
        raise MissingDependency("peft", "--lora", pip_install("peft")) from error
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
    """Give the backbone adapters that alone are trained from now on, layers after the backbone neither; they change no
    vector before the first step.

    alpha: adapters are scaled by alpha / rank, by default 2; targets: names, or ends of names, of layers, by default all linear ones
    Raises MissingDependency without peft, MismatchError where no layer is called so.
    """
    peft = need_peft()
    backbone = encoder.backbone
    if targets:
        kinds = {name: type(module) for name, module in backbone.named_modules() if isinstance(module, _KINDS)}
        for target in targets:
            if not any(name == target or name.endswith(f".{target}") for name in kinds):
                ends = sorted({name.rpartition(".")[2] for name, kind in kinds.items() if kind is nn.Linear})
                raise MismatchError(f"--lora-target {target}: no layer is called so; there are {', '.join(ends)}")
    chosen = list(targets) or [name for name, kind in _linear(backbone) if "pooler" not in name.split(".")]
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        lora_dropout=dropout,
        target_modules=chosen,
        exclude_modules=[name for name, _ in backbone.named_modules() if "pooler" in name.split(".")] or None,
        bias="none",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with warnings.catch_warnings():  # peft asks by transformers' old name
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
            encoder.backbone = peft.get_peft_model(backbone, config)
    encoder.dense.requires_grad_(False)


def merge_adapters(encoder: Encoder) -> None:
    """Add the adapters to the weights they belong to; the backbone is then of its own kind again."""
    encoder.backbone = encoder.backbone.merge_and_unload()


def _linear(backbone: nn.Module) -> list[tuple[str, type]]:
    return [(name, type(module)) for name, module in backbone.named_modules() if isinstance(module, nn.Linear)]

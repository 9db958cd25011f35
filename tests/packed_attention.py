"""Packed attention on a CPU, for which torch has no flash attention kernel with texts of several lengths."""

from typing import Any

import pytest
import torch
from torch import Tensor

from drtk.models import packing


def allow_packing_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Allow packing in float32 on a CPU; return a list to which each call of the kernel appends its number of tokens."""
    calls: list[int] = []

    def run(*inputs: Any, **options: Any) -> tuple[Tensor]:
        calls.append(len(inputs[0]))
        return run_kernel(*inputs, **options)

    monkeypatch.setitem(packing.DTYPES, "cpu", (torch.float32,))
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", run)
    return calls


def run_kernel(
    query: Tensor, key: Tensor, value: Tensor, *places: Any, scale: float | None, **window: int
) -> tuple[Tensor]:
    """Return the documented result of `aten::_flash_attention_forward`, (T, heads, head size), without dropout."""
    offsets, other_offsets, width, other_width, dropout, is_causal, _ = places
    assert (offsets.dtype, dropout) == (torch.int32, 0.0)
    assert torch.equal(offsets, other_offsets)
    assert width == other_width == int(offsets.diff().max())
    left, right = window["window_size_left"], window["window_size_right"]
    assert not is_causal or (left, right) == (-1, 0)
    positions, texts = torch.arange(len(query)), torch.repeat_interleave(offsets.diff())
    distance = positions.unsqueeze(1) - positions
    visible = texts.unsqueeze(1) == texts
    visible &= (distance <= left) | (left < 0)
    visible &= (distance >= -right) | (right < 0)
    key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for each in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * (scale or query.shape[-1] ** -0.5)
    return (torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), value),)

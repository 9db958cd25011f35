"""Cross-entropy over a vocabulary, from logits or, to save memory, from the input of the output layer."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORE_INDEX = -100
_CPU_LOGITS, _GPU_LOGITS = 1 << 23, 1 << 26  # logits in memory at once: 274 and 2,198 tokens with BERT's vocabulary


def cross_entropy_sum(logits: Tensor, labels: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """Return the sum of the cross-entropies of all labeled tokens, a float32 scalar.

    logits: (texts, tokens, vocabulary)    labels: (texts, tokens), IGNORE_INDEX at padding
    smoothing: label smoothing e in [0, 1): (1 - e) * -log p(label) + e / V * sum over words of -log p(word), where V is
        the size of the vocabulary (Szegedy et al. 2016, section 7)
    """
    return F.cross_entropy(
        logits.float().flatten(0, 1),  # (texts * tokens, vocabulary)
        labels.flatten(),
        ignore_index=IGNORE_INDEX,
        reduction="sum",
        label_smoothing=smoothing,
    )


def linear_cross_entropy(features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
    """Return the sum of the cross-entropies of the logits `features @ weight.T + bias`, a float32 scalar; 0 without tokens.

    Only a fixed number of logits is in memory at a time. Gradients are computed in the forward pass, so the logits
    need not be kept. The linear layer runs in the dtype of `features` or of autocast, the softmax and the loss in float32
    (float64 for float64 features). On a GPU, liger-kernel is used if it is installed.

    features: (n, E), input of the output layer at n tokens    weight: (V, E)    bias: (V,)    labels: (n,), token ids
    """
    device = features.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else features.dtype
    if features.is_cuda and (liger_loss := _load_liger_loss()) is not None and len(features):
        # liger-kernel is slow unless all inputs have the dtype of autocast
        total: Tensor = liger_loss(
            weight.to(dtype), features.to(dtype), labels, None if bias is None else bias.to(dtype)
        )
        return total
    chunk = max(1, (_GPU_LOGITS if features.is_cuda else _CPU_LOGITS) // len(weight))  # tokens
    with torch.autocast(device, enabled=False):
        return _LinearCrossEntropy.apply(features, weight, bias, labels, chunk, dtype, torch.is_grad_enabled())


@cache
def _load_liger_loss() -> Any:
    """Return the loss function of liger-kernel; None if the package is not installed."""
    try:
        from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss
    except ImportError:
        return None
    return LigerFusedLinearCrossEntropyLoss(reduction="sum", accum_dtype=torch.float32)


def _replace_by_gradients(logits: Tensor, labels: Tensor) -> Tensor:
    """Overwrite logits, (c, V), with their gradients softmax(logits) - onehot(label); return the sum of the losses, a scalar.

    Softmax and loss are computed in float32 at least. labels: (c,), token ids
    """
    labels = labels.unsqueeze(1)  # (c, 1)
    log_probs = logits.log_softmax(dim=1, dtype=torch.promote_types(logits.dtype, torch.float32))
    of_labels = log_probs.gather(1, labels)
    torch.exp(log_probs, out=logits)
    logits.scatter_(1, labels, of_labels.expm1().to(logits.dtype))
    return -of_labels.sum()


class _LinearCrossEntropy(torch.autograd.Function):
    """Autograd function for `linear_cross_entropy`; `forward` computes loss and gradients chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        chunk: int,
        dtype: torch.dtype,
        grad_enabled: bool,
    ) -> Tensor:
        accumulate_dtype = torch.promote_types(dtype, torch.float32)
        needs_grad = [grad_enabled and needed for needed in ctx.needs_input_grad[:3]]
        grad_features = torch.empty_like(features) if needs_grad[0] else None
        grad_weight = torch.zeros_like(weight, dtype=accumulate_dtype) if needs_grad[1] else None
        grad_bias = torch.zeros_like(bias, dtype=accumulate_dtype) if bias is not None and needs_grad[2] else None
        matrix, offsets = weight.to(dtype), None if bias is None else bias.to(dtype)
        total = features.new_zeros((), dtype=accumulate_dtype)
        for begin in range(0, len(features), chunk):
            rows = features[begin : begin + chunk].to(dtype)  # (c, E)
            logits = F.linear(rows, matrix, offsets)  # (c, V)
            total += _replace_by_gradients(logits, labels[begin : begin + chunk])
            if grad_bias is not None:
                grad_bias += logits.sum(dim=0, dtype=accumulate_dtype)
            if grad_features is not None:
                grad_features[begin : begin + chunk] = logits @ matrix
            if grad_weight is not None and grad_weight.dtype == dtype:
                grad_weight.addmm_(logits.T, rows)
            elif grad_weight is not None:
                grad_weight += logits.T @ rows
        ctx.save_for_backward(grad_features, grad_weight, grad_bias)
        ctx.dtypes = (features.dtype, weight.dtype, bias.dtype if bias is not None else None)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gradients = [
            None if gradient is None else (gradient * grad_output).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return (*gradients, None, None, None, None)

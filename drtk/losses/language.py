"""Cross-entropy over a vocabulary, without the logits of all tokens at once."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORE_INDEX = -100
_CHUNK_VALUES = 1 << 24  # logits of a chunk: 64 MiB in float32, 549 tokens of BERT's vocabulary


def cross_entropy_sum(logits: Tensor, labels: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """Return -log p(label), summed over all labeled positions, (), in float32.

    logits: (texts, tokens, vocabulary); labels: (texts, tokens), IGNORE_INDEX on padding
    smoothing: share e of a label's probability that is spread over the V words of the vocabulary:
    (1 - e) * -log p(label) + e / V * sum over words of -log p(word) (Szegedy 2016, section 7)
    """
    return F.cross_entropy(
        logits.float().flatten(0, 1),  # (texts * tokens, vocabulary)
        labels.flatten(),
        ignore_index=IGNORE_INDEX,
        reduction="sum",
        label_smoothing=smoothing,
    )


def linear_cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *, chunk: int | None = None
) -> Tensor:
    """Return the sum over tokens of -log softmax(features W' + bias)[label], (), float32; 0 without tokens.

    Holds the logits of `chunk` tokens at a time: gradients are computed with the loss, so the backward pass keeps tensors of
    the size of the inputs only. Matrix products use the precision of `features` or of autocast; the rest uses float32
    (float64 for float64 features). On a GPU, liger-kernel does this if it is installed.

    features: (n, E)    weight: (V, E)    bias: (V,)    labels: (n,), IGNORE_INDEX (-100) for tokens that do not count
    """
    if features.is_cuda and (fused := _load_liger_loss()) is not None and len(features):
        total: Tensor = fused(weight, features, labels, bias)
        return total
    if chunk is None:
        chunk = max(1, _CHUNK_VALUES // len(weight))
    kind = features.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else features.dtype
    with torch.autocast(kind, enabled=False):
        return _LinearCrossEntropy.apply(features, weight, bias, labels, chunk, dtype, torch.is_grad_enabled())


@cache
def _load_liger_loss() -> Any:
    """Return liger-kernel's loss; None if it is not installed."""
    try:
        from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss
    except ImportError:
        return None
    return LigerFusedLinearCrossEntropyLoss(ignore_index=IGNORE_INDEX, reduction="sum", accum_dtype=torch.float32)


class _LinearCrossEntropy(torch.autograd.Function):
    """The loss and its gradients by chunks: with p = softmax(z), dL/dz = p - onehot(label)."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        chunk: int,
        precision: torch.dtype,
        recording: bool,
    ) -> Tensor:
        exact = torch.float64 if precision == torch.float64 else torch.float32
        wanted = [recording and needed for needed in ctx.needs_input_grad[:3]]
        of_features = torch.empty_like(features) if wanted[0] else None
        of_weight = torch.zeros_like(weight, dtype=exact) if wanted[1] else None
        of_bias = torch.zeros_like(bias, dtype=exact) if bias is not None and wanted[2] else None
        table = weight.to(precision)
        total = features.new_zeros((), dtype=exact)
        for begin in range(0, len(features), chunk):
            rows = features[begin : begin + chunk].to(precision)  # (c, E)
            logits = F.linear(rows, table).to(exact)  # (c, V)
            if bias is not None:
                logits += bias.to(exact)
            counted = labels[begin : begin + chunk] != IGNORE_INDEX
            right = labels[begin : begin + chunk].clamp(min=0).unsqueeze(1)  # (c, 1)
            spread = logits.logsumexp(dim=1, keepdim=True)
            total += ((spread - logits.gather(1, right)).squeeze(1) * counted).sum()
            if not any(wanted):
                continue
            slope = logits.sub_(spread).exp_()  # (c, V), in place
            slope.scatter_add_(1, right, slope.new_full((1, 1), -1.0).expand_as(right))
            slope *= counted.unsqueeze(1)
            if of_bias is not None:
                of_bias += slope.sum(dim=0)
            slope = slope.to(precision)
            if of_features is not None:
                of_features[begin : begin + chunk] = slope @ table
            if of_weight is not None and of_weight.dtype == precision:
                of_weight.addmm_(slope.T, rows)
            elif of_weight is not None:
                of_weight += slope.T @ rows
        ctx.save_for_backward(of_features, of_weight, of_bias)
        ctx.dtypes = (features.dtype, weight.dtype, bias.dtype if bias is not None else None)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gradients = [
            None if gradient is None else (gradient * slope).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return (*gradients, None, None, None, None)

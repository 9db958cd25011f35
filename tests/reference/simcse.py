"""SimCSE: cross-entropy over the cosines of first views with all second views, after a projector."""

import torch
from torch import Tensor, nn
from transformers import BertForMaskedLM

from tests.reference.bert import hidden_states
from tests.reference.means import token_loss, token_mean, with_total


def project(projector: list[nn.Module], vectors: list[Tensor], *, running: bool = False) -> list[Tensor]:
    """Apply the modules of a projector to vectors: Linear, BatchNorm1d, ReLU and Tanh.

    running: batch norm uses its running statistics (eval mode), otherwise the statistics of `vectors`
    """
    for module in projector:
        if isinstance(module, nn.Linear):
            vectors = [module.weight @ row + (0 if module.bias is None else module.bias) for row in vectors]
        elif isinstance(module, nn.BatchNorm1d):
            vectors = apply_batch_norm(module, vectors, running=running)
        elif isinstance(module, nn.ReLU):
            vectors = [torch.where(row > 0, row, torch.zeros_like(row)) for row in vectors]
        elif isinstance(module, nn.Tanh):
            vectors = [torch.tanh(row) for row in vectors]
        else:
            raise TypeError(f"no reference for {type(module).__name__} in a projector")
    return vectors


def apply_batch_norm(norm: nn.BatchNorm1d, vectors: list[Tensor], *, running: bool) -> list[Tensor]:
    """Apply batch normalization, with the biased variance (divided by n)."""
    mean = norm.running_mean if running else sum(vectors) / len(vectors)
    spread = norm.running_var if running else sum((row - mean) ** 2 for row in vectors) / len(vectors)
    scaled = [(row - mean) / torch.sqrt(spread + norm.eps) for row in vectors]
    return [row * norm.weight + norm.bias for row in scaled] if norm.affine else scaled


def cosine(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosine of two vectors, a scalar."""
    return (first * second).sum() / (torch.sqrt((first * first).sum()) * torch.sqrt((second * second).sum()))


def contrast_losses(cosines: list[list[Tensor]], *, temperature: float) -> list[Tensor]:
    """Return the loss of each row i: the positive is column i, all columns are candidates."""
    return [token_loss(torch.stack(row) / temperature, number) for number, row in enumerate(cosines)]


def view_losses(
    first: list[Tensor], second: list[Tensor], *, temperature: float, negatives: list[Tensor] | None = None
) -> list[Tensor]:
    """Return the loss of each sentence: its first view against all second views and `negatives`."""
    table = [[cosine(row, column) for column in (*second, *(negatives or []))] for row in first]
    return contrast_losses(table, temperature=temperature)


def sentence_vectors(
    model: BertForMaskedLM, projector: list[nn.Module], views: list[list[list[int]]], *, running: bool = False
) -> list[list[Tensor]]:
    """Return the projected CLS vectors for each view; batch statistics are computed over all views.

    views: token ids of the sentences of each view
    """
    raw = [hidden_states(model.bert, ids, [])[-1][0] for view in views for ids in view]
    vectors = project(projector, raw, running=running)
    count = len(views[0])
    return [vectors[start : start + count] for start in range(0, len(vectors), count)]


def simcse(
    model: BertForMaskedLM,
    projector: list[nn.Module],
    views: tuple[list[list[int]], list[list[int]]],
    *,
    temperature: float = 0.05,
    running: bool = False,
) -> dict[str, Tensor]:
    """Return the term `contrast` and the total; views: token ids of both views, equal without masking (no dropout)."""
    first, second = sentence_vectors(model, projector, list(views), running=running)
    return with_total({"contrast": token_mean([view_losses(first, second, temperature=temperature)])})

"""SimCSE: two views of a sentence, a projector, cosines, and a softmax over the other sentences' second views."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import BertForMaskedLM

from tests.reference.bert import hidden_states
from tests.reference.means import token_loss, token_mean, with_total


def projected(projector: list[nn.Module], vectors: list[Tensor], *, running: bool = False) -> list[Tensor]:
    """The vectors after Linear, BatchNorm1d, ReLU and Tanh modules, in the order given.

    running: batch norm takes its running statistics, as a module in eval mode does; else those of the vectors given
    """
    for module in projector:
        if isinstance(module, nn.Linear):
            vectors = [module.weight @ row + (0 if module.bias is None else module.bias) for row in vectors]
        elif isinstance(module, nn.BatchNorm1d):
            vectors = batch_normalized(module, vectors, running=running)
        elif isinstance(module, nn.ReLU):
            vectors = [torch.where(row > 0, row, torch.zeros_like(row)) for row in vectors]
        elif isinstance(module, nn.Tanh):
            vectors = [torch.tanh(row) for row in vectors]
        else:
            raise TypeError(f"no reference for {type(module).__name__} in a projector")
    return vectors


def batch_normalized(norm: nn.BatchNorm1d, vectors: list[Tensor], *, running: bool) -> list[Tensor]:
    """Every component less its mean over the vectors, by its standard deviation (divided by n, not n - 1)."""
    mean = norm.running_mean if running else sum(vectors) / len(vectors)
    spread = norm.running_var if running else sum((row - mean) ** 2 for row in vectors) / len(vectors)
    scaled = [(row - mean) / torch.sqrt(spread + norm.eps) for row in vectors]
    return [row * norm.weight + norm.bias for row in scaled] if norm.affine else scaled


def cosine(first: Tensor, second: Tensor) -> Tensor:
    """The cosine of two vectors, ()."""
    return (first * second).sum() / (torch.sqrt((first * first).sum()) * torch.sqrt((second * second).sum()))


def contrast_losses(cosines: list[list[Tensor]], *, temperature: float) -> list[Tensor]:
    """A loss per row: column i is the right one in row i, every column is a candidate."""
    return [token_loss(torch.stack(row) / temperature, number) for number, row in enumerate(cosines)]


def view_losses(
    first: list[Tensor], second: list[Tensor], *, temperature: float, negatives: list[Tensor] | None = None
) -> list[Tensor]:
    """A loss per sentence: its first view against all second views, and all negatives after them."""
    table = [[cosine(row, column) for column in (*second, *(negatives or []))] for row in first]
    return contrast_losses(table, temperature=temperature)


def sentence_vectors(
    model: BertForMaskedLM, projector: list[nn.Module], views: list[list[list[int]]], *, running: bool = False
) -> list[list[Tensor]]:
    """Per view the projected CLS vectors of its sentences; the batch statistics are of all views together.

    views: per view its sentences as ids, one view after the other, all with the same number of sentences
    """
    raw = [hidden_states(model.bert, ids, [])[-1][0] for view in views for ids in view]
    vectors = projected(projector, raw, running=running)
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
    """`contrast`; views: the sentences as ids, twice (the same ids twice are the same vectors, without dropout)."""
    first, second = sentence_vectors(model, projector, list(views), running=running)
    return with_total({"contrast": token_mean([view_losses(first, second, temperature=temperature)])})

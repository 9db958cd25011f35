"""DiffCSE: SimCSE, and a discriminator that finds what changed in a sentence whose vector it is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import BertForMaskedLM, BertModel

from tests.reference.bert import embedded, hidden_states, through, vocabulary_logits
from tests.reference.means import token_loss, token_mean
from tests.reference.simcse import sentence_vectors, view_losses
from tests.reference.text import Text

Task = Literal["rtd", "mlm", "clm"]
Reduction = Literal["mean_all", "mean_valid", "sum"]


@dataclass(frozen=True)
class Edited:
    """One text of the discriminator.

    inputs: ids, [CLS] first; its place takes the sentence vector
    targets: per position: 0 or 1 (rtd), or the id to predict (mlm, clm)
    sentence, view: whose vector it is told: 0-based, view 0 or 1
    predict: positions that count in mlm and clm; rtd counts all
    types: segment of every position; all 0 if empty
    """

    inputs: list[int]
    targets: list[int]
    sentence: int
    view: int
    predict: list[int] = field(default_factory=list)
    types: list[int] = field(default_factory=list)


def difference_labels(original: list[int], inputs: list[int]) -> list[int]:
    """1 where the token is another one than it was."""
    return [0 if before == after else 1 for before, after in zip(original, inputs, strict=True)]


def insertion_labels(length: int, inserted: list[int]) -> list[int]:
    """1 at the inserted positions of the longer sentence."""
    return [1 if position in inserted else 0 for position in range(length)]


def deletion_labels(length: int, removed: list[int]) -> list[int]:
    """For every token that stays, 1 if at least one token right before it was removed; length: before the removal."""
    return [1 if position - 1 in removed else 0 for position in range(length) if position not in removed]


@torch.no_grad()
def generated(generator: BertForMaskedLM, masked: Text, *, scope: Literal["all", "masked"] = "all") -> list[int]:
    """The generator's best token at every position (or at the hidden ones, the original elsewhere); [CLS] stays."""
    last = hidden_states(generator.bert, masked.inputs, masked.types)[-1]
    best = [int(torch.argmax(vocabulary_logits(generator, row))) for row in last]
    if scope == "masked":
        best = [best[at] if at in masked.hidden else token for at, token in enumerate(masked.original)]
    return [masked.original[0], *best[1:]]


def discriminator_rows(
    discriminator: BertModel, vector: Tensor, ids: list[int], *, real: int, types: list[int] | None = None
) -> list[Tensor]:
    """Last-layer rows (width,) for the ids, the vector in the place of position 0; only the `real` first are seen."""
    rows = [vector, *embedded(discriminator.embeddings, ids, types or [])[1:]]
    return through(list(discriminator.encoder.layer), rows, [list(range(real))] * len(rows))


def reduced(real: list[list[Tensor]], pads: list[list[Tensor]], *, reduction: Reduction) -> Tensor:
    """The losses of real and of pad positions as one: mean over both, mean over the real ones, their sum."""
    if reduction == "mean_all":
        return token_mean([*real, *pads])
    if reduction == "mean_valid":
        return token_mean(real)
    return torch.stack([loss for text in real for loss in text]).sum()


def rtd_losses(
    discriminator: BertModel, head: nn.Module, vector: Tensor, text: Edited, *, length: int, pad: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Losses of the real positions and of the pads up to `length`, whose label is 0; head: (width,) to (2,)."""
    real = len(text.inputs)
    ids = [*text.inputs, *[pad] * (length - real)]
    labels = [*text.targets, *[0] * (length - real)]
    types = [*text.types, *[0] * (length - real)] if text.types else []
    rows = discriminator_rows(discriminator, vector, ids, real=real, types=types)
    losses = [token_loss(head(row), label) for row, label in zip(rows, labels, strict=True)]
    return losses[:real], losses[real:]


def copied_or_said(logits: Tensor, copy: Tensor, *, shown: int, target: int) -> Tensor:
    """-log p of the target, p = copy * [the shown token is it] + (1 - copy) * softmax; logits: (vocabulary,), copy: ()."""
    said = torch.softmax(logits, dim=0)[target]
    same = 1.0 if shown == target else 0.0
    return -torch.log(copy * same + (1 - copy) * said)


def word_losses(
    discriminator: BertModel, head: nn.Module, vector: Tensor, text: Edited, *, copy_head: nn.Module | None
) -> list[Tensor]:
    """Losses of the positions to predict; with a copy head the gate of corrective LM stands before the softmax."""
    rows = discriminator_rows(discriminator, vector, text.inputs, real=len(text.inputs))
    losses = []
    for position in text.predict:
        logits, target = head(rows[position]), text.targets[position]
        if copy_head is None:
            losses.append(token_loss(logits, target))
        else:
            copy = torch.sigmoid(copy_head(rows[position])[0])
            losses.append(copied_or_said(logits, copy, shown=text.inputs[position], target=target))
    return losses


def diffcse(
    model: BertForMaskedLM,
    projector: list[nn.Module],
    views: tuple[list[list[int]], list[list[int]]],
    *,
    discriminator: BertModel,
    head: nn.Module,
    edited: list[Edited],
    task: Task = "rtd",
    copy_head: nn.Module | None = None,
    temperature: float = 0.05,
    weight: float = 0.005,
    reduction: Reduction = "mean_all",
    length: int | None = None,
    pad: int = 0,
    contrastive: bool = True,
    augmented: list[list[int]] | None = None,
    augmented_as: Literal["positive", "negative"] = "positive",
    running: bool = False,
    detach_cls: bool = False,
) -> dict[str, Tensor]:
    """`contrast` and `difference`, unweighted; the total is contrast + weight * difference.

    head: (width,) to (2,) for rtd, to (vocabulary,) for mlm and clm; copy_head (clm only): to (1,)
    length: what the texts of the discriminator are padded to under mean_all; the longest of them by default
    augmented: one changed sentence per sentence, as ids: a second positive, the two losses averaged, or N more
      columns of the softmax
    """
    if (task == "clm") != (copy_head is not None):
        raise ValueError("a copy head goes with corrective LM, and only with it")
    vectors = sentence_vectors(model, projector, [*views, *([augmented] if augmented else [])], running=running)
    first, second = vectors[:2]
    terms: dict[str, Tensor] = {}
    if contrastive:
        negatives = vectors[2] if augmented and augmented_as == "negative" else None
        own = token_mean([view_losses(first, second, temperature=temperature, negatives=negatives)])
        if augmented and augmented_as == "positive":
            own = (own + token_mean([view_losses(first, vectors[2], temperature=temperature)])) / 2
        terms["contrast"] = own

    real, pads = [], []
    longest = length or max(len(text.inputs) for text in edited)
    for text in edited:
        told = vectors[text.view][text.sentence]
        told = told.detach() if detach_cls else told
        if task == "rtd":
            found, beyond = rtd_losses(discriminator, head, told, text, length=longest, pad=pad)
            real.append(found)
            pads.append(beyond)
        else:
            real.append(word_losses(discriminator, head, told, text, copy_head=copy_head))
    difference = reduced(real, pads, reduction=reduction) if task == "rtd" else token_mean(real)
    terms["difference"] = difference
    return terms | {"total": terms.get("contrast", 0) + weight * difference}

"""DiffCSE: SimCSE, and a discriminator that detects edits of a sentence, given the sentence vector."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import BertForMaskedLM, BertModel

from tests.reference.bert import apply_layers, embed, hidden_states, vocabulary_logits
from tests.reference.means import token_loss, token_mean
from tests.reference.simcse import sentence_vectors, view_losses
from tests.reference.text import Text

Task = Literal["rtd", "mlm", "clm"]
Reduction = Literal["mean_all", "mean_valid", "sum"]


@dataclass(frozen=True)
class Edited:
    """Input text of the discriminator.

    inputs: ids; the embedding of the first one, [CLS], is replaced by the sentence vector
    targets: for each position 0 or 1 (rtd), or the id to predict (mlm, clm)
    sentence, view: 0-based indices of the sentence vector
    predict: positions with a loss (mlm, clm); rtd uses all positions
    types: segment of every position; all 0 if empty
    """

    inputs: list[int]
    targets: list[int]
    sentence: int
    view: int
    predict: list[int] = field(default_factory=list)
    types: list[int] = field(default_factory=list)


def difference_labels(original: list[int], inputs: list[int]) -> list[int]:
    """Return 1 for positions whose token was changed, else 0."""
    return [0 if before == after else 1 for before, after in zip(original, inputs, strict=True)]


def insertion_labels(length: int, inserted: list[int]) -> list[int]:
    """Return 1 for inserted positions of the longer sentence, else 0."""
    return [1 if position in inserted else 0 for position in range(length)]


def deletion_labels(length: int, removed: list[int]) -> list[int]:
    """Return 1 for remaining tokens that directly follow a removed token, else 0. length: number of original tokens"""
    return [1 if position - 1 in removed else 0 for position in range(length) if position not in removed]


@torch.no_grad()
def generate(generator: BertForMaskedLM, masked: Text, *, scope: Literal["all", "masked"] = "all") -> list[int]:
    """Return the generator's top token at all positions (or only at masked positions); [CLS] is unchanged."""
    last = hidden_states(generator.bert, masked.inputs, masked.types)[-1]
    best = [int(torch.argmax(vocabulary_logits(generator, row))) for row in last]
    if scope == "masked":
        best = [best[at] if at in masked.hidden else token for at, token in enumerate(masked.original)]
    return [masked.original[0], *best[1:]]


def discriminator_rows(
    discriminator: BertModel, vector: Tensor, ids: list[int], *, real: int, types: list[int] | None = None
) -> list[Tensor]:
    """Return the last hidden states, with `vector` as embedding of position 0; positions >= `real` are padding."""
    rows = [vector, *embed(discriminator.embeddings, ids, types or [])[1:]]
    return apply_layers(list(discriminator.encoder.layer), rows, [list(range(real))] * len(rows))


def reduce_losses(real: list[list[Tensor]], pads: list[list[Tensor]], *, reduction: Reduction) -> Tensor:
    """Reduce the losses: mean over all positions, mean over the real ones, or sum over the real ones."""
    if reduction == "mean_all":
        return token_mean([*real, *pads])
    if reduction == "mean_valid":
        return token_mean(real)
    return torch.stack([loss for text in real for loss in text]).sum()


def rtd_losses(
    discriminator: BertModel, head: nn.Module, vector: Tensor, text: Edited, *, length: int, pad: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the losses of real positions, and of padding up to `length` (label 0); head: (width,) to (2,)."""
    real = len(text.inputs)
    ids = [*text.inputs, *[pad] * (length - real)]
    labels = [*text.targets, *[0] * (length - real)]
    types = [*text.types, *[0] * (length - real)] if text.types else []
    rows = discriminator_rows(discriminator, vector, ids, real=real, types=types)
    losses = [token_loss(head(row), label) for row, label in zip(rows, labels, strict=True)]
    return losses[:real], losses[real:]


def copy_loss(logits: Tensor, copy: Tensor, *, shown: int, target: int) -> Tensor:
    """Return -log p of the target, p = copy * [shown == target] + (1 - copy) * softmax; copy: scalar."""
    said = torch.softmax(logits, dim=0)[target]
    same = 1.0 if shown == target else 0.0
    return -torch.log(copy * same + (1 - copy) * said)


def word_losses(
    discriminator: BertModel, head: nn.Module, vector: Tensor, text: Edited, *, copy_head: nn.Module | None
) -> list[Tensor]:
    """Return the losses of the positions to predict; with `copy_head` the loss of corrective LM."""
    rows = discriminator_rows(discriminator, vector, text.inputs, real=len(text.inputs))
    losses = []
    for position in text.predict:
        logits, target = head(rows[position]), text.targets[position]
        if copy_head is None:
            losses.append(token_loss(logits, target))
        else:
            copy = torch.sigmoid(copy_head(rows[position])[0])
            losses.append(copy_loss(logits, copy, shown=text.inputs[position], target=target))
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
) -> dict[str, Tensor]:
    """Return the terms `contrast` and `difference`, and the total, contrast + weight * difference.

    head: (width,) to (2,) for rtd, to (vocabulary,) for mlm and clm; copy_head (clm only): to (1,)
    length: padded length of the discriminator inputs (mean_all); by default that of the longest input
    augmented: token ids of one changed copy per sentence, as second positives (mean of both losses) or as negatives
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
        told = told
        if task == "rtd":
            found, beyond = rtd_losses(discriminator, head, told, text, length=longest, pad=pad)
            real.append(found)
            pads.append(beyond)
        else:
            real.append(word_losses(discriminator, head, told, text, copy_head=copy_head))
    difference = reduce_losses(real, pads, reduction=reduction) if task == "rtd" else token_mean(real)
    terms["difference"] = difference
    return terms | {"total": terms.get("contrast", 0) + weight * difference}

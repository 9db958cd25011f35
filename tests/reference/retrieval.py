"""Contrastive losses of a retriever: queries, and blocks of n passages whose first is the query's positive."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.reference.simcse import cosine


def row_loss(positive: Tensor, others: list[Tensor]) -> Tensor:
    """-log of the positive's share in the softmax over it and the others."""
    return torch.logsumexp(torch.stack([positive, *others]), dim=0) - positive


def infonce(queries: list[Tensor], passages: list[Tensor], *, temperature: float, dot: bool = False) -> list[Tensor]:
    """A loss per query: its positive against every other passage of the batch."""
    block, losses = len(passages) // len(queries), []
    for number, query in enumerate(queries):
        scores = [((query * text).sum() if dot else cosine(query, text)) / temperature for text in passages]
        positive = scores.pop(number * block)
        losses.append(row_loss(positive, scores))
    return losses


def simlm_paper(queries: list[Tensor], passages: list[Tensor], *, temperature: float) -> list[Tensor]:
    """SimLM, equation 3: every other passage counts against the query and against the positive."""
    block, losses = len(passages) // len(queries), []
    for number, query in enumerate(queries):
        positive = passages[number * block]
        others = [text for place, text in enumerate(passages) if place != number * block]
        columns = [cosine(query, text) / temperature for text in others]
        columns += [cosine(positive, text) / temperature for text in others]
        losses.append(row_loss(cosine(query, positive) / temperature, columns))
    return losses


def simlm_full(queries: list[Tensor], passages: list[Tensor], *, temperature: float) -> list[Tensor]:
    """The released loss: query to passages, positive to queries, query to queries, positive to positives."""
    block, losses = len(passages) // len(queries), []
    for number, query in enumerate(queries):
        positive = passages[number * block]
        others = [other for other in range(len(queries)) if other != number]
        columns = [cosine(query, text) / temperature for at, text in enumerate(passages) if at != number * block]
        columns += [cosine(positive, queries[other]) / temperature for other in others]
        columns += [cosine(query, queries[other]) / temperature for other in others]
        columns += [cosine(positive, passages[other * block]) / temperature for other in others]
        losses.append(row_loss(cosine(query, positive) / temperature, columns))
    return losses

"""Contrastive losses of a retriever: queries, and blocks of n passages whose first is the query's positive."""

from __future__ import annotations

import torch
from torch import Tensor


def table(rows: list[Tensor], columns: list[Tensor], *, temperature: float, dot: bool = False) -> list[list[Tensor]]:
    """Cosines (or dot products) of every row with every column, by the temperature."""
    if not dot:
        rows = [row / torch.sqrt((row * row).sum()) for row in rows]
        columns = [column / torch.sqrt((column * column).sum()) for column in columns]
    together = torch.stack(columns)
    return [list(together @ row / temperature) for row in rows]


def without(scores: list[Tensor], place: int) -> list[Tensor]:
    """All but one of the scores."""
    return scores[:place] + scores[place + 1 :]


def row_loss(positive: Tensor, others: list[Tensor]) -> Tensor:
    """-log of the positive's share in the softmax over it and the others."""
    return torch.logsumexp(torch.stack([positive, *others]), dim=0) - positive


def infonce(queries: list[Tensor], passages: list[Tensor], *, temperature: float, dot: bool = False) -> list[Tensor]:
    """A loss per query: its positive against every other passage of the batch."""
    block = len(passages) // len(queries)
    to_passages = table(queries, passages, temperature=temperature, dot=dot)
    return [row_loss(row[i * block], without(row, i * block)) for i, row in enumerate(to_passages)]


def simlm_paper(queries: list[Tensor], passages: list[Tensor], *, temperature: float) -> list[Tensor]:
    """SimLM, equation 3: every other passage counts against the query and against the positive."""
    block = len(passages) // len(queries)
    to_passages = table(queries, passages, temperature=temperature)
    of_positives = table(passages[::block], passages, temperature=temperature)
    losses = []
    for i in range(len(queries)):
        columns = without(to_passages[i], i * block) + without(of_positives[i], i * block)
        losses.append(row_loss(to_passages[i][i * block], columns))
    return losses


def simlm_full(queries: list[Tensor], passages: list[Tensor], *, temperature: float) -> list[Tensor]:
    """The released loss: query to passages, positive to queries, query to queries, positive to positives."""
    block = len(passages) // len(queries)
    positives = passages[::block]
    to_passages = table(queries, passages, temperature=temperature)
    back = table(positives, queries, temperature=temperature)
    among_queries = table(queries, queries, temperature=temperature)
    among_positives = table(positives, positives, temperature=temperature)
    losses = []
    for i in range(len(queries)):
        columns = without(to_passages[i], i * block) + without(back[i], i)
        columns += without(among_queries[i], i) + without(among_positives[i], i)
        losses.append(row_loss(to_passages[i][i * block], columns))
    return losses

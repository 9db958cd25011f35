"""Contrastive losses of a retriever. Each query has a block of n passages, its positive first."""

from __future__ import annotations

import torch
from torch import Tensor


def similarity_table(
    rows: list[Tensor], columns: list[Tensor], *, temperature: float, dot: bool = False
) -> list[list[Tensor]]:
    """Return the cosines (or dot products) of all rows with all columns, divided by the temperature."""
    if not dot:
        rows = [row / torch.sqrt((row * row).sum()) for row in rows]
        columns = [column / torch.sqrt((column * column).sum()) for column in columns]
    together = torch.stack(columns)
    return [list(together @ row / temperature) for row in rows]


def without(scores: list[Tensor], place: int) -> list[Tensor]:
    """Return all scores except the one at index `place`."""
    return scores[:place] + scores[place + 1 :]


def row_loss(positive: Tensor, others: list[Tensor]) -> Tensor:
    """Return -log softmax of the positive among all scores."""
    return torch.logsumexp(torch.stack([positive, *others]), dim=0) - positive


def infonce(queries: list[Tensor], passages: list[Tensor], *, temperature: float, dot: bool = False) -> list[Tensor]:
    """Return the loss of each query: its positive against all other passages of the batch."""
    block = len(passages) // len(queries)
    to_passages = similarity_table(queries, passages, temperature=temperature, dot=dot)
    return [row_loss(row[i * block], without(row, i * block)) for i, row in enumerate(to_passages)]


def simlm_paper(queries: list[Tensor], passages: list[Tensor], *, temperature: float) -> list[Tensor]:
    """SimLM, equation 3: each negative is compared with the query and with the positive."""
    block = len(passages) // len(queries)
    to_passages = similarity_table(queries, passages, temperature=temperature)
    of_positives = similarity_table(passages[::block], passages, temperature=temperature)
    losses = []
    for i in range(len(queries)):
        columns = without(to_passages[i], i * block) + without(of_positives[i], i * block)
        losses.append(row_loss(to_passages[i][i * block], columns))
    return losses


def simlm_full(queries: list[Tensor], passages: list[Tensor], *, temperature: float) -> list[Tensor]:
    """SimLM, released code: also uses similarities positive-query, query-query and positive-positive."""
    block = len(passages) // len(queries)
    positives = passages[::block]
    to_passages = similarity_table(queries, passages, temperature=temperature)
    back = similarity_table(positives, queries, temperature=temperature)
    among_queries = similarity_table(queries, queries, temperature=temperature)
    among_positives = similarity_table(positives, positives, temperature=temperature)
    losses = []
    for i in range(len(queries)):
        columns = without(to_passages[i], i * block) + without(back[i], i)
        columns += without(among_queries[i], i) + without(among_positives[i], i)
        losses.append(row_loss(to_passages[i][i * block], columns))
    return losses

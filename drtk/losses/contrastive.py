"""Contrastive losses over a batch of queries and their passages. All compute in float32.

Layout (methods, section 6.3): queries (B, H); passages (B * n, H) in blocks of n, the positive first, so that the
column of query i's positive is i * n. What is barred leaves the softmax; a positive's own column never is.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def similarities(left: Tensor, right: Tensor, *, similarity: str, temperature: float) -> Tensor:
    """Cosine or inner product of every row with every row, over the temperature.

    left: (B, H)    right: (C, H)    returns: (B, C)
    """
    left, right = left.float(), right.float()
    if similarity == "cosine":
        left, right = F.normalize(left, dim=-1), F.normalize(right, dim=-1)
    return left @ right.T / temperature


def positive_columns(queries: Tensor, passages: Tensor) -> Tensor:
    """The column of each query's positive: 0, n, 2 n, … (B,)"""
    return torch.arange(len(queries), device=queries.device) * (len(passages) // len(queries))


def infonce_rows(
    queries: Tensor, passages: Tensor, *, similarity: str, temperature: float, barred: Tensor | None = None
) -> Tensor:
    """-log softmax of each query's positive among all passages of the batch (query-as-context, Eq. 12; DPR, Eq. 2).

    queries: (B, H)    passages: (B * n, H)    barred: (B, B * n), True where a passage is no negative of a query
    returns: (B,)
    """
    scores = similarities(queries, passages, similarity=similarity, temperature=temperature)
    if barred is not None:
        scores = scores.masked_fill(barred, float("-inf"))
    return F.cross_entropy(scores, positive_columns(queries, passages), reduction="none")


def infonce(
    queries: Tensor, passages: Tensor, *, similarity: str, temperature: float, barred: Tensor | None = None
) -> Tensor:
    """The mean of `infonce_rows`, (); ln(B * n) where all vectors are alike."""
    return infonce_rows(queries, passages, similarity=similarity, temperature=temperature, barred=barred).mean()


def simlm_paper_rows(
    queries: Tensor, passages: Tensor, *, similarity: str, temperature: float, barred: Tensor | None = None
) -> Tensor:
    """-log of phi(q, d+) / (phi(q, d+) + sum over m of [phi(q, m) + phi(d+, m)]), m every other passage (SimLM, Eq. 3).

    queries: (B, H)    passages: (B * n, H)    barred: (B, B * n), True where a passage is no negative of a query
    returns: (B,), of 1 + 2 (B * n - 1) columns each
    """
    columns = positive_columns(queries, passages)
    given = {"similarity": similarity, "temperature": temperature}
    ours = similarities(queries, passages, **given)  # type: ignore[arg-type]
    theirs = similarities(passages[columns], passages, **given)  # type: ignore[arg-type]
    if barred is not None:
        ours, theirs = (scores.masked_fill(barred, float("-inf")) for scores in (ours, theirs))
    itself = F.one_hot(columns, len(passages)).bool()
    scores = torch.cat([ours, theirs.masked_fill(itself, float("-inf"))], dim=1)  # (B, 2 * B * n)
    return F.cross_entropy(scores, columns, reduction="none")


def simlm_paper(
    queries: Tensor, passages: Tensor, *, similarity: str, temperature: float, barred: Tensor | None = None
) -> Tensor:
    """The mean of `simlm_paper_rows`, (); ln(2 B n - 1) where all vectors are alike."""
    return simlm_paper_rows(queries, passages, similarity=similarity, temperature=temperature, barred=barred).mean()


def simlm_full_rows(
    queries: Tensor, passages: Tensor, *, similarity: str, temperature: float, barred: Tensor | None = None
) -> Tensor:
    """-log softmax of each positive among four blocks of columns, as SimLM's released code has it (methods, section 6.3, c).

    The blocks: the query with all passages; its positive with the other queries; the query with the other queries; its
    positive with the other positives. Hard negatives meet queries alone.

    queries: (B, H)    passages: (B * n, H)    barred: (B, B * n), True where a passage is no negative of a query
    returns: (B,), of B * n + 3 (B - 1) columns each
    """
    columns = positive_columns(queries, passages)
    positives = passages[columns]
    oneself = torch.eye(len(queries), dtype=torch.bool, device=queries.device)
    known = torch.zeros_like(oneself) if barred is None else barred[:, columns]  # [i, j]: d_j answers q_i as well
    blocks = [
        (queries, passages, barred),
        (positives, queries, oneself | known.T),
        (queries, queries, oneself | known | known.T),
        (positives, positives, oneself | known),
    ]
    scores = []
    for left, right, unwanted in blocks:
        block = similarities(left, right, similarity=similarity, temperature=temperature)
        scores.append(block if unwanted is None else block.masked_fill(unwanted, float("-inf")))
    return F.cross_entropy(torch.cat(scores, dim=1), columns, reduction="none")


def simlm_full(
    queries: Tensor, passages: Tensor, *, similarity: str, temperature: float, barred: Tensor | None = None
) -> Tensor:
    """The mean of `simlm_full_rows`, (); ln(B n + 3 (B - 1)) where all vectors are alike."""
    return simlm_full_rows(queries, passages, similarity=similarity, temperature=temperature, barred=barred).mean()


def same_as_positive(passages: Tensor, queries: int) -> Tensor:
    """Where a passage that is not a query's own positive is the same text: the columns that duplicates would make false.

    passages: (B * n,), a number for each distinct passage    returns: (B, B * n), False at the positives themselves
    """
    columns = torch.arange(queries, device=passages.device) * (len(passages) // queries)
    same = passages[columns].unsqueeze(1) == passages.unsqueeze(0)
    same[torch.arange(queries, device=passages.device), columns] = False
    return same


def known_positives(passages: Tensor, positives: Tensor, *, own: Tensor) -> Tensor:
    """Where a passage is labelled as an answer to a query and is not the positive it is trained with.

    passages: (C,), a number for each distinct passage    positives: (B, P), those of each query, -1 where there are fewer
    own: (B,), the column of each query's positive    returns: (B, C)
    """
    found = (
        torch.isin(passages.unsqueeze(0), positives.unique()).expand(len(positives), -1).clone()
    )  # most are nobody's
    places = found[0].nonzero().squeeze(1)
    found[:, places] = (positives.unsqueeze(2) == passages[places]).any(dim=1)  # (B, P, few) to (B, few)
    found[torch.arange(len(own), device=own.device), own] = False
    return found

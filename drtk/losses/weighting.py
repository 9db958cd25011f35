"""Losses of learned term weights: DeepCT's and DeepImpact's (methods: sections 3.5 and 3.4)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def recall_loss(weights: Tensor, recall: Tensor, first: Tensor) -> Tensor:
    """Mean squared error over the first pieces of words; 0 where there is none (DeepCT).

    weights, recall: (passages, tokens), the prediction and the share of a passage's queries that have the word
    first: (passages, tokens), 1 at the first piece of a word, 0 elsewhere
    returns: ()
    """
    first = first.float()
    return ((weights.float() - recall.float()).square() * first).sum() / first.sum().clamp(min=1)


def pair_loss(positive: Tensor, negative: Tensor) -> Tensor:
    """-log of the positive's share in a softmax of both scores, averaged over pairs (DeepImpact).

    positive, negative: (pairs,); returns: ()
    """
    scores = torch.stack([positive.float(), negative.float()], dim=1)  # (pairs, 2)
    return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))

"""coCondenser, coROM and their query-as-context variants: two texts per example, positives of each other."""

import torch
from torch import Tensor, nn
from transformers import BertForMaskedLM

from tests.reference.bert import hidden_states, token_losses
from tests.reference.condenser import head_rows
from tests.reference.means import token_mean, with_total
from tests.reference.mlm import masked_losses
from tests.reference.text import Text


def pair_losses(vectors: list[Tensor], *, temperature: float = 1.0) -> list[Tensor]:
    """Return the contrastive loss of each vector, by dot product: its partner is the positive, others are negatives.

    vectors: (width,) each, interleaved: 0 and 1 are a pair, 2 and 3 are a pair
    """
    everything, losses = torch.stack(vectors), []
    for row, anchor in enumerate(vectors):
        partner = row + 1 if row % 2 == 0 else row - 1
        scores = everything @ anchor / temperature
        others = torch.cat([scores[:row], scores[row + 1 :]])
        losses.append(torch.logsumexp(others, dim=0) - scores[partner])
    return losses


def cocondenser(
    model: BertForMaskedLM,
    head: list[nn.Module] | None,
    pairs: list[tuple[Text, Text]],
    *,
    skip: int = 0,
    temperature: float = 1.0,
) -> dict[str, Tensor]:
    """Return the terms `mlm`, `head` (not for coROM) and `contrast`, and their sum.

    pairs: two spans of one document, or a passage and a generated query of it; both are masked and encoded
    """
    late, early, vectors = [], [], []
    for pair in pairs:
        for text in pair:
            hidden = hidden_states(model.bert, text.inputs, text.types)
            late.append(masked_losses(model, text, hidden[-1]))
            vectors.append(hidden[-1][0])
            if head is not None:
                rows = head_rows(head, hidden, skip=skip)
                early.append(token_losses(model, rows, text, text.hidden))
    terms = {"mlm": token_mean(late)}
    if head is not None:
        terms["head"] = token_mean(early)
    terms["contrast"] = token_mean([pair_losses(vectors, temperature=temperature)])
    return with_total(terms)

"""Condenser: a head of two layers reads the CLS of the last layer and everything else from a layer in the middle."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import BertForMaskedLM

from tests.reference.bert import hidden_states, predicted, through
from tests.reference.means import token_mean, with_total
from tests.reference.mlm import masked_losses
from tests.reference.text import Text


def head_rows(
    head: list[nn.Module], hidden: list[list[Tensor]], *, skip: int, detach_cls: bool = False
) -> list[Tensor]:
    """The head's output for [hidden[-1] at 0 ; hidden[skip] from 1 on]: a vector (width,) per position."""
    cls = hidden[-1][0].detach() if detach_cls else hidden[-1][0]
    return through(head, [cls, *hidden[skip][1:]])


def condenser(
    model: BertForMaskedLM, head: list[nn.Module], texts: list[Text], *, skip: int, detach_cls: bool = False
) -> dict[str, Tensor]:
    """`mlm` from the encoder's last layer and `head` from the head, same labels, same masked-LM head.

    skip: index into the hidden states, 0 being the embeddings; 6 for an encoder of 12 layers
    """
    late, early = [], []
    for text in texts:
        hidden = hidden_states(model.bert, text.inputs, text.types)
        late.append(masked_losses(model, text, hidden[-1]))
        rows = head_rows(head, hidden, skip=skip, detach_cls=detach_cls)
        early.append(predicted(model, rows, text, text.hidden))
    return with_total({"mlm": token_mean(late), "head": token_mean(early)})

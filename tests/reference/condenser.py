"""Condenser: a head of two layers reads the CLS vector of the last layer and the other vectors of a middle layer."""

from torch import Tensor, nn
from transformers import BertForMaskedLM

from tests.reference.bert import apply_layers, hidden_states, token_losses
from tests.reference.means import token_mean, with_total
from tests.reference.mlm import masked_losses
from tests.reference.text import Text


def head_rows(head: list[nn.Module], hidden: list[list[Tensor]], *, skip: int) -> list[Tensor]:
    """Return the head's output, (width,) per position; its input is hidden[-1] at position 0, else hidden[skip]."""
    cls = hidden[-1][0]
    return apply_layers(head, [cls, *hidden[skip][1:]])


def condenser(model: BertForMaskedLM, head: list[nn.Module], texts: list[Text], *, skip: int) -> dict[str, Tensor]:
    """Return the terms `mlm` (last layer of the encoder) and `head` (Condenser head), with the same labels and LM head.

    skip: index of the hidden state, 0 for the embeddings; 6 for an encoder of 12 layers
    """
    late, early = [], []
    for text in texts:
        hidden = hidden_states(model.bert, text.inputs, text.types)
        late.append(masked_losses(model, text, hidden[-1]))
        rows = head_rows(head, hidden, skip=skip)
        early.append(token_losses(model, rows, text, text.hidden))
    return with_total({"mlm": token_mean(late), "head": token_mean(early)})

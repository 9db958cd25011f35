"""Masked language modeling."""

from torch import Tensor
from transformers import BertForMaskedLM

from tests.reference.bert import hidden_states, token_losses
from tests.reference.means import token_mean, with_total
from tests.reference.text import Text


def masked_losses(model: BertForMaskedLM, text: Text, last: list[Tensor]) -> list[Tensor]:
    """Return the loss of each masked position of a text, from the last hidden states."""
    return token_losses(model, last, text, text.hidden)


def mlm(model: BertForMaskedLM, texts: list[Text]) -> dict[str, Tensor]:
    """Return the term `mlm`, the mean over the masked positions of all texts."""
    losses = []
    for text in texts:
        hidden = hidden_states(model.bert, text.inputs, text.types)
        losses.append(masked_losses(model, text, hidden[-1]))
    return with_total({"mlm": token_mean(losses)})

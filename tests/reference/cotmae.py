"""CoT-MAE: a decoder reconstructs the neighbor (or a query) of a text from the CLS vector of the text."""

from torch import Tensor, nn
from transformers import BertForMaskedLM

from tests.reference.bert import (
    apply_layer_norm,
    apply_layers,
    build_decoder_input,
    hidden_states,
    token_losses,
    vocabulary_logits,
)
from tests.reference.means import token_loss, token_mean, with_total
from tests.reference.mlm import masked_losses
from tests.reference.text import Text


def cotmae(model: BertForMaskedLM, decoder: list[nn.Module], pairs: list[tuple[Text, Text]]) -> dict[str, Tensor]:
    """Return the terms `mlm` (first text, encoder) and `context` (second text, bidirectional decoder)."""
    own, context = [], []
    for text, other in pairs:
        last = hidden_states(model.bert, text.inputs, text.types)[-1]
        own.append(masked_losses(model, text, last))
        cls = last[0]
        rows = apply_layers(decoder, build_decoder_input(cls, model.bert.embeddings, other))
        context.append(token_losses(model, rows, other, other.hidden))
    return with_total({"mlm": token_mean(own), "context": token_mean(context)})


def window(length: int, *, width: int) -> list[list[int]]:
    """Return the visible positions of each position: 0 and the `width` most recent ones, including itself."""
    return [[0, *range(max(1, row - width + 1), row + 1)] for row in range(length)]


def causal_logits(
    model: BertForMaskedLM, decoder: list[nn.Module], cls: Tensor, other: Text, *, width: int, norm: nn.LayerNorm | None
) -> list[Tensor]:
    """Return the next-token logits, (vocabulary,), at all positions except the last."""
    rows = build_decoder_input(cls, model.bert.embeddings, other)
    rows = apply_layers(decoder, rows, window(len(rows), width=width))
    if norm is not None:
        rows = [apply_layer_norm(row, norm) for row in rows]
    return [vocabulary_logits(model, row) for row in rows[:-1]]


def cotmae_causal(
    model: BertForMaskedLM,
    decoder: list[nn.Module],
    pairs: list[tuple[Text, Text]],
    *,
    width: int = 3,
    norm: nn.LayerNorm | None = None,
) -> dict[str, Tensor]:
    """Return the terms `mlm`, and `context` of a causal decoder over the whole second text, including the final [SEP].

    decoder: layers that see position 0 and the `width` most recent positions; norm: applied after the last of them
    pairs: the second text's `inputs` are its own tokens; position 0 predicts its first token
    """
    own, context = [], []
    for text, other in pairs:
        last = hidden_states(model.bert, text.inputs, text.types)[-1]
        own.append(masked_losses(model, text, last))
        cls = last[0]
        logits = causal_logits(model, decoder, cls, other, width=width, norm=norm)
        context.append([token_loss(row, token) for row, token in zip(logits, other.original[1:], strict=True)])
    return with_total({"mlm": token_mean(own), "context": token_mean(context)})

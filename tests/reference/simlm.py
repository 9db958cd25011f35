"""SimLM and its ablations: replaced tokens in, original tokens out, once in the encoder and once in a weak decoder."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import BertForMaskedLM

from tests.reference.bert import behind, hidden_states, predicted, through, vocabulary_logits
from tests.reference.means import binary_loss, token_mean, with_total
from tests.reference.mlm import mlm
from tests.reference.text import Text

Losses = Callable[[list[Tensor], Text], list[Tensor]]  # the rows of a text -> a loss for each token that counts


def two_sides(
    model: BertForMaskedLM,
    decoder: list[nn.Module],
    examples: list[tuple[Text, Text]],
    *,
    encoder_losses: Losses,
    decoder_losses: Losses,
    detach_cls: bool,
) -> dict[str, Tensor]:
    """`encoder` and `decoder`: an example is the encoder's and the decoder's copy of one text."""
    above, below = [], []
    for seen, rebuilt in examples:
        last = hidden_states(model.bert, seen.inputs, seen.types)[-1]
        above.append(encoder_losses(last, seen))
        cls = last[0].detach() if detach_cls else last[0]
        below.append(decoder_losses(through(decoder, behind(cls, model.bert.embeddings, rebuilt)), rebuilt))
    return {"encoder": token_mean(above), "decoder": token_mean(below)}


def simlm(
    model: BertForMaskedLM, decoder: list[nn.Module], examples: list[tuple[Text, Text]], *, detach_cls: bool = False
) -> dict[str, Tensor]:
    """Replaced language modeling: every position that is not special is predicted, replaced or not."""

    def everywhere(rows: list[Tensor], text: Text) -> list[Tensor]:
        return predicted(model, rows, text, text.content())

    terms = two_sides(
        model, decoder, examples, encoder_losses=everywhere, decoder_losses=everywhere, detach_cls=detach_cls
    )
    return with_total(terms)


def simlm_mlm(
    model: BertForMaskedLM, decoder: list[nn.Module], examples: list[tuple[Text, Text]], *, detach_cls: bool = False
) -> dict[str, Tensor]:
    """The variant Enc-Dec MLM: masked copies, only hidden positions are predicted."""

    def hidden_only(rows: list[Tensor], text: Text) -> list[Tensor]:
        return predicted(model, rows, text, text.hidden)

    terms = two_sides(
        model, decoder, examples, encoder_losses=hidden_only, decoder_losses=hidden_only, detach_cls=detach_cls
    )
    return with_total(terms)


def detected(head: nn.Module, rows: list[Tensor], text: Text) -> list[Tensor]:
    """Losses of "this token is not the original one" at every position that is not special."""
    losses = []
    for position in text.content():
        label = 1 if text.inputs[position] != text.original[position] else 0
        losses.append(binary_loss(head(rows[position])[0], label))
    return losses


def simlm_rtd(
    model: BertForMaskedLM,
    decoder: list[nn.Module],
    examples: list[tuple[Text, Text]],
    *,
    encoder_head: nn.Module,
    decoder_head: nn.Module,
    detach_cls: bool = False,
) -> dict[str, Tensor]:
    """The variant Enc-Dec RTD; a head turns a vector (width,) into one logit (1,) of "replaced"."""
    terms = two_sides(
        model,
        decoder,
        examples,
        encoder_losses=lambda rows, text: detected(encoder_head, rows, text),
        decoder_losses=lambda rows, text: detected(decoder_head, rows, text),
        detach_cls=detach_cls,
    )
    return with_total(terms)


def simlm_ae(
    model: BertForMaskedLM,
    decoder: list[nn.Module],
    originals: list[Text],
    *,
    mask: int,
    detach_cls: bool = False,
) -> dict[str, Tensor]:
    """The variant AutoEncoder: the encoder reads the original text and has no loss, the decoder sees only [MASK].

    originals: `inputs` and `hidden` of the texts play no part
    """
    losses = []
    for text in originals:
        last = hidden_states(model.bert, text.original, text.types)[-1]
        cls = last[0].detach() if detach_cls else last[0]
        content = text.content()
        blank = [mask if position in content else token for position, token in enumerate(text.original)]
        covered = Text(text.original, blank, content, text.special, text.types)
        losses.append(predicted(model, through(decoder, behind(cls, model.bert.embeddings, covered)), covered, content))
    return with_total({"decoder": token_mean(losses)})


def simlm_joint(
    model: BertForMaskedLM,
    decoder: list[nn.Module],
    examples: list[tuple[Text, Text]],
    *,
    generator: BertForMaskedLM,
    masked: list[Text],
    weight: float = 0.2,
) -> dict[str, Tensor]:
    """`simlm` and a generator that learns with it: `generator` is its masked LM on the encoder's masked copies.

    The terms come back unweighted; the total has the generator's times `weight`.
    """
    terms = simlm(model, decoder, examples)
    own = mlm(generator, masked)["mlm"]
    return terms | {"generator": own, "total": terms["total"] + weight * own}


@torch.no_grad()
def replaced(generator: BertForMaskedLM, masked: Text, *, draw: torch.Generator) -> Text:
    """The text with a sample of the generator at every hidden position, and its own tokens elsewhere."""
    last = hidden_states(generator.bert, masked.inputs, masked.types)[-1]
    inputs = list(masked.original)
    for position in masked.hidden:
        shares = torch.softmax(vocabulary_logits(generator, last[position]), dim=0)
        inputs[position] = int(torch.multinomial(shares, 1, generator=draw))
    return Text(masked.original, inputs, masked.hidden, masked.special, masked.types)

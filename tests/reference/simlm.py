"""SimLM and its ablations: encoder and a weak decoder predict the original tokens of texts with replaced tokens."""

from collections.abc import Callable

from torch import Tensor, nn
from transformers import BertForMaskedLM

from tests.reference.bert import apply_layers, build_decoder_input, hidden_states, token_losses
from tests.reference.means import binary_loss, token_mean, with_total
from tests.reference.mlm import mlm
from tests.reference.text import Text

Losses = Callable[[list[Tensor], Text], list[Tensor]]  # the rows of a text -> a loss for each token that counts


def compute_terms(
    model: BertForMaskedLM,
    decoder: list[nn.Module],
    examples: list[tuple[Text, Text]],
    *,
    encoder_losses: Losses,
    decoder_losses: Losses,
) -> dict[str, Tensor]:
    """Return the terms `encoder` and `decoder`; an example is the input of the encoder and that of the decoder."""
    above, below = [], []
    for seen, rebuilt in examples:
        last = hidden_states(model.bert, seen.inputs, seen.types)[-1]
        above.append(encoder_losses(last, seen))
        cls = last[0]
        below.append(
            decoder_losses(apply_layers(decoder, build_decoder_input(cls, model.bert.embeddings, rebuilt)), rebuilt)
        )
    return {"encoder": token_mean(above), "decoder": token_mean(below)}


def simlm(model: BertForMaskedLM, decoder: list[nn.Module], examples: list[tuple[Text, Text]]) -> dict[str, Tensor]:
    """Replaced language modeling: all tokens except special tokens are predicted."""

    def everywhere(rows: list[Tensor], text: Text) -> list[Tensor]:
        return token_losses(model, rows, text, text.content())

    terms = compute_terms(model, decoder, examples, encoder_losses=everywhere, decoder_losses=everywhere)
    return with_total(terms)


def simlm_mlm(model: BertForMaskedLM, decoder: list[nn.Module], examples: list[tuple[Text, Text]]) -> dict[str, Tensor]:
    """Variant Enc-Dec MLM: masked inputs; only masked positions are predicted."""

    def hidden_only(rows: list[Tensor], text: Text) -> list[Tensor]:
        return token_losses(model, rows, text, text.hidden)

    terms = compute_terms(model, decoder, examples, encoder_losses=hidden_only, decoder_losses=hidden_only)
    return with_total(terms)


def detection_losses(head: nn.Module, rows: list[Tensor], text: Text) -> list[Tensor]:
    """Return the losses of replaced token detection at all positions except special tokens."""
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
) -> dict[str, Tensor]:
    """Variant Enc-Dec RTD; the heads map (width,) to the logit of "replaced", (1,)."""
    terms = compute_terms(
        model,
        decoder,
        examples,
        encoder_losses=lambda rows, text: detection_losses(encoder_head, rows, text),
        decoder_losses=lambda rows, text: detection_losses(decoder_head, rows, text),
    )
    return with_total(terms)


def simlm_ae(
    model: BertForMaskedLM, decoder: list[nn.Module], originals: list[Text], *, mask: int
) -> dict[str, Tensor]:
    """Variant AutoEncoder: the encoder reads the original text and has no loss; all tokens of the decoder are [MASK].

    originals: texts, whose `inputs` and `hidden` are ignored
    """
    losses = []
    for text in originals:
        last = hidden_states(model.bert, text.original, text.types)[-1]
        cls = last[0]
        content = text.content()
        blank = [mask if position in content else token for position, token in enumerate(text.original)]
        covered = Text(text.original, blank, content, text.special, text.types)
        losses.append(
            token_losses(
                model, apply_layers(decoder, build_decoder_input(cls, model.bert.embeddings, covered)), covered, content
            )
        )
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
    """Return the terms of `simlm` and `generator`, the masked-LM loss of the generator on the masked encoder inputs.

    The terms are unweighted; in the total, `generator` is multiplied by `weight`.
    """
    terms = simlm(model, decoder, examples)
    own = mlm(generator, masked)["mlm"]
    return terms | {"generator": own, "total": terms["total"] + weight * own}

"""RetroMAE: a one-layer decoder reconstructs the text from the CLS vector and a few visible tokens per position."""

from torch import Tensor
from transformers import BertForMaskedLM
from transformers.models.bert.modeling_bert import BertLayer

from tests.reference.bert import apply_bert_layer, embed, hidden_states, token_losses
from tests.reference.means import token_mean, with_total
from tests.reference.mlm import masked_losses
from tests.reference.text import Text


def retromae(
    model: BertForMaskedLM, layer: BertLayer, texts: list[Text], visible: list[list[list[int]]]
) -> dict[str, Tensor]:
    """Return the terms `mlm` of the encoder and `decoder` (all positions except special tokens), and their sum.

    visible: for each text and position, the positions that it attends to: always 0, never itself; ignored
      for special tokens
    """
    own, rebuilt = [], []
    for text, seen in zip(texts, visible, strict=True):
        last = hidden_states(model.bert, text.inputs, text.types)[-1]
        own.append(masked_losses(model, text, last))
        cls = last[0]
        content = text.content()
        for row in content:
            if 0 not in seen[row] or row in seen[row]:
                raise ValueError(f"row {row} must see position 0 and not itself: {seen[row]}")
        queries = [cls + model.bert.embeddings.position_embeddings.weight[row] for row in content]
        context = [cls, *embed(model.bert.embeddings, text.original, text.types)[1:]]
        output = apply_bert_layer(layer, queries, context, [seen[row] for row in content])
        rows = dict(zip(content, output, strict=True))
        rebuilt.append(token_losses(model, rows, text, content))
    return with_total({"mlm": token_mean(own), "decoder": token_mean(rebuilt)})

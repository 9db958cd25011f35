"""RetroMAE: one layer of two streams rebuilds the whole text from the CLS vector and a few tokens per position."""

from __future__ import annotations

from torch import Tensor
from transformers import BertForMaskedLM
from transformers.models.bert.modeling_bert import BertLayer

from tests.reference.bert import bert_layer, embedded, hidden_states, predicted
from tests.reference.means import token_mean, with_total
from tests.reference.mlm import masked_losses
from tests.reference.text import Text


def retromae(
    model: BertForMaskedLM,
    layer: BertLayer,
    texts: list[Text],
    visible: list[list[list[int]]],
    *,
    detach_cls: bool = False,
) -> dict[str, Tensor]:
    """`mlm` of the encoder and `decoder` over every position that is not special.

    visible: for every text and every row of it, the positions the row may see: 0 always, itself never. What stands
      in the rows of special positions is not looked at.
    """
    own, rebuilt = [], []
    for text, seen in zip(texts, visible, strict=True):
        last = hidden_states(model.bert, text.inputs, text.types)[-1]
        own.append(masked_losses(model, text, last))
        cls = last[0].detach() if detach_cls else last[0]
        content = text.content()
        for row in content:
            if 0 not in seen[row] or row in seen[row]:
                raise ValueError(f"row {row} must see position 0 and not itself: {seen[row]}")
        queries = [cls + model.bert.embeddings.position_embeddings.weight[row] for row in content]
        context = [cls, *embedded(model.bert.embeddings, text.original, text.types)[1:]]
        output = bert_layer(layer, queries, context, [seen[row] for row in content])
        rows = dict(zip(content, output, strict=True))
        rebuilt.append(predicted(model, rows, text, content))
    return with_total({"mlm": token_mean(own), "decoder": token_mean(rebuilt)})

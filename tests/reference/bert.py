"""BERT for one text, position by position, with the weights of a transformers model and none of its code.

`visible` names, for every row, the positions of `context` that it may look at.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import BertForMaskedLM, BertModel
from transformers.models.bert.modeling_bert import BertEmbeddings, BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from tests.reference.means import token_loss
from tests.reference.text import Text


def normalized(row: Tensor, norm: nn.LayerNorm) -> Tensor:
    """LayerNorm of one vector, (width,) to (width,)."""
    centered = row - row.mean()
    return centered / torch.sqrt((centered * centered).mean() + norm.eps) * norm.weight + norm.bias


def embedded(embeddings: BertEmbeddings, ids: list[int], types: list[int]) -> list[Tensor]:
    """Word + position + segment, normalized: a vector (width,) per position."""
    rows = []
    for position, token in enumerate(ids):
        row = embeddings.word_embeddings.weight[token]
        row = row + embeddings.position_embeddings.weight[position]
        row = row + embeddings.token_type_embeddings.weight[types[position] if types else 0]
        rows.append(normalized(row, embeddings.LayerNorm))
    return rows


def attended(
    queries: list[Tensor], keys: list[Tensor], values: list[Tensor], visible: list[list[int]], *, heads: int
) -> list[Tensor]:
    """Scaled dot-product attention, a head and a row at a time; what comes back is a vector (width,) per query."""
    size = queries[0].shape[0] // heads
    rows = []
    for query, seen in zip(queries, visible, strict=True):
        parts = []
        for head in range(heads):
            at = slice(head * size, (head + 1) * size)
            scores = torch.stack([keys[position][at] for position in seen]) @ query[at] / size**0.5
            parts.append(torch.softmax(scores, dim=0) @ torch.stack([values[position][at] for position in seen]))
        rows.append(torch.cat(parts))
    return rows


def bert_layer(layer: BertLayer, rows: list[Tensor], context: list[Tensor], visible: list[list[int]]) -> list[Tensor]:
    """One layer of BERT: rows ask, `context` gives keys and values, the rows are what the residual adds."""
    attention = layer.attention
    mixed = attended(
        [attention.self.query(row) for row in rows],
        [attention.self.key(row) for row in context],
        [attention.self.value(row) for row in context],
        visible,
        heads=attention.self.num_attention_heads,
    )
    output = []
    for row, mix in zip(rows, mixed, strict=True):
        middle = normalized(attention.output.dense(mix) + row, attention.output.LayerNorm)
        wide = layer.intermediate.intermediate_act_fn(layer.intermediate.dense(middle))
        output.append(normalized(layer.output.dense(wide) + middle, layer.output.LayerNorm))
    return output


def gpt2_block(block: GPT2Block, rows: list[Tensor], visible: list[list[int]]) -> list[Tensor]:
    """One block of GPT-2: it normalizes before attention and before the two linear layers, not after them."""
    attention = block.attn
    asked, keys, values = [], [], []
    for row in rows:
        three = normalized(row, block.ln_1) @ attention.c_attn.weight + attention.c_attn.bias
        query, key, value = three.split(row.shape[0])
        asked.append(query)
        keys.append(key)
        values.append(value)
    mixed = attended(asked, keys, values, visible, heads=attention.num_heads)
    output = []
    for row, mix in zip(rows, mixed, strict=True):
        middle = row + mix @ attention.c_proj.weight + attention.c_proj.bias
        wide = block.mlp.act(normalized(middle, block.ln_2) @ block.mlp.c_fc.weight + block.mlp.c_fc.bias)
        output.append(middle + wide @ block.mlp.c_proj.weight + block.mlp.c_proj.bias)
    return output


def through(layers: list[nn.Module], rows: list[Tensor], visible: list[list[int]] | None = None) -> list[Tensor]:
    """The rows after the layers, each a BertLayer, a GPT2Block or nn.Identity; every row sees every row by default."""
    seen = visible or [list(range(len(rows)))] * len(rows)
    for layer in layers:
        if isinstance(layer, BertLayer):
            rows = bert_layer(layer, rows, rows, seen)
        elif isinstance(layer, GPT2Block):
            rows = gpt2_block(layer, rows, seen)
        elif not isinstance(layer, nn.Identity):
            raise TypeError(f"no reference for a layer of type {type(layer).__name__}")
    return rows


def hidden_states(bert: BertModel, ids: list[int], types: list[int]) -> list[list[Tensor]]:
    """hidden[0] is the output of the embeddings, hidden[k] of layer k; each a vector (width,) per position."""
    states = [embedded(bert.embeddings, ids, types)]
    for layer in bert.encoder.layer:
        states.append(through([layer], states[-1]))
    return states


def vocabulary_logits(model: BertForMaskedLM, row: Tensor) -> Tensor:
    """The masked-LM head on one vector: dense, GELU, LayerNorm, product with the word embeddings, bias; (vocabulary,)."""
    head = model.cls.predictions
    row = normalized(head.transform.transform_act_fn(head.transform.dense(row)), head.transform.LayerNorm)
    return head.decoder.weight @ row + head.decoder.bias


def predicted(model: BertForMaskedLM, rows: list[Tensor], text: Text, positions: list[int]) -> list[Tensor]:
    """Losses of the original tokens at the positions, from the rows at the same positions; a () each."""
    return [token_loss(vocabulary_logits(model, rows[position]), text.original[position]) for position in positions]


def behind(cls: Tensor, embeddings: BertEmbeddings, text: Text) -> list[Tensor]:
    """What a decoder reads: the CLS vector as it is, then the embeddings of the text from position 1 on."""
    return [cls, *embedded(embeddings, text.inputs, text.types)[1:]]

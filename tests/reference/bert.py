"""BERT for one text, position by position, with the weights of a transformers model and none of its code.

visible: for every query position, the positions of the context that it can attend to
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import BertForMaskedLM, BertModel
from transformers.models.bert.modeling_bert import BertEmbeddings, BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from tests.reference.means import token_loss
from tests.reference.text import Text


def apply_layer_norm(row: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return the LayerNorm of one vector, (width,)."""
    centered = row - row.mean()
    return centered / torch.sqrt((centered * centered).mean() + norm.eps) * norm.weight + norm.bias


def embed(embeddings: BertEmbeddings, ids: list[int], types: list[int]) -> list[Tensor]:
    """Return the normalized sum of word, position and segment embedding for each position, (width,) each."""
    rows = []
    for position, token in enumerate(ids):
        row = embeddings.word_embeddings.weight[token]
        row = row + embeddings.position_embeddings.weight[position]
        row = row + embeddings.token_type_embeddings.weight[types[position] if types else 0]
        rows.append(apply_layer_norm(row, embeddings.LayerNorm))
    return rows


def attend(
    queries: list[Tensor], keys: list[Tensor], values: list[Tensor], visible: list[list[int]], *, heads: int
) -> list[Tensor]:
    """Compute scaled dot-product attention, one head and one query at a time; return a vector (width,) per query."""
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


def apply_bert_layer(
    layer: BertLayer, rows: list[Tensor], context: list[Tensor], visible: list[list[int]]
) -> list[Tensor]:
    """Compute one BERT layer: queries and residuals are from `rows`, keys and values from `context`."""
    attention = layer.attention
    mixed = attend(
        [attention.self.query(row) for row in rows],
        [attention.self.key(row) for row in context],
        [attention.self.value(row) for row in context],
        visible,
        heads=attention.self.num_attention_heads,
    )
    output = []
    for row, mix in zip(rows, mixed, strict=True):
        middle = apply_layer_norm(attention.output.dense(mix) + row, attention.output.LayerNorm)
        wide = layer.intermediate.intermediate_act_fn(layer.intermediate.dense(middle))
        output.append(apply_layer_norm(layer.output.dense(wide) + middle, layer.output.LayerNorm))
    return output


def apply_gpt2_block(block: GPT2Block, rows: list[Tensor], visible: list[list[int]]) -> list[Tensor]:
    """Compute one GPT-2 block, with LayerNorm before attention and MLP."""
    attention = block.attn
    asked, keys, values = [], [], []
    for row in rows:
        three = apply_layer_norm(row, block.ln_1) @ attention.c_attn.weight + attention.c_attn.bias
        query, key, value = three.split(row.shape[0])
        asked.append(query)
        keys.append(key)
        values.append(value)
    mixed = attend(asked, keys, values, visible, heads=attention.num_heads)
    output = []
    for row, mix in zip(rows, mixed, strict=True):
        middle = row + mix @ attention.c_proj.weight + attention.c_proj.bias
        wide = block.mlp.act(apply_layer_norm(middle, block.ln_2) @ block.mlp.c_fc.weight + block.mlp.c_fc.bias)
        output.append(middle + wide @ block.mlp.c_proj.weight + block.mlp.c_proj.bias)
    return output


def apply_layers(layers: list[nn.Module], rows: list[Tensor], visible: list[list[int]] | None = None) -> list[Tensor]:
    """Apply layers (BertLayer, GPT2Block or nn.Identity) to rows; by default, every row attends to all rows."""
    seen = visible or [list(range(len(rows)))] * len(rows)
    for layer in layers:
        if isinstance(layer, BertLayer):
            rows = apply_bert_layer(layer, rows, rows, seen)
        elif isinstance(layer, GPT2Block):
            rows = apply_gpt2_block(layer, rows, seen)
        elif not isinstance(layer, nn.Identity):
            raise TypeError(f"no reference for a layer of type {type(layer).__name__}")
    return rows


def hidden_states(bert: BertModel, ids: list[int], types: list[int]) -> list[list[Tensor]]:
    """Return the hidden states, one vector (width,) per position: hidden[0] of the embeddings, hidden[k] of layer k."""
    states = [embed(bert.embeddings, ids, types)]
    for layer in bert.encoder.layer:
        states.append(apply_layers([layer], states[-1]))
    return states


def vocabulary_logits(model: BertForMaskedLM, row: Tensor) -> Tensor:
    """Apply the masked-LM head to one vector; return the logits, (vocabulary,)."""
    head = model.cls.predictions
    row = apply_layer_norm(head.transform.transform_act_fn(head.transform.dense(row)), head.transform.LayerNorm)
    return head.decoder.weight @ row + head.decoder.bias


def token_losses(model: BertForMaskedLM, rows: list[Tensor], text: Text, positions: list[int]) -> list[Tensor]:
    """Return the masked-LM losses of the original tokens at the positions, computed from `rows`; a scalar each."""
    return [token_loss(vocabulary_logits(model, rows[position]), text.original[position]) for position in positions]


def build_decoder_input(cls: Tensor, embeddings: BertEmbeddings, text: Text) -> list[Tensor]:
    """Return the decoder input: the CLS vector, and the embeddings of the text from position 1."""
    return [cls, *embed(embeddings, text.inputs, text.types)[1:]]

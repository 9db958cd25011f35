"""BERT for one text, without padding, with the weights of a transformers model and none of its code.

visible: for every query position, the positions of the context that it can attend to
"""

import torch
from torch import Tensor, nn
from transformers import BertForMaskedLM, BertModel
from transformers.models.bert.modeling_bert import BertEmbeddings, BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from tests.reference.means import token_loss
from tests.reference.text import Text


def apply_layer_norm(rows: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return the LayerNorm of vectors, (…, width)."""
    centered = rows - rows.mean(-1, keepdim=True)
    return centered / torch.sqrt((centered * centered).mean(-1, keepdim=True) + norm.eps) * norm.weight + norm.bias


def embed(embeddings: BertEmbeddings, ids: list[int], types: list[int]) -> list[Tensor]:
    """Return the normalized sum of word, position and segment embedding for each position, (width,) each."""
    rows = embeddings.word_embeddings.weight[ids] + embeddings.position_embeddings.weight[: len(ids)]
    rows = rows + embeddings.token_type_embeddings.weight[types or [0] * len(ids)]
    return list(apply_layer_norm(rows, embeddings.LayerNorm))


def attend(queries: Tensor, keys: Tensor, values: Tensor, visible: list[list[int]], *, heads: int) -> Tensor:
    """Compute scaled dot-product attention, one head at a time. Arguments and result: (positions, width)"""
    size = queries.shape[1] // heads
    hidden = torch.full((len(queries), len(keys)), -torch.inf, dtype=queries.dtype)
    for query, seen in enumerate(visible):
        hidden[query, seen] = 0.0
    parts = []
    for head in range(heads):
        at = slice(head * size, (head + 1) * size)
        scores = queries[:, at] @ keys[:, at].T / size**0.5
        parts.append(torch.softmax(scores + hidden, dim=1) @ values[:, at])
    return torch.cat(parts, dim=1)


def apply_bert_layer(
    layer: BertLayer, rows: list[Tensor], context: list[Tensor], visible: list[list[int]]
) -> list[Tensor]:
    """Compute one BERT layer: queries and residuals are from `rows`, keys and values from `context`."""
    attention, asked, given = layer.attention, torch.stack(rows), torch.stack(context)
    mixed = attend(
        attention.self.query(asked),
        attention.self.key(given),
        attention.self.value(given),
        visible,
        heads=attention.self.num_attention_heads,
    )
    middle = apply_layer_norm(attention.output.dense(mixed) + asked, attention.output.LayerNorm)
    wide = layer.intermediate.intermediate_act_fn(layer.intermediate.dense(middle))
    return list(apply_layer_norm(layer.output.dense(wide) + middle, layer.output.LayerNorm))


def apply_gpt2_block(block: GPT2Block, rows: list[Tensor], visible: list[list[int]]) -> list[Tensor]:
    """Compute one GPT-2 block, with LayerNorm before attention and MLP."""
    attention, before = block.attn, torch.stack(rows)
    three = apply_layer_norm(before, block.ln_1) @ attention.c_attn.weight + attention.c_attn.bias
    mixed = attend(*three.split(before.shape[1], dim=1), visible, heads=attention.num_heads)
    middle = before + mixed @ attention.c_proj.weight + attention.c_proj.bias
    wide = block.mlp.act(apply_layer_norm(middle, block.ln_2) @ block.mlp.c_fc.weight + block.mlp.c_fc.bias)
    return list(middle + wide @ block.mlp.c_proj.weight + block.mlp.c_proj.bias)


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

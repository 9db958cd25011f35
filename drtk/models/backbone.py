"""One interface to the parts of BERT-like encoders: embeddings, layers, masks, and new layers of the same kind."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drtk.errors import MismatchError

FAMILIES = ("bert", "roberta", "xlm-roberta", "electra", "distilbert", "modernbert")


def build_token_type_inputs(backbone: Any, types: Tensor | None) -> dict[str, Tensor]:
    """Return {"token_type_ids": types} for a model with several token types, otherwise {}."""
    has_types = getattr(backbone.config, "type_vocab_size", 0) > 1
    return {"token_type_ids": types} if has_types and types is not None else {}


class BackboneAdapter:
    """Run an encoder layer by layer.

    It has no parameters and is no module, so that a module with an adapter does not own the encoder.
    Raises MismatchError for a family that is not in FAMILIES.
    """

    def __init__(self, backbone: nn.Module) -> None:
        self.backbone: Any = backbone
        config: Any = self.backbone.config
        self.config = config
        self.family = str(config.model_type)
        if self.family not in FAMILIES:
            raise MismatchError(f"cannot pre-train an encoder of type {self.family}; supported: {', '.join(FAMILIES)}")
        self.hidden_size = int(config.hidden_size)
        self.has_positions = self.family != "modernbert"  # which rotates queries and keys instead of adding vectors

    @property
    def layers(self) -> nn.ModuleList:
        """The encoder's own layers, first to last."""
        path = {"distilbert": "transformer.layer", "modernbert": "layers"}.get(self.family, "encoder.layer")
        layers: nn.ModuleList = self.backbone.get_submodule(path)
        return layers

    @property
    def depth(self) -> int:
        """The number of layers."""
        return len(self.layers)

    def embed(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        """Return the input of the first layer, (B, L, H). ids, types: (B, L); without types all are 0"""
        return self._project(self.backbone.embeddings(input_ids=ids, **build_token_type_inputs(self.backbone, types)))

    def embed_words(self, ids: Tensor) -> Tensor:
        """Return the word embeddings of ids (B, L) without positions, (B, L, H)."""
        return self._project(self.backbone.get_input_embeddings()(ids), bias=False)

    def embed_positions(self, length: int) -> Tensor:
        """Return the embeddings of the first `length` positions, (length, H).

        Raises MismatchError if there are fewer, or none.
        """
        if not self.has_positions:
            raise MismatchError(f"an encoder of type {self.family} has no position vectors")
        table = self.backbone.embeddings.position_embeddings.weight
        # RoBERTa numbers positions from the one after the id of its padding token.
        begin = self.config.pad_token_id + 1 if self.family in ("roberta", "xlm-roberta") else 0
        if begin + length > len(table):
            raise MismatchError(f"the encoder has {len(table) - begin} positions; {length} were requested")
        return self._project(table[begin : begin + length], bias=False)

    def _project(self, vectors: Tensor, *, bias: bool = True) -> Tensor:
        """Project ELECTRA's embeddings to the hidden size; other families need no projection."""
        projection = getattr(self.backbone, "embeddings_project", None)
        if projection is None:
            return vectors
        return projection(vectors) if bias else F.linear(vectors, projection.weight)

    def build_attention_mask(self, attention: Tensor) -> Any:
        """Return the attention mask that the layers take.

        attention: (B, L), 1 at tokens and 0 at padding; or (B, L, L), True if the row attends to the column. Each row must
        attend to a position. Raises MismatchError if the attention implementation does not support a mask per row.
        """
        if attention.dim() == 3:
            return self._build_row_mask(attention.bool())
        from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask

        like = torch.empty((*attention.shape, 0), dtype=self.backbone.dtype, device=attention.device)
        given: dict[str, Any] = {"config": self.config, "inputs_embeds": like, "attention_mask": attention}
        if self.family != "modernbert":
            return create_bidirectional_mask(**given)
        return {
            "full_attention": create_bidirectional_mask(**given),
            "sliding_attention": create_bidirectional_sliding_window_mask(**given),
        }

    def _build_row_mask(self, seen: Tensor) -> Any:
        """(B, L, L) to (B, 1, L, L): booleans for sdpa, numbers added to the scores for eager attention."""
        kind = self.config._attn_implementation
        if kind not in ("sdpa", "eager"):
            raise MismatchError(f"{kind} attention has no mask per row; load the encoder with sdpa")

        def convert(seen: Tensor) -> Tensor:
            if kind == "sdpa":
                return seen
            lowest = torch.finfo(self.backbone.dtype).min
            return torch.zeros_like(seen, dtype=self.backbone.dtype).masked_fill(~seen, lowest)

        seen = seen.unsqueeze(1)
        if self.family != "modernbert":
            return convert(seen)
        position = torch.arange(seen.shape[-1], device=seen.device)
        near = (position.unsqueeze(0) - position.unsqueeze(1)).abs() <= self.config.sliding_window
        return {"full_attention": convert(seen), "sliding_attention": convert(seen & near)}

    def run_layers(self, layers: Iterable[nn.Module], hidden: Tensor, mask: Any) -> list[Tensor]:
        """Return the states after each of `layers`, which are of this encoder's kind, (B, L, H) each.

        hidden: (B, L, H)    mask: from `build_attention_mask`
        """
        states = []
        rotations: dict[str, tuple[Tensor, Tensor]] = {}
        for layer in layers:
            if self.family == "modernbert":
                kind = str(getattr(layer, "attention_type", "full_attention"))
                if kind not in rotations:
                    positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
                    rotations[kind] = self.backbone.rotary_emb(hidden, positions, kind)
                hidden = layer(hidden, attention_mask=mask[kind], position_embeddings=rotations[kind])
            else:
                hidden = layer(hidden, mask)
            states.append(hidden)
        return states

    def apply_final_norm(self, hidden: Tensor) -> Tensor:
        """Apply the encoder's final norm, if it has one, to the last states, (B, L, H)."""
        return self.backbone.final_norm(hidden) if self.family == "modernbert" else hidden

    def encode(self, ids: Tensor, attention: Tensor, types: Tensor | None = None) -> list[Tensor]:
        """Return the embeddings and the states after each layer, 1 + depth tensors (B, L, H), as `output_hidden_states` does.

        ids, attention, types: (B, L)
        """
        hidden = self.embed(ids, types)
        states = [hidden, *self.run_layers(self.layers, hidden, self.build_attention_mask(attention))]
        states[-1] = self.apply_final_norm(states[-1])
        return states

    def create_layers(self, count: int, init: str = "random") -> nn.ModuleList:
        """Return new layers of this encoder's kind.

        init: "random", initialized as the configuration says (normal, .02) with torch's generator, or "copy" of the last layers
        Raises MismatchError if there are fewer layers to copy.
        """
        if init == "copy":
            if count > self.depth:
                raise MismatchError(f"the encoder has {self.depth} layers; copies of its last {count} were requested")
            return nn.ModuleList([deepcopy(layer) for layer in [*self.layers][self.depth - count :]])
        with torch.device(self.backbone.device):
            layers = nn.ModuleList([self._create_layer() for _ in range(count)])
        with torch.no_grad():
            layers.apply(self.backbone._init_weights)
        return layers.to(self.backbone.dtype)

    def _create_layer(self) -> nn.Module:
        kind: Any = type(self.layers[-1])
        if self.family == "distilbert":
            return kind(self.config)
        if self.family != "modernbert":
            return kind(self.config, layer_idx=0)
        # ModernBERT's layer 0 has no norm before attention, so this one is layer 1; it uses full attention.
        config = deepcopy(self.config)
        wide = "full_attention" if "full_attention" in config.layer_types else config.layer_types[-1]
        config.layer_types = [wide] * self.depth
        return kind(config, layer_idx=min(1, self.depth - 1))

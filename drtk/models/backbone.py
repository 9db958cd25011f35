"""A common interface to the embeddings, layers and attention masks of BERT-like encoders."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.packing import Packing, is_packed

FAMILIES = ("bert", "roberta", "xlm-roberta", "electra", "distilbert", "modernbert")


def build_token_type_inputs(backbone: Any, types: Tensor | None) -> dict[str, Tensor]:
    """Return the model inputs {"token_type_ids": types}; {} if `types` is None or the model has at most one type."""
    has_types = getattr(backbone.config, "type_vocab_size", 0) > 1
    return {"token_type_ids": types} if has_types and types is not None else {}


class BackboneAdapter:
    """Adapter that runs an encoder layer by layer, and creates new layers of the same type.

    An adapter is not an nn.Module, so a module with an adapter as attribute does not register the encoder's parameters.
    Raises MismatchError for a model type that is not in FAMILIES.
    """

    def __init__(self, backbone: nn.Module) -> None:
        self.backbone: Any = backbone
        config: Any = self.backbone.config
        self.config = config
        self.family = str(config.model_type)
        if self.family not in FAMILIES:
            raise MismatchError(
                f"cannot pre-train an encoder of type {self.family}; use one of type {', '.join(FAMILIES)}"
            )
        self.hidden_size = int(config.hidden_size)
        self.has_positions = self.family != "modernbert"  # ModernBERT uses rotary embeddings

    @property
    def layers(self) -> nn.ModuleList:
        """The encoder's layers, first to last."""
        path = {"distilbert": "transformer.layer", "modernbert": "layers"}.get(self.family, "encoder.layer")
        return self.backbone.get_submodule(path)

    @property
    def depth(self) -> int:
        """The number of layers."""
        return len(self.layers)

    def embed(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        """Return the embeddings, the input of the first layer, (B, L, H). ids, types: (B, L); `types` None: all 0"""
        return self._project_embeddings(
            self.backbone.embeddings(input_ids=ids, **build_token_type_inputs(self.backbone, types))
        )

    def embed_positions(self, length: int) -> Tensor:
        """Return the position embeddings of the first `length` positions, (length, H). Requires `has_positions`."""
        table = self.backbone.embeddings.position_embeddings.weight
        # RoBERTa's first position is the one after the id of its padding token
        begin = self.config.pad_token_id + 1 if self.family in ("roberta", "xlm-roberta") else 0
        return self._project_embeddings(table[begin : begin + length], bias=False)

    def _project_embeddings(self, vectors: Tensor, *, bias: bool = True) -> Tensor:
        """Project embeddings to the hidden size, for ELECTRA models with smaller embeddings; else return them unchanged."""
        projection = getattr(self.backbone, "embeddings_project", None)
        if projection is None:
            return vectors
        return projection(vectors) if bias else F.linear(vectors, projection.weight)

    def build_attention_mask(self, attention: Tensor) -> Any:
        """Convert an attention mask to the form that the layers expect. attention: (B, L), 1 at tokens, 0 at padding"""
        if is_packed(self.backbone):
            return Packing.from_mask(attention)
        from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask

        like = torch.empty((*attention.shape, 0), dtype=self.backbone.dtype, device=attention.device)
        arguments: dict[str, Any] = {"config": self.config, "inputs_embeds": like, "attention_mask": attention}
        if self.family != "modernbert":
            return create_bidirectional_mask(**arguments)
        return {
            "full_attention": create_bidirectional_mask(**arguments),
            "sliding_attention": create_bidirectional_sliding_window_mask(**arguments),
        }

    def run_layers(self, layers: Iterable[nn.Module], hidden: Tensor, mask: Any) -> list[Tensor]:
        """Return the hidden states after each layer, (B, L, H) each.

        layers: layers of this encoder's type    hidden: (B, L, H), input of the first layer
        mask: result of `build_attention_mask`
        """
        if isinstance(mask, Packing):  # without padding
            packed = self._run_layers(layers, mask.pack(hidden), None, mask.positions, packing=mask)
            return [mask.pad(states) for states in packed]
        return self._run_layers(layers, hidden, mask, torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0))

    def _run_layers(
        self, layers: Iterable[nn.Module], hidden: Tensor, mask: Any, positions: Tensor, **options: Packing
    ) -> list[Tensor]:
        states = []
        rotations: dict[str, tuple[Tensor, Tensor]] = {}
        for layer in layers:
            if self.family == "modernbert":
                attention_type = str(getattr(layer, "attention_type", "full_attention"))
                if attention_type not in rotations:
                    rotations[attention_type] = self.backbone.rotary_emb(hidden, positions, attention_type)
                layer_mask = mask and mask[attention_type]
                hidden = layer(
                    hidden, attention_mask=layer_mask, position_embeddings=rotations[attention_type], **options
                )
            else:
                hidden = layer(hidden, mask, **options)
            states.append(hidden)
        return states

    def apply_final_norm(self, hidden: Tensor) -> Tensor:
        """Return the last hidden states, (B, L, H), after the encoder's final norm, if it has one (ModernBERT)."""
        return self.backbone.final_norm(hidden) if self.family == "modernbert" else hidden

    def encode(self, ids: Tensor, attention: Tensor, types: Tensor | None = None) -> list[Tensor]:
        """Return the embeddings and the hidden states after each layer, 1 + depth tensors of (B, L, H).

        Equals `hidden_states` of transformers with `output_hidden_states=True`.
        ids, types: (B, L)    attention: (B, L), 1 at tokens, 0 at padding
        """
        hidden = self.embed(ids, types)
        states = [hidden, *self.run_layers(self.layers, hidden, self.build_attention_mask(attention))]
        states[-1] = self.apply_final_norm(states[-1])
        return states

    def create_layers(self, count: int, init: str = "random") -> nn.ModuleList:
        """Return `count` new layers of this encoder's type.

        init: "random" (the initialization of the model class) or "copy" (copies of the encoder's last `count` layers)
        Raises MismatchError for "copy" if the encoder has fewer than `count` layers.
        """
        if init == "copy":
            if count > self.depth:
                raise MismatchError(f"cannot copy {count} layers of an encoder with {self.depth} layers; use fewer")
            return nn.ModuleList([deepcopy(layer) for layer in [*self.layers][self.depth - count :]])
        with torch.device(self.backbone.device):
            layers = nn.ModuleList([self._create_layer() for _ in range(count)])
        with torch.no_grad():
            layers.apply(self.backbone._init_weights)
        return layers.to(self.backbone.dtype)

    def _create_layer(self) -> nn.Module:
        layer_class: Any = type(self.layers[-1])
        if self.family == "distilbert":
            return layer_class(self.config)
        if self.family != "modernbert":
            return layer_class(self.config, layer_idx=0)
        # ModernBERT's layer 0 has no norm before attention, so create layer 1, with full attention
        config = deepcopy(self.config)
        attention = "full_attention" if "full_attention" in config.layer_types else config.layer_types[-1]
        config.layer_types = [attention] * self.depth
        return layer_class(config, layer_idx=min(1, self.depth - 1))

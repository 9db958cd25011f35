"""The parts of an encoder, by the same names for every family: embeddings, layers, masks, and new layers of its kind."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drtk.errors import MismatchError

_BERT_LIKE = ("bert", "roberta", "xlm-roberta", "electra")
FAMILIES = (*_BERT_LIKE, "distilbert", "modernbert")


def token_type_inputs(backbone: Any, types: Tensor | None) -> dict[str, Tensor]:
    """Return {"token_type_ids": types} for a model with several token types; {} otherwise."""
    has_types = getattr(backbone.config, "type_vocab_size", 0) > 1
    return {"token_type_ids": types} if has_types and types is not None else {}


class BackboneAdapter:
    """An encoder taken apart: what is read may enter at any layer, and leave at any.

    It holds the encoder and no parameters of its own, and is no module: whoever keeps one does not own the encoder.
    Raises MismatchError for a family whose parts are not known here.
    """

    def __init__(self, backbone: nn.Module) -> None:
        self.backbone: Any = backbone
        config: Any = self.backbone.config
        self.config = config
        self.family = str(config.model_type)
        if self.family not in FAMILIES:
            raise MismatchError(
                f"an encoder of type {self.family} cannot be taken apart; those that can: {', '.join(FAMILIES)}"
            )
        self.hidden_size = int(config.hidden_size)
        self.has_positions = self.family != "modernbert"  # which turns queries and keys instead of adding vectors

    @property
    def layers(self) -> nn.ModuleList:
        """The encoder's own layers, first to last."""
        place = {"distilbert": "transformer.layer", "modernbert": "layers"}.get(self.family, "encoder.layer")
        found: nn.ModuleList = self.backbone.get_submodule(place)
        return found

    @property
    def depth(self) -> int:
        """The number of layers."""
        return len(self.layers)

    def embed(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        """What enters the first layer: words, positions and types, normed and with dropout; electra's made as wide as its layers.

        ids, types: (B, L); without types all are 0    returns: (B, L, H)
        """
        return self._widened(self.backbone.embeddings(input_ids=ids, **token_type_inputs(self.backbone, types)))

    def words(self, ids: Tensor) -> Tensor:
        """Word vectors as the table has them, no position added. ids: (B, L); returns: (B, L, H)"""
        return self._widened(self.backbone.get_input_embeddings()(ids), bias=False)

    def positions(self, length: int) -> Tensor:
        """Position vectors as the table has them, of the first `length` positions, (length, H).

        Raises MismatchError where positions are not vectors, or there are fewer.
        """
        if not self.has_positions:
            raise MismatchError(f"an encoder of type {self.family} has no position vectors")
        table = self.backbone.embeddings.position_embeddings.weight
        # RoBERTa numbers positions from the one after the number of its padding token.
        begin = self.config.pad_token_id + 1 if self.family in ("roberta", "xlm-roberta") else 0
        if begin + length > len(table):
            raise MismatchError(f"the encoder has {len(table) - begin} positions; {length} were asked for")
        return self._widened(table[begin : begin + length], bias=False)

    def _widened(self, vectors: Tensor, *, bias: bool = True) -> Tensor:
        projection = getattr(self.backbone, "embeddings_project", None)  # electra's, where its embeddings are narrower
        if projection is None:
            return vectors
        return projection(vectors) if bias else F.linear(vectors, projection.weight)

    def mask(self, attention: Tensor) -> Any:
        """What the layers want for a mask.

        attention: (B, L), 1 at tokens and 0 at padding; or (B, L, L), True where the row may look at the column. Each row
        must see one place at least. Raises MismatchError where the implementation of attention knows no masks of the latter kind.
        """
        if attention.dim() == 3:
            return self._mask_of_rows(attention.bool())
        from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask

        like = torch.empty((*attention.shape, 0), dtype=self.backbone.dtype, device=attention.device)
        given: dict[str, Any] = {"config": self.config, "inputs_embeds": like, "attention_mask": attention}
        if self.family != "modernbert":
            return create_bidirectional_mask(**given)
        makers = {
            "full_attention": create_bidirectional_mask,
            "sliding_attention": create_bidirectional_sliding_window_mask,
        }
        return {kind: make(**given) for kind, make in makers.items()}

    def _mask_of_rows(self, seen: Tensor) -> Any:
        """seen: (B, L, L) bool; returns: (B, 1, L, L), bool or what is added to the scores"""
        kind = self.config._attn_implementation
        if kind not in ("sdpa", "eager"):
            raise MismatchError(f"attention by {kind} knows no mask for every row; load the encoder with sdpa")
        seen = seen.unsqueeze(1)
        if self.family != "modernbert":
            return self._as_wanted(seen)
        place = torch.arange(seen.shape[-1], device=seen.device)
        near = (place.unsqueeze(0) - place.unsqueeze(1)).abs() <= self.config.sliding_window
        return {"full_attention": self._as_wanted(seen), "sliding_attention": self._as_wanted(seen & near)}

    def _as_wanted(self, seen: Tensor) -> Tensor:
        if self.config._attn_implementation == "sdpa":
            return seen
        lowest = torch.finfo(self.backbone.dtype).min
        return torch.zeros_like(seen, dtype=self.backbone.dtype).masked_fill(~seen, lowest)

    def run(self, layers: Iterable[nn.Module], hidden: Tensor, mask: Any) -> list[Tensor]:
        """The states after each of `layers`, which are of this encoder's kind.

        hidden: (B, L, H)    mask: what `mask` gave    returns: a list of (B, L, H)
        """
        states = []
        turns: dict[str, tuple[Tensor, Tensor]] = {}
        for layer in layers:
            if self.family == "modernbert":
                kind = str(getattr(layer, "attention_type", "full_attention"))
                if kind not in turns:
                    places = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
                    turns[kind] = self.backbone.rotary_emb(hidden, places, kind)
                hidden = layer(hidden, attention_mask=mask[kind], position_embeddings=turns[kind])
            else:
                hidden = layer(hidden, mask)
            states.append(hidden)
        return states

    def finish(self, hidden: Tensor) -> Tensor:
        """What a head reads: the last states, through the encoder's final norm where it has one. (B, L, H) to (B, L, H)"""
        return self.backbone.final_norm(hidden) if self.family == "modernbert" else hidden

    def encode(self, ids: Tensor, attention: Tensor, types: Tensor | None = None) -> list[Tensor]:
        """All states of a reading: what enters the first layer, then what leaves each; the last one finished.

        ids, attention, types: (B, L)    returns: 1 + depth tensors (B, L, H), those of `output_hidden_states=True`
        """
        hidden = self.embed(ids, types)
        states = [hidden, *self.run(self.layers, hidden, self.mask(attention))]
        states[-1] = self.finish(states[-1])
        return states

    def fresh(self, count: int) -> nn.ModuleList:
        """`count` new layers of this encoder's kind, drawn as its configuration says (normal, .02) from torch's generator."""
        with torch.device(self.backbone.device):
            made = nn.ModuleList([self._new_layer() for _ in range(count)])
        with torch.no_grad():
            made.apply(self.backbone._init_weights)
        return made.to(self.backbone.dtype)

    def _new_layer(self) -> nn.Module:
        kind: Any = type(self.layers[-1])
        if self.family == "distilbert":
            return kind(self.config)
        if self.family != "modernbert":
            return kind(self.config, layer_idx=0)
        # Layer 0 of ModernBERT has no norm of its own before attention, so ours is another; and it looks everywhere.
        config = deepcopy(self.config)
        wide = "full_attention" if "full_attention" in config.layer_types else config.layer_types[-1]
        config.layer_types = [wide] * self.depth
        return kind(config, layer_idx=1) if self.depth > 1 else kind(config, layer_idx=0)

    def copies(self, count: int) -> nn.ModuleList:
        """Copies of the encoder's last `count` layers. Raises MismatchError where it has fewer."""
        if count > self.depth:
            raise MismatchError(f"the encoder has {self.depth} layers; copies of its last {count} were asked for")
        return nn.ModuleList([deepcopy(layer) for layer in [*self.layers][self.depth - count :]])

    def new_layers(self, count: int, init: str) -> nn.ModuleList:
        """`fresh(count)` where `init` is "random", `copies(count)` where it is "copy"."""
        return {"random": self.fresh, "copy": self.copies}[init](count)

"""A text encoder: a transformer, a pooling, and the small layers after it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drtk.models.pooling import pool


class Dense(nn.Module):
    """A linear layer with an activation, as sentence-transformers stores it; `residual` adds the input (projected)."""

    def __init__(self, config: dict[str, Any], activation: nn.Module) -> None:
        super().__init__()
        self.config = config
        width, out = config["in_features"], config["out_features"]
        self.linear = nn.Linear(width, out, bias=config.get("bias", True))
        self.activation = activation
        self.use_residual = config.get("use_residual", False)
        if self.use_residual and width != out:
            self.residual = nn.Linear(width, out, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """vectors: (batch, in_features); returns: (batch, out_features)"""
        out = self.activation(self.linear(vectors))
        if self.use_residual:
            out = out + (self.residual(vectors) if hasattr(self, "residual") else vectors)
        return out


class Encoder(nn.Module):
    """Tokens to one vector a text.

    The layers after the backbone compute in float32 whatever the backbone's precision.
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        pooling: tuple[str, ...] = ("cls",),
        dense: list[Dense] | None = None,
        normalize: bool = False,
        truncate: int | None = None,
    ) -> None:
        super().__init__()
        self.backbone: Any = backbone
        self.dense = nn.ModuleList(dense or [])
        self.pooling, self.normalize, self.truncate = pooling, normalize, truncate
        for name, parameter in backbone.named_parameters():
            if "pooler" in name.split("."):  # the head of next-sentence prediction: kept, not used, not trained
                parameter.requires_grad_(False)

    @property
    def hidden(self) -> int:
        """Width of the backbone's token vectors."""
        config: Any = self.backbone.config
        return int(config.get_text_config().hidden_size)

    @property
    def dimension(self) -> int:
        """Width of the vectors."""
        last: Any = self.dense[-1] if len(self.dense) else None
        full = self.hidden * len(self.pooling) if last is None else int(last.config["out_features"])
        return min(full, self.truncate) if self.truncate else full

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None, prompt_length: int = 0
    ) -> Tensor:
        """The vectors, float32.

        input_ids, attention_mask, token_type_ids: (batch, tokens)
        prompt_length: tokens at the start that pooling leaves out
        returns: (batch, dimension)
        """
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **types).last_hidden_state
        with torch.autocast(hidden.device.type, enabled=False):
            vectors = pool(hidden, attention_mask, self.pooling, skip=prompt_length)
            for layer in self.dense:
                vectors = layer(vectors)
            vectors = vectors[:, : self.truncate]
            return F.normalize(vectors, dim=-1) if self.normalize else vectors  # what was cut must be of length 1, too

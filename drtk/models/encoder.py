"""A text encoder: transformer, pooling and dense layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drtk.models.config import SPARSE_POOLING

Grouping = Callable[[np.ndarray], Iterable[np.ndarray]]  # lengths (texts,) -> row indices of each group, longest first


def run_in_length_groups(
    run: Callable[[Mapping[str, Tensor]], Tensor], inputs: Mapping[str, Tensor], grouping: Grouping
) -> Tensor:
    """Call `run` on groups of texts of similar length, to save padding; return its results in the original order, (texts, …).

    run: function from model inputs to results, (texts, …)
    inputs: (texts, tokens) by name, including "attention_mask"; texts padded on the left are not grouped
    grouping: function from the lengths of texts, (texts,), to the text indices of each group, longest text first
    """
    mask = inputs["attention_mask"]
    lengths = mask.sum(dim=1)
    groups = [*grouping(lengths.numpy(force=True))] if bool(mask[:, 0].all()) else []
    if len(groups) < 2:
        return run(inputs)
    rows = [torch.from_numpy(group).to(mask.device) for group in groups]
    parts = [run({name: value[group, : int(lengths[group[0]])] for name, value in inputs.items()}) for group in rows]
    return torch.cat(parts)[torch.cat(rows).argsort()]


def pool(hidden: Tensor, mask: Tensor, modes: tuple[str, ...], *, skip: int = 0) -> Tensor:
    """Pool token vectors to one vector per text, (batch, hidden size * len(modes)) float32.

    hidden: (batch, tokens, hidden size)    mask: (batch, tokens), 1 at tokens, 0 at padding on either side
    modes: names from POOLINGS; with several, the vectors are concatenated
    skip: number of tokens at the start of each text to exclude, such as a prompt
    """
    hidden = hidden.float()
    included = _exclude_prompt(mask, skip)
    return torch.cat([_pool(mode, hidden, included, mask) for mode in modes], dim=-1)


def pool_splade(logits: Tensor, mask: Tensor, *, skip: int = 0) -> Tensor:
    """Return the term weights of each text, (batch, vocabulary) float32: the maximum over tokens of log(1 + ReLU(logit)).

    logits: (batch, tokens, vocabulary), overwritten at excluded tokens    mask, skip: as in `pool`
    The maximum is taken first, because log(1 + ReLU(x)) is monotonic; this saves memory. Source: SPLADE v2, section 3.1.
    """
    logits.masked_fill_(_exclude_prompt(mask, skip).unsqueeze(-1) == 0, float("-inf"))
    return logits.max(dim=1).values.float().relu().log1p()


def _exclude_prompt(mask: Tensor, skip: int) -> Tensor:
    """Return the mask without the first `skip` tokens of each text, (batch, tokens)."""
    if not skip:
        return mask
    position = torch.arange(mask.shape[1], device=mask.device).unsqueeze(0)
    return mask * (position >= _find_first_token(mask).unsqueeze(1) + skip)


def _find_first_token(mask: Tensor) -> Tensor:
    return mask.to(torch.int32).argmax(dim=1)


def _pool(mode: str, hidden: Tensor, included: Tensor, mask: Tensor) -> Tensor:
    """Return the pooled vectors, (batch, hidden size).

    included: (batch, tokens), 1 at tokens to pool    mask: (batch, tokens), 1 at all tokens, including excluded ones
    """
    texts = torch.arange(len(hidden), device=hidden.device)
    if mode == "cls":
        return hidden[texts, _find_first_token(included)]
    if mode == "lasttoken":
        return hidden[texts, included.shape[1] - 1 - _find_first_token(included.flip(1))]
    if mode == "max":
        return hidden.masked_fill(included.unsqueeze(-1) == 0, float("-inf")).amax(dim=1)
    weights = included.to(hidden.dtype)
    if mode == "weightedmean":  # by position, 1, 2, 3, …, counted from the first token, prompt included
        position = torch.arange(1, mask.shape[1] + 1, device=mask.device) - _find_first_token(mask).unsqueeze(1)
        weights = weights * position
    total = torch.bmm(weights.unsqueeze(1), hidden).squeeze(1)  # (batch, 1, tokens) @ (batch, tokens, hidden)
    count = weights.sum(dim=1, keepdim=True).clamp(min=1e-9)
    return total / (count.sqrt() if mode == "mean_sqrt_len_tokens" else count)


class Dense(nn.Module):
    """Dense module of sentence-transformers: a linear layer and an activation function.

    config: content of the module's config.json; with `use_residual`, the input is added to the output, after a
        projection if their sizes differ
    """

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
        """Return the output vectors, (batch, out_features). vectors: (batch, in_features)"""
        out = self.activation(self.linear(vectors))
        if self.use_residual:
            out = out + (self.residual(vectors) if hasattr(self, "residual") else vectors)
        return out


class Encoder(nn.Module):
    """Text encoder: transformer, pooling, dense layers and normalization.

    A sparse encoder (`SPARSE_POOLING`) returns a weight for each word piece of the vocabulary, without dense layers,
    truncation and normalization. Pooling and everything after it run in float32.
    truncate: number of dimensions to keep of each vector; None: all
    head: masked-LM head of a sparse encoder, an LMHead
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        pooling: tuple[str, ...],
        dense: list[Dense] | None = None,
        normalize: bool = False,
        truncate: int | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.backbone: Any = backbone
        self.head: Any = head
        self.dense = nn.ModuleList(dense or [])
        self.pooling, self.normalize, self.truncate = pooling, normalize, truncate
        for name, parameter in backbone.named_parameters():
            if "pooler" in name.split("."):  # saved with the model, but not used; DDP would wait for its gradient
                parameter.requires_grad_(False)

    @property
    def hidden_size(self) -> int:
        """The dimension of the backbone's token vectors."""
        config: Any = self.backbone.config
        return int(config.get_text_config().hidden_size)

    @property
    def is_sparse(self) -> bool:
        """Whether the vectors are term weights."""
        return self.pooling == SPARSE_POOLING

    @property
    def dimension(self) -> int:
        """The dimension of the text vectors; of a sparse encoder, the size of the vocabulary."""
        if self.is_sparse:
            return int(self.backbone.config.get_text_config().vocab_size)
        last: Any = self.dense[-1] if len(self.dense) else None
        full = self.hidden_size * len(self.pooling) if last is None else int(last.config["out_features"])
        return min(full, self.truncate) if self.truncate else full

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None, prompt_length: int = 0
    ) -> Tensor:
        """Return the vectors, (batch, dimension) float32.

        input_ids, attention_mask, token_type_ids: (batch, tokens)
        prompt_length: number of tokens at the start of each text that pooling excludes
        """
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **types).last_hidden_state
        if self.is_sparse:
            return pool_splade(self.head.compute_logits(hidden), attention_mask, skip=prompt_length)
        with torch.autocast(hidden.device.type, enabled=False):
            vectors = pool(hidden, attention_mask, self.pooling, skip=prompt_length)
            for layer in self.dense:
                vectors = layer(vectors)
            vectors = vectors[:, : self.truncate]
            return F.normalize(vectors, dim=-1) if self.normalize else vectors

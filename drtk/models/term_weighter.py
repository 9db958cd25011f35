"""Term weighting models: an encoder with a head that gives each token a number, the weight of the word it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drtk.errors import DrtkError, MismatchError
from drtk.models.checkpoint import (
    DEFAULT_MAX_LENGTH,
    TextEncoder,
    get_max_length,
    load_encoder,
    save_encoder,
    save_module,
)
from drtk.models.device import choose_device, choose_dtype
from drtk.models.lm_head import get_head_path, load_head
from drtk.models.model_folder import read_training_entry
from drtk.text.batching import TokenizedTexts, iter_batches_by_length

_CPU_TOKENS, _GPU_TOKENS = 4096, 131_072


class ImpactHead(nn.Module):
    """ReLU(w2 . Dropout(ReLU(W1 h)) + b): a number of 0 or more (DeepImpact; docs/methods/term-weights.md)."""

    def __init__(self, hidden: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.outer = nn.Linear(hidden, 1)
        nn.init.constant_(self.outer.bias, 1.0)  # a word of impact 0 has no gradient, and half of all would start there

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., hidden) to (..., 1)"""
        impacts: Tensor = self.outer(self.dropout(self.inner(hidden).relu())).relu()
        return impacts


class TermWeighter(nn.Module):
    """Compute a number for each token."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the weights, (batch, tokens), float32. Both inputs: (batch, tokens)"""
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        with torch.autocast(hidden.device.type, enabled=False):
            weights: Tensor = self.head(hidden.float()).squeeze(-1)
        return weights


@dataclass
class TermWeightModel:
    """A term weighting model with its tokenizer.

    folder: of the tokenizer
    facts: what the training determined, stored in meta.json: for deepimpact `expand` and `largest`
    first, last: special tokens around a text
    """

    method: str
    folder: Path
    encoder: TextEncoder
    module: TermWeighter
    facts: dict[str, Any]

    def __post_init__(self) -> None:
        tokenizer = self.encoder.tokenizer
        content = tokenizer("a", add_special_tokens=False)["input_ids"]
        whole = tokenizer("a")["input_ids"]
        begin = next(at for at in range(len(whole)) if whole[at : at + len(content)] == content)
        self.first, self.last = whole[:begin], whole[begin + len(content) :]
        self.pad = int(tokenizer.pad_token_id or 0)

    def room(self, length: int) -> int:
        """Return the word pieces that fit into an input of `length` tokens. Raises MismatchError above the longest input."""
        if length > self.longest:
            raise MismatchError(
                f"{self.folder}: the model reads at most {self.longest} tokens; {length} were requested"
            )
        return length - len(self.first) - len(self.last)

    @property
    def longest(self) -> int:
        """Tokens of the longest input."""
        config = self.encoder.encoder.backbone.config
        longest = get_max_length(self.encoder.tokenizer, config)
        return longest if getattr(config, "max_position_embeddings", None) else min(longest, DEFAULT_MAX_LENGTH)

    def tokens(self, texts: Sequence[Sequence[int]], *, room: int) -> TokenizedTexts:
        """Return inputs for texts given as word pieces, each truncated to `room`, with special tokens."""
        return TokenizedTexts.from_lists([[*self.first, *pieces[:room], *self.last] for pieces in texts], None)


def _build_term_weighter(
    folder: Path, method: str, facts: dict[str, Any], *, seed: int | None = None
) -> TermWeightModel:
    """Return the encoder of a folder with a new head: a linear layer (deepct), or an ImpactHead (deepimpact)."""
    encoder = load_encoder(folder, strict=False)
    if seed is not None:
        torch.manual_seed(seed)
    hidden = encoder.encoder.hidden
    head = nn.Linear(hidden, 1) if method == "deepct" else ImpactHead(hidden)
    return TermWeightModel(method, folder, encoder, TermWeighter(encoder.encoder.backbone, head), facts)


def init_term_weighter(model: Path, method: str, *, seed: int) -> TermWeightModel:
    """Return the encoder of a model folder with an untrained head, initialized with `seed`."""
    weighter = _build_term_weighter(model, method, {}, seed=seed)
    # the saved folder reads inputs of this length
    weighter.encoder.encoding = replace(weighter.encoder.encoding, passage_length=weighter.longest)
    return weighter


def read_training_facts(folder: Path, method: str) -> dict[str, Any]:
    """Return what the training determined, from meta.json of a folder.

    Raises MismatchError for a folder without a term weighting model, or with one of another method.
    """
    facts = read_training_entry(folder, "term_weights")
    if facts is None:
        raise MismatchError(f"{folder}: is no term weighting model; train one with `drtk termweight`")
    if facts.get("method") != method:
        raise MismatchError(f"{folder}: was trained with `method` {facts.get('method')}, not {method}")
    return facts


def load_term_weighter(folder: Path, method: str) -> TermWeightModel:
    """Load a trained model. Raises MismatchError for a folder without one, or with one of another method."""
    weighter = _build_term_weighter(folder, method, read_training_facts(folder, method))
    load_head(weighter.module.head, folder, method)
    weighter.module.eval()
    return weighter


def save_term_weighter(weighter: TermWeightModel, folder: Path) -> None:
    """Write the encoder's folder, which AutoModel loads, and the head separately. The caller writes meta.json."""
    save_encoder(weighter.encoder, folder)
    save_module(weighter.module.head, get_head_path(folder, weighter.method))


class TermWeightPredictor:
    """Compute a number for each word piece, in batches of similar length.

    max_length: tokens of an input; None: the longest input of the model
    """

    def __init__(
        self,
        weighter: TermWeightModel,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_length: int | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self._weighter = weighter
        self._device = choose_device(device)
        self._room = weighter.room(max_length or weighter.longest)
        self._budget = batch_tokens or (_CPU_TOKENS if self._device.type == "cpu" else _GPU_TOKENS)
        weighter.module.to(self._device).eval()
        weighter.module.backbone.to(choose_dtype(dtype, self._device, half="bfloat16"))  # the head stays float32

    @torch.inference_mode()
    def __call__(self, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Return a number for each word piece of each text, float32; 0 beyond the longest input."""
        weighter = self._weighter
        tokens = weighter.tokens(texts, room=self._room)
        weights = [np.zeros(len(pieces), dtype=np.float32) for pieces in texts]
        before = len(weighter.first)
        for rows in iter_batches_by_length(tokens.lengths, budget=self._budget):
            batch = {name: torch.from_numpy(array) for name, array in tokens.pad(rows, pad=weighter.pad).items()}
            try:
                values = weighter.module(**{name: value.to(self._device) for name, value in batch.items()})
            except torch.OutOfMemoryError as error:
                size = batch["input_ids"].numel()
                raise DrtkError(f"{self._device}: out of memory at {size:,} tokens; lower `batch_tokens`") from error
            for row, numbers in zip(rows, values.cpu().numpy(), strict=True):
                read = min(len(texts[row]), self._room)
                weights[row][:read] = numbers[before : before + read]
        return weights

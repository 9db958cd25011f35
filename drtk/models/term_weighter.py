"""Term weighting models (DeepCT, DeepImpact): an encoder with a head that predicts a weight per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.checkpoint import (
    DEFAULT_MAX_LENGTH,
    TextEncoder,
    get_max_length,
    get_max_training_length,
    load_encoder,
    save_encoder,
    save_module,
)
from drtk.models.device import choose_device, choose_dtype, copy_to_device, move_model, report_out_of_memory
from drtk.models.lm_head import get_head_path, load_head
from drtk.models.model_folder import read_meta_entry
from drtk.models.packing import enable_packing
from drtk.text.batching import TokenizedTexts, iter_batches_by_length

_CPU_TOKENS, _GPU_TOKENS = 4096, 131_072


class ImpactHead(nn.Module):
    """DeepImpact's head: impact = ReLU(w2 . Dropout(ReLU(W1 h + b1)) + b2) of a hidden state h.

    Source: docs/methods/term-weights.md
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(0.1)
        self.outer = nn.Linear(hidden, 1)
        nn.init.constant_(self.outer.bias, 1.0)  # ReLU has no gradient below 0, where half of the words would start

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the impacts, (…, 1), at least 0. hidden: (…, hidden size)"""
        return self.outer(self.dropout(self.inner(hidden).relu())).relu()


class TermWeighter(nn.Module):
    """An encoder with a head that predicts a weight for each token."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the weights, (batch, tokens) float32. Both inputs: (batch, tokens)"""
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        with torch.autocast(hidden.device.type, enabled=False):
            weights: Tensor = self.head(hidden.float()).squeeze(-1)
        return weights


@dataclass
class TermWeightModel:
    """A term weighting model with its encoder and tokenizer.

    method: "deepct" or "deepimpact"
    folder: folder of the tokenizer
    metadata: entry "term_weights" of meta.json, such as the largest impact of the training passages (`largest`)
    first, last: ids of the special tokens before and after a text
    """

    method: str
    folder: Path
    encoder: TextEncoder
    module: TermWeighter
    metadata: dict[str, Any]

    def __post_init__(self) -> None:
        tokenizer = self.encoder.tokenizer
        content = tokenizer("a", add_special_tokens=False)["input_ids"]
        whole = tokenizer("a")["input_ids"]
        begin = next(start for start in range(len(whole)) if whole[start : start + len(content)] == content)
        self.first, self.last = np.array(whole[:begin]), np.array(whole[begin + len(content) :])
        self.pad = int(tokenizer.pad_token_id or 0)

    def get_max_word_pieces(self, max_length: int) -> int:
        """Return the maximum number of word pieces in an input of `max_length` tokens, without special tokens.

        Raises MismatchError for a `max_length` above the model's maximum.
        """
        if max_length > self.max_length:
            raise MismatchError(f"{self.folder}: cannot read {max_length} tokens; use at most {self.max_length}")
        return max_length - len(self.first) - len(self.last)

    @property
    def max_length(self) -> int:
        """The maximum input length in tokens."""
        config = self.encoder.encoder.backbone.config
        limit = get_max_length(self.encoder.tokenizer, config)
        return limit if getattr(config, "max_position_embeddings", None) else min(limit, DEFAULT_MAX_LENGTH)

    def add_special_tokens(self, texts: Sequence[Sequence[int]], *, limit: int) -> TokenizedTexts:
        """Return the model inputs for texts. texts: word piece ids, truncated to the first `limit` of each text"""
        return TokenizedTexts.add_special_tokens(texts, first=self.first, last=self.last, limit=limit)


def _build_term_weight_model(folder: Path, method: str, metadata: dict[str, Any], *, seed: int = 0) -> TermWeightModel:
    """Load an encoder and add a new head: a linear layer (method "deepct") or an ImpactHead ("deepimpact").

    metadata: entry "term_weights" of meta.json    seed: seed of the head
    """
    encoder = load_encoder(folder, strict=False)
    hidden = encoder.encoder.hidden_size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = nn.Linear(hidden, 1) if method == "deepct" else ImpactHead(hidden)
    return TermWeightModel(method, folder, encoder, TermWeighter(encoder.encoder.backbone, head), metadata)


def init_term_weight_model(model: Path, method: str, *, seed: int) -> TermWeightModel:
    """Load an encoder and add a randomly initialized head.

    model: model folder    method: "deepct" or "deepimpact"    seed: seed of the head
    """
    weighter = _build_term_weight_model(model, method, {}, seed=seed)
    tokenizer = weighter.encoder.tokenizer
    tokenizer.model_max_length = get_max_training_length(tokenizer, weighter.encoder.encoder.backbone.config)
    # the saved model must accept inputs of this length
    weighter.encoder.encoding = replace(weighter.encoder.encoding, passage_length=weighter.max_length)
    return weighter


def read_training_metadata(folder: Path, method: str) -> dict[str, Any]:
    """Return the entry "term_weights" that the training of a term weighting model wrote into meta.json.

    Raises MismatchError for a folder without a term weighting model, or with a model of another method.
    """
    metadata = read_meta_entry(folder, "term_weights")
    if metadata is None:
        raise MismatchError(f"{folder}: not a term weighting model; train one with `drtk termweight`")
    if metadata.get("method") != method:
        raise MismatchError(
            f"{folder}: was trained with `method` {metadata.get('method')}, not {method}; use another model or `method`"
        )
    return metadata


def load_term_weight_model(folder: Path, method: str) -> TermWeightModel:
    """Load a term weighting model, in evaluation mode. method: "deepct" or "deepimpact"

    Raises MismatchError for a folder without such a model, or with a model of another method.
    """
    weighter = _build_term_weight_model(folder, method, read_training_metadata(folder, method))
    load_head(weighter.module.head, folder, method)
    weighter.module.eval()
    return weighter


def save_term_weight_model(weighter: TermWeightModel, folder: Path) -> None:
    """Write a model folder with the encoder, which AutoModel can load, and the head. The caller writes meta.json."""
    save_encoder(weighter.encoder, folder)
    save_module(weighter.module.head, get_head_path(folder, weighter.method))


class TermWeightPredictor:
    """Predictor of the weights of word pieces.

    max_length: maximum input length in tokens; None: the model's maximum; longer inputs are truncated
    batch_tokens: maximum number of tokens in a batch, including padding; None: by device
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
        self._limit = weighter.get_max_word_pieces(max_length or weighter.max_length)
        self._budget = batch_tokens or (_CPU_TOKENS if self._device.type == "cpu" else _GPU_TOKENS)
        move_model(weighter.module.backbone, self._device, choose_dtype(dtype, self._device, half="bfloat16"))
        weighter.module.to(self._device).eval()  # the head stays float32
        enable_packing(weighter.module.backbone, self._device)

    @torch.inference_mode()
    def __call__(self, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Return the weights of the word pieces of each text, (pieces,) float32 each; 0 for truncated pieces.

        texts: word piece ids of each text    Raises DrtkError when out of memory.
        """
        weighter = self._weighter
        tokens = weighter.add_special_tokens(texts, limit=self._limit)
        weights = [np.zeros(len(pieces), dtype=np.float32) for pieces in texts]
        num_prefix = len(weighter.first)
        for rows in iter_batches_by_length(tokens.lengths, budget=self._budget):
            inputs = copy_to_device(tokens.pad(rows, pad=weighter.pad), self._device)
            num_tokens = inputs["input_ids"].numel()
            with report_out_of_memory(self._device, "lower `batch_tokens`", num_tokens=num_tokens):
                values = weighter.module(**inputs)
            for row, row_weights in zip(rows, values.cpu().numpy(), strict=True):
                count = min(len(texts[row]), self._limit)
                weights[row][:count] = row_weights[num_prefix : num_prefix + count]
        return weights

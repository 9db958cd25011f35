"""How much the first token of a text looks at each of its word pieces, in the last layer of an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drtk.errors import DrtkError, MismatchError
from drtk.models.checkpoint import load_encoder
from drtk.models.device import choose_device
from drtk.text.batching import Tokens, batches_by_length

_CPU_TOKENS, _GPU_TOKENS = 2048, 65536
_OURS = "drtk_first_row"


class FirstTokenAttention:
    """Attention of the first token ([CLS]) in the last layer, averaged over its heads (B-PROP; methods: section 3.1, step A).

    The other layers' attention is never held, and of the last one a row a head. `room`: word pieces of an input, special
    tokens apart. Raises MismatchError for a model without such a token or whose attention cannot be seen.
    """

    def __init__(
        self, folder: Path, *, device: str, dtype: str, max_length: int | None, batch_tokens: int | None
    ) -> None:
        self._folder = folder
        loaded = load_encoder(folder, wishes={"passage_length": max_length} if max_length else {}, sealed=False)
        self._device = choose_device(device)
        self._pad = int(loaded.tokenizer.pad_token_id or 0)
        special = loaded.tokenizer("")["input_ids"]
        if not special or special[0] == loaded.tokenizer.eos_token_id != loaded.tokenizer.cls_token_id:
            raise MismatchError(f"{folder}: puts no special token before a text whose attention could be taken")
        self._first, self._last = special[:1], special[1:]
        self.room = loaded.recipe.passage_length - len(special)
        self._budget = batch_tokens or (_CPU_TOKENS if self._device.type == "cpu" else _GPU_TOKENS)
        self._model: Any = loaded.encoder.backbone
        self._row = _watch_last_layer(self._model, folder)
        if dtype == "auto":
            dtype = "float32" if self._device.type == "cpu" else "bfloat16"
        self._model.to(self._device, getattr(torch, dtype))

    @torch.inference_mode()
    def __call__(
        self, texts: Sequence[Sequence[int]], hidden: Sequence[Sequence[int]] | None = None
    ) -> list[np.ndarray]:
        """For each text, given as word pieces, the attention on each of them, float32; 0 for pieces beyond `room`.

        hidden: for each text the places of pieces that nothing may look at, "continuations" (methods, step B)
        """
        inputs = [[*self._first, *pieces[: self.room], *self._last] for pieces in texts]
        tokens = Tokens.of(inputs, None)
        found = [np.zeros(len(pieces), dtype=np.float32) for pieces in texts]
        for rows in batches_by_length(tokens.lengths, budget=self._budget):
            batch = tokens.padded(rows, pad=self._pad)
            if hidden is not None:
                for at, row in enumerate(rows):
                    batch["attention_mask"][at, [1 + place for place in hidden[row] if place < self.room]] = 0
            attention = self._forward(batch)
            for at, row in enumerate(rows):
                read = min(len(texts[row]), self.room)
                found[row][:read] = attention[at, 1 : 1 + read]
        return found

    def _forward(self, batch: dict[str, np.ndarray]) -> np.ndarray:
        """Attention of the first token on every token; (rows, tokens)"""
        inputs = {name: torch.from_numpy(values).to(self._device) for name, values in batch.items()}
        self._row.clear()
        try:
            self._model(**inputs)
        except torch.OutOfMemoryError as error:
            size = batch["input_ids"].size
            raise DrtkError(f"{self._device}: out of memory at {size:,} tokens; lower --batch-tokens") from error
        if not self._row:
            raise MismatchError(f"{self._folder}: its attention cannot be seen; a BERT-like encoder is wanted")
        # ALBERT has one layer that it goes through several times: the last row is that of the last time.
        return self._row[-1].float().mean(dim=1).cpu().numpy()  # (rows, heads, tokens) -> (rows, tokens)


def _watch_last_layer(model: nn.Module, folder: Path) -> list[Tensor]:
    """A list that each forward pass puts the first row of the last self-attention into, (rows, heads, tokens)."""
    from transformers import AttentionInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    seen = [
        module
        for module in model.modules()
        if "Attention" in type(module).__name__ and hasattr(module, "config") and "Cross" not in type(module).__name__
    ]
    leaves = [one for one in seen if not any(other is not one and other in [*one.modules()] for other in seen)]
    if not leaves:
        raise MismatchError(f"{folder}: its attention cannot be seen; a BERT-like encoder is wanted")
    last: Any = leaves[-1]
    usual = ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", None)
    rows: list[Tensor] = []

    def first_row(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **given: Any
    ) -> tuple[Tensor, None]:
        scaling = given.get("scaling") or query.shape[-1] ** -0.5
        scores = (
            torch.matmul(query[:, :, :1].float(), key.float().transpose(2, 3)) * scaling
        )  # (rows, heads, 1, tokens)
        if attention_mask is not None:
            mask = attention_mask[:, :, :1]
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        rows.append(scores.softmax(dim=-1)[:, :, 0])
        found: tuple[Tensor, None] = usual(module, query, key, value, attention_mask, **given)
        return found

    name = f"{_OURS}_{id(rows)}"
    AttentionInterface.register(name, first_row)
    last.config = copy(last.config)
    last.config._attn_implementation = name
    return rows

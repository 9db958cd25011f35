"""B-PROP term weights; steps A to H are defined in docs/methods/term-weights.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from math import exp, log2, sqrt
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.expansion.config import WeightingSettings
from drtk.expansion.term_weights.base import (
    CollectionStatistics,
    Predictor,
    SplitPassage,
    StatisticsKind,
    TermWeightingMethod,
)
from drtk.models.checkpoint import load_encoder
from drtk.models.device import choose_device, choose_dtype, copy_to_device, move_model, report_out_of_memory
from drtk.models.model_folder import resolve_model_folder
from drtk.models.packing import enable_packing, run_packed_attention
from drtk.text.batching import TokenizedTexts, iter_batches_by_length
from drtk.text.word_pieces import WordSplit

_CPU_TOKENS, _GPU_TOKENS = 2048, 65536


class FirstTokenAttention:
    """Function that computes the attention of the [CLS] token in the last layer, averaged over the heads (B-PROP, step A).

    Only the attention row of [CLS] is stored, not the attention of all tokens.
    room: maximum number of word pieces in an input, without special tokens
    Raises MismatchError if the tokenizer adds no [CLS] token, or if the attention implementation is not supported.
    """

    def __init__(
        self, folder: Path, *, device: str, dtype: str, max_length: int | None, batch_tokens: int | None
    ) -> None:
        self._folder = folder
        loaded = load_encoder(folder, overrides={"passage_length": max_length} if max_length else {}, strict=False)
        self._device = choose_device(device)
        self._pad = int(loaded.tokenizer.pad_token_id or 0)
        special = loaded.tokenizer("")["input_ids"]
        if not special or special[0] == loaded.tokenizer.eos_token_id != loaded.tokenizer.cls_token_id:
            raise MismatchError(f"{folder}: the tokenizer adds no special token before a text; use a BERT-like encoder")
        self._first, self._last = np.array(special[:1]), np.array(special[1:])
        self.room = loaded.encoding.passage_length - len(special)
        self._budget = batch_tokens or (_CPU_TOKENS if self._device.type == "cpu" else _GPU_TOKENS)
        self._model: Any = loaded.encoder.backbone
        if self._model.config.model_type != "modernbert":  # without masked pieces, its windows would contain others
            enable_packing(self._model, self._device)
        self._rows = _record_cls_attention(self._model, folder)
        move_model(self._model, self._device, choose_dtype(dtype, self._device, half="bfloat16"))

    @torch.inference_mode()
    def __call__(
        self, texts: Sequence[Sequence[int]], masked: Sequence[Sequence[int]] | None = None
    ) -> list[np.ndarray]:
        """Return the attention to each word piece of each text, float32; 0 for pieces beyond `room`.

        masked: for each text, the positions of word pieces that the attention mask hides
        """
        tokens = TokenizedTexts.add_special_tokens(texts, first=self._first, last=self._last, limit=self.room)
        values = [np.zeros(len(pieces), dtype=np.float32) for pieces in texts]
        outputs = []
        for rows in iter_batches_by_length(tokens.lengths, budget=self._budget):
            batch = tokens.pad(rows, pad=self._pad)
            if masked is not None:
                for batch_row, row in enumerate(rows):
                    columns = [1 + position for position in masked[row] if position < self.room]
                    batch["attention_mask"][batch_row, columns] = 0
            outputs.append((rows, self._forward(batch)))
        for rows, output in outputs:  # read after the last forward pass was started, since reading waits for a GPU
            attention = output.cpu().numpy()
            for batch_row, row in enumerate(rows):
                length = min(len(texts[row]), self.room)
                values[row][:length] = attention[batch_row, 1 : 1 + length]
        return values

    def _forward(self, batch: dict[str, np.ndarray]) -> Tensor:
        """Return the attention of the first token to every token, (rows, tokens) float32, on the device."""
        self._rows.clear()
        with report_out_of_memory(self._device, "lower `batch_tokens`", num_tokens=batch["input_ids"].size):
            self._model(**copy_to_device(batch, self._device))
        if not self._rows:
            raise MismatchError(f"{self._folder}: unsupported attention implementation; use a BERT-like encoder")
        # ALBERT applies the same layer several times; the last row is from the last application.
        return self._rows[-1].float().mean(dim=1)  # (rows, heads, tokens) -> (rows, tokens)


def _record_cls_attention(model: nn.Module, folder: Path) -> list[Tensor]:
    """Replace the attention function of the last layer, so that each forward pass appends to the returned list.

    The items are the attention of the [CLS] token, (batch, heads, tokens).
    """
    from transformers import AttentionInterface

    layers = [
        module
        for module in model.modules()
        if "Attention" in type(module).__name__ and hasattr(module, "config") and "Cross" not in type(module).__name__
    ]
    leaves = [
        layer for layer in layers if not any(other is not layer and other in [*layer.modules()] for other in layers)
    ]
    if not leaves:
        raise MismatchError(f"{folder}: unsupported attention implementation; use a BERT-like encoder")
    last_layer: Any = leaves[-1]
    rows: list[Tensor] = []

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        scaling = options.get("scaling") or query.shape[-1] ** -0.5
        first, keys, mask = query[:, :, :1], key, None if attention_mask is None else attention_mask[:, :, :1]
        if packing := options.get("packing"):
            first = query[:, :, packing.offsets[:-1]].transpose(0, 2)  # (rows, heads, 1, head size)
            keys = packing.pad(key.transpose(1, 2)).transpose(1, 2)  # (rows, heads, tokens, head size)
            mask = packing.pad(torch.ones_like(packing.positions, dtype=torch.bool))[:, None, None]
        scores = torch.matmul(first.float(), keys.float().transpose(2, 3)) * scaling  # (rows, heads, 1, tokens)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        rows.append(scores.softmax(dim=-1)[:, :, 0])
        return run_packed_attention(module, query, key, value, attention_mask, **options)

    name = f"drtk_first_row_{id(rows)}"
    AttentionInterface.register(name, attend)
    last_layer.config = copy(last_layer.config)
    last_layer.config._attn_implementation = name
    return rows


Saturation = Literal["ratio", "sqrt", "sigmoid"]
Contrast = Literal["cross-entropy", "difference"]
_MAX_SCORE = 100.0  # as in the released code


def gather_occurrences(words: Iterable[tuple[str, float]], *, by: Literal["sum", "max"] = "sum") -> dict[str, float]:
    """Return the attention of each word: the sum or maximum over its occurrences (B-PROP, step C)."""
    values: dict[str, float] = {}
    for word, attention in words:
        known = values.get(word)
        values[word] = attention if known is None else known + attention if by == "sum" else max(known, attention)
    return values


def saturate(attention: float, kind: Saturation) -> float:
    """Saturate an attention value v: v / (v + .01), its square root, or a sigmoid centered at .02 (B-PROP, step D)."""
    if kind == "ratio":
        return attention / (attention + 0.01)
    if kind == "sqrt":
        return sqrt(attention)
    return 1 / (1 + exp(-200 * (attention - 0.02)))


def normalize(values: Mapping[str, float]) -> dict[str, float]:
    """Divide values by their sum; return zeros if the sum is 0 (B-PROP, steps E and F)."""
    total = sum(values.values())
    return {word: value / total if total > 0 else 0.0 for word, value in values.items()}


def compute_contrasts(
    document: Mapping[str, float], collection: Mapping[str, float], kind: Contrast, *, unseen: float
) -> dict[str, float]:
    """Score words by the contrast of P(w|d) in the passage and P(w|C) in the collection (B-PROP, step G).

    kind: "cross-entropy", P(w|d) * -log2 P(w|C), at most 100; or "difference", max(P(w|d) - P(w|C), 0)
    unseen: P(w|C) of words that are missing in the collection, or have P(w|C) = 0 there
    Words with characters other than letters score 0.
    """
    scores = {}
    for word, p_document in document.items():
        p_collection = collection.get(word) or unseen
        if not word.isalpha():
            scores[word] = 0.0
        elif kind == "cross-entropy":
            scores[word] = min(p_document * -log2(p_collection), _MAX_SCORE)
        else:
            scores[word] = max(p_document - p_collection, 0.0)
    return scores


def softmax(scores: Mapping[str, float], *, temperature: float) -> dict[str, float]:
    """Return the softmax over words that contain only letters; other words get 0 (B-PROP, step H)."""
    letter_scores = {word: score for word, score in scores.items() if word.isalpha()}
    if not letter_scores:
        return dict.fromkeys(scores, 0.0)
    highest = max(letter_scores.values())
    powers = {word: exp((score - highest) / temperature) for word, score in letter_scores.items()}
    total = sum(powers.values())
    return {word: powers.get(word, 0.0) / total for word in scores}


_TEMPERATURES = {"cross-entropy": 1.0, "difference": 0.1}


def _find_continuations(split_passage: SplitPassage) -> list[int]:
    """Return the indices of word pieces that belong to a word, but are not its first piece."""
    first_pieces = set(split_passage.find_first_pieces())
    return [piece for piece, owner in enumerate(split_passage.owners) if owner >= 0 and piece not in first_pieces]


class Bprop(TermWeightingMethod):
    """B-PROP weights: the contrast of the attention in a passage with that in the collection (steps B to H)."""

    needs: ClassVar[StatisticsKind | None] = "attention"
    split: ClassVar[WordSplit] = "treebank"
    with_model: ClassVar[bool] = True

    def __init__(self, settings: WeightingSettings, statistics: CollectionStatistics | None, model: str | None) -> None:
        self._settings = settings
        sums = {word: values[0] for word, values in statistics.words.items()} if statistics is not None else {}
        self._collection = normalize(sums)  # step F: the number of passages cancels
        self._unseen = min((share for share in self._collection.values() if share > 0), default=1.0)

    @staticmethod
    def load_predictor(settings: WeightingSettings, model: str, device: str) -> Predictor:
        attention = FirstTokenAttention(
            Path(resolve_model_folder(model)),
            device=device,
            dtype=settings.precision,
            max_length=settings.max_length,
            batch_tokens=settings.batch_tokens,
        )
        return attention if settings.sub2word == "sum" else lambda inputs: attention(*zip(*inputs, strict=True))

    def build_inputs(self, split_passages: Sequence[SplitPassage]) -> list[Any]:
        """Return the word piece ids of each passage; with `sub2word` first, (ids, positions of masked pieces)."""
        ids = super().build_inputs(split_passages)
        if self._settings.sub2word == "sum":
            return ids
        return [*zip(ids, map(_find_continuations, split_passages), strict=True)]

    def compute_saturations(self, split_passage: SplitPassage, attention: np.ndarray) -> dict[str, float]:
        """Return the saturated attention to each word of a passage (steps B to D); 0 beyond the maximum input length.

        attention: attention to each word piece, (pieces,)
        """
        occurrences = [0.0] * len(split_passage.words)
        for owner, value in zip(split_passage.owners, attention.tolist(), strict=True):
            if owner >= 0:
                occurrences[owner] += value
        words = gather_occurrences(zip(split_passage.words, occurrences, strict=True), by=self._settings.gather)
        return {word: saturate(value, self._settings.saturation) if value > 0 else 0.0 for word, value in words.items()}

    def weigh_words(
        self, split_passages: Sequence[SplitPassage], outputs: Sequence[np.ndarray]
    ) -> Iterator[Mapping[str, float]]:
        for split_passage, attention in zip(split_passages, outputs, strict=True):
            yield self._compute_weights(split_passage.words, self.compute_saturations(split_passage, attention))

    def _compute_weights(self, words: Sequence[str], saturations: Mapping[str, float]) -> dict[str, float]:
        settings = self._settings
        document = normalize(saturations)
        if settings.emit == "attention":
            return document
        seen = {word for word, value in saturations.items() if value > 0 and word.isalpha()}  # within the input length
        if sum(map(str.isalpha, words)) < settings.min_words:
            return {word: 1 / len(seen) if word in seen else 0.0 for word in document}
        scores = compute_contrasts(document, self._collection, settings.contrast, unseen=self._unseen)
        if settings.emit == "score":
            return scores
        temperature = settings.softmax_temperature or _TEMPERATURES[settings.contrast]
        return dict.fromkeys(document, 0.0) | softmax(
            {word: scores[word] for word in scores if word in seen}, temperature=temperature
        )

"""B-PROP term weights (methods: section 3.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from math import exp, log2, sqrt
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.expansion.config import WeightingSettings
from drtk.expansion.term_weights.base import Needs, OfWords, Reading, Statistics
from drtk.models.checkpoint import load_encoder
from drtk.models.device import choose_device
from drtk.models.model_folder import locate
from drtk.text.batching import Tokens, batches_by_length
from drtk.text.word_pieces import WordSplit

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
        loaded = load_encoder(folder, overrides={"passage_length": max_length} if max_length else {}, strict=False)
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


Saturation = Literal["ratio", "sqrt", "sigmoid"]
Contrast = Literal["cross-entropy", "difference"]
_LARGEST = 100.0  # the released code's ceiling of a score


def gathered(words: Iterable[tuple[str, float]], *, by: Literal["sum", "max"] = "sum") -> dict[str, float]:
    """Attention of each word from that of its occurrences (step C)."""
    found: dict[str, float] = {}
    for word, attention in words:
        known = found.get(word)
        found[word] = attention if known is None else known + attention if by == "sum" else max(known, attention)
    return found


def saturated(attention: float, kind: Saturation) -> float:
    """Step D: v / (v + .01), the square root of v, or a sigmoid around .02."""
    if kind == "ratio":
        return attention / (attention + 0.01)
    if kind == "sqrt":
        return sqrt(attention)
    return 1 / (1 + exp(-200 * (attention - 0.02)))


def normalised(values: Mapping[str, float]) -> dict[str, float]:
    """Brought to a sum of 1 (step E, and of the collection step F); all 0 where they are."""
    total = sum(values.values())
    return {word: value / total if total > 0 else 0.0 for word, value in values.items()}


def contrasted(
    document: Mapping[str, float], collection: Mapping[str, float], kind: Contrast, *, unseen: float
) -> dict[str, float]:
    """Step G: P(w|d) * -log2 P(w|C), at most 100, or max(P(w|d) - P(w|C), 0); 0 for words that are not letters alone.

    unseen: P(w|C) of a word the collection does not have: the smallest it has
    """
    found = {}
    for word, here in document.items():
        if not word.isalpha():
            found[word] = 0.0
            continue
        there = collection.get(word) or unseen
        found[word] = min(here * -log2(there), _LARGEST) if kind == "cross-entropy" else max(here - there, 0.0)
    return found


def softmax(scores: Mapping[str, float], *, temperature: float) -> dict[str, float]:
    """Step H: a distribution over the words of letters; 0 for the others, uniform where there are few of them."""
    chosen = {word: value for word, value in scores.items() if word.isalpha()}
    if not chosen:
        return dict.fromkeys(scores, 0.0)
    highest = max(chosen.values())
    powers = {word: exp((value - highest) / temperature) for word, value in chosen.items()}
    total = sum(powers.values())
    return {word: powers.get(word, 0.0) / total for word in scores}


_TEMPERATURES = {"cross-entropy": 1.0, "difference": 0.1}


class Saturations:
    """Steps A to D: for each word of a passage its saturated attention."""

    def __init__(self, settings: WeightingSettings, model: str | None, device: str) -> None:
        if model is None:
            raise UsageError("--method bprop needs --model: a BERT-like encoder that has not been fine-tuned")
        self._settings = settings
        self._attention = FirstTokenAttention(
            Path(locate(model)),
            device=device,
            dtype=settings.dtype,
            max_length=settings.max_length,
            batch_tokens=settings.batch_tokens,
        )

    def __call__(self, readings: Sequence[Reading]) -> list[dict[str, float]]:
        """The words of each passage; those that the model did not get to see have 0."""
        first = self._settings.sub2word == "first"
        hidden = [_continuations(reading) for reading in readings] if first else None
        found = self._attention([reading.ids for reading in readings], hidden)
        return [self._of_words(*each) for each in zip(readings, found, strict=True)]

    def _of_words(self, reading: Reading, attention: Iterable[float]) -> dict[str, float]:
        """Steps B to D of one passage; pieces that were hidden have no attention to add."""
        occurrences = [0.0] * len(reading.words)
        for owner, value in zip(reading.owners, attention, strict=True):
            if owner >= 0:
                occurrences[owner] += float(value)
        words = gathered(zip(reading.words, occurrences, strict=True), by=self._settings.gather)
        return {
            word: saturated(value, self._settings.saturation) if value > 0 else 0.0 for word, value in words.items()
        }


def _continuations(reading: Reading) -> list[int]:
    heads = set(reading.heads())
    return [piece for piece, owner in enumerate(reading.owners) if owner >= 0 and piece not in heads]


class Bprop(OfWords):
    """Steps E to H. Raises UsageError without a model."""

    needs: ClassVar[Needs | None] = "attention"
    split: ClassVar[WordSplit] = "treebank"
    with_model: ClassVar[bool] = True

    def __init__(
        self, settings: WeightingSettings, statistics: Statistics | None, model: str | None, device: str
    ) -> None:
        self._settings = settings
        self._saturations = Saturations(settings, model, device)
        sums = {word: values[0] for word, values in statistics.words.items()} if statistics is not None else {}
        self._collection = normalised(sums)  # step F: the number of passages cancels
        self._unseen = min((share for share in self._collection.values() if share > 0), default=1.0)

    def values(self, readings: Sequence[Reading]) -> Iterator[Mapping[str, float]]:
        """For each passage its words and what they weigh."""
        for reading, saturations in zip(readings, self._saturations(readings), strict=True):
            yield self.weights(reading.words, saturations)

    def weights(self, words: Sequence[str], saturations: Mapping[str, float]) -> dict[str, float]:
        """Of the saturated attention of a passage's words: what --emit asks for."""
        settings = self._settings
        document = normalised(saturations)
        if settings.emit == "attention":
            return document
        seen = {word for word, value in saturations.items() if value > 0 and word.isalpha()}  # by the model
        if sum(map(str.isalpha, words)) < settings.min_words:
            return {word: 1 / len(seen) if word in seen else 0.0 for word in document}
        scores = contrasted(document, self._collection, settings.contrast, unseen=self._unseen)
        if settings.emit == "score":
            return scores
        temperature = settings.softmax_temperature or _TEMPERATURES[settings.contrast]
        return dict.fromkeys(document, 0.0) | softmax(
            {word: scores[word] for word in scores if word in seen}, temperature=temperature
        )

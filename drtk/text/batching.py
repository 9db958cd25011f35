"""Tokenize texts and pad batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from drtk.records import Passage, Query


@dataclass(frozen=True)
class Tokens:
    """Token ids of several texts, one after the other.

    ids, types: (sum of lengths,), int32; `types` (segments) is None where the model has none
    lengths, starts: (texts,)
    """

    ids: np.ndarray
    types: np.ndarray | None
    lengths: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None) -> Tokens:
        """From one list of ids a text."""
        lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
        total = int(lengths.sum())

        def flat(rows: Sequence[Sequence[int]]) -> np.ndarray:
            return np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=total)

        return cls(flat(ids), None if types is None else flat(types), lengths, np.cumsum(lengths) - lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def padded(self, rows: Sequence[int] | np.ndarray, *, pad: int, left: bool = False) -> dict[str, np.ndarray]:
        """A model's inputs for some texts, padded to the longest: int64 arrays (len(rows), tokens) by argument name."""
        lengths = self.lengths[rows]
        width = int(lengths.max(initial=0))
        place = np.arange(width)
        shift = (width - lengths)[:, None] if left else 0
        mask = (place >= shift) & (place < lengths[:, None] + shift)  # (rows, width)
        source = (self.starts[rows][:, None] + place - shift)[mask]
        batch = {"input_ids": np.full(mask.shape, pad, dtype=np.int64), "attention_mask": mask.astype(np.int64)}
        batch["input_ids"][mask] = self.ids[source]
        if self.types is not None:
            batch["token_type_ids"] = np.zeros(mask.shape, dtype=np.int64)
            batch["token_type_ids"][mask] = self.types[source]
        return batch


class Tokenizing:
    """How the texts of one role become tokens.

    title: "join" puts a passage's title before its text with a space, "sep" with the tokenizer's separator token and all
           in the first segment, "segment" makes a pair of them, "none" leaves it out; a blank title is left out too
    """

    def __init__(self, tokenizer: Any, *, prompt: str, max_length: int, title: str, with_types: bool) -> None:
        self.tokenizer, self.prompt, self.max_length, self.title = tokenizer, prompt, max_length, title
        self.with_types = with_types
        self.pad = int(tokenizer.pad_token_id or 0)
        self.left = tokenizer.padding_side == "left"

    def __call__(self, items: Sequence[Passage | Query | str]) -> Tokens:
        """The tokens of the items, each at most `max_length`, special ones included."""
        first, second = zip(*map(self._texts, items), strict=True) if items else ((), ())
        if not any(second):
            return self._tokens(list(first), None)
        paired = [bool(text) for text in second]
        pairs = self._tokens(
            [text for text, pair in zip(first, paired, strict=True) if pair], [text for text in second if text]
        )
        single = self._tokens([text for text, pair in zip(first, paired, strict=True) if not pair], None)
        return _merged(np.array(paired), pairs, single)

    def _texts(self, item: Passage | Query | str) -> tuple[str, str]:
        """(text, "") or the two parts of a pair."""
        if isinstance(item, str):
            return self.prompt + item, ""
        if isinstance(item, Query) or not item.title.strip() or self.title == "none":
            return self.prompt + item.text, ""
        if self.title == "segment" and item.text:
            return self.prompt + item.title, item.text
        between = self.tokenizer.sep_token if self.title == "sep" and item.text else ""
        return f"{self.prompt}{item.title}{between} {item.text}", ""

    def _tokens(self, texts: list[str], pairs: list[str] | None) -> Tokens:
        if not texts:
            return Tokens.of([], [] if self.with_types else None)
        found = self.tokenizer(
            texts,
            text_pair=pairs,
            truncation="longest_first",
            max_length=self.max_length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=self.with_types,
        )
        return Tokens.of(found["input_ids"], found.get("token_type_ids") if self.with_types else None)


class PairTokenizing:
    """How pairs of texts become tokens: both with their special tokens, what exceeds the longest input cut off the longer text."""

    def __init__(self, tokenizer: Any, *, max_length: int, prompt: str = "") -> None:
        self.tokenizer, self.max_length, self.prompt = tokenizer, max_length, prompt
        self.with_types = "token_type_ids" in tokenizer.model_input_names
        self.pad, self.left = int(tokenizer.pad_token_id or 0), tokenizer.padding_side == "left"

    def __call__(self, pairs: Iterable[tuple[str, str]]) -> Tokens:
        """The tokens of the pairs, in their order."""
        pairs = list(pairs)
        if not pairs:
            return Tokens.of([], [] if self.with_types else None)
        found = self.tokenizer(
            [self.prompt + first for first, _ in pairs],
            [second for _, second in pairs],
            truncation="longest_first",
            max_length=self.max_length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=self.with_types,
        )
        return Tokens.of(found["input_ids"], found["token_type_ids"] if self.with_types else None)


def _merged(is_first: np.ndarray, first: Tokens, second: Tokens) -> Tokens:
    """Two sets of tokens in one order: where `is_first`, the next of `first`, elsewhere the next of `second`."""
    lengths = np.empty(len(is_first), dtype=np.int64)
    starts = np.empty(len(is_first), dtype=np.int64)
    lengths[is_first], lengths[~is_first] = first.lengths, second.lengths
    starts[is_first], starts[~is_first] = first.starts, second.starts + len(first.ids)
    types = None
    if first.types is not None and second.types is not None:
        types = np.concatenate([first.types, second.types])
    return Tokens(np.concatenate([first.ids, second.ids]), types, lengths, starts)


def batches_by_length(lengths: np.ndarray, *, budget: int, most: int = 4096) -> Iterator[np.ndarray]:
    """Row numbers in batches of like length, longest first, so that a batch too large for memory shows at once.

    lengths: (texts,); a batch holds at most `budget` tokens, padding included, and `most` texts, but at least one
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        rows = max(1, min(most, budget // max(1, int(lengths[order[start]]))))
        yield order[start : start + rows]
        start += rows


def groups_by_length(lengths: np.ndarray, *, overhead: float) -> list[np.ndarray]:
    """Row numbers in groups of like length, longest first, that cost least: tokens, padding included, and `overhead` a group.

    lengths: (texts,); overhead: what it costs to begin a group, in tokens
    """
    order = np.argsort(-lengths, kind="stable")
    widths, starts = np.unique(-lengths[order], return_index=True)  # groups part where the length changes
    widths, bounds = -widths, np.append(starts, len(order))
    best, begins = np.zeros(len(widths) + 1), np.zeros(len(widths) + 1, dtype=np.int64)
    for end in range(1, len(widths) + 1):  # best[end]: the least cost of all texts before bounds[end]
        costs = best[:end] + widths[:end] * (bounds[end] - bounds[:end]) + overhead
        begins[end] = costs.argmin()
        best[end] = costs[begins[end]]
    groups = []
    end = len(widths)
    while end:
        groups.append(order[bounds[begins[end]] : bounds[end]])
        end = begins[end]
    return groups[::-1]

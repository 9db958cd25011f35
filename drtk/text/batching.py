"""Tokenize texts and pad batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np

from drtk.records import Passage, Query

SPECIAL = -1  # piece of a template that is a special token
CACHE_SIZE = 16384  # texts whose tokens a PairTokenizer keeps


@dataclass(frozen=True)
class TokenizedTexts:
    """The token ids of several texts, concatenated.

    ids, types: (sum of lengths,), int32; `types` (segments) is None if the model has none
    lengths, starts: number of tokens and index of the first token of each text, (texts,)
    num_truncated: number of texts that were truncated; texts of tokenizers without a fast version are not counted
    """

    ids: np.ndarray
    types: np.ndarray | None
    lengths: np.ndarray
    starts: np.ndarray
    num_truncated: int = 0

    @classmethod
    def from_lists(
        cls, ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None, num_truncated: int = 0
    ) -> TokenizedTexts:
        """Concatenate lists of token ids and segment types, one list per text."""
        lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
        total = int(lengths.sum())

        def flatten(rows: Sequence[Sequence[int]]) -> np.ndarray:
            return np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=total)

        starts = np.cumsum(lengths) - lengths
        return cls(flatten(ids), None if types is None else flatten(types), lengths, starts, num_truncated)

    @classmethod
    def from_arrays(cls, ids: Sequence[np.ndarray]) -> TokenizedTexts:
        """Concatenate arrays of token ids, (tokens,) per text, without segment types."""
        lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
        return cls(np.concatenate(ids), None, lengths, np.cumsum(lengths) - lengths)

    @classmethod
    def add_special_tokens(
        cls, texts: Sequence[Sequence[int] | np.ndarray], *, first: np.ndarray, last: np.ndarray, limit: int
    ) -> TokenizedTexts:
        """Concatenate the token ids of at least one text, each truncated to `limit` tokens between `first` and `last`."""
        ids = [part for text in texts for part in (first, text[:limit], last)]
        lengths = np.fromiter((min(len(text), limit) for text in texts), dtype=np.int64, count=len(texts))
        lengths += len(first) + len(last)
        joined = np.concatenate(ids, dtype=np.int32, casting="unsafe")  # an empty array is float64
        return cls(joined, None, lengths, np.cumsum(lengths) - lengths)

    @classmethod
    def concatenate(cls, parts: Sequence[TokenizedTexts]) -> TokenizedTexts:
        """Concatenate tokenized texts; drop segment types and `num_truncated`."""
        ids = np.concatenate([part.ids for part in parts]) if parts else np.empty(0, dtype=np.int32)
        lengths = np.concatenate([part.lengths for part in parts]) if parts else np.empty(0, dtype=np.int64)
        return cls(ids, None, lengths, np.cumsum(lengths) - lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def pad(self, rows: Sequence[int] | np.ndarray, *, pad: int, left: bool = False) -> dict[str, np.ndarray]:
        """Return the model inputs of the texts `rows`, padded to the longest of them: name -> (len(rows), tokens), int64.

        pad: id of the padding token; left: pad on the left
        """
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


class TextTokenizer:
    """Tokenizer of passages or queries for an encoder.

    title: "join" puts the title and a space before the text, "sep" the title, the separator token and a space.
        "segment" makes title and text a pair of segments. "none" drops the title. A blank title is always dropped.
    prompt: text before each passage or query; max_length: maximum length in tokens
    with_types: whether the model reads segment types
    """

    def __init__(self, tokenizer: Any, *, prompt: str, max_length: int, title: str, with_types: bool) -> None:
        self.tokenizer, self.prompt, self.max_length, self.title = tokenizer, prompt, max_length, title
        self.with_types = with_types
        self.pad = int(tokenizer.pad_token_id or 0)
        self.left = tokenizer.padding_side == "left"

    def __call__(self, items: Sequence[Passage | Query | str]) -> TokenizedTexts:
        """Tokenize the items; truncate each to `max_length` tokens, special tokens included."""
        parts = [self._make_segments(item) for item in items]
        is_pair = np.array([bool(second) for _, second in parts], dtype=bool)
        single = self._tokenize([first for first, second in parts if not second], None)
        if not is_pair.any():
            return single
        pairs = [part for part in parts if part[1]]
        return _interleave_texts(is_pair, self._tokenize([one for one, _ in pairs], [two for _, two in pairs]), single)

    def _make_segments(self, item: Passage | Query | str) -> tuple[str, str]:
        """Return the segments of an item with the prompt: (title, text), or (text, "") for a single segment."""
        if isinstance(item, str):
            return self.prompt + item, ""
        if isinstance(item, Query) or not item.title.strip() or self.title == "none":
            return self.prompt + item.text, ""
        if self.title == "segment" and item.text:
            return self.prompt + item.title, item.text
        between = self.tokenizer.sep_token if self.title == "sep" and item.text else ""
        return f"{self.prompt}{item.title}{between} {item.text}", ""

    def _tokenize(self, texts: list[str], pairs: list[str] | None) -> TokenizedTexts:
        return tokenize_texts(self.tokenizer, texts, pairs, max_length=self.max_length, with_types=self.with_types)


class PairTokenizer:
    """Tokenizer of text pairs. It truncates the longer text first to fit `max_length` tokens, special ones included.

    If `_find_pair_template` finds a template, each distinct text is tokenized once, the tokens of the latest texts are
    cached, and pairs are joined from them; otherwise whole pairs are tokenized.

    prompt: text before the first text of every pair
    """

    def __init__(self, tokenizer: Any, *, max_length: int, prompt: str = "") -> None:
        self.tokenizer, self.max_length, self.prompt = tokenizer, max_length, prompt
        self.with_types = "token_type_ids" in tokenizer.model_input_names
        self.pad, self.left = int(tokenizer.pad_token_id or 0), tokenizer.padding_side == "left"
        self._template = _find_pair_template(tokenizer)
        self._cache: dict[str, np.ndarray] = {}  # ids of the latest texts, oldest first

    def __call__(self, pairs: Iterable[tuple[str, str]]) -> TokenizedTexts:
        """Tokenize the pairs."""
        pairs = list(pairs)
        first, second = [self.prompt + text for text, _ in pairs], [text for _, text in pairs]
        if not pairs or self._template is None:
            return tokenize_texts(self.tokenizer, first, second, max_length=self.max_length, with_types=self.with_types)
        row_of = {text: row for row, text in enumerate(dict.fromkeys(chain(first, second)))}
        new_texts = [text for text in row_of if text not in self._cache]
        self._cache |= zip(new_texts, encode_without_special_tokens(self.tokenizer, new_texts), strict=True)
        texts = TokenizedTexts.from_arrays([self._cache[text] for text in row_of])
        for text in list(islice(self._cache, max(0, len(self._cache) - CACHE_SIZE))):
            del self._cache[text]
        rows = np.array([[row_of[text] for text in part] for part in (first, second)])
        return self._join(texts, rows, self._template)

    def _join(
        self, texts: TokenizedTexts, rows: np.ndarray, template: Sequence[tuple[int, int, int]]
    ) -> TokenizedTexts:
        """Join texts to pairs with special tokens. rows: (2, pairs), rows in `texts` of the two texts of each pair"""
        num_special = sum(piece == SPECIAL for piece, _, _ in template)
        full = texts.lengths[rows]  # (2, pairs)
        kept = _truncate_longer(full, max(0, self.max_length - num_special))
        begins = texts.starts[rows] + (full - kept if self.tokenizer.truncation_side == "left" else 0)
        num_truncated = int((kept != full).any(axis=0).sum())
        return join_texts(texts.ids, begins, kept, template, with_types=self.with_types, num_truncated=num_truncated)


def join_texts(
    ids: np.ndarray,
    begins: np.ndarray,
    lengths: np.ndarray,
    template: Sequence[tuple[int, int, int]],
    *,
    with_types: bool,
    num_truncated: int = 0,
) -> TokenizedTexts:
    """Join texts and special tokens into model inputs.

    ids: concatenated token ids; begins, lengths: first token in `ids` and number of tokens of each text, (texts, inputs)
    template: the pieces of an input: (number of the text, or SPECIAL; token id of a special token; segment type)
    """
    pieces, values, types = np.array(template).T  # (pieces,)
    is_special = pieces == SPECIAL
    sizes = np.where(is_special, 1, lengths[pieces].T)  # (inputs, pieces)
    starts = np.where(is_special, len(ids) + np.arange(len(pieces)), begins[pieces].T)
    flat = sizes.ravel()
    place = np.arange(flat.sum()) + np.repeat(starts.ravel() - np.cumsum(flat) + flat, flat)
    totals = sizes.sum(axis=1)
    return TokenizedTexts(
        np.concatenate([ids, values.astype(np.int32)])[place],
        np.repeat(np.tile(types.astype(np.int32), len(sizes)), flat) if with_types else None,
        totals,
        np.cumsum(totals) - totals,
        num_truncated,
    )


def _truncate_longer(lengths: np.ndarray, limit: int) -> np.ndarray:
    """Return the lengths of the texts of pairs, truncated to `limit` in total. lengths: (2, pairs)

    The longer text is truncated first, but not below half of `limit`. An odd token goes to the longer text, to the
    second if both are equal. Source: `longest_first` of the library `tokenizers`
    """
    shorter, longer = np.sort(lengths, axis=0)
    cut = np.minimum(shorter, limit // 2)
    is_first_longer = lengths[0] > lengths[1]
    truncated = np.where(is_first_longer, [limit - cut, cut], [cut, limit - cut])
    return np.where(shorter + longer > limit, truncated, lengths)


def _find_pair_template(tokenizer: Any) -> list[tuple[int, int, int]] | None:
    """Return the template of a tokenizer for pairs: (text 0 or 1, or SPECIAL; token id; segment type) of each piece.

    None if `_has_plain_backend` is false, or if an encoded pair is not its two texts between special tokens.
    """
    if not _has_plain_backend(tokenizer):
        return None
    probe = ("one two", "three four five")
    texts = encode_without_special_tokens(tokenizer, probe)
    pair = tokenizer.backend_tokenizer.encode(*probe)
    template: list[tuple[int, int, int]] = []
    joined: list[int] = []
    for id, type, sequence in zip(pair.ids, pair.type_ids, pair.sequence_ids, strict=True):
        piece = (SPECIAL, id, type) if sequence is None else (sequence, 0, type)
        if sequence is None or piece not in template:
            template.append(piece)
            joined += [id] if sequence is None else texts[sequence].tolist()
    is_complete = {0, 1} <= {piece for piece, _, _ in template} and joined == pair.ids
    return template if is_complete else None


def encode_without_special_tokens(tokenizer: Any, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the token ids of each text, (tokens,) int32, without truncation. tokenizer: a tokenizer of transformers"""
    if not _has_plain_backend(tokenizer):
        encoded = tokenizer(list(texts), add_special_tokens=False, padding=False, truncation=False)["input_ids"]
        return [np.array(ids, dtype=np.int32) for ids in encoded]
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
    return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]


def tokenize_texts(
    tokenizer: Any,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    max_length: int,
    with_types: bool = False,
    are_targets: bool = False,
) -> TokenizedTexts:
    """Tokenize texts, or pairs of texts, with special tokens.

    tokenizer: a tokenizer of transformers
    pairs: the second text of each pair
    max_length: maximum length of a text or pair in tokens; the longer text of a pair is truncated
    with_types: also return segment types
    are_targets: tokenize as decoder targets, for which some tokenizers use other special tokens
    """
    if not texts:
        return TokenizedTexts.from_lists([], [] if with_types else None)
    if are_targets or not _has_plain_backend(tokenizer):
        encoded = tokenizer(
            **{"text_target" if are_targets else "text": list(texts)},
            text_pair=None if pairs is None else list(pairs),
            truncation="longest_first",
            max_length=max_length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=with_types,
        )
        return TokenizedTexts.from_lists(
            encoded["input_ids"],
            encoded.get("token_type_ids") if with_types else None,
            _count_truncated(encoded.encodings or (), max_length),
        )
    from transformers.tokenization_utils_base import PaddingStrategy, TruncationStrategy

    # The same calls as those of transformers, which does twice as much work per text in Python.
    tokenizer.set_truncation_and_padding(
        PaddingStrategy.DO_NOT_PAD, TruncationStrategy.LONGEST_FIRST, max_length, 0, None, None
    )
    tokenizer.backend_tokenizer.encode_special_tokens = tokenizer.split_special_tokens
    encodings = tokenizer.backend_tokenizer.encode_batch_fast(
        list(texts if pairs is None else zip(texts, pairs, strict=True))
    )
    # If the types of the longest text are 0, those of all are, because they depend on the template only.
    is_typed = with_types and (pairs is not None or any(max(encodings, key=len).type_ids))
    tokens = TokenizedTexts.from_lists(
        [encoding.ids for encoding in encodings],
        [encoding.type_ids for encoding in encodings] if is_typed else None,
        _count_truncated(encodings, max_length),
    )
    return replace(tokens, types=np.zeros_like(tokens.ids)) if with_types and not is_typed else tokens


def _count_truncated(encodings: Iterable[Any], max_length: int) -> int:
    """Return the number of encodings of the library `tokenizers` that were truncated."""
    # The length is compared first, because `overflowing` copies the tokens that were cut off.
    return sum(len(encoding) >= max_length and bool(encoding.overflowing) for encoding in encodings)


def _has_plain_backend(tokenizer: Any) -> bool:
    """Return whether a tokenizer of transformers only calls its backend, a tokenizer of the library `tokenizers`."""
    from transformers import PreTrainedTokenizerFast

    actual, base = type(tokenizer), PreTrainedTokenizerFast
    return actual.__call__ is base.__call__ and getattr(actual, "_encode_plus", None) is base._encode_plus


def _interleave_texts(is_first: np.ndarray, first: TokenizedTexts, second: TokenizedTexts) -> TokenizedTexts:
    """Merge two lists of texts: row i is the next text of `first` if `is_first[i]`, otherwise the next of `second`."""
    lengths = np.empty(len(is_first), dtype=np.int64)
    starts = np.empty(len(is_first), dtype=np.int64)
    lengths[is_first], lengths[~is_first] = first.lengths, second.lengths
    starts[is_first], starts[~is_first] = first.starts, second.starts + len(first.ids)
    types = None
    if first.types is not None and second.types is not None:
        types = np.concatenate([first.types, second.types])
    num_truncated = first.num_truncated + second.num_truncated
    return TokenizedTexts(np.concatenate([first.ids, second.ids]), types, lengths, starts, num_truncated)


def iter_batches_by_length(lengths: np.ndarray, *, budget: int, max_texts: int = 4096) -> Iterator[np.ndarray]:
    """Yield batches of row indices, longest texts first, so that the first batches need the most memory.

    lengths: (texts,), in tokens
    budget: maximum number of tokens in a batch, padding included; a longer text is a batch of its own
    max_texts: maximum number of texts in a batch
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        rows = max(1, min(max_texts, budget // max(1, int(lengths[order[start]]))))
        yield order[start : start + rows]
        start += rows


def group_by_length(lengths: np.ndarray, *, overhead: float) -> list[np.ndarray]:
    """Return batches of row indices, longest texts first, that minimize the cost.

    The cost is the number of tokens, padding included, plus `overhead` for each batch.
    lengths: (texts,), in tokens; overhead: fixed cost of a batch, in tokens
    """
    order = np.argsort(-lengths, kind="stable")
    widths, starts = np.unique(-lengths[order], return_index=True)  # a group begins where the length changes
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

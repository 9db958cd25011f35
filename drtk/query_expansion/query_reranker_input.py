"""Input format of query rerankers: format and tokenize queries with their candidate expansions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drtk.errors import MismatchError
from drtk.models.model_folder import read_meta_entry, resolve_model_folder
from drtk.runtime.manifest import is_manifest, read_manifest_if_any
from drtk.text.batching import SPECIAL, TokenizedTexts, encode_without_special_tokens, join_texts
from drtk.text.expanded_text import expand_query

INPUT_ENTRY = "query_reranker"  # the entry of meta.json
RERANKERS_BY_KIND = "query re-rankers"  # kind of a folder with a query reranker for each kind of expansion


class CandidateTexts(NamedTuple):
    """Question and expansion (`text`) of a candidate; for variant "rd" also its top-1 passage."""

    question: str
    text: str
    title: str = ""
    passage: str = ""


@dataclass(frozen=True)
class InputFormat:
    """Input format of a query reranker (docs/methods/ear.md).

    variant: "ri" (retrieval-independent: question and expansion) or "rd" (retrieval-dependent: also the top-1 passage)
    style: "official" (as in the published code) or "thesis"
    max_length: maximum input length in tokens, including special tokens
    """

    variant: str = "ri"
    style: str = "official"
    max_length: int = 64

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of meta.json, which also records that lower scores are better."""
        return asdict(self) | {"better": "lower"}

    def split_into_parts(self, candidate: CandidateTexts) -> tuple[str, ...]:
        """Return the parts of the model input, to be joined with separator tokens.

        Style "official": question and expansion. Style "thesis": one part, "question ? expansion". Variant "rd"
        (retrieval-dependent) adds the top-1 passage: title and text as two parts (official), or joined as one (thesis).
        """
        question, text = candidate.question.strip(), " ".join(candidate.text.split())
        if self.style == "thesis":
            query = expand_query(question, text)
            passage = f"{candidate.title} {candidate.passage}".strip()
            return (query,) if self.variant == "ri" else (query, passage)
        return (question, text) if self.variant == "ri" else (question, text, candidate.title, candidate.passage)


def read_input_format(folder: Path) -> InputFormat | None:
    """Return the input format of the query reranker in a folder; None for other models."""
    if (entry := read_meta_entry(folder, INPUT_ENTRY)) is None:
        return None
    return InputFormat(**{name: entry[name] for name in InputFormat.__dataclass_fields__ if name in entry})


def load_input_format(model: str) -> InputFormat:
    """Return the input format of a query reranker. Raises MismatchError for other models."""
    folder = resolve_model_folder(model)
    if (input_format := read_input_format(folder)) is not None:
        return input_format
    content = read_manifest_if_any(folder)
    if is_manifest(content) and content.get("kind") == RERANKERS_BY_KIND and content.get("kinds"):
        models = " ".join(f"{kind}={model}/{kind}" for kind in content["kinds"])
        raise MismatchError(f"{model}: contains a query reranker per kind of expansion; give all as `model` {models}")
    raise MismatchError(f"{model}: is not a query reranker; train one with `drtk rerank-queries train`")


class CandidateTokenizer:
    """Tokenizer of candidates as single texts or text pairs, by the parts of `InputFormat.split_into_parts`.

    The first part is the first segment; the other parts, joined by separator tokens, are the second. Long inputs are
    truncated at the end, but keep their special tokens.
    """

    def __init__(self, tokenizer: Any, input_format: InputFormat) -> None:
        self.tokenizer, self.input_format = tokenizer, input_format
        self.with_types = "token_type_ids" in tokenizer.model_input_names
        self.pad, self.left = int(tokenizer.pad_token_id or 0), tokenizer.padding_side == "left"
        self._num_parts = len(input_format.split_into_parts(CandidateTexts("", "")))
        self._template = self._make_template()

    def _make_template(self) -> list[tuple[int, int, int]]:
        """Return the pieces of an input for `join_texts`."""
        is_pair = self._num_parts > 1
        before, between, after = _find_special_tokens(self.tokenizer, is_pair=is_pair)
        second = self.tokenizer("a", "b")["token_type_ids"][-1] if self.with_types and is_pair else 0
        template = [(SPECIAL, id, 0) for id in before] + [(0, 0, 0)]
        for part in range(1, self._num_parts):  # the first separator belongs to the first segment
            template += [(SPECIAL, id, 0 if (part, at) == (1, 0) else second) for at, id in enumerate(between)]
            template.append((part, 0, second))
        return template + [(SPECIAL, id, second) for id in after]

    def __call__(self, candidates: Iterable[CandidateTexts]) -> TokenizedTexts:
        """Return the tokens of the candidates, in order."""
        inputs = [self.input_format.split_into_parts(candidate) for candidate in candidates]
        if not inputs:
            return TokenizedTexts.from_lists([], [] if self.with_types else None)
        # The question is the same in all its candidates.
        row_of = {text: row for row, text in enumerate(dict.fromkeys(chain.from_iterable(inputs)))}
        texts = TokenizedTexts.from_arrays(encode_without_special_tokens(self.tokenizer, list(row_of)))
        rows = np.array([[row_of[part] for part in parts] for parts in inputs]).T  # (parts, candidates)
        lengths = texts.lengths[rows]
        room = self.input_format.max_length - sum(piece == SPECIAL for piece, _, _ in self._template)
        kept = np.clip(room - (np.cumsum(lengths, axis=0) - lengths), 0, lengths)
        return join_texts(texts.ids, texts.starts[rows], kept, self._template, with_types=self.with_types)


def _find_special_tokens(tokenizer: Any, *, is_pair: bool) -> tuple[list[int], list[int], list[int]]:
    """Return the special tokens before, between and after the texts: one text, or a pair of texts."""
    encoded = tokenizer("a", "b" if is_pair else None, return_special_tokens_mask=True)
    tokens = zip(encoded["special_tokens_mask"], encoded["input_ids"], strict=True)
    groups = [(is_special, [id for _, id in group]) for is_special, group in groupby(tokens, key=itemgetter(0))]
    texts = [at for at, (is_special, _) in enumerate(groups) if not is_special]
    before = groups[0][1] if texts[0] > 0 else []
    between = groups[texts[0] + 1][1] if len(texts) > 1 else []
    return before, between, groups[-1][1] if texts[-1] < len(groups) - 1 else []

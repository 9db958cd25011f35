"""Format the input of a query re-ranker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from drtk.errors import MismatchError
from drtk.models.model_folder import locate, read_training_entry
from drtk.runtime.manifest import is_manifest, read_manifest_if_any
from drtk.text.batching import TokenizedTexts
from drtk.text.expanded_text import expand_query

INPUT_ENTRY = "query_reranker"  # the entry of meta.json
KIND_OF_SEVERAL = "query re-rankers"  # kind of a folder with a query re-ranker for each kind of expansion


class CandidateTexts(NamedTuple):
    """A question, an expansion, and for "rd" title and text of the first passage that both together retrieve."""

    question: str
    text: str
    title: str = ""
    passage: str = ""


@dataclass(frozen=True)
class InputFormat:
    """The input: scorer "ri" (question, expansion) or "rd" (the first passage too); style "official" or "thesis".

    max_length: tokens, special tokens included
    """

    scorer: str = "ri"
    style: str = "official"
    max_length: int = 64

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as `meta.json` stores them, and that lower scores are better."""
        return asdict(self) | {"better": "lower"}

    def parts(self, candidate: CandidateTexts) -> tuple[str, ...]:
        """Return the texts between separators; an input that is too long is truncated at its end (docs/methods/ear.md).

        official: question, expansion, and for rd title, text; thesis: "question ? expansion", and for rd the passage
        """
        question, text = candidate.question.strip(), " ".join(candidate.text.split())
        if self.style == "thesis":
            query = expand_query(question, text)
            passage = f"{candidate.title} {candidate.passage}".strip()
            return (query,) if self.scorer == "ri" else (query, passage)
        return (question, text) if self.scorer == "ri" else (question, text, candidate.title, candidate.passage)


def read_input_format(folder: Path) -> InputFormat | None:
    """Return the input of the query re-ranker in a folder; None if drtk did not train it as one."""
    stated = read_training_entry(folder, INPUT_ENTRY)
    if stated is None:
        return None
    return InputFormat(**{name: stated[name] for name in InputFormat.__dataclass_fields__ if name in stated})


def load_input_format(model: str) -> InputFormat:
    """Return the input of a query re-ranker. Raises MismatchError for any other model."""
    folder = locate(model)
    if (found := read_input_format(folder)) is not None:
        return found
    content = read_manifest_if_any(folder)
    if is_manifest(content) and content.get("kind") == KIND_OF_SEVERAL and content.get("kinds"):
        named = " ".join(f"{kind}={model}/{kind}" for kind in content["kinds"])
        raise MismatchError(f"{model}: contains a query re-ranker for each kind; name them: {named}")
    raise MismatchError(f"{model}: is no query re-ranker; drtk rerank-queries train makes one")


class CandidateTokenizer:
    """Tokenize candidates: the texts of `reading` between the tokenizer's special tokens for a pair.

    The first text is the first segment, all others the second. The last texts are truncated first; separators stay.
    Two texts that fit get the same tokens as a pair.
    """

    def __init__(self, tokenizer: Any, reading: InputFormat) -> None:
        self.tokenizer, self.reading = tokenizer, reading
        self.with_types = "token_type_ids" in tokenizer.model_input_names
        self.pad, self.left = int(tokenizer.pad_token_id or 0), tokenizer.padding_side == "left"
        self._single, self._pair = _frame(tokenizer), _frame(tokenizer, "b")
        self._second = tokenizer("a", "b")["token_type_ids"][-1] if self.with_types else 0

    def __call__(self, candidates: Iterable[CandidateTexts]) -> TokenizedTexts:
        """Return the tokens of the candidates in order."""
        parted = [self.reading.parts(candidate) for candidate in candidates]
        if not parted:
            return TokenizedTexts.from_lists([], [] if self.with_types else None)
        texts = list(dict.fromkeys(chain.from_iterable(parted)))  # all candidates of a question contain it
        token_ids = self.tokenizer(
            texts,
            add_special_tokens=False,
            truncation=True,
            max_length=self.reading.max_length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        pieces = dict(zip(texts, token_ids, strict=True))
        ids, types = zip(*(self._join([pieces[part] for part in parts]) for parts in parted), strict=True)
        return TokenizedTexts.from_lists(ids, types if self.with_types else None)

    def _join(self, parts: list[list[int]]) -> tuple[list[int], list[int]]:
        """Return token ids and segments of one input."""
        lead, between, tail = self._single if len(parts) == 1 else self._pair
        room = self.reading.max_length - len(lead) - len(tail) - len(between) * (len(parts) - 1)
        ids = [*lead]
        first = 0
        for place, part in enumerate(parts):
            if place:
                ids += between
            if place == 1:
                first = len(ids) - len(between) + 1  # the first separator belongs to the first segment
            kept = part[: max(room, 0)]
            ids += kept
            room -= len(kept)
        ids += tail
        first = first or len(ids)
        return ids, [0] * first + [self._second] * (len(ids) - first)


def _frame(tokenizer: Any, *second: str) -> tuple[list[int], list[int], list[int]]:
    """Return the special tokens before, between and after one text or two."""
    found = tokenizer("a", *second, return_special_tokens_mask=True)
    runs: list[list[int]] = [[]]
    for id, special in zip(found["input_ids"], found["special_tokens_mask"], strict=True):
        if special:
            runs[-1].append(id)
        elif runs[-1] or len(runs) == 1:
            runs.append([])
    if not second:
        return runs[0], [], runs[-1] if len(runs) > 1 else []
    return runs[0], runs[1] if len(runs) > 2 else [], runs[-1]

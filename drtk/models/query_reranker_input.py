"""Format the input of a query re-ranker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from drtk.errors import MismatchError
from drtk.models.model_folder import locate
from drtk.runtime.manifest import is_manifest, read_manifest_if_any
from drtk.text.batching import Tokens
from drtk.text.expanded_text import expanded_query

INPUT_ENTRY = "query_reranker"  # the entry of meta.json
KIND_OF_SEVERAL = "query re-rankers"  # of a folder of one for each kind of expansion


class Candidate(NamedTuple):
    """A question, an expansion, and of the first passage that both together find its title and text, where it is read."""

    question: str
    text: str
    title: str = ""
    passage: str = ""


@dataclass(frozen=True)
class QueryInput:
    """What is read: scorer "ri" (question, expansion) or "rd" (the first passage too); style "official" or "thesis".

    max_length: tokens, special ones included
    """

    scorer: str = "ri"
    style: str = "official"
    max_length: int = 64

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `meta.json` stores them, with what must not be mistaken."""
        return asdict(self) | {"better": "lower"}

    def parts(self, candidate: Candidate) -> tuple[str, ...]:
        """What stands between separators, in order; what exceeds the longest input is cut off the end (methods, section 7.6).

        official: question, expansion, and for rd title, text; thesis: "question ? expansion", and for rd the passage
        """
        question, text = candidate.question.strip(), " ".join(candidate.text.split())
        if self.style == "thesis":
            query = expanded_query(question, text)
            passage = f"{candidate.title} {candidate.passage}".strip()
            return (query,) if self.scorer == "ri" else (query, passage)
        return (question, text) if self.scorer == "ri" else (question, text, candidate.title, candidate.passage)


def read_query_input(folder: Path) -> QueryInput | None:
    """What the model of a folder reads, None where it is no query re-ranker of drtk's."""
    content = read_manifest_if_any(folder)
    stated = content.get(INPUT_ENTRY) if is_manifest(content) else None
    if not isinstance(stated, dict):
        return None
    return QueryInput(**{name: stated[name] for name in QueryInput.__dataclass_fields__ if name in stated})


def _kinds_of(folder: Path) -> list[str]:
    """The kinds that a folder of query re-rankers, one for each kind, has."""
    content = read_manifest_if_any(folder)
    return list(content.get("kinds", [])) if is_manifest(content) and content.get("kind") == KIND_OF_SEVERAL else []


def load_query_input(model: str) -> QueryInput:
    """What a query re-ranker reads. Raises MismatchError for a model that is none."""
    folder = locate(model)
    found = read_query_input(folder)
    if found is None:
        if kinds := _kinds_of(folder):
            named = " ".join(f"{kind}={model}/{kind}" for kind in kinds)
            raise MismatchError(f"{model}: holds a query re-ranker for each kind; name them: {named}")
        raise MismatchError(f"{model}: is no query re-ranker; drtk rerank-queries train makes one")
    return found


def refuse_query_reranker(model: str, folder: Path) -> None:
    """Raises MismatchError for a query re-ranker: its scores are estimated ranks, the lower the better."""
    if read_query_input(folder) is not None:
        raise MismatchError(
            f"{model}: is a query re-ranker, whose scores are better the lower they are; "
            "drtk rerank-queries apply is what it is for"
        )


class CandidateTokenizer:
    """How candidates become tokens: the parts of `reading` between the tokenizer's special tokens for a pair.

    The first part is the first segment, all others are the second. Each part gets what those before it leave of
    `max_length`; separators stay. Two parts that fit are the tokens of that pair.
    """

    def __init__(self, tokenizer: Any, reading: QueryInput) -> None:
        self.tokenizer, self.reading = tokenizer, reading
        self.with_types = "token_type_ids" in tokenizer.model_input_names
        self.pad, self.left = int(tokenizer.pad_token_id or 0), tokenizer.padding_side == "left"
        self._single, self._pair = _frame(tokenizer), _frame(tokenizer, "b")
        self._second = tokenizer("a", "b")["token_type_ids"][-1] if self.with_types else 0

    def __call__(self, candidates: Iterable[Candidate]) -> Tokens:
        """The tokens of the candidates, in their order."""
        parted = [self.reading.parts(candidate) for candidate in candidates]
        if not parted:
            return Tokens.of([], [] if self.with_types else None)
        texts = list(dict.fromkeys(chain.from_iterable(parted)))  # a question stands in all its candidates
        found = self.tokenizer(
            texts,
            add_special_tokens=False,
            truncation=True,
            max_length=self.reading.max_length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        pieces = dict(zip(texts, found, strict=True))
        ids, types = zip(*(self._joined([pieces[part] for part in parts]) for parts in parted), strict=True)
        return Tokens.of(ids, types if self.with_types else None)

    def _joined(self, parts: list[list[int]]) -> tuple[list[int], list[int]]:
        """Token ids and segments of one input."""
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
    """The special tokens before, between and after the texts of one or two."""
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

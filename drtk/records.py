"""The records that commands read and write. Unknown JSON fields are kept in `extra` and copied to the output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage, or a whole document before chunking."""

    id: str
    text: str
    title: str = ""
    metadata: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def parse_document_id(passage_id: str) -> str:
    """Return the document id in a passage id: the part before the last '#', or the whole id."""
    return passage_id.rpartition("#")[0] or passage_id


def get_document_id(passage: Passage) -> str:
    """Return the document id of a passage: `metadata.source_id`, or else the document id in the passage id."""
    source_id = (passage.metadata or {}).get("source_id")
    return parse_document_id(passage.id) if source_id is None else str(source_id)


@dataclass(frozen=True, slots=True)
class Query:
    """A query; `answers` are its gold answers, or None if they are unknown."""

    id: str
    text: str
    answers: tuple[str, ...] | None = None
    metadata: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Qrel:
    """A relevance judgment. Grades above 0 mean relevant."""

    query_id: str
    doc_id: str
    grade: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A line of a run. Higher scores are better; ranks begin at 1."""

    query_id: str
    doc_id: str
    rank: int
    score: float
    tag: str = "drtk"


@dataclass(frozen=True, slots=True)
class Example:
    """A training example: a query and its positive and negative passages, as ids.

    scores: "positives" or "negatives" -> score of each passage
    sources: "positives" or "negatives" -> name of the run, index or file from which each passage was mined
    """

    query_id: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    scores: dict[str, list[float]] | None = None
    sources: dict[str, list[str]] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


RESERVED_KIND = "choices"  # rerank-queries apply names files by kind, and writes another file with this name


def describe_kind_problem(kind: str) -> str | None:
    """Return what is wrong with a kind of expansion, to follow its name in an error message; None for a valid kind."""
    if kind.split() != [kind] or "/" in kind or kind.startswith("."):
        return "must be one word, usable as a file name"
    return f"is reserved: rerank-queries apply writes a file {RESERVED_KIND}.jsonl" if kind == RESERVED_KIND else None


@dataclass(frozen=True, slots=True)
class Expansion:
    """A candidate expansion of a query (GAR), with its label for reranking (EAR).

    kind: what was generated, for example "answer" or "title"
    score: score in the input file; drtk keeps it, but does not use it
    rank: rank of the first passage with an answer when the expanded query is searched
    depth: largest rank that was checked; a larger `rank` means that no passage had an answer
    top1: title and text of the top-ranked passage    fold: cross-fitting fold; its generator excludes this query
    """

    id: str
    query_id: str
    kind: str
    text: str
    score: float | None = None
    rank: int | None = None
    top1: dict[str, str] | None = None
    fold: int | None = None
    depth: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A reader's answer to a query. score: log-probability of the answer"""

    query_id: str
    answer: str
    score: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

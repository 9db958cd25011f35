"""The records that commands exchange. Unknown JSON fields are kept in `extra`, and filters pass them on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage; before chunking, a whole document."""

    id: str
    text: str
    title: str = ""
    metadata: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Query:
    """A query; `answers` are its gold answers, if they are known."""

    id: str
    text: str
    answers: tuple[str, ...] | None = None
    metadata: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Qrel:
    """A relevance judgement; a grade above 0 means relevant."""

    query_id: str
    doc_id: str
    grade: int


@dataclass(frozen=True, slots=True)
class Hit:
    """One line of a run. Higher scores are better; `rank` counts from 1."""

    query_id: str
    doc_id: str
    rank: int
    score: float
    tag: str = "drtk"


@dataclass(frozen=True, slots=True)
class Example:
    """A training example: ids, whose texts are looked up."""

    query_id: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    scores: dict[str, list[float]] | None = None
    sources: dict[str, list[str]] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


RESERVED_KIND = "choices"  # another output file of rerank-queries apply, whose files are named by kinds


def describe_kind_problem(kind: str) -> str | None:
    """Return why a kind of expansions cannot be a file name; None if it can."""
    if kind.split() != [kind] or "/" in kind or kind.startswith("."):
        return "must be one word that can stand in a file name"
    return (
        f"is the name of another file that rerank-queries apply makes, {RESERVED_KIND}.jsonl"
        if kind == RESERVED_KIND
        else None
    )


@dataclass(frozen=True, slots=True)
class Expansion:
    """A candidate expansion of a query (GAR); `rank` is that of the first passage with an answer (EAR).

    depth: the largest rank that was checked; a larger `rank` means that no passage had an answer
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
    """A reader's answer to a query."""

    query_id: str
    answer: str
    score: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

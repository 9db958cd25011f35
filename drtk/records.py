"""The records that travel between commands.

Unknown JSON fields of a line ride along in `extra`, so a filter that does not know them passes them on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Passage:
    """A text to be found; before chunking, a whole document."""

    id: str
    text: str
    title: str = ""
    metadata: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Query:
    """A question; `answers` are the strings that count as right, where they are known."""

    id: str
    text: str
    answers: tuple[str, ...] | None = None
    metadata: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Qrel:
    """A judgement: how relevant a document is to a query (above 0: relevant)."""

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
    """A training example: ids only; texts are looked up."""

    query_id: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    scores: dict[str, list[float]] | None = None
    sources: dict[str, list[str]] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


TAKEN = "choices"  # a file of rerank-queries apply, beside those that are named by kinds


def kind_problem(kind: str) -> str | None:
    """Why a kind of expansions cannot be the name of a file of queries; None: it can."""
    if kind.split() != [kind] or "/" in kind or kind.startswith("."):
        return "must be one word that can stand in a file name"
    return f"is the name of another file that rerank-queries apply makes, {TAKEN}.jsonl" if kind == TAKEN else None


@dataclass(frozen=True, slots=True)
class Expansion:
    """A candidate re-writing of a question (GAR); `rank` is that of its first answer-bearing passage (EAR).

    depth: the rank to which was looked for one; a greater `rank` means that none was found
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
    """A reader's answer to a question."""

    query_id: str
    answer: str
    score: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

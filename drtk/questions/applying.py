"""Candidates to queries: windows of questions through a choice, and the query files that searching takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from drtk.io.candidates import Candidates, distinct
from drtk.io.filtering import Done
from drtk.io.jsonl import dump
from drtk.questions.choosing import CHOICES, Group, by_estimate, concatenated
from drtk.records import Expansion, Query
from drtk.retrieval.bm25_words import split_words
from drtk.runners.base import BatchFunction
from drtk.settings.query_reranking import ChooseSettings
from drtk.settings.retrieval import SearchSettings
from drtk.text.expanded_query import expanded_query, plain_query

if TYPE_CHECKING:
    from drtk.models.crossencoder import Prepared
    from drtk.models.query_reranker import QueryScorer
    from drtk.questions.reranking import QueryReranker

LUCENE_CLAUSES = 1024  # distinct words of a query that Lucene takes where nobody says otherwise
LINES = "choices.jsonl"  # in the folder: of each question and kind what was chosen, and why


class _Window(NamedTuple):
    """Groups of candidates, the distinct ones among them, and where a model reads them their tokens and what was looked up."""

    records: list[Candidates]
    groups: list[Group]
    tokens: dict[QueryScorer, Prepared] | None
    looked_up: dict[str, int]


class ChooseQueries(BatchFunction):
    """Windows of `Candidates` to lines of choices.jsonl: the queries of each question and kind, best first.

    models: query re-rankers by kind, for --select scorer alone, as others are to do without the libraries of models
    index, corpus: for those that read passages
    """

    def __init__(
        self, settings: ChooseSettings, models: Mapping[str, str], device: str, index: str | None, corpus: str | None
    ) -> None:
        self._settings = settings
        self.ahead = index is None  # an index must be asked by the thread that opened it
        self._reranker: QueryReranker | None = None
        if settings.select == "scorer":
            from drtk.questions.reranking import QueryReranker
            from drtk.retrieval.found_texts import FoundTexts

            searching = SearchSettings(k1=settings.k1, b=settings.b)
            texts = None if index is None else FoundTexts(index, corpus=corpus, settings=searching)
            self._reranker = QueryReranker(models, device=device, settings=settings, texts=texts)

    def prepare(self, records: list[Candidates]) -> _Window:
        """The distinct candidates of each group, and their tokens."""
        kept = [distinct(each.expansions, self._settings.max_candidates) for each in records]
        groups = [Group(each.query.text, each.kind, found) for each, found in zip(records, kept, strict=True)]
        if self._reranker is None:
            return _Window(records, groups, None, {})
        self._reranker.looked_up.clear()
        tokens = self._reranker.prepare(groups)
        return _Window(records, groups, tokens, dict(self._reranker.looked_up))

    def __call__(self, prepared: _Window) -> Done:
        """The lines of a window, and how many candidates there were and how many different ones."""
        records, groups, tokens, looked_up = prepared
        given = sum(len(each.expansions) for each in records)
        counts = {"candidates": given, "distinct": 0, "chosen": 0, "cut": 0, "above Lucene's limit": 0}
        estimates: Sequence[np.ndarray | None] = [None] * len(records)
        if self._reranker is not None and tokens is not None:
            estimates = self._reranker.scores(groups, tokens)
        lines = []
        for each, group, estimate in zip(records, groups, estimates, strict=True):
            counts["distinct"] += len(group.expansions)
            lines.append(dump(self._line(each, group.expansions, estimate, counts)))
        return Done(lines, counts | looked_up)

    def _line(
        self, group: Candidates, found: Sequence[Expansion], estimate: np.ndarray | None, counts: dict[str, int]
    ) -> dict[str, Any]:
        line: dict[str, Any] = {"query_id": group.query.id, "kind": group.kind}
        if self._settings.select == "concat":
            counts["chosen"] += 1
            text, cut = concatenated(group.query.text, found, clauses=self._settings.max_clauses)
            counts["cut"] += cut
            counts["above Lucene's limit"] += len(set(split_words(text, latin=False))) > LUCENE_CLAUSES
            return line | {"chosen": [[each.id for each in found]], "queries": [text]}
        best = by_estimate(found, estimate) if estimate is not None else CHOICES[self._settings.select](found)
        best = best[: self._settings.top]
        counts["chosen"] += bool(best)
        line |= {"chosen": [[each.id] for each in best]}
        if estimate is not None:
            of = dict(zip((each.id for each in found), estimate.tolist(), strict=True))
            line["estimates"] = [of[each.id] for each in best]
        if all(each.rank is not None for each in best):
            line["ranks"] = [each.rank for each in best]
        return line | {"queries": [expanded_query(group.query.text, each.text) for each in best]}


def write_queries(folder: Path, questions: Mapping[str, Query], top: int) -> dict[str, int]:
    """Write the query files of a folder from its choices.jsonl: KIND.jsonl, or KIND.1.jsonl … KIND.N.jsonl for N > 1.

    Questions keep id, answers and all else; the text is the expanded query, "expansion" names the candidates in it. One that
    has no candidate of a kind is asked alone in the (first) file of that kind, at its end: it is to be searched for all the
    same, and a run without it would count as one that finds nothing.
    Returns how many queries each file holds, and "asked alone".
    """
    kinds: dict[str, set[str]] = {}
    for choice in _choices(folder):
        kinds.setdefault(choice["kind"], set()).update([choice["query_id"]] if choice["chosen"] else [])
    counts: dict[str, int] = {}
    with ExitStack() as stack:
        files = {
            (kind, place): stack.enter_context(open(folder / _name(kind, place, top), "wb"))
            for kind in kinds
            for place in range(top)
        }
        for choice in _choices(folder):
            query = questions[choice["query_id"]]
            for place, (text, ids) in enumerate(zip(choice["queries"], choice["chosen"], strict=True)):
                expansion = ids[0] if len(ids) == 1 else ids
                made = replace(query, text=text, extra=query.extra | {"expansion": expansion})
                files[choice["kind"], place].write(dump(made))
                name = _name(choice["kind"], place, top)
                counts[name] = counts.get(name, 0) + 1
        alone = 0
        for kind, ids in kinds.items():
            for id, query in questions.items():
                if id not in ids:
                    files[kind, 0].write(dump(replace(query, text=plain_query(query.text))))
                    alone += 1
                    name = _name(kind, 0, top)
                    counts[name] = counts.get(name, 0) + 1
    return counts | {"asked alone": alone}


def questions_without(folder: Path, questions: Mapping[str, Query]) -> int:
    """How many questions no choice of the folder's choices.jsonl belongs to."""
    return len(questions.keys() - {choice["query_id"] for choice in _choices(folder) if choice["chosen"]})


def _choices(folder: Path) -> Iterator[dict[str, Any]]:
    with open(folder / LINES, "rb") as lines:
        for line in lines:
            yield orjson.loads(line)


def _name(kind: str, place: int, top: int) -> str:
    return f"{kind}.jsonl" if top == 1 else f"{kind}.{place + 1}.jsonl"

"""Choose the expansion of each query (EAR)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from drtk.data.checks import count_texts
from drtk.data.jsonl import dump
from drtk.errors import MismatchError
from drtk.indexing.config import SearchSettings
from drtk.models.config import ScoringSettings
from drtk.query_expansion.candidates import Candidates, distinct
from drtk.query_expansion.config import ChooseSettings
from drtk.query_expansion.query_reranker_input import Candidate
from drtk.records import Expansion, Query
from drtk.runtime.filter_job import Done
from drtk.runtime.runners import BatchFunction
from drtk.text.expanded_text import expanded_query, plain_query
from drtk.text.words import split_words

if TYPE_CHECKING:
    from drtk.models.cross_encoder import TokenizedPairs
    from drtk.query_expansion.query_reranker import QueryScorer
    from drtk.retrieval.search import PassageSearcher

Choice = Callable[[Sequence[Expansion]], list[Expansion]]  # the candidates, best first
GREEDY = "greedy"  # "decode" of a candidate that was written so


class Group(NamedTuple):
    """A question and its candidates of one kind."""

    question: str
    kind: str
    expansions: Sequence[Expansion]


def by_estimate(expansions: Sequence[Expansion], estimates: np.ndarray) -> list[Expansion]:
    """The candidates by estimated rank, LOWEST first, equal ones in their order (methods, section 7.8).

    estimates: (candidates,)
    """
    return [expansions[place] for place in np.argsort(estimates, kind="stable")]


def as_given(expansions: Sequence[Expansion]) -> list[Expansion]:
    """The candidates in their order: what "first" takes."""
    return [*expansions]


def by_label(expansions: Sequence[Expansion]) -> list[Expansion]:
    """The candidates by the rank of their first answer-bearing passage: the oracle, EAR's upper bound (methods, 7.9).

    Raises MismatchError where one has no label.
    """
    for each in expansions:
        if problem := unlabelled(each):
            raise MismatchError(problem)
    return sorted(expansions, key=lambda each: each.rank or 0)


def unlabelled(expansion: Expansion) -> str | None:
    """What a candidate lacks for the oracle; None where it lacks nothing."""
    missing = expansion.rank is None
    return f"'{expansion.id}' has no rank; drtk rerank-queries label gives it one" if missing else None


def greedy_ones(expansions: Sequence[Expansion]) -> list[Expansion]:
    """The candidates that were generated greedily (GAR's baseline); none where the generator wrote nothing then."""
    return [each for each in expansions if each.extra.get("decode") == GREEDY]


CHOICES: dict[str, Choice] = {"first": as_given, "oracle": by_label, "greedy": greedy_ones}


def concatenated(question: str, expansions: Sequence[Expansion], *, clauses: int | None = None) -> tuple[str, bool]:
    """One query of a question and all its candidates (GAR's concat), and whether words were cut off its end.

    clauses: the most different words it may have. Words here are runs of letters and digits: an analyzer that leaves out
             stop words or finds stems has no more of them.
    """
    text = expanded_query(question, *(each.text for each in expansions))
    if clauses is None:
        return text, False
    seen: set[str] = set()
    kept: list[str] = []
    for word in text.split():
        seen.update(split_words(word, latin=False))
        if len(seen) > clauses:
            return " ".join(kept), True
        kept.append(word)
    return text, False


ANY = ""  # the kind of a model that is for all kinds without one of their own


class QueryReranker:
    """Query re-rankers, kept loaded, one for each kind of expansion or one for all.

    models: a folder, or folders by kind, with that of ANY for other kinds
    texts: where retrieval-dependent (RD) models find the first passage of candidates that come without "top1"
    looked_up: counts of the passages that were found there, and of those without a text
    Raises MismatchError for a folder that is no query re-ranker, what loading one raises.
    """

    def __init__(
        self,
        models: str | Mapping[str, str],
        *,
        device: str = "auto",
        settings: ScoringSettings | None = None,
        texts: PassageSearcher | None = None,
    ) -> None:
        from drtk.query_expansion.query_reranker import QueryScorer  # imports torch

        named = {ANY: models} if isinstance(models, str) else dict(models)
        loaded = {
            model: QueryScorer(model, device=device, settings=settings) for model in dict.fromkeys(named.values())
        }
        self._scorers = {kind: loaded[model] for kind, model in named.items()}
        self._texts = texts
        self.looked_up: Counter[str] = Counter()

    def scorer(self, kind: str) -> QueryScorer:
        """The model for a kind. Raises MismatchError where there is none."""
        found = self._scorers.get(kind) or self._scorers.get(ANY)
        if found is None:
            raise MismatchError(f"no model is for candidates of kind '{kind}': --model {kind}=DIR, or one for all")
        return found

    def estimates(self, groups: Sequence[Group]) -> list[np.ndarray]:
        """The estimated ranks of each group's candidates, (candidates,) float32: THE LOWER, THE BETTER.

        Raises MismatchError for a candidate without "top1" whose model reads it, where there is no index to ask.
        """
        return self.scores(groups, self.prepare(groups))

    def prepare(self, groups: Sequence[Group]) -> dict[QueryScorer, TokenizedPairs]:
        """The candidates of the groups as tokens, by the model that reads them."""
        given: dict[QueryScorer, list[Candidate]] = {}
        first = self._first_passages(groups)
        for group in groups:
            scorer = self.scorer(group.kind)
            candidates = given.setdefault(scorer, [])
            for each in group.expansions:
                top = (each.top1 or first[_query(group, each)]) if scorer.reading.scorer == "rd" else {}
                candidates.append(Candidate(group.question, each.text, top.get("title", ""), top.get("text", "")))
        return {scorer: scorer.prepare(candidates) for scorer, candidates in given.items()}

    def scores(self, groups: Sequence[Group], prepared: Mapping[QueryScorer, TokenizedPairs]) -> list[np.ndarray]:
        """The estimates of groups that were prepared."""
        found = {scorer: scorer.estimates(each) for scorer, each in prepared.items()}
        at = dict.fromkeys(found, 0)
        estimates = []
        for group in groups:
            scorer = self.scorer(group.kind)
            start, at[scorer] = at[scorer], at[scorer] + len(group.expansions)
            estimates.append(found[scorer][start : at[scorer]])
        return estimates

    def _first_passages(self, groups: Sequence[Group]) -> dict[str, dict[str, str]]:
        """Title and text of the first passage of each query whose candidate lacks it and whose model reads it."""
        wanted: dict[str, Expansion] = {}
        for group in groups:
            if self.scorer(group.kind).reading.scorer == "rd":
                wanted |= {_query(group, each): each for each in group.expansions if each.top1 is None}
        if not wanted:
            return {}
        if self._texts is None:
            each = next(iter(wanted.values()))
            raise MismatchError(
                f"'{each.id}' has no 'top1', which a scorer of kind rd reads: --index DIR searches it, or "
                "drtk rerank-queries label adds it to all"
            )
        found: dict[str, dict[str, str]] = {}
        passages = []
        for query, ranking in zip(wanted, self._texts.search(list(wanted), 1), strict=True):
            passage = self._texts.passage(ranking[0][0]) if ranking else None
            found[query] = {"title": passage.title, "text": passage.text} if passage else {"title": "", "text": ""}
            passages += [passage] if passage else []
        self.looked_up.update(count_texts(passages))
        return found


def _query(group: Group, expansion: Expansion) -> str:
    return expanded_query(group.question, expansion.text)


LUCENE_CLAUSES = 1024  # distinct words of a query that Lucene takes where nobody says otherwise
LINES = "choices.jsonl"  # in the folder: of each question and kind what was chosen, and why


class _Window(NamedTuple):
    """Groups of candidates, the distinct ones among them, and where a model reads them their tokens and what was looked up."""

    records: list[Candidates]
    groups: list[Group]
    tokens: dict[QueryScorer, TokenizedPairs] | None
    count_texts: dict[str, int]


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
            from drtk.retrieval.search import PassageSearcher

            searching = SearchSettings(k1=settings.k1, b=settings.b)
            texts = None if index is None else PassageSearcher(index, corpus=corpus, settings=searching)
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
        records, groups, tokens, count_texts = prepared
        given = sum(len(each.expansions) for each in records)
        counts = {"candidates": given, "distinct": 0, "chosen": 0, "cut": 0, "above Lucene's limit": 0}
        estimates: Sequence[np.ndarray | None] = [None] * len(records)
        if self._reranker is not None and tokens is not None:
            estimates = self._reranker.scores(groups, tokens)
        lines = []
        for each, group, estimate in zip(records, groups, estimates, strict=True):
            counts["distinct"] += len(group.expansions)
            lines.append(dump(self._line(each, group.expansions, estimate, counts)))
        return Done(lines, counts | count_texts)

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

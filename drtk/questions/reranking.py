"""EAR: the expansion of a question that a query re-ranker expects to retrieve best (Chuang 2023; methods, section 7.8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from drtk.errors import MismatchError
from drtk.io.textless import looked_up
from drtk.models.crossencoder import Prepared
from drtk.models.query_reading import Candidate
from drtk.models.query_reranker import QueryScorer
from drtk.questions.choosing import Group
from drtk.records import Expansion
from drtk.retrieval.found_texts import FoundTexts
from drtk.settings.scoring import ScoringSettings
from drtk.text.expanded_query import expanded_query

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
        texts: FoundTexts | None = None,
    ) -> None:
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

    def prepare(self, groups: Sequence[Group]) -> dict[QueryScorer, Prepared]:
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

    def scores(self, groups: Sequence[Group], prepared: Mapping[QueryScorer, Prepared]) -> list[np.ndarray]:
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
        self.looked_up.update(looked_up(passages))
        return found


def _query(group: Group, expansion: Expansion) -> str:
    return expanded_query(group.question, expansion.text)

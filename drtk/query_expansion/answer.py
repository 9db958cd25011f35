"""One question through the whole of EAR: expanded, its expansions re-ranked, each kind's best searched with, the lists fused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from drtk.data.rows import expansion_from, make_id, parse_row
from drtk.errors import UsageError
from drtk.indexing.base import Ranking
from drtk.models.model_folder import locate
from drtk.query_expansion.candidates import distinct
from drtk.query_expansion.config import ExpansionSettings
from drtk.query_expansion.generate import Expand, Generators, Question, generators_of
from drtk.query_expansion.rerank import Group, QueryReranker, as_given, by_estimate
from drtk.records import Expansion, Query
from drtk.retrieval.config import FuseSettings
from drtk.retrieval.fusion import fuse, round_robin
from drtk.text.expanded_text import expanded_query, plain_query
from drtk.training.folds import TrainedQuestions

ORDER = ("sentence", "answer", "title")  # of the lists that are fused (methods, section 7.8); other kinds follow
Search = Callable[[Sequence[str], int], Sequence[Ranking]]  # texts, how many passages for each


@dataclass(frozen=True)
class Chosen:
    """The query of one kind: the question with the expansion that was chosen.

    candidates: how many different ones there were; 0: none, and the question is asked alone
    estimate: of the query re-ranker, the lower the better; None where there is none to ask
    seen: whether the generator was trained with the question, and so has what to write by heart
    """

    kind: str
    query: str
    candidates: int
    estimate: float | None = None
    seen: bool = False


class Writer(NamedTuple):
    """A generator, and what it was made from, where its folder says so."""

    expand: Expand
    seen: TrainedQuestions | None = None


def expanders_of(
    models: Sequence[tuple[str, str]],
    settings: ExpansionSettings,
    *,
    prompts: Mapping[str, str],
    seed: int,
    device: str,
) -> dict[str, Writer]:
    """Generators kept loaded, by what they write, in the order of fusion.

    models: (kind, folder or hub name); an empty kind is for one that says itself what it writes
    prompts: of each kind; under the empty one, of those without one of their own
    Raises UsageError where one does not say it, two write the same, or a prompt is of a kind that none writes, and what
    loading raises.
    """
    wanted: dict[str, Generators] = {}
    for named, model in models:
        known = generators_of(model, locate(model), holdout=False, way_out="name one of them: ")
        kind = named or known.kind
        if kind is None:
            raise UsageError(
                f"--expand {model}: does not say what it writes; name it: answer={model}, sentence= or title="
            )
        if kind in wanted:
            raise UsageError(f"--expand: two generators write '{kind}'")
        wanted[kind] = known
    for kind in prompts:
        if kind and kind not in wanted:
            raise UsageError(f"--expand-prompt {kind}=: no generator writes '{kind}', but {', '.join(wanted)}")
    found: dict[str, Writer] = {}
    for kind, known in wanted.items():
        mine = replace(settings, prompt=prompts.get(kind, prompts.get("")))
        expand = Expand(known.models, kind, mine, known.length, seed, device, "--expand-prompt")
        found[kind] = Writer(expand, known.seen)
    return {kind: found[kind] for kind in (*ORDER, *(kind for kind in found if kind not in ORDER)) if kind in found}


class Chain:
    """Questions to passages, everything kept loaded.

    Without a re-ranker the first candidate is taken. One list is given as it was found; several are fused round robin.
    What is sampled depends on the text of the question alone: the same as drtk expand-queries gives a question without an id.
    """

    def __init__(self, expanders: Mapping[str, Writer], reranker: QueryReranker | None, search: Search) -> None:
        self._expanders, self._reranker, self._search = expanders, reranker, search

    def __call__(self, question: str, k: int) -> tuple[list[Chosen], Ranking]:
        """What was chosen, in the order of fusion, and the first `k` passages."""
        chosen = self.choose(question)
        rankings = self._search([each.query for each in chosen], k)
        if len(rankings) == 1:
            return chosen, rankings[0][:k]
        settings = FuseSettings(method="round-robin", top=k)
        return chosen, fuse(rankings, [1.0] * len(rankings), settings, round_robin)

    def choose(self, question: str) -> list[Chosen]:
        """The query of each kind."""
        asked = Question(make_id("q", question), question)
        query = Query(asked.id, question)
        chosen = []
        for kind, (expand, seen) in self._expanders.items():
            lines = expand(expand.prepare([asked])).lines
            group = Group(question, kind, distinct(expansion_from(parse_row(line)) for line in lines))
            chosen.append(replace(self._best(group), seen=seen is not None and query in seen))
        return chosen

    def _best(self, group: Group) -> Chosen:
        found: Sequence[Expansion] = group.expansions
        if not found:
            return Chosen(group.kind, plain_query(group.question), 0)
        estimate = None
        if self._reranker is None:
            best = as_given(found)[0]
        else:
            (estimates,) = self._reranker.estimates([group])
            best = by_estimate(found, estimates)[0]
            estimate = float(estimates.min())
        return Chosen(group.kind, expanded_query(group.question, best.text), len(found), estimate)

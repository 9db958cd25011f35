"""Run files against judgements: what the commands eval and report have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from drtk.data.checks import JudgedHits
from drtk.data.ids import CorpusIds
from drtk.data.runs import NamedRun
from drtk.data.trec import Judgements, load_hits, load_qrels
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.evaluation.evaluate import Evaluation, Evaluator, View
from drtk.evaluation.metrics import JudgedRanks
from drtk.runtime.inputs import Intake
from drtk.runtime.progress import detail, log, warn
from drtk.runtime.streams import STANDARD, name_of

if TYPE_CHECKING:
    from drtk.data.run_blocks import Places

Right = Literal["judgements", "answers"]  # what says which passages are right, and so how it is called
LARGE = 1 << 20  # bytes of a file; below, loading numpy takes longer than reading every line


def judgements_from(
    source: str, intake: Intake, *, known: CorpusIds | None = None, by_source: bool = False
) -> Judgements:
    """The judgements of a file; a counted warning where they name documents the corpus `known` does not have.

    Raises DrtkError where there are none.
    """
    judgements = load_qrels(source, intake=intake)
    if not judgements:
        raise DrtkError(f"{name_of(source)}: holds no judgements")
    if known is not None:
        present = known.has_document if by_source else known.__contains__
        judged = {id for grades in judgements.values() for id in grades}
        absent = sorted(id for id in judged if not present(id))
        if absent:
            what = "documents" if by_source else "passages"
            warn(
                f"{name_of(source)}: {len(absent):,} of {len(judged):,} judged {what} are not in the corpus, "
                f"for example '{absent[0]}'"
            )
    return judgements


@dataclass(frozen=True)
class Retrieved:
    """Rankings of the judged queries of a run, the passage that came first for each, and the run's tag.

    deepest: documents of the longest ranking, as the run holds them
    """

    rankings: dict[str, list[str]]
    top: dict[str, str]
    tag: str
    deepest: int


def retrieved_by(
    run: NamedRun, judgements: Judgements, view: View, intake: Intake, *, right: Right = "judgements"
) -> Retrieved:
    """What a run retrieved for the judged queries, seen through `view`; says which queries differ.

    right: where the judgements come from. Raises MismatchError where a run has queries, but none of the judged ones.
    """
    queries = _Seen(judgements)
    hits = load_hits(run.source, intake=intake, only=queries)
    if not queries.seen:
        warn(f"{run.name}: the run is empty")
    elif not hits:
        example, wanted = next(iter(queries.seen)), next(iter(judgements))
        raise MismatchError(
            f"{name_of(run.source)}: no query has {right}; it has '{example}', "
            f"the {'questions' if right == 'answers' else right} have '{wanted}'"
        )
    _tell_unjudged(run.name, len(queries.seen) - len(hits), right)
    tag = next((found.tags[0] for found in hits.values()), "")
    if right == "judgements":
        judged = JudgedHits(run.name, judgements, of=view.by)
        if not any(judged.add(query, found.doc_ids) for query, found in hits.items()):
            judged.warn()
    rankings, top, deepest = {}, {}, 0
    for query in list(hits):
        found = hits.pop(query)
        rankings[query] = view(found)
        deepest = max(deepest, view.length(found))
        if rankings[query]:
            top[query] = view.top(found)
    return Retrieved(rankings, top, tag, deepest)


class _Seen:
    """Membership among the judged queries, remembering what was asked about."""

    def __init__(self, judgements: Judgements) -> None:
        self._judgements = judgements
        self.seen: dict[str, None] = {}

    def __contains__(self, query: object) -> bool:
        self.seen[str(query)] = None
        return query in self._judgements


def evaluated(
    run: NamedRun, evaluator: Evaluator, view: View, intake: Intake, *, retrieved_only: bool = False
) -> tuple[Evaluation, Retrieved]:
    """The values of one run, and what it retrieved; says how many judged queries it lacks and what became of them."""
    found = retrieved_by(run, evaluator.judgements, view, intake)
    tell_missing(run.name, len(found.rankings), len(evaluator.judgements), retrieved_only=retrieved_only)
    result = evaluator(run.name, found.rankings, retrieved_only=retrieved_only, tag=found.tag)
    result.deepest = found.deepest
    return result, found


def scored(
    run: NamedRun, evaluator: Evaluator, view: View, intake: Intake, *, retrieved_only: bool = False
) -> Evaluation:
    """The values of one run, as `evaluated` gives them; where ranks of judged documents suffice, without the rest in memory."""
    large = run.source != STANDARD and Path(run.source).is_file() and Path(run.source).stat().st_size >= LARGE
    if large and not evaluator.needs_rankings and view.by is None and view.order == "score" and not intake.skip_bad:
        from drtk.data.run_blocks import NotPlain

        try:
            return _scored_by_blocks(run, evaluator, view, intake, retrieved_only)
        except (NotPlain, RecordError):
            detail(f"{run.name}: is read line by line")
    return evaluated(run, evaluator, view, intake, retrieved_only=retrieved_only)[0]


def _scored_by_blocks(
    run: NamedRun, evaluator: Evaluator, view: View, intake: Intake, retrieved_only: bool
) -> Evaluation:
    """Raises NotPlain where the run has to be read carefully, were it only to say what may be wrong with it."""
    from drtk.data.run_blocks import NotPlain, QueryCounts, judged_places

    seen, found, tag, deepest = QueryCounts(), {}, "", 0
    for places in judged_places(run.source, evaluator.judgements, intake, seen):
        found[places.query_id] = _looked_at(places, evaluator.judgements[places.query_id], view)
        tag, deepest = tag or places.tag, max(deepest, places.length)
    if not any(item.ranks for item in found.values()):
        raise NotPlain
    _tell_unjudged(run.name, seen.unjudged)
    tell_missing(run.name, len(found), len(evaluator.judgements), retrieved_only=retrieved_only)
    result = evaluator.from_ranks(run.name, found, retrieved_only=retrieved_only, tag=tag)
    result.deepest = deepest
    return result


def _looked_at(places: Places, judged: Mapping[str, int], view: View) -> JudgedRanks:
    """Judged documents as a view has them: the query's own document left out where that is asked for, then the cut."""
    pairs = zip(places.ranks, places.doc_ids, strict=True)
    own = next((rank for rank, id in pairs if id == places.query_id), None)
    known = [(rank, judged[id]) for rank, id in zip(places.ranks, places.doc_ids, strict=True) if id in judged]
    found = JudgedRanks([rank for rank, _ in known], [grade for _, grade in known], places.length)
    if view.drop_same_id and own is not None:
        found = found.without(own)
    return found.cut(view.depth)


def _tell_unjudged(name: str, count: int, right: Right = "judgements") -> None:
    if count:
        detail(f"{name}: {_queries(count)} of the run without {right} left out")


def tell_missing(
    name: str, found: int, wanted: int, *, retrieved_only: bool, right: Right = "judgements", where: str = "in the run"
) -> None:
    """Say how many of the queries that count a run (or what `where` names) lacks, and what becomes of them."""
    if missing := wanted - found:
        fate = "left out" if retrieved_only else "counted as 0"
        log(f"{name}: {_queries(missing)} of {wanted:,} with {right} not {where}, {fate}")


def _queries(count: int) -> str:
    return f"{count:,} {'query' if count == 1 else 'queries'}"

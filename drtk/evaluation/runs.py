"""Run files against judgements: what the commands eval and report have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.evaluation.evaluate import Evaluation, Evaluator
from drtk.evaluation.rankings import Sources, View, source_of
from drtk.io.intake import Intake
from drtk.io.progress import log, warn
from drtk.io.streams import STANDARD, name_of
from drtk.io.trec import Judgements, QueryHits, load_hits, load_qrels

_ENDINGS = (".gz", ".zst", ".txt", ".tsv", ".run", ".trec")


@dataclass(frozen=True)
class NamedRun:
    """A run and what tables call it."""

    name: str
    source: str


def named_runs(arguments: Sequence[str]) -> list[NamedRun]:
    """Runs given as NAME=FILE or FILE; without a name the file's own, with its folder where that alone is ambiguous.

    Raises UsageError for a name used twice, and for stdin given twice.
    """
    if sum(argument.rpartition("=")[2] == STANDARD for argument in arguments) > 1:
        raise UsageError("stdin can be only one of the runs")
    plain = [argument for argument in arguments if not _is_named(argument)]
    stems = [_stem(source) for source in plain]
    found = []
    for argument in arguments:
        if _is_named(argument):
            name, _, source = argument.partition("=")
        else:
            source, name = argument, _stem(argument)
            if stems.count(name) > 1:
                name = str(Path(source).parent / name)
        found.append(NamedRun(name, source))
    names = [run.name for run in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two runs are called '{name}'; name them: NAME=FILE")
    return found


def _is_named(argument: str) -> bool:
    name, equals, source = argument.partition("=")
    return bool(equals and name and source) and not Path(argument).exists()


def _stem(source: str) -> str:
    if source == STANDARD:
        return "stdin"
    name = Path(source).name
    while name.endswith(_ENDINGS) and not name.startswith(_ENDINGS):
        name = name.rpartition(".")[0]
    return name


def judgements_from(
    source: str, intake: Intake, *, known: Sources | None = None, by_source: bool = False
) -> Judgements:
    """The judgements of a file; a counted warning where they name documents the corpus `known` does not have.

    Raises DrtkError where there are none.
    """
    judgements = load_qrels(source, intake=intake)
    if not judgements:
        raise DrtkError(f"{name_of(source)}: holds no judgements")
    if known is not None:
        present = known.documents if by_source else known.passages
        judged = {id for grades in judgements.values() for id in grades}
        absent = sorted(judged - present)
        if absent:
            what = "documents" if by_source else "passages"
            warn(
                f"{name_of(source)}: {len(absent):,} of {len(judged):,} judged {what} are not in the corpus, "
                f"for example '{absent[0]}'"
            )
    return judgements


def rankings_of(run: NamedRun, judgements: Judgements, view: View, intake: Intake) -> tuple[dict[str, list[str]], str]:
    """Rankings of the judged queries of a run, seen through `view`, and the run's tag; says which queries differ.

    Raises MismatchError where a run has queries, but none of the judged ones.
    """
    queries = _Seen(judgements)
    hits = load_hits(run.source, intake=intake, only=queries)
    if not queries.seen:
        warn(f"{run.name}: the run is empty")
    elif not hits:
        example, wanted = next(iter(queries.seen)), next(iter(judgements))
        raise MismatchError(
            f"{name_of(run.source)}: no query has judgements; it has '{example}', the judgements have '{wanted}'"
        )
    unjudged = len(queries.seen) - len(hits)
    if unjudged:
        log(f"{run.name}: {_queries(unjudged)} of the run without judgements left out")
    tag = next((found.tags[0] for found in hits.values()), "")
    if view.by is None and hits and _judges_documents(hits, judgements):
        warn(f"{run.name}: nothing retrieved is judged, but its documents are: --by source scores documents")
    return {query: view(hits.pop(query)) for query in list(hits)}, tag


def _judges_documents(hits: Mapping[str, QueryHits], judgements: Judgements) -> bool:
    """Whether no retrieved passage is judged while a document of one is."""
    found = False
    for query, retrieved in hits.items():
        judged = judgements[query]
        if any(doc_id in judged for doc_id in retrieved.doc_ids):
            return False
        found = found or any(source_of(doc_id) in judged for doc_id in retrieved.doc_ids)
    return found


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
) -> Evaluation:
    """The values of one run; says how many judged queries it lacks and what became of them."""
    rankings, tag = rankings_of(run, evaluator.judgements, view, intake)
    missing = len(evaluator.judgements) - len(rankings)
    if missing:
        fate = "left out" if retrieved_only else "counted as 0"
        log(f"{run.name}: {_queries(missing)} of {len(evaluator.judgements):,} with judgements not in the run, {fate}")
    return evaluator(run.name, rankings, retrieved_only=retrieved_only, tag=tag)


def _queries(count: int) -> str:
    return f"{count:,} {'query' if count == 1 else 'queries'}"

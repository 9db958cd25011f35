"""Mining over files: runs walked query by query, judgements checked, and what was left out counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.io.corpus_ids import CorpusIds
from drtk.io.intake import Intake
from drtk.io.progress import log, warn
from drtk.io.runs import NamedRun, together
from drtk.io.sources import source_of
from drtk.io.streams import name_of
from drtk.io.trec import Judgements, QueryHits, grouped_hits, load_hits, read_qrels
from drtk.records import Example
from drtk.retrieval.negatives import MINING, Miner, Policy
from drtk.settings.mining import MineSettings

Retrieved = dict[str, list[str]]  # passage ids, best first, by name of run


def policy_of(settings: MineSettings, *, has_corpus: bool) -> Policy:
    """The policy that settings name, with what they say otherwise.

    Raises UsageError where random passages are asked for and there is no corpus to draw them from.
    """
    policy: Policy = MINING.load(settings.policy)
    if settings.floor and not has_corpus:
        raise UsageError("--floor fills up with random passages: name their --corpus")
    if policy.floor and settings.floor is None and not has_corpus:
        log(f"mine-negatives: no --corpus, so nothing is filled up to {policy.floor} negatives")
    keep = policy.keep if settings.keep is None else settings.keep
    floor = policy.floor if settings.floor is None else settings.floor
    return replace(policy, keep=keep, floor=floor)


class Mining:
    """One run of mine-negatives: `queries` walks the runs, `examples` makes records of a window of them.

    The first run is read query by query, the others are held in memory. `counts` is told what was left out.
    Raises RecordError (file:line) for an id the corpus does not have, DrtkError for an empty file of judgements,
    MismatchError where the runs have queries but none of them is judged.
    """

    def __init__(
        self,
        runs: Sequence[NamedRun],
        qrels: str,
        policy: Policy,
        settings: MineSettings,
        *,
        seed: int,
        corpus: CorpusIds | None,
        intake: Intake,
        counts: dict[str, Any],
    ) -> None:
        self.runs = runs
        self.counts = counts
        self._corpus, self._intake = corpus, intake
        self._by_source = settings.positives == "source"
        self._depth = settings.depth
        self.judgements = self._judgements(qrels)
        self.miner = Miner(policy, seed, settings.depth, settings.rel, self._by_source, corpus, counts)
        self._others = [load_hits(run.source, intake=intake, only=self.judgements) for run in runs[1:]]

    def _judgements(self, qrels: str) -> Judgements:
        judgements: Judgements = {}
        for number, qrel in read_qrels(qrels, intake=self._intake):
            place = f"{name_of(qrels)}:{number}"
            grades = judgements.setdefault(qrel.query_id, {})
            if qrel.doc_id in grades:
                problem = f"document '{qrel.doc_id}' is judged a second time for query '{qrel.query_id}'"
                self._intake.forgive(RecordError(place, problem))
            elif not self._is_known(qrel.doc_id):
                what = "document" if self._by_source else "passage"
                self._intake.forgive(RecordError(place, f"{what} '{qrel.doc_id}' is not in the corpus"))
            else:
                grades[qrel.doc_id] = qrel.grade
        if not judgements:
            raise DrtkError(f"{name_of(qrels)}: holds no judgements")
        return judgements

    def _is_known(self, judged: str) -> bool:
        if self._corpus is None:
            return True
        return self._corpus.has_document(judged) if self._by_source else judged in self._corpus

    def queries(self) -> Iterator[tuple[str, Retrieved]]:
        """(query, what each run retrieved for it) of the judged queries; others are counted."""
        first = ((hits.query_id, hits) for hits in grouped_hits(self.runs[0].source, intake=self._intake))
        seen = unjudged = 0
        told = False
        for query_id, found in together(first, self._others):
            if query_id not in self.judgements:
                unjudged += 1
                continue
            seen += 1
            rankings = {
                run.name: self._ids(hits, run.source)
                for run, hits in zip(self.runs, found, strict=True)
                if hits is not None
            }
            if not self._by_source and not told and self._name_documents(rankings, self.judgements[query_id]):
                warn(f"query '{query_id}': judgements name documents, not passages: --positives source")
                told = True
            yield query_id, rankings
        if unjudged and not seen:
            raise MismatchError(f"{name_of(self.runs[0].source)}: no query of the runs has judgements")
        # Told once, at the end: these are counts of what was read, which a resumed run reads again.
        for what, number in (("without_judgements", unjudged), ("not_retrieved", len(self.judgements) - seen)):
            if number:
                self.counts[what] = number

    @staticmethod
    def _name_documents(rankings: Retrieved, grades: Mapping[str, int]) -> bool:
        """Whether a chunk of a judged document would become a negative of its own document's query."""
        return any(source_of(id) in grades and id not in grades for ids in rankings.values() for id in ids)

    def _ids(self, hits: QueryHits, source: str) -> list[str]:
        """A query's passages, best first; those deeper than `depth` only where positives are looked for among them."""
        ids = hits.ranked_ids()
        if not self._by_source:
            ids = ids[: self._depth]
        if self._corpus is None:
            return ids
        unknown = {id for id in ids if id not in self._corpus}
        for id in unknown:
            place = f"{name_of(source)}:{hits.lines[hits.doc_ids.index(id)]}"
            self._intake.forgive(RecordError(place, f"passage '{id}' is not in the corpus"))
        return [id for id in ids if id not in unknown] if unknown else ids

    def examples(self, window: Iterable[tuple[str, Retrieved]]) -> Iterator[Example]:
        """The examples of a window of queries, in order."""
        for query_id, rankings in window:
            example = self.miner(query_id, rankings, self.judgements[query_id])
            if example is not None:
                yield example

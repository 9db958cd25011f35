"""Rerank runs with cross-encoders and list re-rankers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from drtk.data.checks import TEXTLESS, Faulty, Texts, count_texts, iter_known_hits, skip_faulty
from drtk.data.embeddings import PairVectors, pair_id
from drtk.data.jsonl import dump
from drtk.data.trec import Ranking, iter_grouped_hits, run_lines
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.models.config import ScoringSettings
from drtk.models.cross_encoder import Prepared, Scorer
from drtk.models.device import choose_device
from drtk.models.generator_input import text_of
from drtk.models.list_reranker import load_list_reranker
from drtk.records import Example, Passage
from drtk.retrieval.fusion import strictly_falling, with_rest
from drtk.runtime.filter_job import Done
from drtk.runtime.inputs import Intake
from drtk.runtime.progress import warn
from drtk.runtime.runners import BatchFunction
from drtk.runtime.streams import name_of

PAIRS, UNREADABLE = "pairs", "with nothing to read"  # counts


@dataclass(frozen=True, slots=True)
class Candidates:
    """A query with its ranking, best first, and the texts of the documents at its head that are to be scored.

    textless: how many of these have no text, but maybe a title
    """

    query_id: str
    query: str
    ranking: Ranking
    texts: list[str]
    textless: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """An example with its query and the texts of its positives, then its negatives; textless: as of `Candidates`."""

    example: Example
    query: str
    texts: list[str]
    textless: int = 0


def candidates(
    run: str, *, queries: Mapping[str, str], corpus: Texts, depth: int, title: str, intake: Intake
) -> Iterator[Candidates]:
    """The queries of a run in its order, with the texts of their first `depth` documents; one in memory at a time.

    Raises RecordError (file:line, and how many more) for ids that queries or corpus lack, unless `intake` forgives them.
    """
    for hits in skip_faulty(
        iter_known_hits(run, queries=queries, corpus=corpus, depth=depth, intake=intake), run, intake
    ):
        ranking = hits.ranking()
        passages = corpus.many([id for id, _ in ranking[:depth]])
        texts = [text_of(each, title) for each in passages]
        yield Candidates(hits.query_id, queries[hits.query_id], ranking, texts, _textless(passages))


def asked(
    examples: Iterable[Example],
    source: str,
    *,
    queries: Mapping[str, str],
    corpus: Texts,
    title: str,
    intake: Intake,
) -> Iterator[Asked]:
    """Examples with their texts. Raises RecordError (file:line, and how many more) for ids that queries or corpus lack."""
    for example in skip_faulty(_known_examples(examples, source, queries, corpus, intake), source, intake):
        passages = corpus.many([*example.positives, *example.negatives])
        texts = [text_of(each, title) for each in passages]
        yield Asked(example, queries[example.query_id], texts, _textless(passages))


def _textless(passages: Iterable[Passage]) -> int:
    return count_texts(passages).get(TEXTLESS, 0)


def _counted(records: Sequence[Candidates | Asked], pairs: int) -> dict[str, int]:
    """How many pairs there are, of how many the passage has no text, and of how many there is nothing to read at all."""
    blank = sum(not text.strip() for each in records for text in each.texts)
    found = {PAIRS: pairs, TEXTLESS: sum(each.textless for each in records), UNREADABLE: blank}
    return {name: number for name, number in found.items() if number or name == PAIRS}


def nothing_read(counts: Mapping[str, Any], corpus: str) -> str | None:
    """What is wrong where pairs were scored, and of none there was a text or title to read; None: nothing."""
    pairs = counts.get(PAIRS, 0)
    return _in_none(pairs, corpus) if pairs and counts.get(UNREADABLE, 0) == pairs else None


def warn_of_unread(counts: Mapping[str, Any], corpus: str) -> None:
    """Warn where the passages of pairs that were scored had no text, with or without a title."""
    pairs, textless = counts.get(PAIRS, 0), counts.get(TEXTLESS, 0)
    if textless:
        some = f"{corpus}: in {textless:,} of the {pairs:,} pairs the passage has no text"
        warn(_in_none(pairs, corpus) if textless == pairs else some)


def _in_none(pairs: int, corpus: str) -> str:
    return f"{corpus}: in none of the {pairs:,} pairs has the passage a text: is it the right file?"


def _known_examples(
    examples: Iterable[Example], source: str, queries: Mapping[str, str], corpus: Texts, intake: Intake
) -> Iterator[Faulty[Example]]:
    for example in examples:
        place = f"{name_of(source)}:{intake.line}"
        faults = [RecordError(place, f"the queries have no '{example.query_id}'")] * (example.query_id not in queries)
        absent = corpus.missing((*example.positives, *example.negatives))
        faults += [RecordError(place, f"the corpus has no '{id}'") for id in absent]
        yield (None if faults else example), faults


def reordered(ranking: Ranking, scores: Sequence[float]) -> Ranking:
    """A ranking whose first len(scores) documents are in the order of their scores, and whose others follow as they were.

    Ties go by descending id. Scores fall strictly, in single precision too: those of the others are 1 lower from one to
    the next, beginning below the least of the first.
    """
    head = strictly_falling([(id, score) for (id, _), score in zip(ranking, scores, strict=False)])
    return with_rest(head, (id for id, _ in ranking[len(scores) :]))


class Scored(NamedTuple):
    """What a window of a run became, and the vectors of its pairs, (pairs, dimension), under their ids."""

    done: Done
    ids: list[str]
    vectors: np.ndarray


class Rerank(BatchFunction):
    """Candidates to lines of a run: the scored ones in the order of their scores, the others below them.

    vectors: give `Scored`, not `Done`
    """

    def __init__(
        self, model: str, settings: ScoringSettings, device: str, logits: bool, tag: str, vectors: bool
    ) -> None:
        self._scorer = Scorer(model, device=device, settings=settings, logits=logits)
        self._tag, self._vectors = tag, vectors

    def prepare(self, records: list[Candidates]) -> tuple[list[Candidates], Prepared]:
        """The candidates, and their pairs as tokens."""
        return records, self._scorer.prepare([(each.query, text) for each in records for text in each.texts])

    def __call__(self, prepared: tuple[list[Candidates], Prepared]) -> Done | Scored:
        """The window's lines, query by query."""
        records, pairs = prepared
        vectors = np.empty((0, 0), dtype=np.float32)
        if self._vectors:
            scores, vectors = self._scorer.scores_and_vectors(pairs)
        else:
            scores = self._scorer.scores(pairs)
        lines: list[bytes] = []
        at = 0
        for each in records:
            own = _digits(scores[at : at + len(each.texts)])
            at += len(each.texts)
            lines += run_lines(each.query_id, reordered(each.ranking, own), self._tag)
        done = Done(lines, _counted(records, len(scores)))
        if not self._vectors:
            return done
        ids = [pair_id(each.query_id, id) for each in records for id, _ in each.ranking[: len(each.texts)]]
        return Scored(done, ids, vectors)


class Score(BatchFunction):
    """Examples to the same examples with a score for each positive and negative."""

    def __init__(self, model: str, settings: ScoringSettings, device: str, logits: bool) -> None:
        self._scorer = Scorer(model, device=device, settings=settings, logits=logits)

    def prepare(self, records: list[Asked]) -> tuple[list[Asked], Prepared]:
        """The examples, and their pairs as tokens."""
        return records, self._scorer.prepare([(each.query, text) for each in records for text in each.texts])

    def __call__(self, prepared: tuple[list[Asked], Prepared]) -> Done:
        """The window's examples, in order, as JSON lines; scores they had are replaced."""
        records, pairs = prepared
        scores = _digits(self._scorer.scores(pairs))
        lines, at = [], 0
        for each in records:
            split = at + len(each.example.positives)
            end = at + len(each.texts)
            made: dict[str, Any] = {"positives": scores[at:split], "negatives": scores[split:end]}
            lines.append(dump(replace(each.example, scores=made)))
            at = end
        return Done(lines, _counted(records, len(scores)))


def _digits(scores: np.ndarray) -> list[float]:
    """Numbers of float32 as the shortest decimals that tell them apart."""
    return [float(str(score)) for score in scores]


@dataclass(frozen=True, slots=True)
class ListCandidates:
    """A query with its ranking, best first, and the rows of the vectors of the documents at its head."""

    query_id: str
    ranking: Ranking
    rows: list[int]


def list_candidates(run: str, *, vectors: PairVectors, depth: int, intake: Intake) -> Iterator[ListCandidates]:
    """The queries of a run in its order, their first `depth` documents found among the vectors.

    Raises RecordError (file:line, and how many more) for pairs without a vector, unless `intake` forgives them.
    """
    return skip_faulty(_known(run, vectors, depth, intake), run, intake)


def _known(run: str, vectors: PairVectors, depth: int, intake: Intake) -> Iterator[Faulty[ListCandidates]]:
    for hits in iter_grouped_hits(run, intake=intake):
        ranking = hits.ranking()
        rows = vectors.rows(hits.query_id, [id for id, _ in ranking[:depth]])
        absent = {ranking[at][0] for at in np.flatnonzero(rows < 0)}
        faults = [
            RecordError(
                f"{name_of(run)}:{line}",
                f"{vectors.folder} has no vector of '{id}' for '{hits.query_id}'; it holds those of {vectors.run}, and "
                "--depth reads less of each query",
            )
            for id, line in zip(hits.doc_ids, hits.lines, strict=True)
            if id in absent
        ]
        kept = [(id, score) for id, score in ranking if id not in absent]
        yield (ListCandidates(hits.query_id, kept, rows[rows >= 0].tolist()) if kept else None), faults


class RerankLists(BatchFunction):
    """Candidates to lines of a run, by the logits of a list re-ranker.

    Raises MismatchError where the vectors are of another width than the model's.
    """

    def __init__(self, model: str, vectors: str, device: str, tag: str) -> None:
        self._name, self._device = model, choose_device(device)
        self._model = load_list_reranker(Path(model)).to(self._device)
        self._vectors, self._tag = PairVectors(vectors), tag
        if self._vectors.dimension != self._model.shape.width:
            raise MismatchError(
                f"{vectors}: holds vectors of width {self._vectors.dimension}; {model} reads {self._model.shape.width}"
            )

    @torch.inference_mode()
    def __call__(self, prepared: list[ListCandidates]) -> Done:
        """The window's lines, query by query."""
        lines: list[bytes] = []
        for each in prepared:  # one list at a time: its logits must not depend on its neighbours' padding
            vectors = torch.from_numpy(self._vectors.vectors(each.rows)).unsqueeze(0).to(self._device)
            ranks = torch.arange(len(each.rows), device=self._device).unsqueeze(0)
            logits = self._model(vectors, ranks, torch.ones_like(ranks, dtype=torch.bool))[0]  # (candidates,)
            if not bool(logits.isfinite().all()):
                raise DrtkError(
                    f"{self._name}: the score of query '{each.query_id}' is NaN or infinite; check the model's weights"
                )
            scores = [float(str(score)) for score in logits.cpu().numpy()]
            lines += run_lines(each.query_id, reordered(each.ranking, scores), self._tag)
        return Done(lines, {"pairs": sum(len(each.rows) for each in prepared)})

"""Rerank runs and score examples with cross-encoders; rerank runs with list re-rankers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from drtk.data.checks import TEXTLESS, PassageLookup, WithErrors, iter_known_hits, skip_faulty
from drtk.data.embeddings import PairVectors, make_pair_id
from drtk.data.jsonl import dump
from drtk.data.trec import Ranking, format_run_lines, iter_grouped_hits
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.indexing.vectors import find_encoder_differences
from drtk.models.config import ScoringSettings
from drtk.models.cross_encoder import CrossEncoderScorer, TokenizedPairs
from drtk.models.device import choose_device
from drtk.models.generator_input import format_passage
from drtk.models.list_reranker import load_list_reranker
from drtk.records import Example
from drtk.retrieval.fusion import append_unscored, break_ties
from drtk.runtime.filter_job import WindowResult
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import warn
from drtk.runtime.runners import BatchFunction
from drtk.runtime.streams import name_of

PAIRS, UNREADABLE = "pairs", "with nothing to read"  # names of counts


@dataclass(frozen=True, slots=True)
class RankingTexts:
    """A query with its ranking, best first, and the texts of the documents at its head that are scored.

    textless: number of these that have no text; they may have a title
    """

    query_id: str
    query: str
    ranking: Ranking
    texts: list[str]
    textless: int = 0


@dataclass(frozen=True, slots=True)
class ExampleTexts:
    """An example with its query and the texts of its positives, then its negatives; textless: as in `RankingTexts`."""

    example: Example
    query: str
    texts: list[str]
    textless: int = 0


def read_ranking_texts(
    run: str, *, queries: Mapping[str, str], corpus: PassageLookup, depth: int, title: str, tracker: InputTracker
) -> Iterator[RankingTexts]:
    """Yield the queries of a run with the texts of their first `depth` documents.

    queries: texts by id. Raises RecordError (file:line) for unknown ids, unless `tracker` skips them.
    """
    for hits in skip_faulty(
        iter_known_hits(run, queries=queries, corpus=corpus, depth=depth, tracker=tracker), run, tracker
    ):
        ranking = hits.to_ranking()
        texts, textless = _look_up(corpus, [id for id, _ in ranking[:depth]], title)
        yield RankingTexts(hits.query_id, queries[hits.query_id], ranking, texts, textless)


def read_example_texts(
    examples: Iterable[Example],
    source: str,
    *,
    queries: Mapping[str, str],
    corpus: PassageLookup,
    title: str,
    tracker: InputTracker,
) -> Iterator[ExampleTexts]:
    """Yield examples with their texts. Raises RecordError (file:line) for unknown ids, unless `tracker` skips them."""

    def check_ids() -> Iterator[WithErrors[Example]]:
        for example in examples:
            place = f"{name_of(source)}:{tracker.line}"
            errors = [RecordError(place, f"the queries have no '{example.query_id}'")] * (
                example.query_id not in queries
            )
            missing = corpus.find_missing((*example.positives, *example.negatives))
            errors += [RecordError(place, f"the corpus has no '{id}'") for id in missing]
            yield (None if errors else example), errors

    for example in skip_faulty(check_ids(), source, tracker):
        texts, textless = _look_up(corpus, [*example.positives, *example.negatives], title)
        yield ExampleTexts(example, queries[example.query_id], texts, textless)


def _look_up(corpus: PassageLookup, ids: Sequence[str], title: str) -> tuple[list[str], int]:
    """Return the texts of passages as a cross-encoder reads them, and the number of passages without a text."""
    passages = corpus.get_many(ids)
    return [format_passage(passage, title) for passage in passages], sum(
        not passage.text.strip() for passage in passages
    )


def _count_pairs(records: Sequence[RankingTexts | ExampleTexts], pairs: int) -> dict[str, int]:
    """Count the pairs, those whose passage has no text, and those with neither text nor title."""
    unreadable = sum(not text.strip() for each in records for text in each.texts)
    counts = {PAIRS: pairs, TEXTLESS: sum(each.textless for each in records), UNREADABLE: unreadable}
    return {name: number for name, number in counts.items() if number or name == PAIRS}


def find_text_problem(counts: Mapping[str, Any], corpus: str) -> str | None:
    """Return the error if pairs were scored and none had a text or title to read; None otherwise."""
    pairs = counts.get(PAIRS, 0)
    return _no_texts(pairs, corpus) if pairs and counts.get(UNREADABLE, 0) == pairs else None


def warn_of_missing_texts(counts: Mapping[str, Any], corpus: str) -> None:
    """Warn if the passages of some pairs have no text."""
    pairs, textless = counts.get(PAIRS, 0), counts.get(TEXTLESS, 0)
    if textless:
        some = f"{corpus}: in {textless:,} of the {pairs:,} pairs the passage has no text"
        warn(_no_texts(pairs, corpus) if textless == pairs else some)


def _no_texts(pairs: int, corpus: str) -> str:
    return f"{corpus}: in none of the {pairs:,} pairs has the passage a text: is it the right file?"


def reorder(ranking: Ranking, scores: Sequence[float]) -> Ranking:
    """Sort the first len(scores) documents of a ranking by their scores; the others follow in their order.

    Ties are broken by descending id. Scores fall strictly, also in single precision: the others count down by 1 from
    the lowest of the scores.
    """
    head = break_ties([(id, score) for (id, _), score in zip(ranking, scores, strict=False)])
    return append_unscored(head, (id for id, _ in ranking[len(scores) :]))


class RerankedWindow(NamedTuple):
    """The lines of a window of a run, and the vectors of its pairs, (pairs, dimension), with their ids."""

    done: WindowResult
    ids: list[str]
    vectors: np.ndarray


class _CrossEncoderFunction(BatchFunction):
    """Score the pairs of a query and each text of its record with a cross-encoder."""

    def __init__(self, model: str, settings: ScoringSettings, device: str, logits: bool) -> None:
        self._scorer = CrossEncoderScorer(model, device=device, settings=settings, logits=logits)

    def prepare(self, records: list[Any]) -> tuple[list[Any], TokenizedPairs]:
        return records, self._scorer.tokenize([(each.query, text) for each in records for text in each.texts])


class RunReranker(_CrossEncoderFunction):
    """Convert `RankingTexts` to lines of a run: the scored documents by score, the others below them.

    vectors: return `RerankedWindow`, not `WindowResult`
    """

    def __init__(
        self, model: str, settings: ScoringSettings, device: str, logits: bool, tag: str, vectors: bool
    ) -> None:
        super().__init__(model, settings, device, logits)
        self._tag, self._vectors = tag, vectors

    def __call__(self, prepared: tuple[list[RankingTexts], TokenizedPairs]) -> WindowResult | RerankedWindow:
        records, pairs = prepared
        vectors = np.empty((0, 0), dtype=np.float32)
        if self._vectors:
            scores, vectors = self._scorer.scores_and_vectors(pairs)
        else:
            scores = self._scorer.scores(pairs)
        lines: list[bytes] = []
        start = 0
        for each in records:
            end = start + len(each.texts)
            lines += format_run_lines(each.query_id, reorder(each.ranking, _to_decimals(scores[start:end])), self._tag)
            start = end
        done = WindowResult(lines, _count_pairs(records, len(scores)))
        if not self._vectors:
            return done
        ids = [make_pair_id(each.query_id, id) for each in records for id, _ in each.ranking[: len(each.texts)]]
        return RerankedWindow(done, ids, vectors)


class ExampleScorer(_CrossEncoderFunction):
    """Convert `ExampleTexts` to JSON lines of the examples with a score for each positive and negative."""

    def __call__(self, prepared: tuple[list[ExampleTexts], TokenizedPairs]) -> WindowResult:
        records, pairs = prepared
        scores = _to_decimals(self._scorer.scores(pairs))
        lines, start = [], 0
        for each in records:
            split, end = start + len(each.example.positives), start + len(each.texts)
            made: dict[str, Any] = {"positives": scores[start:split], "negatives": scores[split:end]}
            lines.append(dump(replace(each.example, scores=made)))
            start = end
        return WindowResult(lines, _count_pairs(records, len(scores)))


def _to_decimals(scores: np.ndarray) -> list[float]:
    """Return float32 numbers as the shortest decimals that identify them."""
    return [float(str(score)) for score in scores]


@dataclass(frozen=True, slots=True)
class RankingRows:
    """A query with its ranking, best first, and the rows of the pair vectors of the documents at its head."""

    query_id: str
    ranking: Ranking
    rows: list[int]


def check_same_scorer(model: str, trained: dict[str, Any], vectors: str, made: dict[str, Any]) -> None:
    """Raise MismatchError for pair vectors of another cross-encoder than a list re-ranker was trained on."""
    if differences := find_encoder_differences({"encoder": trained}, {"encoder": made}):
        raise MismatchError(
            f"{vectors}: holds vectors of {made.get('model')}; {model} was trained on those of {trained.get('model')} "
            f"(different {', '.join(differences)})"
        )


def read_ranking_rows(run: str, *, vectors: PairVectors, depth: int, tracker: InputTracker) -> Iterator[RankingRows]:
    """Yield the queries of a run with the rows of the vectors of their first `depth` documents.

    Raises RecordError (file:line) for pairs without a vector, unless `tracker` skips them.
    """

    def check_vectors() -> Iterator[WithErrors[RankingRows]]:
        for hits in iter_grouped_hits(run, tracker=tracker):
            ranking = hits.to_ranking()
            rows = vectors.find_rows(hits.query_id, [id for id, _ in ranking[:depth]])
            missing = {ranking[at][0] for at in np.flatnonzero(rows < 0)}
            errors = [
                RecordError(
                    f"{name_of(run)}:{line}",
                    f"{vectors.folder} has no vector of '{id}' for '{hits.query_id}'; it holds those of {vectors.run}, and "
                    "`depth` reads less of each query",
                )
                for id, line in zip(hits.doc_ids, hits.lines, strict=True)
                if id in missing
            ]
            kept = [(id, score) for id, score in ranking if id not in missing]
            yield (RankingRows(hits.query_id, kept, rows[rows >= 0].tolist()) if kept else None), errors

    return skip_faulty(check_vectors(), run, tracker)


class RunListReranker(BatchFunction):
    """Convert `RankingRows` to lines of a run, sorted by the logits of a list re-ranker.

    Raises MismatchError for vectors of another width than the model reads.
    """

    def __init__(self, model: str, vectors: str, device: str, tag: str) -> None:
        self._name, self._device = model, choose_device(device)
        self._model = load_list_reranker(Path(model)).to(self._device)
        self._vectors, self._tag = PairVectors(vectors), tag
        if self._vectors.dimension != self._model.settings.width:
            raise MismatchError(
                f"{vectors}: holds vectors of width {self._vectors.dimension}; {model} reads {self._model.settings.width}"
            )

    @torch.inference_mode()
    def __call__(self, prepared: list[RankingRows]) -> WindowResult:
        lines: list[bytes] = []
        for each in prepared:  # one list at a time: logits must not depend on the padding of other lists
            vectors = torch.from_numpy(self._vectors.load_vectors(each.rows)).unsqueeze(0).to(self._device)
            ranks = torch.arange(len(each.rows), device=self._device).unsqueeze(0)
            logits = self._model(vectors, ranks, torch.ones_like(ranks, dtype=torch.bool))[0]  # (candidates,)
            if not bool(logits.isfinite().all()):
                raise DrtkError(
                    f"{self._name}: the score of query '{each.query_id}' is NaN or infinite; check the model's weights"
                )
            lines += format_run_lines(
                each.query_id, reorder(each.ranking, _to_decimals(logits.cpu().numpy())), self._tag
            )
        return WindowResult(lines, {"pairs": sum(len(each.rows) for each in prepared)})

"""Training examples in compact form: each passage id is stored once and referenced by a 32-bit index."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from math import isfinite, nan

from drtk.data.corpus_store import CorpusStore
from drtk.data.readers import read_examples, read_queries
from drtk.errors import DrtkError, MismatchError
from drtk.records import Example
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import warn
from drtk.runtime.streams import get_source_name
from drtk.text.rng import sample_uniform


class PackedExamples:
    """Packed training examples: query ids, and passage indices of positives and negatives.

    query_ids: query id of each example    passage_ids: id of each passage, in the order of passage indices
    Memory: 400 MB plus the ids for 500,000 examples with 200 negatives each; tuples of strings would need 10 GB.
    """

    def __init__(
        self,
        examples: Iterable[Example],
        *,
        get_line: Callable[[], int] | None = None,
        scored: bool = False,
        first_positive: bool = False,
    ) -> None:
        """Pack examples.

        Negatives that are also positives of the same example are removed, and counted in `contradictions`.

        get_line: function that returns the line number of the current example, for errors; None: number them from 1
        scored: keep teacher scores (4 bytes per passage)
        first_positive: keep the first positive of each example only
        """
        self.contradictions = 0
        self._scores = array("f") if scored else None
        self._lines = array("q")
        self._indices: dict[str, int] = {}
        self.query_ids: list[str] = []
        self._references = array("i")
        self._starts = array("q", [0])
        self._splits = array("q")  # index of each example's first negative
        for example in examples:
            self.query_ids.append(example.query_id)
            self._lines.append(get_line() if get_line else len(self.query_ids))
            positives, positive_ids = example.positives[: 1 if first_positive else None], set(example.positives)
            kept = [index for index, id in enumerate(example.negatives) if id not in positive_ids]
            self.contradictions += len(example.negatives) - len(kept)
            self._references.extend(map(self._get_index, positives))
            self._splits.append(len(self._references))
            self._references.extend(self._get_index(example.negatives[index]) for index in kept)
            self._starts.append(len(self._references))
            if self._scores is not None:
                example_scores = example.scores or {}
                scores = example_scores.get("negatives") or [nan] * len(example.negatives)
                self._scores.extend((example_scores.get("positives") or [nan] * len(positives))[: len(positives)])
                self._scores.extend(scores[index] for index in kept)
        self.passage_ids = list(self._indices)

    def _get_index(self, id: str) -> int:
        return self._indices.setdefault(id, len(self._indices))

    def __len__(self) -> int:
        return len(self.query_ids)

    def get_positives(self, example: int) -> array[int]:
        """Return the passage indices of the positives of the example at index `example`."""
        return self._references[self._starts[example] : self._splits[example]]

    def get_negatives(self, example: int) -> array[int]:
        """Return the passage indices of the negatives of the example at index `example`."""
        return self._references[self._splits[example] : self._starts[example + 1]]

    def get_scores(self, example: int) -> tuple[array[float], array[float]]:
        """Return the teacher scores of the positives and of the negatives of an example; requires scored=True."""
        assert self._scores is not None
        start, split, stop = self._starts[example], self._splits[example], self._starts[example + 1]
        return self._scores[start:split], self._scores[split:stop]

    def subsample(self, fraction: float, *, seed: int) -> None:
        """Keep only the examples of a random fraction of the queries, in [0, 1], but of at least one query.

        With the same seed, a smaller sample is a subset of a larger one.
        """
        order = {id: sample_uniform(seed, "fraction", id) for id in self.query_ids}
        selected = set(sorted(order, key=lambda query: (order[query], query))[: max(1, round(fraction * len(order)))])
        self._keep_examples([index for index, id in enumerate(self.query_ids) if id in selected])

    def _keep_examples(self, selected: Sequence[int]) -> None:
        """Keep only the selected examples and the passages that they use. selected: example indices"""
        indices: dict[int, int] = {}
        references, starts, splits, scores = array("i"), array("q", [0]), array("q"), array("f")
        for example in selected:
            for side in (self.get_positives(example), self.get_negatives(example)):
                references.extend(indices.setdefault(index, len(indices)) for index in side)
                splits.append(len(references))
            starts.append(splits.pop())
            if self._scores is not None:
                scores.extend(self._scores[self._starts[example] : self._starts[example + 1]])
        self._lines = array("q", [self._lines[example] for example in selected])
        self.query_ids = [self.query_ids[example] for example in selected]
        self.passage_ids = [self.passage_ids[index] for index in indices]
        self._references, self._starts, self._splits, self._indices = references, starts, splits, {}
        self._scores = scores if self._scores is not None else None

    def group_positives_by_query(self) -> dict[str, array[int]]:
        """Return {query id: passage indices of the query's positives in all examples}."""
        positives: dict[str, array[int]] = {}
        for index, id in enumerate(self.query_ids):
            positives.setdefault(id, array("i")).extend(self.get_positives(index))
        return positives

    def warn_of_few_negatives(self, count: int) -> None:
        """Warn if examples have 1 to `count` - 1 negatives, so that a training step repeats negatives."""
        few = sum(0 < len(self.get_negatives(index)) < count for index in range(len(self)))
        if few:
            warn(f"{few:,} examples have fewer than {count} negatives; negatives are repeated")

    def check_examples(
        self,
        source: str,
        *,
        queries: Mapping[str, str],
        corpus: CorpusStore,
        negatives: int,
        on_error: Callable[[DrtkError], None] | None = None,
    ) -> None:
        """Check that queries and corpus contain all ids, and that required negatives and scores are present.

        source: file of the examples, for errors    queries: query texts by id
        negatives: if above 0, require at least one negative in each example
        on_error: called with the error of each invalid example, which is then removed; None: raise the first error
        Raises MismatchError (file:line) for an unknown id, DrtkError (file:line) for missing negatives, and missing or
        infinite scores.
        """
        if self.contradictions:
            warn(f"{source}: removed {self.contradictions:,} negatives that are also positives of their example")
        absent, query_ids = set(corpus.find_missing(self.passage_ids)), set(self.query_ids)
        unknown = sum(id not in queries for id in query_ids)
        valid = []
        for index, query_id in enumerate(self.query_ids):
            location = f"{source}:{self._lines[index]}"
            error: DrtkError | None = None
            if query_id not in queries:
                error = MismatchError(
                    f"{location}: the queries have no '{query_id}'{_describe_missing(unknown, query_ids)}"
                )
            elif negatives and not len(self.get_negatives(index)):
                error = DrtkError(
                    f"{location}: query '{query_id}' has no negatives; mine them with `drtk mine-negatives`, or train a retriever with `negatives` 0"
                )
            elif absent and (id := self._find_absent_id(index, absent)) is not None:
                missing = _describe_missing(len(absent), self.passage_ids)
                error = MismatchError(f"{location}: the corpus has no '{id}'{missing}")
            elif self._scores is not None:
                error = self._find_score_error(index, f"{location}: query '{query_id}'")
            if error is None:
                valid.append(index)
            elif on_error is None:
                raise error
            else:
                on_error(error)
        if len(valid) < len(self):
            self._keep_examples(valid)
        self._indices = {}  # needed for packing only

    def _find_absent_id(self, example: int, absent: set[str]) -> str | None:
        references = self._references[self._starts[example] : self._starts[example + 1]]
        return next((id for id in map(self.passage_ids.__getitem__, references) if id in absent), None)

    def _find_score_error(self, example: int, location: str) -> DrtkError | None:
        assert self._scores is not None
        start, stop = self._starts[example], self._starts[example + 1]
        scores = self._scores[start:stop]
        if all(map(isfinite, scores)):
            return None
        position = next(position for position, score in enumerate(scores) if not isfinite(score))
        id = self.passage_ids[self._references[start + position]]
        if scores[position] != scores[position]:  # missing scores are packed as NaN
            return DrtkError(f"{location} has no score for '{id}'; add teacher scores with `drtk score`")
        return DrtkError(
            f"{location} has the score {scores[position]} for '{id}'; write finite scores with `drtk score`"
        )


def _describe_missing(absent: int, ids: Sized) -> str:
    missing = f"; {absent:,} of the {len(ids):,} ids in the examples are missing" if absent > 1 else ""
    return f"{missing}; use the file that the examples were made from"


@dataclass(frozen=True)
class TrainingData:
    """Training examples with their queries and passages.

    source: name of the examples file    queries: query texts by id    corpus: passages by id
    """

    source: str
    examples: PackedExamples
    queries: dict[str, str]
    corpus: CorpusStore


def load_examples(
    source: str,
    *,
    queries: str,
    corpus: str,
    tracker: InputTracker,
    negatives: int,
    scored: bool = False,
    first_positive: bool = False,
    fraction: float = 1.0,
    seed: int = 42,
) -> TrainingData:
    """Read training examples with their queries and corpus, and check them (`PackedExamples.check_examples`).

    source, queries, corpus: files    negatives: if above 0, require at least one negative in each example
    scored, first_positive: arguments of PackedExamples
    fraction: fraction of the queries to keep, sampled at random with `seed`
    Raises RecordError for an invalid line, and the errors of `check_examples`, unless `tracker` skips the line.
    """
    examples = PackedExamples(
        read_examples(source, tracker=tracker),
        get_line=lambda: tracker.line,
        scored=scored,
        first_positive=first_positive,
    )
    if fraction < 1:
        examples.subsample(fraction, seed=seed)
    query_ids = set(examples.query_ids)
    texts = {query.id: query.text for query in read_queries(queries, tracker=tracker) if query.id in query_ids}
    store = CorpusStore.open(corpus)
    examples.check_examples(
        get_source_name(source), queries=texts, corpus=store, negatives=negatives, on_error=tracker.skip_or_raise
    )
    return TrainingData(get_source_name(source), examples, texts, store)

"""Training examples in little memory: ids stored once, references as 32-bit numbers."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from math import isfinite, nan
from typing import Protocol

from drtk.data.corpus_store import CorpusStore
from drtk.data.jsonl import read_examples, read_queries
from drtk.errors import DrtkError, MismatchError
from drtk.records import Example
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import warn
from drtk.runtime.streams import name_of
from drtk.text.rng import sample_uniform


class Passages(Protocol):
    """A corpus by id; drtk.data.corpus_store.CorpusStore is one."""

    def find_missing_label(self, ids: Iterable[str]) -> Iterable[str]: ...


class PackedExamples:
    """Examples by number: query id, and numbers of positives and negatives, whose ids are `passage_ids`.

    500,000 examples with 200 negatives take 400 MB and the ids themselves; tuples of strings would take 10 GB.
    """

    def __init__(
        self,
        examples: Iterable[Example],
        *,
        line: Callable[[], int] | None = None,
        scored: bool = False,
        first_positive: bool = False,
    ) -> None:
        """line: returns the line of the last example taken; None: examples are counted
        scored: keep a teacher's scores, another 4 bytes a reference
        first_positive: keep only the first positive of each

        A positive among its example's own negatives is removed from them, and counted in `contradictions`.
        """
        self.contradictions = 0
        self._scores = array("f") if scored else None
        self._lines = array("q")
        self._numbers: dict[str, int] = {}
        self.query_ids: list[str] = []
        self._references = array("i")
        self._starts = array("q", [0])
        self._splits = array("q")  # where an example's negatives begin
        for example in examples:
            self.query_ids.append(example.query_id)
            self._lines.append(line() if line else len(self.query_ids))
            positives, right = example.positives[: 1 if first_positive else None], set(example.positives)
            places = [place for place, id in enumerate(example.negatives) if id not in right]
            self.contradictions += len(example.negatives) - len(places)
            self._references.extend(map(self._number, positives))
            self._splits.append(len(self._references))
            self._references.extend(self._number(example.negatives[place]) for place in places)
            self._starts.append(len(self._references))
            if self._scores is not None:
                given = example.scores or {}
                scores = given.get("negatives") or [nan] * len(example.negatives)
                self._scores.extend((given.get("positives") or [nan] * len(positives))[: len(positives)])
                self._scores.extend(scores[place] for place in places)
        self.passage_ids = list(self._numbers)

    def _number(self, id: str) -> int:
        return self._numbers.setdefault(id, len(self._numbers))

    def __len__(self) -> int:
        return len(self.query_ids)

    def positives(self, example: int) -> array[int]:
        return self._references[self._starts[example] : self._splits[example]]

    def negatives(self, example: int) -> array[int]:
        return self._references[self._splits[example] : self._starts[example + 1]]

    def positive_scores(self, example: int) -> array[float]:
        """Return a teacher's scores of the positives. Raises ValueError if none were kept."""
        if self._scores is None:
            raise ValueError("no scores were kept")
        return self._scores[self._starts[example] : self._splits[example]]

    def negative_scores(self, example: int) -> array[float]:
        """Return a teacher's scores of the negatives. Raises ValueError if none were kept."""
        if self._scores is None:
            raise ValueError("no scores were kept")
        return self._scores[self._splits[example] : self._starts[example + 1]]

    def subsample(self, share: float, *, seed: int) -> None:
        """Keep the examples of a random share of the queries; a smaller share is part of a larger one."""
        draws = {id: sample_uniform(seed, "fraction", id) for id in self.query_ids}
        kept = set(sorted(draws, key=lambda each: (draws[each], each))[: max(1, round(share * len(draws)))])
        self._keep([number for number, id in enumerate(self.query_ids) if id in kept])

    def _keep(self, chosen: Sequence[int]) -> None:
        """Remove all examples but the chosen, and passages that no other has."""
        numbers: dict[int, int] = {}
        references, starts, splits, scores = array("i"), array("q", [0]), array("q"), array("f")
        for example in chosen:
            for side in (self.positives(example), self.negatives(example)):
                references.extend(numbers.setdefault(number, len(numbers)) for number in side)
                splits.append(len(references))
            starts.append(splits.pop())
            if self._scores is not None:
                scores.extend(self._scores[self._starts[example] : self._starts[example + 1]])
        self._lines = array("q", [self._lines[example] for example in chosen])
        self.query_ids = [self.query_ids[example] for example in chosen]
        self.passage_ids = [self.passage_ids[number] for number in numbers]
        self._references, self._starts, self._splits, self._numbers = references, starts, splits, {}
        self._scores = scores if self._scores is not None else None

    def positives_by_query(self) -> dict[str, array[int]]:
        """Return the numbers of all positives of a query over all its examples, by the query's id."""
        numbers: dict[str, array[int]] = {}
        for number, id in enumerate(self.query_ids):
            numbers.setdefault(id, array("i")).extend(self.positives(number))
        return numbers

    def warn_of_few_negatives(self, count: int) -> None:
        """Warn if examples have fewer negatives than `count`: a step repeats them."""
        few = sum(0 < len(self.negatives(number)) < count for number in range(len(self)))
        if few:
            warn(f"{few:,} examples have fewer than {count} negatives; theirs repeat")

    def check(
        self,
        source: str,
        *,
        queries: Mapping[str, str],
        corpus: Passages,
        negatives: int,
        on_error: Callable[[DrtkError], None] | None = None,
    ) -> None:
        """Check that queries and corpus have all ids, that examples have negatives if `negatives`, and scores if kept.

        on_error: called for each faulty example, which is removed; raises at one too many. None: the first fault is raised
        Raises MismatchError for an unknown id, with the number of others, DrtkError otherwise; both begin with file:line.
        """
        if self.contradictions:
            warn(f"{source}: removed {self.contradictions:,} positives from their own negatives")
        absent, query_ids = set(corpus.find_missing_label(self.passage_ids)), set(self.query_ids)
        unknown = sum(each not in queries for each in query_ids)
        good = []
        for number, query_id in enumerate(self.query_ids):
            place = f"{source}:{self._lines[number]}"
            fault: DrtkError | None = None
            if query_id not in queries:
                fault = MismatchError(f"{place}: the queries have no '{query_id}'{_count_missing(unknown, query_ids)}")
            elif negatives and not len(self.negatives(number)):
                fault = DrtkError(f"{place}: '{query_id}' has no negatives")
            elif absent and (id := self._first_absent(number, absent)) is not None:
                missing = _count_missing(len(absent), self.passage_ids)
                fault = MismatchError(f"{place}: the corpus has no '{id}'{missing}")
            elif self._scores is not None:
                fault = self._find_bad_score(number, f"{place}: '{query_id}'")
            if fault is None:
                good.append(number)
            elif on_error is None:
                raise fault
            else:
                on_error(fault)
        if len(good) < len(self):
            self._keep(good)
        self._numbers = {}  # only needed for packing

    def _first_absent(self, number: int, absent: set[str]) -> str | None:
        references = self._references[self._starts[number] : self._starts[number + 1]]
        return next((id for id in map(self.passage_ids.__getitem__, references) if id in absent), None)

    def _find_bad_score(self, number: int, place: str) -> DrtkError | None:
        assert self._scores is not None
        start, stop = self._starts[number], self._starts[number + 1]
        scores = self._scores[start:stop]
        if all(map(isfinite, scores)):
            return None
        at = next(at for at, score in enumerate(scores) if not isfinite(score))
        id = self.passage_ids[self._references[start + at]]
        if scores[at] != scores[at]:  # a missing score was packed as NaN; a file of records contains none
            return DrtkError(f"{place} has no score for '{id}'; drtk score EXAMPLES adds a teacher's")
        return DrtkError(f"{place}: the score of '{id}' is {scores[at]}, not a finite number")


def _count_missing(absent: int, ids: Sized) -> str:
    return f"; {absent:,} of the {len(ids):,} ids in the examples are missing" if absent > 1 else ""


@dataclass(frozen=True)
class TrainingData:
    """Examples with the texts of their queries, by id, and the corpus of their passages."""

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
    share: float = 1.0,
    seed: int = 42,
) -> TrainingData:
    """Read training examples, the queries they name and their corpus, and check them (`PackedExamples.check`).

    negatives: 0 if examples without negatives are fine; scored, first_positive: as in PackedExamples
    share: of the queries to keep, chosen by `seed`
    Raises RecordError for a bad line, MismatchError for an unknown id, unless `tracker` skips it.
    """
    examples = PackedExamples(
        read_examples(source, tracker=tracker), line=lambda: tracker.line, scored=scored, first_positive=first_positive
    )
    if share < 1:
        examples.subsample(share, seed=seed)
    wanted = set(examples.query_ids)
    texts = {query.id: query.text for query in read_queries(queries, tracker=tracker) if query.id in wanted}
    store = CorpusStore.open(corpus)
    examples.check(name_of(source), queries=texts, corpus=store, negatives=negatives, on_error=tracker.skip_or_raise)
    return TrainingData(name_of(source), examples, texts, store)

"""Training examples in little memory: ids kept once, references as 32-bit numbers."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from math import isfinite, nan
from typing import Protocol

from drtk.errors import DrtkError, MismatchError
from drtk.records import Example
from drtk.runtime.progress import warn
from drtk.text.rng import uniform


class Passages(Protocol):
    """What examples need of a corpus; io.store.CorpusStore is one."""

    def missing(self, ids: Iterable[str]) -> Iterable[str]: ...


class PackedExamples:
    """Examples by number: query id, and numbers of positives and negatives, whose ids `id_of` gives.

    500,000 examples with 200 negatives take 400 MB and the ids themselves, where tuples of strings would take 10 GB.
    """

    def __init__(
        self,
        examples: Iterable[Example],
        *,
        line: Callable[[], int] | None = None,
        scored: bool = False,
        first_positive: bool = False,
    ) -> None:
        """line: tells the line of the example that was taken last; without it examples are counted instead
        scored: keep a teacher's scores, another 4 bytes a reference
        first_positive: keep the first positive of each alone

        A positive that stands among its example's own negatives is taken out of them, and counted in `contradictions`.
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

    def positive_ids(self) -> list[str]:
        """Ids of all positives, each once."""
        numbers = dict.fromkeys(number for example in range(len(self)) for number in self.positives(example))
        return [self.passage_ids[number] for number in numbers]

    def positive_scores(self, example: int) -> array[float]:
        """A teacher's scores of the positives. Raises ValueError where none were kept."""
        if self._scores is None:
            raise ValueError("no scores were kept")
        return self._scores[self._starts[example] : self._splits[example]]

    def negative_scores(self, example: int) -> array[float]:
        """A teacher's scores of the negatives. Raises ValueError where none were kept."""
        if self._scores is None:
            raise ValueError("no scores were kept")
        return self._scores[self._splits[example] : self._starts[example + 1]]

    def thinned(self, share: float, *, seed: int) -> None:
        """Keep the examples of that share of the queries: a lot that falls on a query whatever the share, so shares nest."""
        lots = {id: uniform(seed, "fraction", id) for id in self.query_ids}
        kept = set(sorted(lots, key=lambda each: (lots[each], each))[: max(1, round(share * len(lots)))])
        self._keep([number for number, id in enumerate(self.query_ids) if id in kept])

    def _keep(self, chosen: Sequence[int]) -> None:
        """Leave out all examples but the chosen, and passages that no other names."""
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

    def answers(self) -> dict[str, array[int]]:
        """Numbers of all passages labelled as positives of a query, by the query's id, over all its examples."""
        found: dict[str, array[int]] = {}
        for number, id in enumerate(self.query_ids):
            found.setdefault(id, array("i")).extend(self.positives(number))
        return found

    def short_of(self, count: int) -> int:
        """How many examples have fewer negatives than `count`."""
        return sum(0 < len(self.negatives(number)) < count for number in range(len(self)))

    def warn_of_short(self, command: str, count: int) -> None:
        """Warn where examples have fewer negatives than `count`: a step fills up with the same ones."""
        if short := self.short_of(count):
            warn(f"{command}: {short:,} examples have fewer than {count} negatives; theirs repeat")

    def check(
        self,
        source: str,
        *,
        queries: Mapping[str, str],
        corpus: Passages,
        negatives: int,
        instead: str = "--negatives 0 trains with those of the batch alone",
        forgive: Callable[[DrtkError], None] | None = None,
    ) -> None:
        """Look for what no training can use: ids that queries or corpus lack, no negatives where some are wanted and, where
        scores are kept, one that is missing or no number.

        instead: what does without negatives
        forgive: is told each fault, and raises where it is one too many; its example is left out. Without: the first is raised
        Raises MismatchError for an id, which says how many there are, DrtkError for the rest; both begin with file:line.
        """
        if self.contradictions:
            warn(
                f"{source}: {self.contradictions:,} times a positive is among its own negatives; it is left out of them"
            )
        absent, asked = set(corpus.missing(self.passage_ids)), set(self.query_ids)
        unknown = sum(each not in queries for each in asked)
        good = []
        for number, query_id in enumerate(self.query_ids):
            place = f"{source}:{self._lines[number]}"
            fault: DrtkError | None = None
            if query_id not in queries:
                fault = MismatchError(f"{place}: the queries have no '{query_id}'{_among(unknown, asked)}")
            elif negatives and not len(self.negatives(number)):
                fault = DrtkError(f"{place}: '{query_id}' has no negatives; {instead}")
            elif absent and (named := self._absent(number, absent)) is not None:
                told = _among(len(absent), self.passage_ids)
                fault = MismatchError(f"{place}: the corpus has no '{named}'{told}")
            elif self._scores is not None:
                fault = self._faulty_score(number, f"{place}: '{query_id}'")
            if fault is None:
                good.append(number)
            elif forgive is None:
                raise fault
            else:
                forgive(fault)
        if len(good) < len(self):
            self._keep(good)
        self._numbers = {}  # was needed for packing alone

    def _absent(self, number: int, absent: set[str]) -> str | None:
        """The first id of an example that is among the absent."""
        references = self._references[self._starts[number] : self._starts[number + 1]]
        return next((id for id in map(self.passage_ids.__getitem__, references) if id in absent), None)

    def _faulty_score(self, number: int, place: str) -> DrtkError | None:
        """What is wrong with a score of an example, if anything is."""
        assert self._scores is not None
        start, stop = self._starts[number], self._starts[number + 1]
        given = self._scores[start:stop]
        if all(map(isfinite, given)):
            return None
        at = next(at for at, score in enumerate(given) if not isfinite(score))
        id = self.passage_ids[self._references[start + at]]
        if given[at] != given[at]:  # what is missing was packed so; a file of records holds no such number
            return DrtkError(f"{place} has no score for '{id}'; drtk score EXAMPLES adds a teacher's")
        return DrtkError(f"{place}: the score of '{id}' is {given[at]}, which is no number to learn from")


def _among(absent: int, ids: Sized) -> str:
    """How many are not there beside the one that is told."""
    return f"; {absent:,} of the {len(ids):,} that the examples name are not there" if absent > 1 else ""

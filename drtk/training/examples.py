"""Training examples in little memory: ids kept once, references as 32-bit numbers."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from drtk.errors import DrtkError, MismatchError
from drtk.records import Example


class Passages(Protocol):
    """What examples need of a corpus; io.store.CorpusStore is one."""

    def missing(self, ids: Iterable[str]) -> Iterable[str]: ...


class PackedExamples:
    """Examples by number: query id, and numbers of positives and negatives, whose ids `id_of` gives.

    500,000 examples with 200 negatives take 400 MB and the ids themselves, where tuples of strings would take 10 GB.
    """

    def __init__(self, examples: Iterable[Example], *, line: Callable[[], int] | None = None) -> None:
        """line: tells the line of the example that was taken last; without it examples are counted instead."""
        self._lines = array("q")
        self._numbers: dict[str, int] = {}
        self.query_ids: list[str] = []
        self._references = array("i")
        self._starts = array("q", [0])
        self._splits = array("q")  # where an example's negatives begin
        for example in examples:
            self.query_ids.append(example.query_id)
            self._lines.append(line() if line else len(self.query_ids))
            self._references.extend(map(self._number, example.positives))
            self._splits.append(len(self._references))
            self._references.extend(map(self._number, example.negatives))
            self._starts.append(len(self._references))
        self.passage_ids = list(self._numbers)

    def _number(self, id: str) -> int:
        return self._numbers.setdefault(id, len(self._numbers))

    def __len__(self) -> int:
        return len(self.query_ids)

    def positives(self, example: int) -> array[int]:
        return self._references[self._starts[example] : self._splits[example]]

    def negatives(self, example: int) -> array[int]:
        return self._references[self._splits[example] : self._starts[example + 1]]

    def check(self, source: str, *, queries: Mapping[str, str], corpus: Passages, negatives: int) -> None:
        """Raises MismatchError for the first id that queries or corpus lack, DrtkError where negatives are wanted of none."""
        absent = set(corpus.missing(self.passage_ids))
        for number, query_id in enumerate(self.query_ids):
            place = f"{source}:{self._lines[number]}"
            if query_id not in queries:
                raise MismatchError(f"{place}: the queries have no '{query_id}'")
            if negatives and not len(self.negatives(number)):
                raise DrtkError(
                    f"{place}: '{query_id}' has no negatives; --negatives 0 trains with those of the batch alone"
                )
            if absent:
                for reference in self._references[self._starts[number] : self._starts[number + 1]]:
                    if self.passage_ids[reference] in absent:
                        raise MismatchError(f"{place}: the corpus has no '{self.passage_ids[reference]}'")
        self._numbers = {}  # was needed for packing alone

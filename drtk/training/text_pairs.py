"""Pairs of input and target text for the training of generators."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Protocol

import numpy as np
import torch

from drtk.data.corpus_store import CorpusStore
from drtk.data.jsonl import read_examples, read_passages, read_queries
from drtk.data.rows import strings_of
from drtk.errors import DrtkError, RecordError
from drtk.records import Example, Passage, Query
from drtk.runtime.inputs import Intake
from drtk.runtime.progress import warn
from drtk.text.rng import uniform
from drtk.training.examples import PackedExamples
from drtk.training.folds import digest_of
from drtk.training.sampling import order_of_epoch


@dataclass(frozen=True)
class Pair:
    """A text, and what shall be written for it."""

    source: str
    target: str


class Pairs(Protocol):
    """Pairs by number. Any two texts will do: a passage and its query, a question and its answer."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Pair: ...

    def key(self, number: int) -> str:
        """What the pair is held out by: pairs of one key are held out together."""


class Texts(Protocol):
    """Where passages are looked up; io.store.CorpusStore is one."""

    def many(self, ids: Sequence[str]) -> list[Passage]: ...


class ExamplePairs:
    """Every positive of an example with the example's query; queries without a text are left out."""

    def __init__(
        self,
        examples: PackedExamples,
        *,
        queries: Mapping[str, str],
        corpus: Texts,
        source: Callable[[Passage], str],
    ) -> None:
        """source: how a passage is put before the model"""
        self._examples, self._queries, self._corpus, self._source = examples, queries, corpus, source
        self._pairs = array("i")  # example, passage, example, passage, …
        for example, query in enumerate(examples.query_ids):
            if queries[query].strip():
                for passage in examples.positives(example):
                    self._pairs.extend((example, passage))

    def __len__(self) -> int:
        return len(self._pairs) // 2

    def __getitem__(self, number: int) -> Pair:
        query = self._queries[self._examples.query_ids[self._pairs[2 * number]]]
        (passage,) = self._corpus.many([self.key(number)])
        return Pair(self._source(passage), query)

    def key(self, number: int) -> str:
        """The id of the passage."""
        return self._examples.passage_ids[self._pairs[2 * number + 1]]


class WrittenPairs:
    """Every passage with each of its "queries" (drtk doc2query writes such); those without a text are left out."""

    def __init__(self, passages: Iterable[Passage], *, corpus: Texts, source: Callable[[Passage], str]) -> None:
        """Raises ValueError, which names no place, at a passage whose "queries" are no list of texts."""
        self._corpus, self._source = corpus, source
        self._ids: list[str] = []
        self._pairs = array("i")  # passage, query, passage, query, …
        for passage in passages:
            queries = strings_of(passage.extra.get("queries", []), "queries")
            if queries:
                for slot, query in enumerate(queries):
                    if query.strip():
                        self._pairs.extend((len(self._ids), slot))
                self._ids.append(passage.id)

    def __len__(self) -> int:
        return len(self._pairs) // 2

    def __getitem__(self, number: int) -> Pair:
        (passage,) = self._corpus.many([self.key(number)])
        return Pair(self._source(passage), passage.extra["queries"][self._pairs[2 * number + 1]])

    def key(self, number: int) -> str:
        """The id of the passage."""
        return self._ids[self._pairs[2 * number]]


class Chosen:
    """Some of the pairs."""

    def __init__(self, pairs: Pairs, numbers: Iterable[int]) -> None:
        self._pairs, self._numbers = pairs, array("i", numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> Pair:
        return self._pairs[self._numbers[number]]

    def key(self, number: int) -> str:
        """That of the pair."""
        return self._pairs.key(self._numbers[number])


def held_out(pairs: Pairs, share: float) -> tuple[Chosen, Chosen]:
    """(pairs to train with, pairs to measure with): about `share` of the keys go to the latter, by their hash alone."""
    apart = [uniform("dev", pairs.key(number)) < share for number in range(len(pairs))]
    return (
        Chosen(pairs, (number for number, out in enumerate(apart) if not out)),
        Chosen(pairs, (number for number, out in enumerate(apart) if out)),
    )


def sampled(pairs: Pairs, limit: int) -> list[Pair]:
    """At most `limit` of the pairs, in their order, chosen by a hash of key and number among the pairs of that key."""
    seen: dict[str, int] = {}
    chances = []
    for number in range(len(pairs)):
        key = pairs.key(number)
        chances.append((uniform("measured", key, seen.get(key, 0)), number))
        seen[key] = seen.get(key, 0) + 1
    return [pairs[number] for number in sorted(number for _, number in nsmallest(limit, chances))]


class PairsOfSteps(torch.utils.data.Dataset[Pair]):
    """The pairs of every step, in the order in which they are seen: item k is of step k // batch.

    Each epoch takes the pairs in an order of its own and leaves out those that fill no batch.
    """

    def __init__(self, pairs: Pairs, *, batch: int, steps: int, seed: int) -> None:
        self._pairs, self._length, self._seed = pairs, steps * batch, seed
        self._epoch_length = len(pairs) // batch * batch
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Pair:
        epoch, place = divmod(index, self._epoch_length)
        if self._order[0] != epoch:
            self._order = (epoch, order_of_epoch(len(self._pairs), epoch=epoch, seed=self._seed))
        return self._pairs[int(self._order[1][place])]


Source = Callable[[Passage], str]  # how a passage is put before the model


def example_pairs(
    files: Sequence[str], *, corpus: str, queries: str, source: Source, intake: Intake
) -> list[ExamplePairs]:
    """The pairs of each file of training examples: every positive with its query. Negatives are not looked at.

    Raises MismatchError (file:line) for an id that corpus or queries lack.
    """
    packed = [
        PackedExamples(_without_negatives(read_examples(file, intake=intake)), line=lambda: intake.line)
        for file in files
    ]
    wanted = {query for examples in packed for query in examples.query_ids}
    texts = {query.id: query.text for query in read_queries(queries, intake=intake) if query.id in wanted}
    store = CorpusStore.open(corpus)
    for file, examples in zip(files, packed, strict=True):
        examples.check(file, queries=texts, corpus=store, negatives=0)
    return [ExamplePairs(examples, queries=texts, corpus=store, source=source) for examples in packed]


def written_pairs(files: Sequence[str], *, source: Source, intake: Intake) -> list[WrittenPairs]:
    """The pairs of each file of passages with "queries", as drtk doc2query writes them.

    Raises RecordError (file:line) where these are no list of texts, DrtkError for a file without any.
    """
    found = []
    for file in files:
        store = CorpusStore.open(file)  # first: it refuses stdin, which could not be looked up in
        try:
            pairs = WrittenPairs(read_passages(file, intake=intake), corpus=store, source=source)
        except ValueError as error:
            raise RecordError(f"{file}:{intake.line}", str(error)) from error
        if not len(pairs):
            raise DrtkError(
                f'{file}: no passage has "queries"; training examples come with --corpus FILE and --queries FILE'
            )
        found.append(pairs)
    return found


def read_pairs(
    files: Sequence[str], *, corpus: str | None, queries: str | None, source: Source, intake: Intake
) -> Sequence[Pairs]:
    """The pairs of each file: of examples where there is a corpus, otherwise of passages with queries."""
    if corpus is None or queries is None:
        return written_pairs(files, source=source, intake=intake)
    return example_pairs(files, corpus=corpus, queries=queries, source=source, intake=intake)


def _without_negatives(examples: Iterable[Example]) -> Iterator[Example]:
    return (replace(example, negatives=(), scores=None, sources=None) for example in examples)


def pairs_in_both(pairs: Pairs, dev: Pairs) -> int:
    """How many pairs of `dev` are among `pairs` too: of the same key, with the same words to be written."""
    keys = {dev.key(number) for number in range(len(dev))}
    # Texts are looked up for keys of both alone: there are few, where all is well.
    known = {
        (key, digest_of(pairs[number].target)) for number in range(len(pairs)) if (key := pairs.key(number)) in keys
    }
    mine = {key for key, _ in known}
    return sum(
        (key, digest_of(dev[number].target)) in known for number in range(len(dev)) if (key := dev.key(number)) in mine
    )


def questions_in_both(questions: Iterable[Query], dev: Iterable[Query]) -> int:
    """How many questions of `dev` are among the others too, whatever their ids."""
    asked = [digest_of(query.text) for query in dev]
    wanted = set(asked)
    known = {digest for query in questions if (digest := digest_of(query.text)) in wanted}
    return sum(digest in known for digest in asked)


def warn_of_overlap(both: int, of: int, what: str, *, dev: str, source: str) -> None:
    """Warn where there is something in both: `both` of the `of` questions, or pairs, that the file `dev` holds."""
    if both:
        warn(
            f"{dev}: {both:,} of its {of:,} {what} are in {source} too: the weights that are kept are then those that know "
            "them best by heart"
        )

"""Pairs of source and target texts for training generators."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Protocol

from drtk.data.corpus_store import CorpusStore
from drtk.data.readers import read_examples, read_passages, read_queries
from drtk.data.rows import parse_strings
from drtk.errors import DrtkError, RecordError
from drtk.records import Passage
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import warn
from drtk.text.rng import sample_uniform
from drtk.training.examples import PackedExamples
from drtk.training.folds import digest_question

SourceFormatter = Callable[[Passage], str]  # formats a passage as the model's input


@dataclass(frozen=True)
class TextPair:
    """An input text (source) and the text to generate (target)."""

    source: str
    target: str


class TextPairs(Protocol):
    """Protocol for a sequence of text pairs, such as (passage, query) or (question, answer)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> TextPair: ...

    def get_group_key(self, index: int) -> str:
        """Return the key of the pair's group, such as a passage id. Pairs of one group are held out together."""


class ExamplePairs:
    """Text pairs (positive, query) of training examples; queries without text are skipped.

    queries: query texts by id    format_source: function that formats a passage as source text
    """

    def __init__(
        self,
        examples: PackedExamples,
        *,
        queries: Mapping[str, str],
        corpus: CorpusStore,
        format_source: SourceFormatter,
    ) -> None:
        self._examples, self._queries, self._corpus, self._format_source = examples, queries, corpus, format_source
        self._pairs = array("i")  # example, passage, example, passage, …
        for example, query in enumerate(examples.query_ids):
            if queries[query].strip():
                for passage in examples.get_positives(example):
                    self._pairs.extend((example, passage))

    def __len__(self) -> int:
        return len(self._pairs) // 2

    def __getitem__(self, index: int) -> TextPair:
        query = self._queries[self._examples.query_ids[self._pairs[2 * index]]]
        (passage,) = self._corpus.get_many([self.get_group_key(index)])
        return TextPair(self._format_source(passage), query)

    def get_group_key(self, index: int) -> str:
        """Return the id of the pair's passage."""
        return self._examples.passage_ids[self._pairs[2 * index + 1]]


class PassageQueryPairs:
    """Text pairs (passage, query) from the field "queries" that `drtk doc2query` writes; empty queries are skipped.

    format_source: function that formats a passage as source text
    """

    def __init__(self, passages: Iterable[Passage], *, corpus: CorpusStore, format_source: SourceFormatter) -> None:
        """Raises ValueError if the "queries" of a passage are not a list of strings."""
        self._corpus, self._format_source = corpus, format_source
        self._ids: list[str] = []
        self._pairs = array("i")  # passage, query, passage, query, …
        for passage in passages:
            queries = parse_strings(passage.extra.get("queries", []), "queries")
            if queries:
                for position, query in enumerate(queries):
                    if query.strip():
                        self._pairs.extend((len(self._ids), position))
                self._ids.append(passage.id)

    def __len__(self) -> int:
        return len(self._pairs) // 2

    def __getitem__(self, index: int) -> TextPair:
        (passage,) = self._corpus.get_many([self.get_group_key(index)])
        return TextPair(self._format_source(passage), passage.extra["queries"][self._pairs[2 * index + 1]])

    def get_group_key(self, index: int) -> str:
        """Return the id of the pair's passage."""
        return self._ids[self._pairs[2 * index]]


class TextPairSubset:
    """The text pairs at some indices of a sequence of text pairs."""

    def __init__(self, pairs: TextPairs, indices: Iterable[int]) -> None:
        self._pairs, self._indices = pairs, array("i", indices)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> TextPair:
        return self._pairs[self._indices[index]]

    def get_group_key(self, index: int) -> str:
        return self._pairs.get_group_key(self._indices[index])


def split_held_out(pairs: TextPairs, fraction: float) -> tuple[TextPairSubset, TextPairSubset]:
    """Return (training pairs, held-out pairs). A hash selects about `fraction` of the groups; their pairs are held out."""
    is_held_out = [sample_uniform("dev", pairs.get_group_key(index)) < fraction for index in range(len(pairs))]
    return (
        TextPairSubset(pairs, (index for index, out in enumerate(is_held_out) if not out)),
        TextPairSubset(pairs, (index for index, out in enumerate(is_held_out) if out)),
    )


def sample_pairs(pairs: TextPairs, limit: int) -> list[TextPair]:
    """Return a random sample of at most `limit` pairs, in the original order.

    Sampling depends only on the group key of each pair and its position in the group.
    """
    counts: dict[str, int] = {}
    ranked = []
    for index in range(len(pairs)):
        key = pairs.get_group_key(index)
        ranked.append((sample_uniform("measured", key, counts.get(key, 0)), index))
        counts[key] = counts.get(key, 0) + 1
    return [pairs[index] for index in sorted(index for _, index in nsmallest(limit, ranked))]


def read_pairs(
    files: Sequence[str],
    *,
    corpus: str | None,
    queries: str | None,
    format_source: SourceFormatter,
    tracker: InputTracker,
) -> list[ExamplePairs] | list[PassageQueryPairs]:
    """Return the text pairs of each file: training examples if `corpus` and `queries` are given, else passages with "queries".

    corpus, queries: files with the texts of the training examples
    format_source: function that formats a passage as the source text of a pair
    Raises MismatchError for an id that is missing in corpus or queries, RecordError if "queries" is not a list of strings,
    both with file:line, and DrtkError if no passage of a file has queries.
    """
    if corpus is None or queries is None:
        return [_read_passage_queries(file, format_source=format_source, tracker=tracker) for file in files]
    packed = []
    for file in files:
        rows = read_examples(file, tracker=tracker)
        positives = (replace(row, negatives=(), scores=None, sources=None) for row in rows)
        packed.append(PackedExamples(positives, get_line=lambda: tracker.line))
    query_ids = {query for examples in packed for query in examples.query_ids}
    texts = {query.id: query.text for query in read_queries(queries, tracker=tracker) if query.id in query_ids}
    store = CorpusStore.open(corpus)
    for file, examples in zip(files, packed, strict=True):
        examples.check_examples(file, queries=texts, corpus=store, negatives=0)
    return [ExamplePairs(examples, queries=texts, corpus=store, format_source=format_source) for examples in packed]


def _read_passage_queries(file: str, *, format_source: SourceFormatter, tracker: InputTracker) -> PassageQueryPairs:
    store = CorpusStore.open(file)  # first, because it rejects stdin, which has no random access
    try:
        pairs = PassageQueryPairs(read_passages(file, tracker=tracker), corpus=store, format_source=format_source)
    except ValueError as error:
        raise RecordError(f"{file}:{tracker.line}", str(error)) from error
    if not len(pairs):
        raise DrtkError(f'{file}: no passage has "queries"; set `corpus` and `queries` if the file contains examples')
    return pairs


def digest_targets(pairs: TextPairs, keys: Collection[str] | None = None) -> list[tuple[str, str]]:
    """Return (group key, digest of the target) of each pair. keys: group keys of the pairs to use; None: all pairs"""
    indices = (index for index in range(len(pairs)) if keys is None or pairs.get_group_key(index) in keys)
    return [(pairs.get_group_key(index), digest_question(pairs[index].target)) for index in indices]


def warn_of_overlap(
    dev_items: Iterable[Hashable], training_items: Collection[Hashable], unit: str, *, file: str, source: str
) -> None:
    """Warn if evaluation items are also training items, because overfitted weights would then be selected.

    unit: plural noun for the items    file, source: files of the evaluation and training items; all for the message
    """
    items = [*dev_items]
    if both := sum(item in training_items for item in items):
        warn(f"{file}: {both:,} of its {len(items):,} {unit} are also in {source} and favor overfitting; remove them")

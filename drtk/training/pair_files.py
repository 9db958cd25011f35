"""Pairs of a passage and a query out of files: training examples, or passages with their queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from drtk.errors import DrtkError, RecordError
from drtk.io.intake import Intake
from drtk.io.jsonl import read_examples, read_passages, read_queries
from drtk.io.store import CorpusStore
from drtk.records import Example, Passage
from drtk.training.examples import PackedExamples
from drtk.training.pairs import ExamplePairs, Pairs, WrittenPairs

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

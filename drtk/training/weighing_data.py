"""What a step of training a weigher sees: passages with the questions asked of them, as tokens and targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from drtk.errors import RecordError
from drtk.io.store import CorpusStore
from drtk.models.reading import text_of
from drtk.models.termweighter import Weigher
from drtk.records import Passage
from drtk.text.added_texts import added_texts
from drtk.text.basic_words import function_words, question_words
from drtk.text.word_pieces import WordPieceTokenizer
from drtk.text.word_places import WordPlaces, passage_places
from drtk.text.words import stem_with
from drtk.training.draws import Drawn, Texts
from drtk.training.examples import PackedExamples
from drtk.training.sampling import order_of_epoch

_LOOKED_UP = 1000  # passages at once


@dataclass(frozen=True)
class Asked:
    """A passage and the questions it answers."""

    passage: Passage
    queries: list[str]


class AskedPassages(Dataset[Asked]):
    """The passages of every step, each with all the questions that have it among their positives.

    Each epoch takes them in an order of its own and leaves out those that fill no batch.
    """

    def __init__(
        self, examples: PackedExamples, *, queries: dict[str, str], corpus: Texts, batch: int, steps: int, seed: int
    ) -> None:
        self._texts, self._corpus, self._length, self._seed = queries, corpus, steps * batch, seed
        self._queries: dict[str, list[str]] = {}
        for at, query_id in enumerate(examples.query_ids):
            for number in examples.positives(at):
                self._queries.setdefault(examples.passage_ids[number], []).append(query_id)
        self._ids = list(self._queries)
        self.epoch_length = len(self._ids) // batch * batch
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Asked:
        epoch, place = divmod(index, self.epoch_length)
        if self._order[0] != epoch:
            self._order = (epoch, order_of_epoch(len(self._ids), epoch=epoch, seed=self._seed))
        id = self._ids[int(self._order[1][place])]
        (passage,) = self._corpus.many([id])
        return Asked(passage, [self._texts[query] for query in dict.fromkeys(self._queries[id])])


def recall_of(words: Iterable[str], queries: Sequence[str], *, stem: Callable[[str], str]) -> list[float]:
    """For each word of a passage the share of its queries that have a word of the same stem; 0 for function words."""
    asked = [{stem(word) for word in question_words(query)} for query in queries]
    left_out = function_words()
    shares: dict[str, float] = {}
    for word in words:
        if word not in shares:
            stemmed = stem(word)
            shares[word] = 0.0 if word in left_out else sum(stemmed in query for query in asked) / len(asked)
    return [shares[word] for word in words]


class Recalling:
    """Collates passages for DeepCT: `recall` and `first`, (passages, tokens), beside the model's inputs."""

    def __init__(self, weigher: Weigher, tokenizer: WordPieceTokenizer, *, room: int, title: str) -> None:
        self._weigher, self._tokenizer, self._room, self._title = weigher, tokenizer, room, title
        self._stem = stem_with("porter")

    def __call__(self, asked: Sequence[Asked]) -> dict[str, Tensor]:
        """The inputs of a step."""
        places = passage_places([item.passage for item in asked], self._tokenizer, "pieces", title=self._title)
        batch = _inputs(self._weigher, places, self._room)
        recall = np.zeros(batch["input_ids"].shape, dtype=np.float32)
        first = np.zeros_like(recall)
        before = len(self._weigher.first)
        for row, (item, each) in enumerate(zip(asked, places, strict=True)):
            heads = [head for head in each.heads if head < self._room]
            shares = recall_of(each.words[: len(heads)], item.queries, stem=self._stem)
            columns = [before + head for head in heads]
            recall[row, columns], first[row, columns] = shares, 1
        return _tensors(batch | {"recall": recall, "first": first})


class Pairing:
    """Collates a positive and a negative of each example for DeepImpact: `asked`, (2 * examples, tokens), beside the inputs.

    asked: 1 at the first piece of the first occurrence of a word that the question has
    Raises RecordError for added texts that are none.
    """

    def __init__(
        self, weigher: Weigher, tokenizer: WordPieceTokenizer, *, room: int, title: str, expand: Sequence[str] = ()
    ) -> None:
        self._weigher, self._tokenizer, self._room, self._title = weigher, tokenizer, room, title
        self._expand = expand

    def __call__(self, drawn: Sequence[Drawn]) -> dict[str, Tensor]:
        """The inputs of a step; a positive's row is followed by its negative's."""
        places = [
            each
            for item in drawn
            for each in passage_places(item.passages, self._tokenizer, "basic", title=self._title, expand=self._expand)
        ]
        batch = _inputs(self._weigher, places, self._room)
        asked = np.zeros(batch["input_ids"].shape, dtype=np.float32)
        before = len(self._weigher.first)
        for row, each in enumerate(places):
            first = each.first()
            for word in question_words(drawn[row // 2].query):
                head = first.get(word, self._room)
                if head < self._room:
                    asked[row, before + head] = 1
        return _tensors(batch | {"asked": asked})


def check_added_texts(ids: Sequence[str], corpus: CorpusStore, fields: Sequence[str]) -> None:
    """Raise RecordError (file:line) for the first passage of whose `fields` one holds no texts: before hours of training."""
    for begin in range(0, len(ids) if fields else 0, _LOOKED_UP):
        for passage in corpus.many(ids[begin : begin + _LOOKED_UP]):
            try:
                for name in fields:
                    added_texts(passage, name)
            except ValueError as error:
                raise RecordError(corpus.place(passage.id), f"passage '{passage.id}': {error}") from error


def text_read(passage: Passage, *, title: str, expand: Sequence[str]) -> str:
    """All that is read of a passage: title ("none" leaves it out), text and added texts, as `word_places.passage_places` has them."""
    return " ".join([text_of(passage, title), *(text for name in expand for text in added_texts(passage, name))])


def _inputs(weigher: Weigher, places: Sequence[WordPlaces], room: int) -> dict[str, np.ndarray]:
    tokens = weigher.tokens([each.ids for each in places], room=room)
    return tokens.padded(np.arange(len(places)), pad=weigher.pad)


def _tensors(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}

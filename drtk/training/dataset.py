"""Datasets and collation for training retrievers and rerankers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from drtk.records import Passage
from drtk.text.batching import TextTokenizer, TokenizedTexts
from drtk.training.examples import PackedExamples, TrainingData
from drtk.training.sampling import EpochDataset, sample_negatives

Key = tuple[Any, ...]


@dataclass(frozen=True)
class SampledExample:
    """A query with the positive and the negatives that are sampled for a training step.

    passages: the passages, the positive first    indices: the indices of `passages` in PackedExamples
    positives: indices of all positives of the query, if needed    scores: teacher scores of `passages`, if needed
    key: seed of random numbers, different for each example and epoch
    """

    query: str
    indices: list[int]
    passages: list[Passage]
    positives: Sequence[int] = ()
    scores: Sequence[float] = ()
    key: Key = ()


class SampledExamples(EpochDataset):
    """Dataset of the examples of all training steps, with positives and negatives sampled per epoch.

    negatives: number of negatives per example    batch: examples per step
    negative_sampling: `method` of drtk.training.sampling.sample_negatives
    positive_sampling: "rotate": the next positive of the example in each epoch; "first": always the first positive
    with_positives: add the passage indices of all positives of a query    with_scores: add teacher scores
    """

    def __init__(
        self,
        data: TrainingData,
        *,
        batch: int,
        steps: int,
        negatives: int,
        seed: int,
        negative_sampling: Literal["window", "replacement", "shuffle"] = "window",
        positive_sampling: Literal["rotate", "first"] = "rotate",
        with_positives: bool = False,
        with_scores: bool = False,
    ) -> None:
        super().__init__(data.examples.query_ids, batch=batch, steps=steps, seed=seed)
        self._data, self._negatives = data, negatives
        self._negative_sampling, self._with_scores = negative_sampling, with_scores
        self._rotate = positive_sampling == "rotate"
        self._positives = data.examples.group_positives_by_query() if with_positives else None

    def load(self, index: int, epoch: int, step: int) -> SampledExample:
        """Return the example at `index` of the PackedExamples, with the positive and the negatives of an epoch."""
        examples, query_id = self._data.examples, self._data.examples.query_ids[index]
        positives, negatives = examples.get_positives(index), examples.get_negatives(index)
        positive = (epoch + self.seed) % len(positives) if self._rotate else 0
        sampled = sample_negatives(
            range(len(negatives)),
            self._negatives,
            method=self._negative_sampling,
            epoch=epoch,
            seed=self.seed,
            key=f"{query_id}\0{index}",
        )
        indices = [positives[positive], *(negatives[rank] for rank in sampled)]
        scores: list[float] = []
        if self._with_scores:
            positive_scores, negative_scores = examples.get_scores(index)
            scores = [positive_scores[positive], *(negative_scores[rank] for rank in sampled)]
        return SampledExample(
            self._data.queries[query_id],
            indices,
            self._data.corpus.get_many([examples.passage_ids[passage] for passage in indices]),
            positives=() if self._positives is None else self._positives[query_id],
            scores=scores,
            key=(self.seed, epoch, query_id, index),
        )


def pad_tokens(tokens: TokenizedTexts, tokenizer: Any) -> dict[str, Tensor]:
    """Return padded model inputs by name, (texts, tokens) each."""
    padded = tokens.pad(np.arange(len(tokens)), pad=tokenizer.pad, left=tokenizer.left)
    return {name: torch.from_numpy(array) for name, array in padded.items()}


def collate(
    items: Sequence[SampledExample],
    *,
    query_tokenizer: TextTokenizer,
    passage_tokenizer: TextTokenizer,
    corrupt: Any = None,
) -> dict[str, Tensor]:
    """Return the inputs of a step by name: those of BiEncoder, and `passage_indices` (queries * n,) for n passages per query.

    If the examples have them, also `positives` (queries, max positives), padded with -1, and `teacher` (queries, n).
    corrupt: `AuxiliaryTask.corrupt`, whose results are added with the prefix "aux_query_" or "aux_passage_"; None: no task
    """
    texts: dict[str, tuple[TextTokenizer, list[Any]]] = {
        "query": (query_tokenizer, [item.query for item in items]),
        "passage": (passage_tokenizer, [text for item in items for text in item.passages]),
    }
    batch = {"passage_indices": torch.tensor([index for item in items for index in item.indices])}
    if any(len(item.positives) for item in items):
        max_positives = max(len(item.positives) for item in items)
        batch["positives"] = torch.tensor(
            [[*item.positives, *[-1] * (max_positives - len(item.positives))] for item in items]
        )
    if any(len(item.scores) for item in items):
        batch["teacher"] = torch.tensor([list(item.scores) for item in items], dtype=torch.float32)
    for role, (tokenizer, role_texts) in texts.items():
        padded = pad_tokens(tokenizer(role_texts), tokenizer)
        batch |= {f"{role}_{name}": tensor for name, tensor in padded.items()}
        if corrupt is not None:
            num_texts = 1 if role == "query" else len(items[0].passages)
            keys = [(*item.key, index) for item in items for index in range(num_texts)]
            arrays = corrupt(role, {name: tensor.numpy() for name, tensor in padded.items()}, keys)
            batch |= {f"aux_{role}_{name}": torch.from_numpy(array) for name, array in arrays.items()}
    return batch


@dataclass(frozen=True)
class JudgedPair:
    """A query, a passage and whether the passage is relevant."""

    query: str
    passage: Passage
    is_relevant: bool


class JudgedPairs:
    """Sequence of all pairs of training examples: the query of each example with each of its positives and negatives."""

    def __init__(self, data: TrainingData) -> None:
        self._data, examples = data, data.examples
        self._ends = np.fromiter(accumulate(count_pairs(examples)), dtype=np.int64, count=len(examples))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> JudgedPair:
        examples, example = self._data.examples, int(self._ends.searchsorted(index, side="right"))
        offset = index - int(self._ends[example - 1] if example else 0)
        positives = examples.get_positives(example)
        is_relevant = offset < len(positives)
        passage = positives[offset] if is_relevant else examples.get_negatives(example)[offset - len(positives)]
        [text] = self._data.corpus.get_many([examples.passage_ids[passage]])
        return JudgedPair(self._data.queries[examples.query_ids[example]], text, is_relevant)


def count_pairs(examples: PackedExamples) -> list[int]:
    """Return the number of query-passage pairs of each example, which is its number of positives and negatives."""
    return [len(examples.get_positives(index)) + len(examples.get_negatives(index)) for index in range(len(examples))]

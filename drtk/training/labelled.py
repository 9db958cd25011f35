"""Labelled candidates of many questions: their ranks in memory, their texts in a temporary file."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import orjson
import torch

from drtk.io.candidates import Candidates, distinct
from drtk.models.query_reading import Candidate
from drtk.records import Expansion
from drtk.training.folds import digest_of
from drtk.training.sampling import order_of_epoch


class Labelled(NamedTuple):
    """A question's candidates of one kind, and the rank of each: (candidates,), int64."""

    candidates: list[Candidate]
    ranks: np.ndarray


def unlabelled(expansion: Expansion, *, scorer: str) -> str | None:
    """What a candidate lacks that training wants; None where it lacks nothing."""
    if expansion.rank is None:
        return f"'{expansion.id}' has no rank; drtk rerank-queries label gives it one"
    if scorer == "rd" and expansion.top1 is None:
        return f"'{expansion.id}' has no 'top1', which --scorer rd reads; drtk rerank-queries label adds it"
    return None


class LabelledCandidates:
    """Groups of candidates by number. Ranks beyond the depth of the labels, where no answer was found, become `max_rank`.

    A group is a question's candidates of one kind; `questions` counts the questions they are of, tied ones too.
    asked: what tells these questions from others, whatever their ids
    ties: keep groups whose ranks are all the same, from which nothing can be learned; `tied` counts those left out
    most: candidates of a group that are kept, its first different ones; `repeated` counts those of a text that came before
    depth: of the labels, for candidates that do not say it themselves
    beyond: the ranks beyond `depth` of such ones: more than one where it is not that of the labels
    """

    def __init__(
        self, groups: Iterable[Candidates], *, depth: int, max_rank: int, most: int | None = None, ties: bool = False
    ) -> None:
        # Both the file and its position are this process's own; readers in other processes take theirs with pread.
        self._file = tempfile.TemporaryFile(prefix="drtk-")  # noqa: SIM115 - it lives as long as this does
        self._offsets, self._starts, self._ranks = array("q", [0]), array("q", [0]), array("i")
        self._depths: set[int] = set()
        self.tied = self.repeated = 0
        questions: set[str] = set()
        self.asked: set[str] = set()
        self.beyond: set[int] = set()
        written = 0
        for group in groups:
            questions.add(group.query.id)
            self.asked.add(digest_of(group.query.text))
            different = distinct(group.expansions)
            self.repeated += len(group.expansions) - len(different)
            kept = different[:most]
            self._depths.update(each.depth or depth for each in kept)
            self.beyond.update(each.rank for each in kept if not each.depth and each.rank and each.rank > depth)
            ranks = [max_rank if (rank := each.rank or max_rank) > (each.depth or depth) else rank for each in kept]
            if not ties and len(set(ranks)) < 2:
                self.tied += 1
                continue
            top1 = [each.top1 or {} for each in kept]
            texts = [
                (each.text, top.get("title", ""), top.get("text", "")) for each, top in zip(kept, top1, strict=True)
            ]
            written += self._file.write(orjson.dumps((group.query.text, texts)))
            self._offsets.append(written)
            self._ranks.extend(ranks)
            self._starts.append(len(self._ranks))
        self._file.flush()
        self.questions = len(questions)

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def depth(self) -> int | list[int]:
        """To which rank was looked for answers; where that is not the same for all groups, each such rank."""
        return sorted(self._depths) if len(self._depths) > 1 else next(iter(self._depths))

    @property
    def candidates(self) -> int:
        """Candidates of all groups together."""
        return len(self._ranks)

    def __getitem__(self, number: int) -> Labelled:
        start, end = self._offsets[number], self._offsets[number + 1]
        question, texts = orjson.loads(os.pread(self._file.fileno(), end - start, start))
        return Labelled([Candidate(question, *each) for each in texts], self.ranks(number))

    def ranks(self, number: int) -> np.ndarray:
        """(candidates of the group,), int64."""
        return np.array(self._ranks[self._starts[number] : self._starts[number + 1]], dtype=np.int64)


class Steps(torch.utils.data.Dataset[Labelled]):
    """The groups of every step, in the order in which they are seen: item k is of step k // batch.

    Each epoch takes the groups in an order of its own and leaves out those that fill no batch.
    """

    def __init__(self, groups: LabelledCandidates, *, batch: int, steps: int, seed: int) -> None:
        self._groups, self._length, self._seed = groups, steps * batch, seed
        self._epoch_length = len(groups) // batch * batch
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Labelled:
        epoch, place = divmod(index, self._epoch_length)
        if self._order[0] != epoch:
            self._order = (epoch, order_of_epoch(len(self._groups), epoch=epoch, seed=self._seed))
        return self._groups[int(self._order[1][place])]

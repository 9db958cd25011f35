"""The data of pre-training: training and held-out rows of a corpus, and the order of examples."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from drtk.errors import DrtkError, MismatchError
from drtk.pretraining.batch import Batch, PretrainingCollator, PretrainingExample
from drtk.pretraining.composition import Composition
from drtk.pretraining.config import PretrainSettings
from drtk.pretraining.example_builder import ExampleBuilder, SpecialTokens, TokenizedSlot
from drtk.runtime.progress import log, warn
from drtk.text.rng import sample_uniform
from drtk.text.token_dataset import TokenCorpus
from drtk.training.sampling import shuffle_epoch

INSPECTED = 256  # examples that `check_slots` inspects


class ExampleDataset(torch.utils.data.Dataset[PretrainingExample]):
    """Dataset of the examples of all training steps: item k belongs to step k // batch.

    Each epoch shuffles the rows and drops the last, incomplete batch.

    rows: indices of the corpus rows to use, (rows,)
    """

    def __init__(self, builder: ExampleBuilder, rows: np.ndarray, *, batch: int, steps: int, seed: int) -> None:
        self._builder, self._rows = builder, rows
        self._batch, self._length, self._seed = batch, steps * batch, seed
        self.epoch_length = len(rows) // batch * batch
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> PretrainingExample:
        epoch, place = divmod(index, self.epoch_length)
        if self._order[0] != epoch:
            self._order = (epoch, shuffle_epoch(len(self._rows), epoch=epoch, seed=self._seed))
        row = int(self._rows[self._order[1][place]])
        slots = self._builder(row, epoch=epoch, step=index // self._batch)
        return PretrainingExample((self._seed, epoch, self._builder.get_id(row)), slots)


class PretrainingData:
    """The training and held-out rows of a corpus for a composition.

    max_held_out: maximum share of rows to hold out
    batch_from: name of the preset that sets the batch size, for the error message
    Raises DrtkError if there are fewer training rows than the batch size.
    """

    def __init__(
        self,
        corpus: TokenCorpus,
        composition: Composition,
        settings: PretrainSettings,
        tokenizer: Any,
        seed: int,
        *,
        max_held_out: float = 0.5,
        batch_from: str = "",
    ) -> None:
        self.corpus, self.composition, self.settings, self.seed = corpus, composition, settings, seed
        by_document = composition.example == "document"
        special = SpecialTokens.from_tokenizer(tokenizer)
        self._make_builder = partial(ExampleBuilder, composition, corpus, special, max_length=settings.max_length)
        self._builder = self._make_builder(seed=seed)
        rows = self._builder.rows
        self.unit = "documents" if by_document else "passages"
        self.held_out, self.rows = self._split(rows, min(settings.held_out, int(len(rows) * max_held_out)))
        what = "documents of several passages" if by_document else "passages"
        if settings.held_out:
            fewer = f" ({settings.held_out:,} requested)" if len(self.held_out) < settings.held_out else ""
            log(
                f"pretrain: {len(self.held_out):,} of {len(rows):,} {what} are held out{fewer}, "
                f"{len(self.rows):,} remain to train on"
            )
        if len(self.rows) < settings.batch_size:
            source = f", set by {batch_from}" if batch_from else ""
            raise DrtkError(
                f"{len(self.rows):,} {what} do not fill one batch of {settings.batch_size:,}{source}; "
                f"set `batch_size` {max(1, len(self.rows))} or less"
            )
        self.steps_per_epoch = len(self.rows) // settings.batch_size
        self.steps = settings.max_steps or max(1, round(settings.epochs * self.steps_per_epoch))
        self._pad = int(tokenizer.pad_token_id or 0)
        examples = self.build_dataset()
        for index in range(min(16, len(examples))):  # raise errors in building examples before anything is written
            examples[index]

    def _split(self, rows: np.ndarray, num_held_out: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (held-out rows, training rows), sampled by a hash of the ids.

        If views use neighboring passages, whole documents are held out, and surplus passages of the last held-out document are
        not used. At least half of all passages are training rows.
        """
        if not num_held_out:
            return rows[:0], rows
        if self.composition.example == "document" or "documents" not in self.corpus.fields:
            order = sorted(
                rows.tolist(), key=lambda row: sample_uniform(self.seed, "held-out", self._builder.get_id(row))
            )
            return np.array(order[:num_held_out]), np.array(sorted(order[num_held_out:]))
        spans: list[np.ndarray] = []
        remaining = len(rows) // 2

        def order_of(document: int) -> float:
            return sample_uniform(
                self.seed, "held-out", self.corpus.get_id(int(self.corpus.get_document_passages(document)[0]))
            )

        for document in sorted(range(self.corpus.num_documents), key=order_of):
            span = self.corpus.get_document_passages(document)
            if len(span) <= remaining:
                spans.append(span)
                remaining -= len(span)
            if len(rows) // 2 - remaining >= num_held_out:
                break
        if not spans:
            warn(
                f"{self.corpus.sources}: no passages are held out, because every document has more than half of all passages"
            )
            return rows[:0], rows
        held_out = np.concatenate(spans)
        return held_out[:num_held_out], rows[~np.isin(rows, held_out)]

    def build_dataset(self) -> ExampleDataset:
        """Return the examples of all training steps."""
        return ExampleDataset(
            self._builder, self.rows, batch=self.settings.batch_size, steps=self.steps, seed=self.seed
        )

    def sample_slots(self, count: int) -> list[Mapping[str, TokenizedSlot]]:
        """Return the slots of at most `count` evenly spaced training rows."""
        chosen = self.rows[np.linspace(0, len(self.rows) - 1, min(count, len(self.rows))).astype(int)]
        return [self._builder(int(row), epoch=0, step=step) for step, row in enumerate(chosen)]

    def build_collator(self, micro: int) -> PretrainingCollator:
        """Return the collator of the composition. micro: maximum number of examples in a micro-batch"""
        return PretrainingCollator(
            self.composition, pad=self._pad, max_length=self.settings.max_length, seed=self.seed, micro=micro
        )

    def build_held_out_batches(self, size: int) -> list[Batch]:
        """Return batches of at most `size` held-out examples. Sampling depends only on the seed."""
        count = len(self.held_out)
        # one step per example, so that views sampled per step differ between examples
        rows = ExampleDataset(
            self._make_builder(seed=self.seed + 1), self.held_out, batch=1, steps=max(1, count), seed=0
        )
        examples = [rows[number] for number in range(count)]
        starts = [*range(0, count, size)]
        if len(starts) > 1 and count - starts[-1] == 1:  # a single row has no in-batch negatives
            starts.pop()
        collate = self.build_collator(size).collate
        groups = [examples[start:stop] for start, stop in zip(starts, [*starts[1:], count], strict=True)]
        return [collate(group) for group in groups if len(group) > 1]

    def check_slots(self) -> None:
        """Log the share of rows without a text for a slot. Raises MismatchError for a slot without a text in all rows."""
        examples = self.sample_slots(INSPECTED)
        total = len(examples)
        slots_by_rows: dict[tuple[int, ...], list[str]] = {}  # both slots of a pair are missing in the same rows
        for name in self.composition.slots:
            rows = tuple(number for number, slots in enumerate(examples) if not slots[name].present)
            if rows:
                slots_by_rows.setdefault(rows, []).append(name)
        for rows, names in slots_by_rows.items():
            what = f"slot{'s' * (len(names) > 1)} {', '.join(repr(name) for name in names)}"
            if len(rows) == total:
                raise MismatchError(f"{self.corpus.sources}: none of {total:,} {self.unit} has a text for {what}")
            share = f"{len(rows):,} of {total:,} {self.unit}"
            if total < len(self.rows):
                share = f"about {len(rows) / total:.0%} of the {self.unit}"
            log(f"{self.corpus.sources}: {share} have no text for {what}; objectives on {what} skip them")

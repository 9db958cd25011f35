"""The data of pre-training: examples, batches, and the training and held-out rows of a corpus.

Slots, the inputs of the encoder, are defined in `composition.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drtk.errors import MismatchError
from drtk.pretraining.composition import Composition
from drtk.pretraining.config import PretrainSettings
from drtk.pretraining.example_builder import ExampleBuilder, SpecialTokens, TokenizedSlot
from drtk.runtime.progress import log, warn
from drtk.text.rng import create_generator, sample_uniform_of_ids
from drtk.text.token_dataset import TokenCorpus
from drtk.training.arguments import plan_schedule
from drtk.training.sampling import EpochDataset

INSPECTED = 256  # examples that `check_slots` inspects


class PretrainingExample(NamedTuple):
    """A training example. key: (seed, epoch, id), the seed of random numbers    slots: tokenized inputs by slot name"""

    key: tuple[Any, ...]
    slots: Mapping[str, TokenizedSlot]


@dataclass
class SlotBatch:
    """One slot of a batch. Tensors are (batch, tokens), padded on the right, unless noted.

    original_ids: int64, token ids before masking    input_ids: int64, token ids after masking
    attention: 1 at tokens, 0 at padding
    content: bool, False at special tokens and padding    masked: bool, True at masked positions and at inserted tokens
    present: (batch,) bool, False for examples without a text for this slot
    edited: int64, labels of target "edited": 1 at inserted tokens and after deletions, else 0. Rows without a text, and
        rows whose labels depend on the generator (corruption "replaced"), contain -1. None if the batch has no
        insertions or deletions
    noise: float32, random numbers in [0, 1) for the generator; None if the generator is not used
    attention_mask: (batch, tokens, tokens) bool, True at (i, j) if token i may attend to j (decoder "two-stream" only)
    types: int64, token types; None: all 0
    """

    original_ids: Tensor
    input_ids: Tensor
    attention: Tensor
    content: Tensor
    masked: Tensor
    present: Tensor
    edited: Tensor | None = None
    noise: Tensor | None = None
    attention_mask: Tensor | None = None
    types: Tensor | None = None


Batch = dict[str, SlotBatch]


@dataclass
class PackedBatches:
    """The micro-batches of a step, stored in one tensor of bytes.

    A single tensor is faster to send between processes and to copy to a GPU.

    buffer: (bytes,) uint8
    layout: (index of the micro-batch, slot, field of SlotBatch, dtype, shape, offset in bytes) of each tensor
    """

    buffer: Tensor
    layout: list[tuple[int, str, str, torch.dtype, torch.Size, int]]

    @classmethod
    def pack(cls, batches: Sequence[Batch]) -> PackedBatches:
        """Copy the tensors of all micro-batches into one buffer."""
        tensors: list[Tensor] = []
        layout, size = [], 0
        for number, batch in enumerate(batches):
            for slot, values in batch.items():
                for name, tensor in vars(values).items():
                    if tensor is not None:
                        layout.append((number, slot, name, tensor.dtype, tensor.shape, size))
                        tensors.append(tensor)
                        size += -(-tensor.nbytes // 8) * 8  # views need aligned offsets
        buffer = torch.zeros(size, dtype=torch.uint8)
        for tensor, (*_, offset) in zip(tensors, layout, strict=True):
            buffer[offset : offset + tensor.nbytes] = tensor.flatten().view(torch.uint8)
        return cls(buffer, layout)

    def pin_memory(self) -> PackedBatches:
        return PackedBatches(self.buffer.pin_memory(), self.layout)

    def to(self, device: torch.device, non_blocking: bool = False) -> PackedBatches:
        return PackedBatches(self.buffer.to(device, non_blocking=non_blocking), self.layout)

    def unpack(self) -> list[Batch]:
        """Return the micro-batches. Their tensors share the memory of the buffer."""
        fields: list[dict[str, dict[str, Tensor]]] = [{} for _ in range(self.layout[-1][0] + 1)]
        for number, slot, name, dtype, shape, offset in self.layout:
            values = self.buffer[offset : offset + shape.numel() * dtype.itemsize]
            fields[number].setdefault(slot, {})[name] = values.view(dtype).view(shape)
        return [{slot: SlotBatch(**tensors) for slot, tensors in batch.items()} for batch in fields]


class PretrainingCollator:
    """Collator that splits the batch of a device into micro-batches of at most `micro_batch` examples of similar length.

    pad: id of the padding token    max_length: maximum length, in tokens, of slots that set no `max_length`
    Slots with reduction `mean_all` are padded to their maximum length, because the mean includes padding
    (docs/methods/diffcse.md). Slots of a two-stream decoder get random attention masks (docs/methods/retromae.md).
    """

    def __init__(self, composition: Composition, *, pad: int, max_length: int, micro_batch: int) -> None:
        self._pad, self.micro_batch = pad, micro_batch
        self.fixed: dict[str, int] = {}  # padded lengths of the slots that are padded to a fixed length
        self._visible: dict[str, float] = {}
        for objective in composition.token_objectives:
            decoder = composition.decoders[objective.decoder]
            for name in objective.slot:
                if objective.reduction == "mean_all":
                    self.fixed[name] = composition.slots[name].max_length or max_length
                if decoder.use == "two-stream":
                    self._visible[name] = float(decoder.options.get("visible", 0.5))

    def __call__(self, examples: Sequence[PretrainingExample]) -> dict[str, Any]:
        """Return {"batches": micro-batches as PackedBatches, longest first, "ids": list of example ids of each micro-batch}."""
        examples = sorted(
            examples, key=lambda example: sum(len(slot.input_ids) for slot in example.slots.values()), reverse=True
        )
        size = self.micro_batch
        groups = [examples[start : start + size] for start in range(0, len(examples), size)]
        return {
            "batches": PackedBatches.pack([self.collate(group) for group in groups]),
            "ids": [[str(example.key[-1]) for example in group] for group in groups],
        }

    def collate(self, examples: Sequence[PretrainingExample]) -> Batch:
        """Return all examples as one batch, {slot name: SlotBatch}."""
        keys = [example.key for example in examples]
        return {
            name: self._collate_slot(name, [example.slots[name] for example in examples], keys)
            for name in examples[0].slots
        }

    def _collate_slot(self, name: str, slots: Sequence[TokenizedSlot], keys: Sequence[tuple[Any, ...]]) -> SlotBatch:
        width = max(self.fixed.get(name, 0), max(len(slot.input_ids) for slot in slots))

        def pad(rows: Sequence[np.ndarray | None], kind: type, fill: int = 0, missing: int = 0) -> np.ndarray | None:
            """Return the padded rows, (batch, width); None if all rows are None.

            kind: dtype    fill: value of padding    missing: value of all columns of rows that are None
            """
            if all(row is None for row in rows):
                return None
            padded: np.ndarray = np.full((len(rows), width), fill, kind)
            for at, row in enumerate(rows):
                padded[at, : width if row is None else len(row)] = missing if row is None else row
            return padded

        attention = pad([np.ones(len(slot.input_ids)) for slot in slots], np.int64)
        arrays = {
            "original_ids": pad([slot.original_ids for slot in slots], np.int64, self._pad),
            "input_ids": pad([slot.input_ids for slot in slots], np.int64, self._pad),
            "attention": attention,
            "content": pad([slot.content for slot in slots], bool),
            "masked": pad([slot.masked for slot in slots], bool),
            "present": np.array([slot.present for slot in slots]),
            "edited": pad([slot.edited for slot in slots], np.int64, missing=-1),
            "noise": pad([slot.noise for slot in slots], np.float32),
            "attention_mask": self._sample_attention_mask(name, attention, keys) if name in self._visible else None,
            "types": pad([slot.types for slot in slots], np.int64),
        }
        tensors: dict[str, Any] = {
            key: None if array is None else torch.from_numpy(array) for key, array in arrays.items()
        }
        return SlotBatch(**tensors)

    def _sample_attention_mask(self, name: str, attention: Any, keys: Sequence[tuple[Any, ...]]) -> np.ndarray:
        """Return random attention masks of a slot, (batch, tokens, tokens) bool; False at padding.

        attention: (batch, tokens), 0 at padding    keys: seed of random numbers for each example
        """
        batch, width = attention.shape
        visible, probability = np.zeros((batch, width, width), bool), self._visible[name]
        for row, key in enumerate(keys):
            size = int(attention[row].sum())
            visible[row, :size, :size] = create_generator(*key, "visible", name).random((size, size)) < probability
        return visible


class ExampleDataset(EpochDataset):
    """Dataset of the examples of all training steps.

    items: (rows,), indices of the passages or documents to use    options: as in EpochDataset
    """

    def __init__(self, builder: ExampleBuilder, items: np.ndarray, **options: int) -> None:
        super().__init__(items, **options)
        self._builder = builder

    def load(self, index: int, epoch: int, step: int) -> PretrainingExample:
        """Return the example of the row at `index`."""
        row = int(self.items[index])
        slots = self._builder(row, epoch=epoch, step=step)
        return PretrainingExample((self.seed, epoch, self._builder.get_id(row)), slots)


class PretrainingData:
    """The training and held-out rows of a corpus: indices of its passages, or of its documents if examples are documents.

    max_held_out: maximum share of rows to hold out, in [0, 0.5]
    schedule: training schedule    Raises the errors of `plan_schedule` and ExampleBuilder.
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
    ) -> None:
        self.corpus, self.composition, self.settings, self.seed = corpus, composition, settings, seed
        special = SpecialTokens.from_tokenizer(tokenizer)
        self._make_builder = partial(ExampleBuilder, composition, corpus, special, max_length=settings.max_length)
        self._builder = self._make_builder(seed=seed)
        rows = self._builder.rows
        self.unit = "documents" if composition.example == "document" else "passages"
        self.held_out, self.rows = self._split_rows(rows, min(settings.held_out, int(len(rows) * max_held_out)))
        what = f"{self.unit} of several passages" if composition.example == "document" else self.unit
        if settings.held_out:
            fewer = f" ({settings.held_out:,} requested)" if len(self.held_out) < settings.held_out else ""
            log(
                f"pretrain: {len(self.held_out):,} of {len(rows):,} {what} are held out{fewer}, "
                f"{len(self.rows):,} remain to train on"
            )
        self.schedule = plan_schedule(len(self.rows), settings, unit=what, source=corpus.sources)
        self._pad = int(tokenizer.pad_token_id or 0)
        examples = self.build_dataset()
        for index in range(min(16, len(examples))):  # raise errors in building examples before anything is written
            examples[index]

    def _split_rows(self, rows: np.ndarray, num_held_out: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (held-out rows, training rows), sampled by a hash of the ids.

        If views use other passages of a document, whole documents are held out. Passages of these documents beyond
        `num_held_out` are not used at all. At most half of all rows are held out.
        """
        if not num_held_out:
            return rows[:0], rows
        corpus, has_documents = self.corpus, "documents" in self.corpus.fields
        is_row_alone = self.composition.example == "document" or not has_documents
        units = rows if is_row_alone else np.arange(corpus.num_documents)
        ids = corpus.iter_ids(corpus.get_first_passages(units) if has_documents else units)
        order = np.argsort(sample_uniform_of_ids(ids, self.seed, "held-out"), kind="stable")
        held_out: list[int] = []
        for unit in units[order]:
            unit_rows = [int(unit)] if is_row_alone else corpus.get_document_passages(unit).tolist()
            if len(held_out) + len(unit_rows) <= len(rows) // 2:
                held_out += unit_rows
            if len(held_out) >= num_held_out:
                break
        if not held_out:
            warn(f"{self.corpus.sources}: no passages are held out, because all passages belong to one document")
        return np.array(held_out[:num_held_out], dtype=rows.dtype), rows[~np.isin(rows, held_out)]

    def build_dataset(self) -> ExampleDataset:
        """Return the dataset of all training steps."""
        return ExampleDataset(
            self._builder, self.rows, batch=self.settings.batch_size, steps=self.schedule.steps, seed=self.seed
        )

    def build_spaced_examples(self, count: int) -> list[Mapping[str, TokenizedSlot]]:
        """Return the tokenized inputs of at most `count` evenly spaced training examples, {slot name: TokenizedSlot} each."""
        chosen = self.rows[np.linspace(0, len(self.rows) - 1, min(count, len(self.rows))).astype(int)]
        return [self._builder(int(row), epoch=0, step=step) for step, row in enumerate(chosen)]

    def build_collator(self, micro_batch: int) -> PretrainingCollator:
        """Return the collator of the composition. micro_batch: maximum number of examples in a micro-batch"""
        return PretrainingCollator(
            self.composition, pad=self._pad, max_length=self.settings.max_length, micro_batch=micro_batch
        )

    def build_held_out_batches(self, size: int) -> list[Batch]:
        """Return the held-out examples in batches of `size`, the last of 2 to `size` + 1. A single example is dropped.

        Sampling depends only on the seed and the ids.
        """
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
        """Log the share of rows that have no text for a slot, such as no queries, estimated from INSPECTED examples.

        Raises MismatchError for a slot that has a text in none of these examples.
        """
        examples = self.build_spaced_examples(INSPECTED)
        total = len(examples)
        for name in self.composition.slots:
            missing = sum(not slots[name].present for slots in examples)
            if missing == total:
                raise MismatchError(
                    f"{self.corpus.sources}: none of {total:,} sampled {self.unit} has a text for slot '{name}'; "
                    "add the texts to the corpus, or `drop` the objectives"
                )
            if missing:
                share = f"{missing:,} of {total:,} {self.unit}"
                if total < len(self.rows):
                    share = f"about {missing / total:.0%} of the {self.unit}"
                log(
                    f"{self.corpus.sources}: {share} have no text for slot '{name}'; objectives on slot '{name}' skip them"
                )

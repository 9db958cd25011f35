"""The rows of a corpus that pre-training uses, and their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from drtk.errors import DrtkError, MismatchError
from drtk.pretraining.batch import Batch, Collator, collator_of
from drtk.pretraining.composition import Composition
from drtk.pretraining.config import PretrainSettings
from drtk.pretraining.example_builder import SlotBuilder, Slotted, frame_of, views_of
from drtk.runtime.progress import log, warn
from drtk.text.rng import uniform
from drtk.text.token_dataset import TokenCorpus
from drtk.training.sampling import order_of_epoch

Key = tuple[Any, ...]


class Seen(NamedTuple):
    """An example as one step sees it; `key` tells it apart: seed, epoch, id."""

    key: Key
    slots: Mapping[str, Slotted]


class Rows(torch.utils.data.Dataset[Seen]):
    """The examples of all steps: item k is of step k // batch. Each epoch has an order of its own and leaves out what fills no batch.

    rows: which rows of the corpus there are, (rows,)
    """

    def __init__(self, builder: SlotBuilder, rows: np.ndarray, ids: Any, *, batch: int, steps: int, seed: int) -> None:
        self._builder, self._rows, self._ids = builder, rows, ids
        self._batch, self._length, self._seed = batch, steps * batch, seed
        self.epoch_length = len(rows) // batch * batch
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Seen:
        epoch, place = divmod(index, self.epoch_length)
        if self._order[0] != epoch:
            self._order = (epoch, order_of_epoch(len(self._rows), epoch=epoch, seed=self._seed))
        row = int(self._rows[self._order[1][place]])
        slots = self._builder(row, epoch=epoch, step=index // self._batch)
        return Seen((self._seed, epoch, self._ids(row)), slots)


class Parts:
    """A device's share of a batch in parts that fit into memory, of like length, so that there is little padding.

    micro: examples in a part
    """

    def __init__(self, collator: Collator, *, micro: int) -> None:
        self._collator, self._micro = collator, micro

    def __call__(self, seen: Sequence[Seen]) -> dict[str, Any]:
        """{"parts": batches, "ids": for each the ids of its examples}; the longest part first."""
        if self._micro < len(seen):
            seen = sorted(seen, key=_tokens, reverse=True)
        groups = [seen[start : start + self._micro] for start in range(0, len(seen), self._micro)]
        return {
            "parts": [self.batch(group) for group in groups],
            "ids": [[str(each.key[-1]) for each in group] for group in groups],
        }

    def batch(self, seen: Sequence[Seen]) -> Batch:
        """One part."""
        return self._collator([each.slots for each in seen], [each.key for each in seen])


def _tokens(seen: Seen) -> int:
    return sum(len(slot.given) for slot in seen.slots.values())


class Material:
    """The rows of a corpus that a composition is trained on, and those held out.

    spared: the largest share of them that is held out, whatever the settings ask for
    batch_of: who says how large a batch is, where the user did not
    Raises DrtkError where so few are left that they fill no batch.
    """

    def __init__(
        self,
        corpus: TokenCorpus,
        composition: Composition,
        settings: PretrainSettings,
        tokenizer: Any,
        seed: int,
        *,
        spared: float = 0.5,
        batch_of: str = "",
    ) -> None:
        self.corpus, self.composition, self.settings, self.seed = corpus, composition, settings, seed
        by_document = composition.example == "document"
        rows = corpus.shared_documents if by_document else np.arange(len(corpus))
        self._first = partial(_first_id if by_document else _own_id, corpus)  # travels to workers that are spawned
        held = min(settings.held_out, int(len(rows) * spared))
        self.held_out, self.rows = self._parted(rows, held)
        what = "documents of several passages" if by_document else "passages"
        if settings.held_out:
            fewer = f" ({settings.held_out:,} were asked for)" if len(self.held_out) < settings.held_out else ""
            log(
                f"pretrain: {len(self.held_out):,} of {len(rows):,} {what} are held out{fewer}, "
                f"{len(self.rows):,} remain to train on"
            )
        if len(self.rows) < settings.batch:
            whose = f", which is that of {batch_of}" if batch_of else ""
            raise DrtkError(
                f"{len(self.rows):,} {what} do not fill one batch of {settings.batch:,}{whose}; "
                f"--batch {max(1, len(self.rows))} or less would do"
            )
        self.steps_per_epoch = len(self.rows) // settings.batch
        self.steps = settings.steps or max(1, round(settings.epochs * self.steps_per_epoch))
        self.frame = frame_of(tokenizer)
        self._pad = int(tokenizer.pad_token_id or 0)
        examples = self.dataset()
        for number in range(min(16, len(examples))):  # what cannot be made is said before anything is written
            examples[number]

    def _parted(self, rows: np.ndarray, held: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows that are held out, drawn by their ids, and those to train on.

        Where views read neighbours, passages are held out with the whole of their document; what the last of these
        documents has too many is in neither. At least half of all passages stay in training.
        """
        if not held:
            return rows[:0], rows
        if self.composition.example == "document" or "documents" not in self.corpus.wants:
            order = sorted(rows.tolist(), key=lambda row: uniform(self.seed, "held-out", self._first(row)))
            return np.array(order[:held]), np.array(sorted(order[held:]))
        taken: list[np.ndarray] = []
        room = len(rows) // 2
        first = partial(_first_id, self.corpus)
        for document in sorted(
            range(self.corpus.documents), key=lambda each: uniform(self.seed, "held-out", first(each))
        ):
            span = self.corpus.span(document)
            if len(span) <= room:
                taken.append(span)
                room -= len(span)
            if len(rows) // 2 - room >= held:
                break
        if not taken:
            warn(f"{self.corpus.sources}: nothing is held out: no document is small enough to be spared whole")
            return rows[:0], rows
        away = np.concatenate(taken)
        return away[:held], rows[~np.isin(rows, away)]

    def _builder(self, seed: int) -> SlotBuilder:
        return SlotBuilder(
            self.composition,
            self.corpus,
            self.frame,
            ids=self._first,
            max_length=self.settings.max_length,
            seed=seed,
        )

    def dataset(self) -> Rows:
        """The examples of all steps."""
        settings = self.settings
        return Rows(
            self._builder(self.seed), self.rows, self._first, batch=settings.batch, steps=self.steps, seed=self.seed
        )

    def glance(self, count: int) -> list[Mapping[str, Slotted]]:
        """The slots of up to `count` of the rows, evenly spread, each as another step would see it."""
        builder = self._builder(self.seed)
        chosen = self.rows[np.linspace(0, len(self.rows) - 1, min(count, len(self.rows))).astype(int)]
        return [builder(int(row), epoch=0, step=step) for step, row in enumerate(chosen)]

    def parts(self, micro: int) -> Parts:
        """What makes batches of them."""
        collator = collator_of(self.composition, pad=self._pad, max_length=self.settings.max_length, seed=self.seed)
        return Parts(collator, micro=micro)

    def held_out_batches(self, size: int) -> list[Batch]:
        """Batches of what was held out, drawn the same in every run of a seed."""
        # A step each, so that what a step draws (a view of several) is drawn for every one of them.
        count = len(self.held_out)
        rows = Rows(self._builder(self.seed + 1), self.held_out, self._first, batch=1, steps=max(1, count), seed=0)
        seen = [rows[number] for number in range(count)]
        starts = [*range(0, count, size)]
        if len(starts) > 1 and count - starts[-1] == 1:  # one alone has no other vector to be set against
            starts.pop()
        parts = self.parts(size)
        groups = [seen[start:stop] for start, stop in zip(starts, [*starts[1:], count], strict=True)]
        return [parts.batch(group) for group in groups if len(group) > 1]


def _own_id(corpus: TokenCorpus, row: int) -> str:
    return corpus.id(row)


def _first_id(corpus: TokenCorpus, document: int) -> str:
    return corpus.id(int(corpus.span(document)[0]))


LOOKED_AT = 256  # examples that are made to see which texts they lack
_SHOWN = {
    "passage": 1,
    "next": 1,
    "pair": 1,
    "ict": 1,
    "halves": 2,
}  # views of passages, and how often their room they show


def notice(material: Material) -> dict[str, int]:
    """Say which slots lack texts and how many passages are longer than what is shown; counts of what was left out, or cut.

    Raises MismatchError for a slot that no example has a text for.
    """
    _notice_missing(material)
    cut = int(cropped(material).sum())
    corpus = material.corpus
    if cut:
        log(
            f"{corpus.sources}: {cut:,} of {len(corpus):,} passages are longer than any slot shows (--max-length "
            f"{material.settings.max_length}); they are cropped"
        )
    return {name: count for name, count in (("short", corpus.counts["short"]), ("cropped", cut)) if count}


def cropped(material: Material) -> np.ndarray:
    """(passages,): True where no slot that shows passages has room for the whole one. Views that show a part anyway do not count."""
    corpus, plan = material.corpus, material.composition
    found = []
    for name, slot in plan.slots.items():
        room = (slot.max_length or material.settings.max_length) - 2
        if slot.corruption in ("inserted", "any"):
            room = int(room / (1 + slot.rate))
        for view in views_of(plan, name):
            if view.name not in _SHOWN:
                continue
            lengths = corpus.lengths
            title = view.options.get("title", "none")
            if title != "none":
                between = {"sep": 1, "segment": len(material.frame.between)}.get(title, 0)
                lengths = lengths + corpus.title_lengths + (corpus.title_lengths > 0) * between
            found.append(lengths > room * _SHOWN[view.name])
    return np.logical_and.reduce(found) if found else np.zeros(len(corpus), dtype=bool)


def _notice_missing(material: Material) -> None:
    looked = material.glance(LOOKED_AT)
    total = len(looked)
    together: dict[tuple[int, ...], list[str]] = {}  # slots that lack the same examples, as the two of a pair do
    for name in material.composition.slots:
        lacking = _lacking(looked, name)
        if lacking:
            together.setdefault(lacking, []).append(name)
    for lacking, names in together.items():
        what = f"slot{'s' * (len(names) > 1)} {', '.join(repr(name) for name in names)}"
        unit = "documents" if material.composition.example == "document" else "passages"
        if len(lacking) == total:
            raise MismatchError(
                f"{material.corpus.sources}: none of {total:,} {unit} looked at has a text for {what}; nothing would be "
                "learnt from it"
            )
        exact = total == len(material.rows)
        share = f"{len(lacking):,} of {total:,} {unit}" if exact else f"about {len(lacking) / total:.0%} of the {unit}"
        log(f"{material.corpus.sources}: {share} have no text for {what}; they take no part in the terms that need it")


def _lacking(looked: Sequence[Mapping[str, Slotted]], name: str) -> tuple[int, ...]:
    return tuple(number for number, slots in enumerate(looked) if not slots[name].present)

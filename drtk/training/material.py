"""The rows of a corpus that pre-training sees, and those it is measured on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from drtk.errors import DrtkError
from drtk.io.progress import log, warn
from drtk.objectives.batch import Batch, collator_of
from drtk.settings.composition import Composition
from drtk.settings.pretraining import PretrainSettings
from drtk.text.draws import uniform
from drtk.text.slots import SlotBuilder, Slotted, frame_of
from drtk.text.token_corpus import TokenCorpus
from drtk.training.rows import Parts, Rows


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

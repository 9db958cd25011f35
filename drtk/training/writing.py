"""How well a model writes what it should: its loss on pairs held out, and what it writes for them itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from drtk.losses.language import IGNORED, summed_cross_entropy
from drtk.models.decoding import answers
from drtk.models.seq2seq import Writer
from drtk.settings.generation import GenerationSettings
from drtk.text.batching import batches_by_length
from drtk.training.distributed import collected, rank, summed, world_size
from drtk.training.pairs import Pair

Score = Callable[[Sequence[str], Sequence[str]], dict[str, float]]  # (written, wanted) -> numbers by name
Collate = Callable[[Sequence[Pair]], dict[str, torch.Tensor]]


class WritingTest:
    """Numbers of a model on pairs held out: "dev_loss", and those of `score` on what it writes greedily.

    Processes share the pairs, and all get the same numbers. score: None writes nothing
    """

    def __init__(
        self, writer: Writer, pairs: Sequence[Pair], *, collate: Collate, score: Score | None, rows: int, longest: int
    ) -> None:
        """rows: pairs at once; longest: tokens to write"""
        self._writer, self._collate, self._score = writer, collate, score
        self._targets = [pair.target for pair in pairs]
        self._mine = pairs[rank() :: world_size()]
        self._rows = rows
        self._settings = GenerationSettings(n=1, decode="greedy", max_new_tokens=longest)

    @torch.inference_mode()
    def __call__(self) -> dict[str, float]:
        """The numbers now. The model is left as it was."""
        with _measured(self._writer.model):
            found = {"dev_loss": self._loss()}
            if self._score is not None:
                found |= self._score(self._written(), self._targets)
        return found

    def _loss(self) -> float:
        """Mean over the tokens of all targets of -log p, without label smoothing."""
        device = next(self._writer.model.parameters()).device
        total = torch.zeros(2, dtype=torch.float64, device=device)
        for rows in self._batches():
            batch = {name: value.to(device) for name, value in self._collate([self._mine[row] for row in rows]).items()}
            labels = batch["labels"]
            loss = summed_cross_entropy(logits_of(self._writer.model, batch), labels)
            total += torch.stack([loss.double(), (labels != IGNORED).sum().double()])
        loss, tokens = summed(total).tolist()
        return loss / tokens

    def _written(self) -> list[str]:
        """What the model writes for each of the sources of all processes."""
        device = next(self._writer.model.parameters()).device
        texts = [""] * len(self._mine)
        known: dict[str, str] = {}  # a source may have several targets
        for rows in self._batches():
            fresh = list({self._mine[row].source: row for row in rows if self._mine[row].source not in known}.values())
            if fresh:
                batch = self._collate([self._mine[row] for row in fresh])
                ids, mask = (batch[name].to(device) for name in ("input_ids", "attention_mask"))
                found = answers(self._writer, ids, mask, [""] * len(fresh), self._settings, seed=0)
                decoded = self._writer.tokenizer.batch_decode([each for (each,) in found], skip_special_tokens=True)
                known |= {
                    self._mine[row].source: " ".join(text.split()) for row, text in zip(fresh, decoded, strict=True)
                }
        for row, pair in enumerate(self._mine):
            texts[row] = known[pair.source]
        return collected(texts)

    def _batches(self) -> Iterator[np.ndarray]:
        lengths = np.array([len(pair.source) for pair in self._mine], dtype=np.int64)  # in characters: near enough
        return batches_by_length(lengths, budget=1 << 62, most=self._rows)


def logits_of(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """(texts, tokens, vocabulary): at each place of the target, given the source and the target before it.

    inputs: input_ids and attention_mask (texts, tokens) of the sources, labels of the targets
    """
    bare: Any = getattr(model, "module", model)  # as it is within DistributedDataParallel
    found = model(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        decoder_input_ids=bare.prepare_decoder_input_ids_from_labels(labels=inputs["labels"]),
        use_cache=False,
    )
    return found.logits


@contextmanager
def _measured(model: nn.Module) -> Iterator[None]:
    """The model without dropout, and as it was afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)

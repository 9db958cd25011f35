"""Expand passages with generated queries (doc2query) or continuations."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from drtk.data.rows import dump
from drtk.expansion.keep_queries import QUERIES, SCORES
from drtk.models.config import GenerationSettings
from drtk.models.generation import TextGenerator
from drtk.models.vllm_generator import load_generator
from drtk.records import Passage
from drtk.runtime.filter_job import BatchResult
from drtk.runtime.runners import BatchFunction
from drtk.text.batching import TokenizedTexts

CONTINUATIONS = "continuations"


class PassageExpander(BatchFunction):
    """Batch function that generates texts for passages, and adds them as a list in `field`.

    Sampling depends only on the seed and the passage id. Empty continuations are replaced by the passage text, as in
    MASTER's released code (docs/methods/master.md).
    bare: write only the passage id and the generated texts
    Raises UsageError if prefix and output leave no tokens for a passage, MismatchError for a model that does not generate
    text or was trained with another input format.
    """

    def __init__(
        self,
        model: str,
        settings: GenerationSettings,
        seed: int,
        device: str,
        field: str,
        bare: bool,  # positional: the arguments travel to other processes in a tuple
    ) -> None:
        self._field, self._bare = field, bare
        self._generator: TextGenerator = load_generator(
            model, settings, seed=seed, device=device, needs_encoder=field != CONTINUATIONS
        )

    def prepare(self, records: list[Passage]) -> tuple[list[Passage], TokenizedTexts]:
        """Return the passages and the tokens of their model inputs."""
        return records, self._generator.tokenize([self._generator.input_format.format(passage) for passage in records])

    def __call__(self, batch: tuple[list[Passage], TokenizedTexts]) -> BatchResult:
        """Return the passages, in order, as JSON lines."""
        return next(self.map([batch]))

    def map(self, batches: Iterable[tuple[list[Passage], TokenizedTexts]]) -> Iterator[BatchResult]:
        """Return an iterator over the results; passages of several batches are processed together."""
        waiting: deque[list[Passage]] = deque()

        def iter_inputs() -> Iterator[tuple[TokenizedTexts, list[str]]]:
            for passages, tokens in batches:
                waiting.append(passages)
                yield tokens, [passage.id for passage in passages]

        for generated in self._generator.generate_batches(iter_inputs()):
            yield self._build_result(waiting.popleft(), generated)

    def _build_result(self, passages: list[Passage], generated: list[list[str]]) -> BatchResult:
        texts = [
            [
                " ".join(text.split()) or (passage.text if self._field == CONTINUATIONS else "")
                for text in texts_of_passage
            ]
            for passage, texts_of_passage in zip(passages, generated, strict=True)
        ]
        lines = [self._format_line(*pair) for pair in zip(passages, texts, strict=True)]
        return BatchResult(lines, {"texts": sum(map(len, texts))})

    def _format_line(self, passage: Passage, texts: list[str]) -> bytes:
        if self._bare:
            return dump({"_id": passage.id, self._field: texts})
        extra = dict(passage.extra)
        if self._field == QUERIES:
            extra.pop(SCORES, None)  # scores of the replaced queries
        return dump(replace(passage, extra=extra | {self._field: texts}))

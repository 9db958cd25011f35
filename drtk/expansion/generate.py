"""Generate queries (doc2query) and continuations for passages."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from drtk.data.jsonl import dump
from drtk.expansion.config import KeepSettings
from drtk.expansion.keep_queries import QUERIES, SCORES, QueryScorer, drop_queries
from drtk.models.config import GenerationSettings
from drtk.models.generation import TextGenerator
from drtk.records import Passage
from drtk.runtime.filter_job import WindowResult
from drtk.runtime.runners import BatchFunction
from drtk.text.batching import TokenizedTexts

CONTINUATIONS = "continuations"


class PassageBatch(NamedTuple):
    """A window of passages and their tokens."""

    passages: list[Passage]
    tokens: TokenizedTexts


class PassageExpander(BatchFunction):
    """Add `field`, a list of generated texts, to passages. Sampling depends on the seed and the passage id only.

    An empty continuation is replaced by the passage itself, as in MASTER's released code (docs/methods/master.md).
    keeping: score the generated queries, and drop some
    Raises UsageError if prefix or output leave no room for a passage, MismatchError for a model that generates no text or
    was trained to read passages otherwise.
    """

    def __init__(
        self,
        model: str,
        settings: GenerationSettings,
        seed: int,
        device: str,
        field: str,
        bare: bool,  # positional: the arguments travel to other processes in a tuple
        keeping: KeepSettings | None = None,
    ) -> None:
        self._field, self._bare, self._keeping = field, bare, keeping
        self._scorer = None if keeping is None else QueryScorer(keeping, device)
        self._writer = TextGenerator(model, settings, seed=seed, device=device, needs_encoder=field != CONTINUATIONS)

    def prepare(self, records: list[Passage]) -> PassageBatch:
        """Tokenize the passages."""
        return PassageBatch(
            records, self._writer.tokenize([self._writer.input_format.format(passage) for passage in records])
        )

    def __call__(self, prepared: PassageBatch) -> WindowResult:
        """Return the passages, in order, as JSON lines."""
        passages, tokens = prepared
        written = self._writer.generate(tokens, [passage.id for passage in passages])
        texts = [
            [" ".join(text.split()) or (passage.text if self._field == CONTINUATIONS else "") for text in found]
            for passage, found in zip(passages, written, strict=True)
        ]
        counts = {"texts": sum(map(len, texts))}
        if self._scorer is None or self._keeping is None:
            return WindowResult([self._line(*pair) for pair in zip(passages, texts, strict=True)], counts)
        scores = self._scorer.scores(self._scorer.prepare(passages, texts))
        done = drop_queries(passages, texts, scores, self._keeping, bare=self._bare)
        return WindowResult(done.lines, counts | done.counts)

    def _line(self, passage: Passage, texts: list[str]) -> bytes:
        if self._bare:
            return dump({"_id": passage.id, self._field: texts})
        extra = dict(passage.extra)
        if self._field == QUERIES:
            extra.pop(SCORES, None)  # of the queries that are replaced
        return dump(replace(passage, extra=extra | {self._field: texts}))

"""Queries scored against their passages by a cross-encoder: the batch functions behind doc2query --scorer and keep-queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from drtk.enrichment import generation
from drtk.enrichment.keeping import judged, queries_of
from drtk.io.filtering import Done
from drtk.models.crossencoder import Prepared as Pairs
from drtk.models.crossencoder import Scorer
from drtk.models.reading import text_of
from drtk.records import Passage
from drtk.runners.base import BatchFunction
from drtk.settings.keeping import KeepSettings
from drtk.settings.scoring import ScoringSettings


class Judge:
    """Scores of queries by the passage they were written for: the query is the first text of a pair.

    title: how a passage's is put before its text, as `drtk.models.reading.text_of` knows it
    """

    def __init__(self, settings: KeepSettings, title: str, device: str) -> None:
        wanted = ScoringSettings(batch_tokens=settings.scorer_batch_tokens, dtype=settings.scorer_dtype)
        self._scorer = Scorer(
            settings.scorer,
            device=device,
            settings=wanted,
            logits=settings.scorer_logits,
            option="--scorer-batch-tokens",
        )
        self._title = title

    def prepare(self, passages: Sequence[Passage], queries: Sequence[Sequence[str]]) -> Pairs:
        """Queries with their passages as tokens."""
        found = zip(passages, queries, strict=True)
        texts = ((text_of(passage, self._title), written) for passage, written in found)
        return self._scorer.prepare([(query, text) for text, written in texts for query in written])

    def scores(self, pairs: Pairs) -> list[float]:
        """The scores of all queries, one after the other, with the digits that tell numbers of float32 apart."""
        return [float(str(score)) for score in self._scorer.scores(pairs)]


class GenerateAndJudge(BatchFunction):
    """What `Generate` writes, scored, and dropped as `settings` say.

    generating: the arguments of `Generate`, except that nothing is `bare` before it is scored
    title: as the scorer reads passages, whatever the writer does
    """

    def __init__(
        self, generating: tuple[Any, ...], settings: KeepSettings, title: str, device: str, bare: bool
    ) -> None:
        self._generate = generation.Generate(*generating)
        self._judge = Judge(settings, title, device)
        self._settings, self._bare = settings, bare

    def prepare(self, records: list[Passage]) -> generation.Prepared:
        """The window's inputs as tokens."""
        return self._generate.prepare(records)

    def __call__(self, prepared: generation.Prepared) -> Done:
        """The window's passages, in order, as JSON lines."""
        queries = self._generate.write(prepared)
        scores = self._judge.scores(self._judge.prepare(prepared.passages, queries))
        done = judged(prepared.passages, queries, scores, self._settings, bare=self._bare)
        return Done(done.lines, {"texts": len(scores)} | done.counts)


class Written(NamedTuple):
    """A window of passages with their queries, and both as tokens."""

    passages: list[Passage]
    queries: list[tuple[str, ...]]
    pairs: Pairs


class JudgeWritten(BatchFunction):
    """Queries that passages hold already, scored, and dropped as `settings` say."""

    def __init__(self, settings: KeepSettings, title: str, device: str, bare: bool) -> None:
        self._judge = Judge(settings, title, device)
        self._settings, self._bare = settings, bare

    def prepare(self, records: list[Passage]) -> Written:
        """The window with its queries, and these with their passages as tokens."""
        queries = [queries_of(passage) for passage in records]
        return Written(records, queries, self._judge.prepare(records, queries))

    def __call__(self, prepared: Written) -> Done:
        """The window's passages, in order, as JSON lines."""
        passages, queries, pairs = prepared
        scores = self._judge.scores(pairs)
        done = judged(passages, queries, scores, self._settings, bare=self._bare)
        return Done(done.lines, {"queries": len(scores)} | done.counts)

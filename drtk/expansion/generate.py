"""Generate queries and continuations for passages, and score them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import starmap
from typing import Any, NamedTuple

from drtk.data.jsonl import dump
from drtk.expansion.config import KeepSettings
from drtk.expansion.keep_queries import QUERIES, SCORES, judged, queries_of
from drtk.models.config import GenerationSettings, ScoringSettings
from drtk.models.cross_encoder import Scorer
from drtk.models.cross_encoder import TokenizedPairs as Pairs
from drtk.models.generation import TextGenerator
from drtk.models.generator_input import format_passage
from drtk.records import Passage
from drtk.runtime.filter_job import Done
from drtk.runtime.runners import BatchFunction
from drtk.text.batching import Tokens

_SPEAKS_OF = {QUERIES: SCORES}  # of the texts that were there before, when new ones come
Finish = Callable[[Passage, str], str]  # the written text, as it shall be kept


class Prepared(NamedTuple):
    """A window and its inputs."""

    passages: list[Passage]
    tokens: Tokens


class Generate(BatchFunction):
    """Adds `field`, a list of texts that a model wrote to the passage, sampled ones by (seed, id of the passage) alone.

    finish: what becomes of a written text (module:attribute would not travel; it must be a function of a module)
    Raises UsageError where prefix or output leave no room for a passage, MismatchError for a model that does not write, or
    was trained to read passages otherwise.
    """

    def __init__(
        self,
        model: str,
        settings: GenerationSettings,
        seed: int,
        device: str,
        field: str,
        finish: Finish,
        bare: bool,  # positional: it travels to other processes in a tuple
    ) -> None:
        self._field, self._finish, self._bare = field, finish, bare
        self._writer = TextGenerator(model, settings, seed=seed, device=device, needs_encoder=field != "continuations")
        self.reading = self._writer.reading

    def prepare(self, records: list[Passage]) -> Prepared:
        """The window's inputs as tokens."""
        return Prepared(records, self._writer.tokens([self.reading.text(passage) for passage in records]))

    def __call__(self, prepared: Prepared) -> Done:
        """The window's passages, in order, as JSON lines."""
        written = self.write(prepared)
        lines = list(starmap(self._line, zip(prepared.passages, written, strict=True)))
        return Done(lines, {"texts": sum(map(len, written))})

    def write(self, prepared: Prepared) -> list[list[str]]:
        """The texts written to each of the window's passages."""
        passages, tokens = prepared
        written = self._writer.generate(tokens, [passage.id for passage in passages])
        return [
            [self._finish(passage, text) for text in texts] for passage, texts in zip(passages, written, strict=True)
        ]

    def _line(self, passage: Passage, texts: list[str]) -> bytes:
        if self._bare:
            return dump({"_id": passage.id, self._field: texts})
        rest = {name: value for name, value in passage.extra.items() if name != _SPEAKS_OF.get(self._field)}
        return dump(replace(passage, extra=rest | {self._field: texts}))


def stripped(passage: Passage, text: str) -> str:
    """A query, without white space around it."""
    return " ".join(text.split())


def or_the_passage(passage: Passage, text: str) -> str:
    """A continuation; where it is empty, the passage itself (MASTER's released code; methods, section 2.4)."""
    return " ".join(text.split()) or passage.text


class Judge:
    """Scores of queries by the passage they were written for: the query is the first text of a pair.

    title: how a passage's is put before its text, as `drtk.models.generator_input.format_passage` knows it
    """

    def __init__(self, settings: KeepSettings, title: str, device: str) -> None:
        wanted = ScoringSettings(batch_tokens=settings.scorer_batch_tokens, dtype=settings.scorer_dtype)
        self._scorer = Scorer(
            settings.scorer,
            device=device,
            settings=wanted,
            logits=settings.scorer_logits,
            batch_field="scorer_batch_tokens",
        )
        self._title = title

    def prepare(self, passages: Sequence[Passage], queries: Sequence[Sequence[str]]) -> Pairs:
        """Queries with their passages as tokens."""
        found = zip(passages, queries, strict=True)
        texts = ((format_passage(passage, self._title), written) for passage, written in found)
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
        self._generate = Generate(*generating)
        self._judge = Judge(settings, title, device)
        self._settings, self._bare = settings, bare

    def prepare(self, records: list[Passage]) -> Prepared:
        """The window's inputs as tokens."""
        return self._generate.prepare(records)

    def __call__(self, prepared: Prepared) -> Done:
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

"""Expand queries with a generator (GAR)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from drtk.errors import MismatchError, RecordError, UsageError
from drtk.models.generation import TextGenerator
from drtk.query_expansion.candidates import Gathered
from drtk.query_expansion.config import ExpansionSettings
from drtk.records import Passage, Query
from drtk.runtime.filter_job import Done
from drtk.runtime.inputs import Intake
from drtk.runtime.manifest import is_manifest, read_manifest_if_any
from drtk.runtime.runners import BatchFunction
from drtk.runtime.streams import name_of
from drtk.text.batching import Tokens
from drtk.text.expanded_text import plain_query
from drtk.training.folds import KIND, TrainedQuestions, fold_folder

SEEN = "trained on"  # counts questions that their generator was made from, where that is known
PLACE = "…"  # where a prompt wants the question


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the number of the generator that shall expand it where there are several, and whether it was trained with it.

    seen: None where nothing says what the generator was trained with
    """

    id: str
    text: str
    fold: int | None = None
    seen: bool | None = None


class Generators(NamedTuple):
    """What a folder, or hub name, holds.

    models: one, or that of each fold; kind, length: what it writes, and how long, where it says so; seen: what it was made from
    """

    models: list[str]
    kind: str | None
    length: int | None
    seen: TrainedQuestions | None


def generators_of(model: str, folder: Path, *, holdout: bool, way_out: str = "--holdout chooses, ") -> Generators:
    """The generator, or the generators, of a folder.

    way_out: what the caller has to choose with, in the complaint about several

    Raises MismatchError where there are several and `holdout` does not choose, or one and it would have to.
    """
    content = read_manifest_if_any(folder)
    manifest = content if is_manifest(content) else {}
    count = int(manifest["folds"]) if manifest.get("kind") == KIND else None
    if count is not None and not holdout:
        raise MismatchError(f"{model}: holds {count} generators, one a fold; {way_out}{model}/fold-0 is the first")
    if count is None and holdout:
        raise MismatchError(
            f"{model}: is no folder of train-generator --folds, so --holdout has nothing to choose from"
        )
    models = [model] if count is None else [str(fold_folder(folder, fold)) for fold in range(count)]
    own = manifest if count is None else read_manifest_if_any(Path(models[0]))
    seen = TrainedQuestions.of_folder(folder, count=count)
    if count is not None and seen is None:
        raise MismatchError(f"{model}: its record of questions is gone, so nothing says which generator saw which")
    return Generators(models, own.get("expands"), own.get("target_length"), seen)


def questions_to_expand(
    queries: Iterable[Query], source: str, *, seen: TrainedQuestions | None, draw: bool, intake: Intake
) -> Iterator[Question]:
    """The questions, each with its generator where `seen` is of several; those without a text are a fault.

    draw: a question of no fold is given to one of the generators. Raises RecordError (file:line) unless `intake` forgives.
    """
    for query in queries:
        try:
            if not query.text.strip():
                raise MismatchError(f"'{query.id}' has no text")
            fold = seen.fold(query, draw=draw) if seen is not None and seen.count is not None else None
        except MismatchError as error:
            intake.forgive(RecordError(f"{name_of(source)}:{intake.line}", str(error)))
            continue
        known = None if seen is None else fold is None and query in seen
        yield Question(query.id, query.text, fold, known)


def prompted(question: str, prompt: str) -> str:
    """A question as BM25 is asked without expansion (`who wrote hamlet ?`), in the place of … of a prompt, or else before it."""
    plain = plain_query(question)
    return prompt.replace(PLACE, plain) if PLACE in prompt else f"{plain} {prompt}"


class Prepared(NamedTuple):
    """A window of questions, and for each generator the numbers of those it expands, and their tokens."""

    questions: list[Question]
    parts: list[tuple[int, list[int], Tokens]]


class Expand(BatchFunction):
    """Expansion records of questions; sampled ones depend on (seed, id of the question, number of the text) alone.

    models: of each fold; a question without one goes to the first. flag: what the prompt's option is called, in complaints
    Raises UsageError where prompt, prefix or output leave no room for a question, or a model that goes on with a text has no
    prompt; MismatchError for a model that does not write, or was trained to read otherwise.
    """

    def __init__(
        self,
        models: list[str],
        kind: str,
        settings: ExpansionSettings,
        length: int | None,
        seed: int,
        device: str,  # positional: they travel to other processes in a tuple
        flag: str = "--prompt",
    ) -> None:
        wanted = settings.generation(trained_length=length)
        self._kind, self._prompt = kind, settings.prompt
        self._greedy = wanted.decode in ("greedy", "greedy+sample")
        self._writers = [TextGenerator(model, wanted, seed=seed, device=device) for model in models]
        for model, writer in zip(models, self._writers, strict=True):
            if not writer.is_encoder_decoder and self._prompt is None:
                raise UsageError(f"{model}: goes on with a text; {flag} says how it is asked")
            if self._prompt is not None and writer.length(self._read(writer, "?")) > writer.room:
                raise UsageError(f"{flag} leaves nothing of the {writer.room} tokens of an input for a question")

    def prepare(self, records: list[Question]) -> Prepared:
        """The window's inputs as tokens."""
        numbers: dict[int, list[int]] = {}
        for number, question in enumerate(records):
            numbers.setdefault(question.fold or 0, []).append(number)
        parts = []
        for fold, mine in sorted(numbers.items()):
            writer = self._writers[fold]
            parts.append((fold, mine, writer.tokens([self._fitting(writer, records[at].text) for at in mine])))
        return Prepared(records, parts)

    def __call__(self, prepared: Prepared) -> Done:
        """The window's expansions, questions in order, as JSON lines."""
        questions, parts = prepared
        written: list[list[str]] = [[] for _ in questions]
        for fold, mine, tokens in parts:
            found = self._writers[fold].generate(tokens, [questions[at].id for at in mine])
            for at, texts in zip(mine, found, strict=True):
                written[at] = texts
        gathered = Gathered()
        for question, texts in zip(questions, written, strict=True):
            gathered.add(question.id, question.text, self._kind, texts, fold=question.fold, greedy=self._greedy)
        done = gathered.done()
        known = [question.seen for question in questions if question.seen is not None]
        return Done(done.lines, done.counts | ({SEEN: sum(known)} if known else {}))

    def _fitting(self, writer: TextGenerator, question: str) -> str:
        """The model's input; of a question too long for its prompt the last words go, since the prompt must not."""
        text = self._read(writer, question)
        if self._prompt is None or writer.length(text) <= writer.room:
            return text
        words = question.split()
        low, high = 0, len(words)  # the first `low` words fit
        while high - low > 1:
            middle = (low + high) // 2
            fits = writer.length(self._read(writer, " ".join(words[:middle]))) <= writer.room
            low, high = (middle, high) if fits else (low, middle)
        return self._read(writer, " ".join(words[:low]))

    def _read(self, writer: TextGenerator, question: str) -> str:
        body = " ".join(question.split()) if self._prompt is None else prompted(question, self._prompt)
        return writer.reading.text(Passage("", body))

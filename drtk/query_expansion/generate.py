"""Expand queries with a generator (GAR)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from drtk.errors import MismatchError, RecordError, UsageError
from drtk.models.generation import TextGenerator
from drtk.query_expansion.candidates import CandidateWriter
from drtk.query_expansion.config import ExpansionSettings
from drtk.records import Passage, Query
from drtk.runtime.filter_job import WindowResult
from drtk.runtime.inputs import InputTracker
from drtk.runtime.manifest import is_manifest, read_manifest_if_any
from drtk.runtime.runners import BatchFunction
from drtk.runtime.streams import name_of
from drtk.text.batching import TokenizedTexts
from drtk.text.expanded_text import format_query
from drtk.training.folds import KIND, TrainedQuestions, get_fold_folder

SEEN = "trained on"  # counts questions that their generator was trained on, if that is known
PLACEHOLDER = "…"  # of the question in a prompt


@dataclass(frozen=True, slots=True)
class GeneratorQuestion:
    """A question, the number of its generator if there are several, and whether that was trained on it, if known."""

    id: str
    text: str
    fold: int | None = None
    seen: bool | None = None


class Generators(NamedTuple):
    """The generators of a folder or hub name: one, or one per fold.

    kind, length: of the texts they were trained to generate, if known; seen: the questions they were trained on
    """

    models: list[str]
    kind: str | None
    length: int | None
    seen: TrainedQuestions | None


def find_generators(model: str, folder: Path, *, holdout: bool) -> Generators:
    """Return the generators of a folder.

    Raises MismatchError if there are several and `holdout` does not choose, or one and it would have to.
    """
    content = read_manifest_if_any(folder)
    manifest = content if is_manifest(content) else {}
    count = int(manifest["folds"]) if manifest.get("kind") == KIND else None
    if count is not None and not holdout:
        raise MismatchError(
            f"{model}: holds {count} generators, one per fold; `holdout` chooses, {model}/fold-0 is the first"
        )
    if count is None and holdout:
        raise MismatchError(
            f"{model}: contains one generator, not one per fold; `holdout` needs a folder trained with `folds`"
        )
    models = [model] if count is None else [str(get_fold_folder(folder, fold)) for fold in range(count)]
    own = manifest if count is None else read_manifest_if_any(Path(models[0]))
    seen = TrainedQuestions.read(folder, count=count)
    if count is not None and seen is None:
        raise MismatchError(f"{model}: its record of questions is missing, so nobody knows which generator saw which")
    return Generators(models, own.get("expands"), own.get("target_length"), seen)


def iter_questions(
    queries: Iterable[Query], source: str, *, seen: TrainedQuestions | None, draw: bool, tracker: InputTracker
) -> Iterator[GeneratorQuestion]:
    """Yield the questions, each with its generator if there are several.

    draw: assign a random generator to a question of no fold
    Raises RecordError (file:line) for a question without text or generator, unless `tracker` forgives it.
    """
    for query in queries:
        try:
            if not query.text.strip():
                raise MismatchError(f"'{query.id}' has no text")
            fold = seen.choose_fold(query, allow_unknown=draw) if seen is not None and seen.count is not None else None
        except MismatchError as error:
            tracker.skip_or_raise(RecordError(f"{name_of(source)}:{tracker.line}", str(error)))
            continue
        known = None if seen is None else fold is None and query in seen
        yield GeneratorQuestion(query.id, query.text, fold, known)


def fill_prompt(question: str, prompt: str) -> str:
    """Return a prompt with the question, as an unexpanded query (`who wrote hamlet ?`), in place of …, or else before it."""
    plain = format_query(question)
    return prompt.replace(PLACEHOLDER, plain) if PLACEHOLDER in prompt else f"{plain} {prompt}"


class QuestionBatch(NamedTuple):
    """A window of questions, and for each generator the numbers of its questions, and their tokens."""

    questions: list[GeneratorQuestion]
    parts: list[tuple[int, list[int], TokenizedTexts]]


class QueryExpander(BatchFunction):
    """Generate expansions of questions. Sampling depends on the seed, the question id and the number of the text only.

    models: one per fold; a question without a fold goes to the first
    Raises UsageError if prompt, prefix or output leave no room for a question, or a language model has no prompt;
    MismatchError for a model that generates no text, or was trained to read otherwise.
    """

    def __init__(
        self,
        models: list[str],
        kind: str,
        settings: ExpansionSettings,
        length: int | None,
        seed: int,
        device: str,  # positional: the arguments travel to other processes in a tuple
    ) -> None:
        wanted = settings.resolve(trained_length=length)
        self._kind, self._prompt = kind, settings.prompt
        self._greedy = wanted.decode in ("greedy", "greedy+sample")
        self._writers = [TextGenerator(model, wanted, seed=seed, device=device) for model in models]
        for model, writer in zip(models, self._writers, strict=True):
            if not writer.is_encoder_decoder and self._prompt is None:
                raise UsageError(f"{model}: is a language model, which needs `prompt`")
            if self._prompt is not None and writer.count_tokens(self._read(writer, "?")) > writer.max_input_tokens:
                raise UsageError(
                    f"`prompt` leaves nothing of the {writer.max_input_tokens} tokens of an input for a question"
                )

    def prepare(self, records: list[GeneratorQuestion]) -> QuestionBatch:
        """Tokenize the questions."""
        numbers: dict[int, list[int]] = {}
        for number, question in enumerate(records):
            numbers.setdefault(question.fold or 0, []).append(number)
        parts = []
        for fold, mine in sorted(numbers.items()):
            writer = self._writers[fold]
            parts.append((fold, mine, writer.tokenize([self._fit(writer, records[at].text) for at in mine])))
        return QuestionBatch(records, parts)

    def __call__(self, prepared: QuestionBatch) -> WindowResult:
        """Return the expansions, questions in order, as JSON lines."""
        questions, parts = prepared
        written: list[list[str]] = [[] for _ in questions]
        for fold, mine, tokens in parts:
            found = self._writers[fold].generate(tokens, [questions[at].id for at in mine])
            for at, texts in zip(mine, found, strict=True):
                written[at] = texts
        candidates = CandidateWriter()
        for question, texts in zip(questions, written, strict=True):
            candidates.add(question.id, question.text, self._kind, texts, fold=question.fold, greedy=self._greedy)
        done = candidates.done()
        known = [question.seen for question in questions if question.seen is not None]
        return WindowResult(done.lines, done.counts | ({SEEN: sum(known)} if known else {}))

    def _fit(self, writer: TextGenerator, question: str) -> str:
        """Return the model's input. A question that is too long for its prompt loses its last words, to keep the prompt."""
        text = self._read(writer, question)
        if self._prompt is None or writer.count_tokens(text) <= writer.max_input_tokens:
            return text
        words = question.split()
        low, high = 0, len(words)  # the first `low` words fit
        while high - low > 1:
            middle = (low + high) // 2
            fits = writer.count_tokens(self._read(writer, " ".join(words[:middle]))) <= writer.max_input_tokens
            low, high = (middle, high) if fits else (low, middle)
        return self._read(writer, " ".join(words[:low]))

    def _read(self, writer: TextGenerator, question: str) -> str:
        body = " ".join(question.split()) if self._prompt is None else fill_prompt(question, self._prompt)
        return writer.input_format.format(Passage("", body))

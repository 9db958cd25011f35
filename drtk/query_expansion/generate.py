"""Expand queries with a generator (GAR)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from drtk.errors import MismatchError, UsageError
from drtk.models.generation import TextGenerator
from drtk.models.vllm_generator import load_generator
from drtk.query_expansion.candidates import CandidateFormatter
from drtk.query_expansion.config import ExpansionSettings
from drtk.records import Passage, Query
from drtk.runtime.filter_job import BatchResult
from drtk.runtime.inputs import InputTracker
from drtk.runtime.manifest import is_manifest, read_manifest_if_any
from drtk.runtime.runners import BatchFunction
from drtk.text.batching import TokenizedTexts
from drtk.text.expanded_text import normalize_question_mark
from drtk.training.folds import KIND, TrainingQuestions, get_fold_folder

TRAINED_ON = "trained on"  # key of the count of questions that their generator was trained on
PLACEHOLDER = "…"  # replaced by the question in a prompt


@dataclass(frozen=True, slots=True)
class GeneratorInput:
    """A question to expand.

    fold: index of the question's generator, if there are several generators
    seen: whether this generator was trained on the question; None if unknown
    """

    id: str
    text: str
    fold: int | None = None
    seen: bool | None = None


class Generators(NamedTuple):
    """One generator, or one generator per fold.

    models: folders or hub names of the generators
    kind: kind of the expansions in the training data, if known
    length: maximum length of the expansions in the training data, in tokens, if known
    training_questions: questions in the training data, if known
    """

    models: list[str]
    kind: str | None
    length: int | None
    training_questions: TrainingQuestions | None


def find_generators(model: str, folder: Path, *, holdout: bool) -> Generators:
    """Find the generators of a model folder or hub name.

    holdout: expand each question with a generator that was not trained on the question
    folder: local folder of the model
    Raises MismatchError for several generators without `holdout`, for a single generator with `holdout`, and for
    several generators without a record of their training questions.
    """
    content = read_manifest_if_any(folder)
    manifest = content if is_manifest(content) else {}
    count = int(manifest["folds"]) if manifest.get("kind") == KIND else None
    if count is not None and not holdout:
        raise MismatchError(
            f"{model}: contains {count} generators, one per fold; use `holdout`, or give one generator, such as {model}/fold-0"
        )
    if count is None and holdout:
        raise MismatchError(
            f"{model}: contains a single generator, but `holdout` requires generators trained with `drtk train-generator --set folds=N`; omit `holdout`"
        )
    models = [model] if count is None else [str(get_fold_folder(folder, fold)) for fold in range(count)]
    first_manifest = manifest if count is None else read_manifest_if_any(Path(models[0]))
    training_questions = TrainingQuestions.read(folder, count=count)
    if count is not None and training_questions is None:
        raise MismatchError(
            f"{model}: does not record which questions each fold's generator was trained on; train it again"
        )
    return Generators(models, first_manifest.get("expands"), first_manifest.get("target_length"), training_questions)


def iter_questions(
    queries: Iterable[Query], source: str, *, training_questions: TrainingQuestions | None, tracker: InputTracker
) -> Iterator[GeneratorInput]:
    """Yield the questions; with several generators, each question has the fold of its generator.

    Raises RecordError (file:line) for a question without text or fold, unless `tracker` skips it.
    """
    for query in queries:
        try:
            if not query.text.strip():
                raise MismatchError(f"'{query.id}' has no text")
            fold = None
            if training_questions is not None and training_questions.count is not None:
                fold = training_questions.find_fold(query)
        except MismatchError as error:
            tracker.skip_line(source, tracker.line, error)
            continue
        seen = None if training_questions is None else fold is None and query in training_questions
        yield GeneratorInput(query.id, query.text, fold, seen)


def fill_prompt(question: str, prompt: str) -> str:
    """Replace "…" in the prompt by the question, such as `who wrote hamlet ?`; without "…", prepend the question."""
    plain = normalize_question_mark(question)
    return prompt.replace(PLACEHOLDER, plain) if PLACEHOLDER in prompt else f"{plain} {prompt}"


# A batch of questions, and for each generator: fold, indices of its questions in the batch, and their tokens.
QuestionBatch = tuple[list[GeneratorInput], list[tuple[int, list[int], TokenizedTexts]]]


class QueryExpander(BatchFunction):
    """Batch function that generates expansions of questions.

    Sampling depends only on the seed, the question id and the index of the sample.
    models: one model per fold; questions without a fold use the first model
    length: maximum length of the expansions in the training data, in tokens, if known
    Raises UsageError if prompt, prefix and output leave no tokens for a question, or if a decoder-only model has no prompt,
    MismatchError for a model that does not generate text, or was trained with another input format.
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
        resolved = settings.resolve(trained_length=length)
        self._kind, self._prompt = kind, settings.prompt
        self._is_greedy = resolved.decode in ("greedy", "greedy+sample")
        self._generators = [load_generator(model, resolved, seed=seed, device=device) for model in models]
        for model, generator in zip(models, self._generators, strict=True):
            if not generator.is_encoder_decoder and self._prompt is None:
                raise UsageError(f"{model}: is a decoder-only model, which requires `prompt`")
            room = generator.max_input_tokens
            if self._prompt is not None and generator.count_tokens(self._format_question(generator, "?")) > room:
                raise UsageError(f"`prompt` leaves no room for a question in an input of {room} tokens; shorten it")

    def prepare(self, records: list[GeneratorInput]) -> QuestionBatch:
        indices_by_fold: dict[int, list[int]] = {}
        for index, question in enumerate(records):
            indices_by_fold.setdefault(question.fold or 0, []).append(index)
        inputs = []
        for fold, indices in sorted(indices_by_fold.items()):
            generator = self._generators[fold]
            texts = [self._fit_to_length(generator, records[index].text) for index in indices]
            inputs.append((fold, indices, generator.tokenize(texts)))
        return records, inputs

    def __call__(self, batch: QuestionBatch) -> BatchResult:
        """Return the candidates of the questions, in order, as JSON lines."""
        questions, inputs = batch
        expansions: list[list[str]] = [[] for _ in questions]
        for fold, indices, tokens in inputs:
            generated = self._generators[fold].generate(tokens, [questions[index].id for index in indices])
            for index, texts in zip(indices, generated, strict=True):
                expansions[index] = texts
        candidates = CandidateFormatter()
        for question, texts in zip(questions, expansions, strict=True):
            candidates.add(question.id, question.text, self._kind, texts, fold=question.fold, greedy=self._is_greedy)
        result = candidates.build_result()
        known = [question.seen for question in questions if question.seen is not None]
        return BatchResult(result.lines, result.counts | ({TRAINED_ON: sum(known)} if known else {}))

    def _fit_to_length(self, generator: TextGenerator, question: str) -> str:
        """Return the model's input. With a prompt, a long question is truncated, so that the prompt remains complete."""
        text = self._format_question(generator, question)
        if self._prompt is None or generator.count_tokens(text) <= generator.max_input_tokens:
            return text
        words = question.split()
        low, high = 0, len(words)  # the first `low` words fit
        while high - low > 1:
            middle = (low + high) // 2
            text = self._format_question(generator, " ".join(words[:middle]))
            fits = generator.count_tokens(text) <= generator.max_input_tokens
            low, high = (middle, high) if fits else (low, middle)
        return self._format_question(generator, " ".join(words[:low]))

    def _format_question(self, generator: TextGenerator, question: str) -> str:
        body = " ".join(question.split()) if self._prompt is None else fill_prompt(question, self._prompt)
        return generator.input_format.format(Passage("", body))

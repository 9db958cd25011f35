"""Convert passages to the text to index: with expansions, with term weights as term frequencies, or with impacts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from math import isfinite, sqrt
from typing import Any, Literal

from drtk.errors import DrtkError, UsageError
from drtk.indexing.config import IndexSettings
from drtk.records import Passage
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import warn
from drtk.text.expanded_text import get_added_texts
from drtk.text.word_pieces import RecordedTokenizers, WordPieces, get_weights_tokenizer_name

Scale = Literal["linear", "sqrt"]
# BM25 parameters for frequencies computed from weights, which reach 100; in plain text they rarely exceed 5.
PARAMETERS: dict[Scale, dict[str, float]] = {"linear": {"k1": 10.0, "b": 0.9}, "sqrt": {"k1": 18.0, "b": 0.7}}
MAX_FREQUENCY = 65_535
_BATCH = 256


class IndexedText:
    """Converter of passages to the text to index in an index of type `kind`.

    tracker: skips or raises the errors of invalid passages
    counts: number of passages without each field or without weights of the title; complete when all passages are read
    Raises UsageError for contradicting settings.
    """

    def __init__(self, settings: IndexSettings, kind: str, source: str, tracker: InputTracker) -> None:
        self._settings, self._kind, self._source, self._tracker = settings, kind, source, tracker
        self._fields = list(dict.fromkeys(name.strip() for item in settings.expand for name in item.split(",")))
        if "" in self._fields:
            raise UsageError("`expand`: a field name is empty; separate field names by single commas")
        if self._fields and settings.term_weights:
            raise UsageError(
                "`expand` and `term_weights` cannot be combined, because added words have no weights; give one"
            )
        self.counts: dict[str, int] = {}

    def __call__(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        """Yield the passages with the text to index. Raises DrtkError if a field of `expand` is missing from all passages."""
        if self._settings.term_weights:
            return self._repeat_words(passages)
        if self._fields:
            return self._expand(passages)
        return self._keep_only_impacts(passages) if self._kind == "impact" else iter(passages)

    def _repeat_words(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        """Yield passages with an empty title, and a text that repeats each word of title and text by its frequency.

        A word in both title and text has the larger frequency. Titles without `title_weights` are not indexed.
        """
        tokenizers = RecordedTokenizers(self._settings.tokenizer)
        numbered = ((passage, self._tracker.line) for passage in passages)
        unweighted_titles = 0
        while batch := list(islice(numbered, _BATCH)):
            readable: list[tuple[Passage, int]] = []
            for passage, line in batch:
                unweighted_titles += bool(passage.title.strip()) and "title_weights" not in passage.extra
                if "weights" not in passage.extra:
                    self._reject_passage(passage, line, "has no 'weights'; run `drtk termweight` first")
                elif not get_weights_tokenizer_name(passage) and tokenizers.replacement is None:
                    problem = "has no 'metadata.weights_tokenizer' (the tokenizer of the weights); give `tokenizer`"
                    self._reject_passage(passage, line, problem)
                else:
                    readable.append((passage, line))
            for name, group in groupby(readable, key=lambda item: get_weights_tokenizer_name(item[0])):
                items = list(group)
                texts = tokenizers(name)([passage.text for passage, _ in items])
                titles = tokenizers(name)([passage.title for passage, _ in items])
                for (passage, line), text, title in zip(items, texts, titles, strict=True):
                    try:
                        yield _repeat_passage_words(passage, text, title, self._settings.weight_scale)
                    except ValueError as error:
                        self._reject_passage(passage, line, str(error))
        if unweighted_titles:
            warn(
                f"titles of {unweighted_titles:,} passages are not indexed, because the passages have no 'title_weights'"
            )
            self.counts["titles without weights"] = unweighted_titles

    def _expand(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        missing = dict.fromkeys(self._fields, 0)
        count = 0
        for count, passage in enumerate(passages, start=1):  # noqa: B007 (read after the loop)
            try:
                added_texts = [text for name in self._fields for text in get_added_texts(passage, name)]
            except ValueError as error:
                self._reject_passage(passage, self._tracker.line, str(error))
                continue
            for name in self._fields:
                missing[name] += name not in passage.extra
            yield replace(passage, text=" ".join([passage.text, *added_texts])) if added_texts else passage
        for name, number in missing.items():
            if number == count and count:
                raise DrtkError(
                    f"`expand={name}`: none of {count:,} passages has a field '{name}'; check the field name"
                )
            if number:
                warn(f"{number:,} of {count:,} passages have no '{name}' and are indexed without expansion")
                self.counts[f"without {name}"] = number

    def _keep_only_impacts(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        for passage in passages:
            try:
                yield Passage(passage.id, "", extra={IMPACTS: read_impacts(passage.extra)})
            except ValueError as error:
                self._reject_passage(passage, self._tracker.line, str(error))

    def _reject_passage(self, passage: Passage, line: int, problem: str) -> None:
        self._tracker.skip_line(self._source, line, f"passage '{passage.id}': {problem}")


def compute_frequency(weight: float, scale: Scale = "linear") -> int:
    """Convert a term weight to round(100 * weight), or with "sqrt" to round(100 * sqrt(weight)). Negative weights become 0."""
    positive = max(weight, 0.0)
    return round(100 * (sqrt(positive) if scale == "sqrt" else positive))


def compute_word_frequencies(
    text: str, pieces: WordPieces, weights: Sequence[float], *, scale: Scale = "linear"
) -> dict[str, int]:
    """Return the frequency of each lowercase word of a text, without punctuation and words of frequency 0.

    weights: one per word piece. A word has the weight of its first piece; repeated words have their largest weight.
    """
    frequencies: dict[str, int] = {}
    for _, group in groupby(range(len(pieces.ids)), key=lambda piece: pieces.words[piece]):
        first, *others = group
        last = others[-1] if others else first
        word = text[pieces.offsets[first][0] : pieces.offsets[last][1]].strip().lower()
        frequency = compute_frequency(weights[first], scale)
        if frequency > frequencies.get(word, 0) and any(map(str.isalnum, word)):
            frequencies[word] = frequency
    return frequencies


def _repeat_passage_words(passage: Passage, text: WordPieces, title: WordPieces, scale: Scale) -> Passage:
    frequencies = compute_word_frequencies(passage.text, text, _read_weights(passage, "weights", text), scale=scale)
    if "title_weights" in passage.extra:
        weights = _read_weights(passage, "title_weights", title)
        for word, count in compute_word_frequencies(passage.title, title, weights, scale=scale).items():
            frequencies[word] = max(count, frequencies.get(word, 0))
    for word, count in frequencies.items():
        if count > MAX_FREQUENCY:
            raise ValueError(
                f"the weight of '{word}' is too large (frequency {count:,}); expected weights between 0 and 1"
            )
    return Passage(passage.id, " ".join(" ".join([word] * count) for word, count in frequencies.items()))


def _read_weights(passage: Passage, field: str, pieces: WordPieces) -> list[float]:
    values: Any = passage.extra[field]
    if not isinstance(values, list) or not all(type(value) in (int, float) and isfinite(value) for value in values):
        raise ValueError(f"'{field}' must be a list of finite numbers")
    if len(values) != len(pieces.ids):
        raise ValueError(
            f"'{field}' has {len(values):,} numbers, but the tokenizer returns {len(pieces.ids):,} word pieces; "
            "run `drtk termweight` again"
        )
    return values


IMPACTS = "impacts"
_MAX_WORD_LENGTH = 255  # Lucene splits longer words


def read_impacts(fields: Mapping[str, Any]) -> dict[str, int]:
    """Return {word: positive impact} from the JSON fields of a passage, without words longer than 255 characters.

    Raises ValueError if the impacts are missing or not integers up to 65,535, or a word is empty or has white space.
    """
    if IMPACTS not in fields:
        raise ValueError(f"has no '{IMPACTS}'; run `drtk termweight` with `method=deepimpact` first")
    impacts: Any = fields[IMPACTS]
    if not isinstance(impacts, dict):
        raise ValueError(f"'{IMPACTS}' must be an object that maps words to integers")
    for word, impact in impacts.items():
        if type(impact) is not int:
            value = f"{impact:g}" if isinstance(impact, float) else type(impact).__name__
            raise ValueError(f"the impact of '{word}' must be an integer, got {value}")
        if impact > MAX_FREQUENCY:
            raise ValueError(f"the impact of '{word}' must be at most {MAX_FREQUENCY:,}, got {impact:,}")
        if word.split() != [word]:
            raise ValueError(f"the word {word!r} in '{IMPACTS}' must not be empty or contain white space")
    return {word: impact for word, impact in impacts.items() if impact > 0 and len(word) <= _MAX_WORD_LENGTH}

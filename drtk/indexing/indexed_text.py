"""The text of a passage that is indexed: expansions, term frequencies, impacts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import isfinite, sqrt
from typing import Any, Literal

from drtk.errors import DrtkError, RecordError, UsageError
from drtk.indexing.config import IndexSettings
from drtk.records import Passage
from drtk.runtime.inputs import Intake
from drtk.runtime.progress import warn
from drtk.text.expanded_text import added_texts
from drtk.text.word_pieces import Pieces, RecordedTokenizers, recorded_name

Scale = Literal["linear", "sqrt"]
# What BM25 must be searched with on such frequencies, which reach 100 where those of texts seldom reach 5.
PARAMETERS: dict[Scale, dict[str, float]] = {"linear": {"k1": 10.0, "b": 0.9}, "sqrt": {"k1": 18.0, "b": 0.7}}
LARGEST = 65_535
_AT_ONCE = 256
Located = tuple[Passage, int]  # a passage and the line it stood on, 0 where it has none


def frequency(weight: float, scale: Scale = "linear") -> int:
    """round(100 max(weight, 0)), or with the square root of it; 0 where the word is not indexed."""
    positive = max(weight, 0.0)
    return round(100 * (sqrt(positive) if scale == "sqrt" else positive))


def word_frequencies(text: str, pieces: Pieces, weights: Sequence[float], *, scale: Scale = "linear") -> dict[str, int]:
    """Words of a text, in lower case as they are spelled there, with their frequencies; those below 1 are left out.

    weights: one a piece. A word's weight is its first piece's; of several occurrences the largest counts.
    """
    found: dict[str, int] = {}
    begin = 0
    while begin < len(pieces.ids):
        end = begin + 1
        while end < len(pieces.ids) and pieces.words[end] == pieces.words[begin]:
            end += 1
        word = text[pieces.offsets[begin][0] : pieces.offsets[end - 1][1]].strip().lower()
        count = frequency(weights[begin], scale)
        if count > found.get(word, 0) and any(map(str.isalnum, word)):
            found[word] = count
        begin = end
    return found


def weighted_passages(
    located: Iterable[Located], scale: Scale, *, forgive: Callable[[Located, str], None], tokenizer: str = ""
) -> Iterator[Passage]:
    """Passages whose text is every word as often as its frequency, and who have no title.

    Title and text are read with the tokenizer that `metadata.weights_tokenizer` names, or `tokenizer`; a word's largest
    frequency of both counts, and a title without `title_weights` is left out. `forgive` takes the passages that cannot be
    read, and what is wrong with them. Raises what `RecordedTokenizers` raises.
    """
    stream = iter(located)
    tokenizers = RecordedTokenizers(tokenizer)
    while batch := list(islice(stream, _AT_ONCE)):
        yield from _weighted(batch, scale, tokenizers, forgive)


def _weighted(
    batch: list[Located], scale: Scale, tokenizers: RecordedTokenizers, forgive: Callable[[Located, str], None]
) -> Iterator[Passage]:
    sound: list[tuple[Located, str]] = []
    for item in batch:
        try:
            sound.append((item, _tokenizer_of(item[0], known=tokenizers.named is not None)))
        except ValueError as error:
            forgive(item, str(error))
    begin = 0
    while begin < len(sound):
        name, end = sound[begin][1], begin + 1
        while end < len(sound) and sound[end][1] == name:
            end += 1
        part = [item for item, _ in sound[begin:end]]
        texts = tokenizers(name)([passage.text for passage, _ in part])
        titles = tokenizers(name)([passage.title for passage, _ in part])
        for item, text, title in zip(part, texts, titles, strict=True):
            try:
                yield _repeated(item[0], text, title, scale)
            except ValueError as error:
                forgive(item, str(error))
        begin = end


def _tokenizer_of(passage: Passage, *, known: bool) -> str:
    if "weights" not in passage.extra:
        raise ValueError("has no 'weights'; drtk termweight makes them")
    name = recorded_name(passage)
    if not name and not known:
        raise ValueError("does not say in 'metadata.weights_tokenizer' which tokenizer its weights are for")
    return name


def _repeated(passage: Passage, text: Pieces, title: Pieces, scale: Scale) -> Passage:
    weights = _numbers(passage, "weights", text)
    found = word_frequencies(passage.text, text, weights, scale=scale)
    if "title_weights" in passage.extra:
        weights = _numbers(passage, "title_weights", title)
        for word, count in word_frequencies(passage.title, title, weights, scale=scale).items():
            found[word] = max(count, found.get(word, 0))
    for word, count in found.items():
        if count > LARGEST:
            raise ValueError(f"the weight of '{word}' would be a frequency of {count:,}; weights lie around 0 to 1")
    return Passage(passage.id, " ".join(" ".join([word] * count) for word, count in found.items()))


def _numbers(passage: Passage, field: str, pieces: Pieces) -> list[float]:
    values: Any = passage.extra[field]
    if not isinstance(values, list) or not all(_is_number(value) for value in values):
        raise ValueError(f"'{field}' must be a list of numbers")
    if len(values) != len(pieces.ids):
        raise ValueError(f"has {len(values):,} '{field}' for {len(pieces.ids):,} word pieces of its tokenizer")
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


FIELD = "impacts"
_LONGEST = 255  # characters of a word: Lucene cuts longer ones into several


def impacts_of(passage: Passage) -> dict[str, int]:
    """The words of a passage that have an impact above 0, and not more than 255 characters.

    Raises ValueError for a passage without the field, and for what is no whole number of at most 65,535.
    """
    if FIELD not in passage.extra:
        raise ValueError(f"has no '{FIELD}'; drtk termweight --method deepimpact makes them")
    found: Any = passage.extra[FIELD]
    if not isinstance(found, dict):
        raise ValueError(f"'{FIELD}' must be an object of words and whole numbers")
    kept = {}
    for word, impact in found.items():
        if type(impact) is not int:
            raise ValueError(f"the impact of '{word}' must be a whole number, found {_shown(impact)}")
        if impact > LARGEST:
            raise ValueError(f"the impact of '{word}' is {impact:,}; {LARGEST:,} is the largest that can be indexed")
        if word.split() != [word]:
            raise ValueError(f"the word {word!r} of its '{FIELD}' is empty or contains white space")
        if impact > 0 and len(word) <= _LONGEST:
            kept[word] = impact
    return kept


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else type(value).__name__


def check_text(settings: IndexSettings, kind: str) -> None:
    """Raise UsageError for --expand and --weights where an index of type `kind` cannot take them, and for what goes with
    --weights alone.
    """
    given = [flag for flag, value in (("--expand", settings.expand), ("--weights", settings.weights)) if value]
    if given and kind not in ("bm25", "bm25s"):
        raise UsageError(f"{given[0]}: only for --type bm25 and bm25s")
    if len(given) > 1:
        raise UsageError("--expand and --weights: words that are added have no weights; choose one")
    further = (
        ("--weight-scale", settings.weight_scale != IndexSettings.weight_scale),
        ("--tokenizer", settings.tokenizer),
    )
    for flag, value in further:
        if value and not settings.weights:
            raise UsageError(f"{flag}: only with --weights")


class IndexedText:
    """Passages as an engine shall see them, for `drtk index` of a type of words.

    Bad passages go to `intake`, with the line they stood on. `counts` holds how many passages lacked a field, once they
    are read; `facts` what meta.json must know.
    """

    def __init__(self, settings: IndexSettings, kind: str, source: str, intake: Intake) -> None:
        check_text(settings, kind)
        self._settings, self._kind, self._source, self._intake = settings, kind, source, intake
        self._fields = list(dict.fromkeys(name.strip() for item in settings.expand for name in item.split(",")))
        if "" in self._fields:
            raise UsageError("--expand: a field's name is empty")
        self.counts: dict[str, int] = {}
        self.facts: dict[str, Any] = {}

    def __call__(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        """The passages, made over as the settings ask. Raises DrtkError where none has a field of --expand."""
        if self._settings.weights:
            return self._weighted(passages)
        if self._fields:
            return self._expanded(passages)
        return self._with_impacts(passages) if self._kind == "impact" else iter(passages)

    def _weighted(self, passages: Iterable[Passage]) -> Iterator[Passage]:

        scale = self._settings.weight_scale
        self.facts["bm25"] = PARAMETERS[scale]
        untold = 0

        def located() -> Iterator[tuple[Passage, int]]:
            nonlocal untold
            for passage in passages:
                untold += bool(passage.title.strip()) and "title_weights" not in passage.extra
                yield passage, self._intake.line

        yield from weighted_passages(
            located(),
            scale,
            forgive=lambda item, problem: self._forgive(*item, problem),
            tokenizer=self._settings.tokenizer,
        )
        if untold:
            warn(f"{untold:,} passages have no 'title_weights': their titles are not indexed")
            self.counts["titles without weights"] = untold

    def _expanded(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        missing = dict.fromkeys(self._fields, 0)
        count = 0
        for count, passage in enumerate(passages, start=1):  # noqa: B007 (read after the loop)
            try:
                added = [text for name in self._fields for text in added_texts(passage, name)]
            except ValueError as error:
                self._forgive(passage, self._intake.line, str(error))
                continue
            for name in self._fields:
                missing[name] += name not in passage.extra
            yield replace(passage, text=" ".join([passage.text, *added])) if added else passage
        for name, number in missing.items():
            if number == count and count:
                raise DrtkError(f"--expand {name}: none of {count:,} passages has a field '{name}'")
            if number:
                warn(f"{number:,} of {count:,} passages have no '{name}'; they are indexed without")
                self.counts[f"without {name}"] = number

    def _with_impacts(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        for passage in passages:
            try:
                impacts = impacts_of(passage)
            except ValueError as error:
                self._forgive(passage, self._intake.line, str(error))
                continue
            yield Passage(passage.id, "", extra={FIELD: impacts})

    def _forgive(self, passage: Passage, line: int, problem: str) -> None:
        from drtk.runtime.streams import name_of

        place = f"{name_of(self._source)}:{line}" if line else name_of(self._source)
        self._intake.forgive(RecordError(place, f"passage '{passage.id}': {problem}"))

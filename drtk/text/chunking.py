"""Split a document into passages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from drtk.errors import UsageError
from drtk.records import Passage
from drtk.text.config import ChunkSettings
from drtk.text.rng import between, uniform
from drtk.text.sentences import PunktModel, SentenceSplitter, Span, layout, trimmed, word_spans
from drtk.text.tokenizers import Units, WordPieces, Words

Part = tuple[int, int, int]
Group = list[Part]
Target = Callable[[int], int]  # the cap of the group with this number
Boundary = Callable[[int, int, int], int]  # (sentence, begin, latest) -> where to cut, begin < cut


def at_the_cap(sentence: int, begin: int, latest: int) -> int:
    """The boundary of text whose units may be parted anywhere."""
    return latest


def greedy(
    lengths: Sequence[int],
    cap: int,
    *,
    target: Target | None = None,
    boundary: Boundary = at_the_cap,
    overlap: int = 0,
) -> list[Group]:
    """Groups of whole sentences of at most `cap` units; a longer sentence is cut, its rest opens the next group.

    target: a smaller cap for some groups; it closes groups early and cuts no sentence.
    overlap: how many parts of a group are repeated at the start of the next, fewer where they do not fit.
    """
    groups = _Groups(target, cap)
    for sentence, length in enumerate(lengths):
        if length > cap:
            groups.close()
            begin = 0
            while length - begin > cap:
                end = boundary(sentence, begin, begin + cap)
                groups.add((sentence, begin, end))
                groups.close()
                begin = end
            if begin < length:
                groups.add((sentence, begin, length))
        elif length:
            if groups.size and groups.size + length > groups.limit:
                groups.close(repeat=overlap, room_for=length)
            groups.add((sentence, 0, length))
    return groups.finished()


def condenser(lengths: Sequence[int], cap: int, *, target: Target | None = None) -> list[Group]:
    """As `greedy`, but a sentence longer than `cap` makes a group of its own, uncut (Condenser's released code)."""
    groups = _Groups(target, cap)
    for sentence, length in enumerate(lengths):
        if groups.size and groups.size + length > groups.limit:
            groups.close()
        if length:
            groups.add((sentence, 0, length))
    return groups.finished()


def cotmae(lengths: Sequence[int], cap: int, *, target: Target | None = None) -> list[Group]:
    """Groups closed by the sentence that takes them over `cap` (the released code of CoT-MAE and query-as-context)."""
    groups = _Groups(target, cap)
    for sentence, length in enumerate(lengths):
        if length:
            groups.add((sentence, 0, length))
        if groups.size > groups.limit:
            groups.close()
    return groups.finished()


def blocks(count: int, cap: int, *, overlap: int = 0) -> list[tuple[int, int]]:
    """(begin, end) of consecutive blocks of `cap` words out of `count`, the last may be shorter (DPR).

    overlap: words repeated at the start of the next block; less than `cap`.
    """
    begins = range(0, max(count - overlap, min(count, 1)), cap - overlap)
    return [(begin, min(begin + cap, count)) for begin in begins]


class _Groups:
    """Groups closed so far, and the open one with its size and its cap."""

    def __init__(self, target: Target | None, cap: int) -> None:
        self._target, self._cap = target, cap
        self._closed: list[Group] = []
        self._open: Group = []
        self.size = 0
        self.limit = self._next_limit()

    def _next_limit(self) -> int:
        return self._cap if self._target is None else self._target(len(self._closed))

    def add(self, part: Part) -> None:
        self._open.append(part)
        self.size += part[2] - part[1]

    def close(self, *, repeat: int = 0, room_for: int = 0) -> None:
        """Close the open group; the next begins with up to `repeat` of its last parts, never with all of them."""
        if not self._open:
            return
        self._closed.append(self._open)
        again = self._open[max(1, len(self._open) - repeat) :] if repeat else []
        self._open, self.size, self.limit = [], 0, self._next_limit()
        room = self.limit - room_for
        for part in reversed(again):
            self.size += part[2] - part[1]
            if self.size > room:
                self.size -= part[2] - part[1]
                break
            self._open.insert(0, part)

    def finished(self) -> list[Group]:
        self.close()
        return self._closed


MAX_TOKENS, MAX_WORDS = 144, 100
_OF_THE_WHOLE_TEXT = ("weights", "impacts")  # fields that describe a document's text and would be false of a passage


@dataclass(frozen=True)
class Cut:
    """A passage to be: its span in the text it is cut from, and the spans of its sentences there."""

    begin: int
    end: int
    sentences: list[Span]


def check(settings: ChunkSettings) -> None:
    """Raises UsageError for settings that contradict each other."""
    words = settings.policy == "words"
    if words and settings.tokenizer:
        raise UsageError("--policy words counts words; --tokenizer does not go with it")
    if settings.tokenizer and settings.max_words is not None:
        raise UsageError("--max-words does not go with --tokenizer; the cap in word pieces is --max-tokens")
    if not settings.tokenizer and (settings.max_tokens is not None or settings.reserve_special):
        raise UsageError("--max-tokens and --reserve-special need a --tokenizer; the cap in words is --max-words")
    if words and (settings.short_prob or settings.paragraphs):
        raise UsageError("--policy words looks at no sentences; --short-prob and --paragraphs do not go with it")
    if settings.overlap and settings.policy in ("condenser", "cotmae"):
        raise UsageError(f"--policy {settings.policy} knows no --overlap; greedy and words do")
    cap = settings.max_tokens or MAX_TOKENS if settings.tokenizer else settings.max_words or MAX_WORDS
    if words and settings.overlap >= cap:
        raise UsageError(f"--overlap {settings.overlap} leaves nothing new in passages of {cap} words")
    if settings.short_min is not None and settings.short_min > cap:
        raise UsageError(f"--short-min {settings.short_min} is more than the longest passage, {cap}")
    if settings.save_punkt and settings.punkt_model:
        raise UsageError("--save-punkt saves what is trained; with --punkt-model nothing is")


def needs_sentences(settings: ChunkSettings) -> bool:
    """Whether these settings ask for a sentence model at all."""
    return settings.policy != "words" or settings.sentences


class Chunker:
    """Cuts documents into passages.

    cap: the longest passage, in words or, with a `tokenizer` (as `tokens.portable` gives it), in word pieces.
    model: the sentence model; None where `needs_sentences` is false.
    """

    def __init__(
        self, settings: ChunkSettings, cap: int, model: PunktModel | None, tokenizer: str | None = None
    ) -> None:
        self._settings, self._cap = settings, cap
        self._splitter = None if model is None else SentenceSplitter(model)
        self._measure = Words() if tokenizer is None else WordPieces(tokenizer)

    def __call__(self, documents: Sequence[Passage]) -> list[list[Passage]]:
        """The passages of each document, in order; none for a document without words."""
        texts, spans = [], []
        for document in documents:
            text, areas = layout(
                document.text, paragraphs=self._settings.paragraphs, keep_whitespace=self._settings.keep_whitespace
            )
            texts.append(text)
            spans.append([span for area in areas for span in self._sentences(text, area)])
        if self._settings.policy == "words":
            cuts = [self._blocks(text, inside) for text, inside in zip(texts, spans, strict=True)]
        else:
            sentences = [text[begin:end] for text, inside in zip(texts, spans, strict=True) for begin, end in inside]
            lengths = iter(self._measure.lengths(sentences))
            cuts = [
                self._groups(document.id, text, inside, list(islice(lengths, len(inside))))
                for document, text, inside in zip(documents, texts, spans, strict=True)
            ]
        return [
            list(self._passages(document, text, cut))
            for document, text, cut in zip(documents, texts, cuts, strict=True)
        ]

    def _sentences(self, text: str, area: Span) -> list[Span]:
        if self._splitter is None:
            return []
        begin, end = area
        return [(begin + start, begin + stop) for start, stop in self._splitter.spans(text[begin:end])]

    def _blocks(self, text: str, sentences: list[Span]) -> list[Cut]:
        words = word_spans(text)
        cuts = []
        first = 0  # the first sentence that reaches into the block
        for begin, end in blocks(len(words), self._cap, overlap=self._settings.overlap):
            start, stop = words[begin][0], words[end - 1][1]
            while first < len(sentences) and sentences[first][1] <= start:
                first += 1
            inside = []
            last = first
            while last < len(sentences) and sentences[last][0] < stop:
                low, high = sentences[last]
                inside.append(trimmed(text, max(low, start), min(high, stop)))
                last += 1
            cuts.append(Cut(start, stop, inside))
        return cuts

    def _groups(self, id: str, text: str, sentences: list[Span], lengths: list[int]) -> list[Cut]:
        settings, cap = self._settings, self._cap
        units: dict[int, Units] = {}

        def units_of(sentence: int) -> Units:
            if sentence not in units:
                begin, end = sentences[sentence]
                units[sentence] = self._measure.units(text[begin:end])
            return units[sentence]

        def target(group: int) -> int:
            if uniform(settings.seed, id, "short", group) >= settings.short_prob:
                return cap
            low = settings.short_min or (2 if settings.policy == "cotmae" else 1)
            return between(min(low, cap), cap, settings.seed, id, "short cap", group)

        def place(part: Part) -> Span:
            sentence, begin, end = part
            first, last = sentences[sentence]
            start, stop = first, last
            if begin:
                start = first + units_of(sentence).begins[begin]
            if end < lengths[sentence]:
                stop = first + units_of(sentence).begins[end]
            return trimmed(text, start, stop)

        short = target if settings.short_prob else None
        if settings.policy == "greedy":
            groups = greedy(
                lengths,
                cap,
                target=short,
                boundary=lambda sentence, begin, latest: units_of(sentence).boundary(begin, latest),
                overlap=settings.overlap,
            )
        elif settings.policy == "condenser":
            groups = condenser(lengths, cap, target=short)
        else:
            groups = cotmae(lengths, cap, target=short)
        placed = [[span for span in map(place, group) if span[0] < span[1]] for group in groups]
        return [Cut(spans[0][0], spans[-1][1], spans) for spans in placed if spans]

    def _passages(self, document: Passage, text: str, cuts: list[Cut]) -> Iterator[Passage]:
        extra = {name: value for name, value in document.extra.items() if name not in _OF_THE_WHOLE_TEXT}
        for position, cut in enumerate(cuts):
            metadata = dict(document.metadata or {})
            metadata |= {
                "source_id": document.id,
                "position": position,
                "prev": f"{document.id}#{position - 1}" if position else None,
                "next": f"{document.id}#{position + 1}" if position + 1 < len(cuts) else None,
            }
            if self._settings.sentences:
                metadata["sentences"] = [[begin - cut.begin, end - cut.begin] for begin, end in cut.sentences]
            yield Passage(f"{document.id}#{position}", text[cut.begin : cut.end], document.title, metadata, extra)

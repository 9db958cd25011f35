"""Split documents into passages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

from drtk.config import check_effects
from drtk.data.rows import dump
from drtk.errors import UsageError
from drtk.records import Passage
from drtk.runtime.filter_job import BatchResult, FilterJob
from drtk.runtime.manifest import describe_folder
from drtk.runtime.progress import log
from drtk.runtime.runners import BatchFunction, RunnerSettings, Workers, choose_workers, run_filter
from drtk.text.config import ChunkSettings
from drtk.text.languages import get_language_name
from drtk.text.rng import sample_integer, sample_uniform
from drtk.text.sections import SEPARATOR, Section, find_pages, get_headings, split_sections
from drtk.text.sentences import (
    PunktModel,
    SentenceSplitter,
    Span,
    find_word_spans,
    load_installed_model,
    normalize_whitespace,
    parse_model,
    save_model,
    train_model,
    trim_span,
)
from drtk.text.tokenizers import TextUnits, WordCounter, WordPieceCounter, load_tokenizer, serialize_tokenizer

MAX_TOKENS, MAX_WORDS = 144, 100
BATCH_SIZE = 250  # documents read at once
_BATCH_CHARACTERS = 200_000  # characters per batch of a worker
_DOCUMENT_FIELDS = ("weights", "title_weights", "impacts")  # dropped: they belong to the words of the whole document

SentencePart = tuple[int, int, int]  # index of the sentence, begin and end in its units
Group = list[SentencePart]
Metadata = dict[str, Any]
GroupCap = Callable[[int], int]  # group index -> its cap
Boundary = Callable[[int, int, int], int]  # (sentence, begin, latest) -> end of the cut, above begin


def group_sentences(
    policy: str,
    lengths: Sequence[int],
    cap: int,
    *,
    group_cap: GroupCap | None = None,
    boundary: Boundary = lambda sentence, begin, latest: latest,
    overlap: int = 0,
) -> list[Group]:
    """Group consecutive sentences into passages of about `cap` units (words or word pieces); drop empty sentences.

    Returns the groups, lists of (sentence index, begin, end); begin and end are positions in the sentence, in units.

    policy: "greedy" never exceeds `cap`. It splits a longer sentence; the remainder starts the next group.
        "condenser" keeps a longer sentence whole, as a group of its own (Condenser's released code).
        "cotmae" ends a group with the sentence that makes it exceed `cap` (code of CoT-MAE and query-as-context).
    lengths: number of units of each sentence
    group_cap: returns the cap of a group, at most `cap`, from the group index; sentences are split only at `cap`
    boundary: moves the position at which "greedy" splits a sentence, for example to the start of a word
    overlap: maximum number of sentences to repeat at the start of the next group; fewer if they do not fit, none
        before a sentence that is split, or with "cotmae"
    """
    groups = _GroupBuilder(group_cap, cap)
    for sentence, length in enumerate(lengths):
        begin = 0
        if policy == "greedy" and length > cap:
            groups.close()
            while length - begin > cap:
                end = boundary(sentence, begin, begin + cap)
                groups.add((sentence, begin, end))
                groups.close()
                begin = end
        elif policy != "cotmae" and length and groups.size + length > groups.limit:
            groups.close(repeat=overlap, room_for=length)
        if begin < length:
            groups.add((sentence, begin, length))
        if policy == "cotmae" and groups.size > groups.limit:
            groups.close()
    groups.close()
    return groups.closed


def split_blocks(count: int, cap: int, *, overlap: int = 0) -> list[tuple[int, int]]:
    """Split `count` words into blocks of `cap` words (DPR); return (begin, end) of each. The last block may be shorter.

    overlap: number of words repeated at the start of the next block; less than `cap`
    """
    begins = range(0, max(count - overlap, min(count, 1)), cap - overlap)
    return [(begin, min(begin + cap, count)) for begin in begins]


class _GroupBuilder:
    """Builder of sentence groups: finished groups in `closed`, and the current group with its `size` and `limit`."""

    def __init__(self, group_cap: GroupCap | None, cap: int) -> None:
        self._group_cap = group_cap or (lambda group: cap)
        self.closed: list[Group] = []
        self._open: Group = []
        self.size = 0
        self.limit = self._group_cap(0)

    def add(self, part: SentencePart) -> None:
        self._open.append(part)
        self.size += part[2] - part[1]

    def close(self, *, repeat: int = 0, room_for: int = 0) -> None:
        """Finish the current group; start the next one with up to `repeat` of the last sentences, but never with all.

        room_for: number of units that the repeated sentences must leave free in the next group
        """
        if not self._open:
            return
        self.closed.append(self._open)
        last = self._open[max(1, len(self._open) - repeat) :] if repeat else []
        self._open, self.size, self.limit = [], 0, self._group_cap(len(self.closed))
        for part in reversed(last):
            if self.size + part[2] - part[1] > self.limit - room_for:
                break
            self.size += part[2] - part[1]
            self._open.insert(0, part)


@dataclass(frozen=True)
class PassageSpan:
    """The spans of a passage and of its sentences in the normalized text of a document or section."""

    begin: int
    end: int
    sentences: list[Span]


def needs_sentences(settings: ChunkSettings) -> bool:
    """Return whether chunking with these settings needs a sentence splitter."""
    return settings.policy != "words" or settings.sentences


class Chunker:
    """Splitter of documents into passages.

    cap: maximum passage length (exceptions: see `group_sentences`), in word pieces, or in words without a tokenizer
    tokenizer: a serialized tokenizer (see `serialize_tokenizer`)
    model: the sentence splitter; None if `needs_sentences` is false
    """

    def __init__(
        self, settings: ChunkSettings, cap: int, model: PunktModel | None, tokenizer: str | None = None
    ) -> None:
        self._settings, self._cap = settings, cap
        self._splitter = None if model is None else SentenceSplitter(model)
        self._counter = WordCounter() if tokenizer is None else WordPieceCounter(tokenizer)

    def __call__(self, documents: Sequence[Passage]) -> list[list[Passage]]:
        """Return the passages of each document, in order; none for a document without words.

        A document with headings is split into sections first (see `split_sections`).
        """
        settings = self._settings
        parts = [
            (at, document, section)
            for at, document in enumerate(documents)
            for section in self._split_sections(document)
        ]
        texts, spans = [], []
        for _, document, section in parts:
            text, areas = normalize_whitespace(
                document.text if section is None else document.text[section.begin : section.end],
                paragraphs=section is not None if settings.paragraphs is None else settings.paragraphs,
                keep_whitespace=settings.keep_whitespace,
            )
            texts.append(text)
            spans.append([span for area in areas for span in self._find_sentences(text, area)])
        if settings.policy == "words":
            passages = [self._split_words(text, sentences) for text, sentences in zip(texts, spans, strict=True)]
        else:
            sentence_texts = [
                text[begin:end] for text, sentences in zip(texts, spans, strict=True) for begin, end in sentences
            ]
            lengths = iter(self._counter.count_units(sentence_texts))
            passages = [
                self._group_sentences(
                    document.id if section is None else f"{document.id} {section.begin}",
                    text,
                    sentences,
                    list(islice(lengths, len(sentences))),
                )
                for (_, document, section), text, sentences in zip(parts, texts, spans, strict=True)
            ]
        chunks: list[list[tuple[str, str, Metadata]]] = [[] for _ in documents]
        for (at, document, section), text, passage_spans in zip(parts, texts, passages, strict=True):
            chunks[at] += self._make_chunks(document, section, text, passage_spans)
        return [list(self._make_passages(*pair)) for pair in zip(documents, chunks, strict=True)]

    def _split_sections(self, document: Passage) -> list[Section] | list[None]:
        headings = get_headings(document)
        if headings is None:
            return [None]
        return split_sections(document, headings, self._counter.count_units, self._cap)

    def _find_sentences(self, text: str, span: Span) -> list[Span]:
        if self._splitter is None:
            return []
        begin, end = span
        return [(begin + start, begin + stop) for start, stop in self._splitter.find_spans(text[begin:end])]

    def _split_words(self, text: str, sentences: list[Span]) -> list[PassageSpan]:
        words = find_word_spans(text)
        passages = []
        first = 0  # the first sentence that overlaps the block
        for begin, end in split_blocks(len(words), self._cap, overlap=self._settings.overlap):
            start, stop = words[begin][0], words[end - 1][1]
            while first < len(sentences) and sentences[first][1] <= start:
                first += 1
            block_sentences = []
            for low, high in islice(sentences, first, None):
                if low >= stop:
                    break
                block_sentences.append(trim_span(text, max(low, start), min(high, stop)))
            passages.append(PassageSpan(start, stop, block_sentences))
        return passages

    def _group_sentences(self, id: str, text: str, sentences: list[Span], lengths: list[int]) -> list[PassageSpan]:
        settings, cap = self._settings, self._cap

        @cache
        def split_units(sentence: int) -> TextUnits:
            begin, end = sentences[sentence]
            return self._counter.split_units(text[begin:end])

        def sample_group_cap(group: int) -> int:
            if sample_uniform(settings.seed, id, "short", group) >= settings.short_prob:
                return cap
            low = 2 if settings.policy == "cotmae" else 1
            return sample_integer(min(low, cap), cap, settings.seed, id, "short cap", group)

        def find_span(part: SentencePart) -> Span:
            sentence, begin, end = part
            first, last = sentences[sentence]
            start = first + split_units(sentence).begins[begin] if begin else first
            stop = first + split_units(sentence).begins[end] if end < lengths[sentence] else last
            return trim_span(text, start, stop)

        groups = group_sentences(
            settings.policy,
            lengths,
            cap,
            group_cap=sample_group_cap if settings.short_prob else None,
            boundary=lambda sentence, begin, latest: split_units(sentence).find_boundary(begin, latest),
            overlap=settings.overlap,
        )
        group_spans = [[span for span in map(find_span, group) if span[0] < span[1]] for group in groups]
        return [PassageSpan(spans[0][0], spans[-1][1], spans) for spans in group_spans if spans]

    def _make_chunks(
        self, document: Passage, section: Section | None, text: str, spans: list[PassageSpan]
    ) -> Iterator[tuple[str, str, Metadata]]:
        """Yield (title, text, metadata in addition to the document's) of each passage of a section or document."""
        title = document.title
        own: Metadata = {}
        pages = None
        if section is not None:
            title = SEPARATOR.join(filter(None, (title, *section.headings)))
            own["headings"] = list(section.headings)
            pages = find_pages(document, section, text, [span.begin for span in spans])
        for index, span in enumerate(spans):
            metadata = own | ({} if pages is None else {"page": pages[index]})
            if self._settings.sentences:
                metadata["sentences"] = [[begin - span.begin, end - span.begin] for begin, end in span.sentences]
            yield title, text[span.begin : span.end], metadata

    def _make_passages(self, document: Passage, chunks: list[tuple[str, str, Metadata]]) -> Iterator[Passage]:
        extra = {name: value for name, value in document.extra.items() if name not in _DOCUMENT_FIELDS}
        shared = document.metadata or {}
        if chunks and "headings" in chunks[0][2]:
            shared = {name: value for name, value in shared.items() if name not in ("headings", "pages")}
        for position, (title, text, own) in enumerate(chunks):
            metadata = shared | {
                "source_id": document.id,
                "position": position,
                "prev": f"{document.id}#{position - 1}" if position else None,
                "next": f"{document.id}#{position + 1}" if position + 1 < len(chunks) else None,
            }
            yield Passage(f"{document.id}#{position}", text, title, metadata | own, extra)


class ChunkFunction(BatchFunction):
    """Batch function that chunks documents in `count` worker processes, or in this process if `count` is 1.

    arguments: the arguments of `create_chunk_task`
    """

    def __init__(self, count: int, *arguments: Any) -> None:
        self._workers = Workers(create_chunk_task, *arguments, count=count)
        self.prepare_ahead = count > 1  # with one process there is nothing to overlap

    def prepare(self, records: list[Passage]) -> Iterator[tuple[list[bytes], int]]:
        """Return an iterator over the results of batches of documents; worker processes, if any, start at once."""
        batches: list[list[Passage]] = [[]]
        size = 0
        for document in records:
            if size >= _BATCH_CHARACTERS:
                batches.append([])
                size = 0
            batches[-1].append(document)
            size += len(document.text)
        return self._workers.map(batches)

    def __call__(self, results: Iterator[tuple[list[bytes], int]]) -> BatchResult:
        """Return the passages as JSON lines, and the number of documents without words."""
        lines: list[bytes] = []
        empty = 0
        for batch_lines, batch_empty in results:
            lines += batch_lines
            empty += batch_empty
        return BatchResult(lines, {"empty": empty})

    def close(self) -> None:
        """Stop the worker processes."""
        self._workers.close()


def create_chunk_task(
    settings: ChunkSettings, cap: int, model: PunktModel | None, tokenizer: str | None, bare: bool
) -> Callable[[Sequence[Passage]], tuple[list[bytes], int]]:
    """Return a function that chunks documents into JSON lines and counts documents without words.

    bare: write ids, texts and metadata only
    The other arguments are those of `Chunker`.
    """
    chunker = Chunker(settings, cap, model, tokenizer)

    def make_lines(documents: Sequence[Passage]) -> tuple[list[bytes], int]:
        chunked = chunker(documents)
        passages = chain.from_iterable(chunked)
        if bare:
            lines = [
                dump({"_id": passage.id, "text": passage.text, "metadata": passage.metadata}) for passage in passages
            ]
        else:
            lines = list(map(dump, passages))
        return lines, sum(not document_passages for document_passages in chunked)

    return make_lines


def chunk_corpus(
    documents: Iterable[Passage],
    settings: ChunkSettings,
    job: FilterJob,
    *,
    runner_settings: RunnerSettings | None = None,
) -> None:
    """Chunk documents and write their passages to the output of `job`, in order.

    Documents without words are counted as `empty`.

    Raises UsageError for contradictory settings, DrtkError for a missing model or tokenizer.
    """
    job.record(settings)
    check_settings(settings)
    runner_settings = runner_settings or RunnerSettings()
    if runner_settings.runner != "local" and settings.num_workers:
        raise UsageError("`num_workers` requires `runner` local; use `runner_workers`")
    stream = iter(documents)
    head: list[Passage] = []  # to train a sentence splitter on
    left = settings.punkt_mb * 1e6 if needs_sentences(settings) and settings.punkt_model is None else 0
    while left > 0 and (document := next(stream, None)) is not None:
        head.append(document)
        left -= len(document.text)
    model = _choose_model(settings, job, head) if needs_sentences(settings) else None
    cap, tokenizer = _choose_cap(settings, job)
    count, documents = choose_workers(chain(head, stream), settings.num_workers)
    job.counts["empty"] = 0  # also reported without documents
    run_filter(
        documents,
        job,
        ChunkFunction,
        count if runner_settings.runner == "local" else 1,
        settings,
        cap,
        model,
        tokenizer,
        job.bare,
        runner_settings=runner_settings,
        batch_size=BATCH_SIZE,
        unit="documents",
        gpu=False,
    )


def check_settings(settings: ChunkSettings) -> None:
    """Raise UsageError for settings that contradict each other."""
    check_effects(settings)
    if settings.tokenizer and settings.max_words is not None:
        raise UsageError("`max_words` has no effect with `tokenizer`; use `max_tokens` (word pieces)")
    cap = (settings.max_tokens or MAX_TOKENS) if settings.tokenizer else (settings.max_words or MAX_WORDS)
    if settings.policy == "words" and settings.overlap >= cap:
        raise UsageError(f"`overlap` {settings.overlap} must be below the passage length, {cap} words")
    if settings.save_punkt and settings.punkt_model:
        raise UsageError("`save_punkt` and `punkt_model` cannot be combined; give one")


def _choose_model(settings: ChunkSettings, job: FilterJob, head: list[Passage]) -> PunktModel:
    """Return the Punkt model: `punkt_model`, else the installed model, else a model trained on the first documents (`head`).

    With `save_punkt`, always train a model, and save it.
    """
    if settings.punkt_model is not None:
        data = b"\n".join(line for _, line in job.tracker.iter_lines(settings.punkt_model))
        return parse_model(data, settings.punkt_model)
    language = get_language_name(settings.language)
    model = None if settings.save_punkt else load_installed_model(language)
    if model is not None:
        return model
    texts: list[str] = []
    left = int(settings.punkt_mb * 1e6)
    for document in head:
        if not left:
            break
        data = document.text[:left].encode(errors="replace")[:left]
        texts.append(data.decode(errors="ignore"))
        left -= len(data)
    model = train_model(texts, language)
    if head:
        hint = "" if settings.save_punkt else "; to use nltk's model instead, run python -m nltk.downloader punkt_tab"
        log(
            "sentence boundaries: Punkt trained on the first "
            f"{-(-sum(len(text.encode()) for text in texts) // 1000):,} kB of the input "
            f"({len(texts):,} document{'s' * (len(texts) > 1)}){hint}"
        )
    if settings.save_punkt:
        save_model(model, settings.save_punkt, replace=job.force)
    return model


def _choose_cap(settings: ChunkSettings, job: FilterJob) -> tuple[int, str | None]:
    """Return the maximum passage length, and the serialized tokenizer (None if the length is in words)."""
    if settings.tokenizer is None:
        return settings.max_words or MAX_WORDS, None
    tokenizer = load_tokenizer(settings.tokenizer)
    if Path(settings.tokenizer).expanduser().is_dir():
        job.tracker.inputs.append(describe_folder(settings.tokenizer))
    cap = settings.max_tokens or MAX_TOKENS
    special = tokenizer.num_special_tokens_to_add(pair=False)
    if settings.reserve_special:
        cap = max(cap - special, 1)
    else:
        log(
            f"maximum passage length: {cap} word pieces; with {special} special tokens a model reads {cap + special} "
            "(use `reserve_special` to count special tokens)"
        )
    return cap, serialize_tokenizer(tokenizer, settings.tokenizer)

"""A stream of documents to a stream of passages: the sentence model, the tokenizer and the worker processes for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from drtk.io.filtering import FilterJob
from drtk.io.manifest import folder_entry
from drtk.io.progress import log
from drtk.records import Passage
from drtk.settings.text import ChunkSettings
from drtk.text.chunking import MAX_TOKENS, MAX_WORDS, ChunkLines, check, needs_sentences
from drtk.text.punkt import PunktModel, installed_model, parse_model, save_model, train_model
from drtk.text.tokens import load_tokenizer, portable
from drtk.text.workers import Workers, cores

WINDOW = 250  # documents between two places to go on from: they are larger than most records
_BATCH = 200_000  # characters given to a worker at once
_WORTH_WORKERS = 1_000_000  # characters; below, starting processes takes longer than the work


def chunk_corpus(documents: Iterable[Passage], settings: ChunkSettings, job: FilterJob) -> None:
    """Write the passages of `documents` through `job`, in order; documents without words are counted as `empty`.

    Raises UsageError for settings that contradict each other, DrtkError for a model or tokenizer that is not there.
    """
    check(settings)
    stream = iter(documents)
    train = needs_sentences(settings) and settings.punkt_model is None
    megabytes = settings.punkt_mb if train else 0.0
    head, size = _head(stream, max(int(megabytes * 1e6), _WORTH_WORKERS))
    model = _sentence_model(settings, job, head) if needs_sentences(settings) else None
    cap, tokenizer = _cap(settings, job)
    count = settings.workers or (cores() if size >= _WORTH_WORKERS else 1)
    job.window = WINDOW
    job.counts["empty"] = 0
    with Workers(ChunkLines, settings, cap, model, tokenizer, job.bare, count=count) as workers:

        def work(window: list[Passage]) -> Iterator[bytes]:
            for lines, empty in workers.map(list(_batches(window))):
                job.counts["empty"] += empty
                yield from lines

        job.run(chain(head, stream), work, unit="documents")


def _head(stream: Iterator[Passage], size: int) -> tuple[list[Passage], int]:
    """The first documents, together at least `size` characters where there are so many; and how many there are."""
    head: list[Passage] = []
    taken = 0
    for document in stream:
        head.append(document)
        taken += len(document.text)
        if taken >= size:
            break
    return head, taken


def _batches(window: Sequence[Passage]) -> Iterator[list[Passage]]:
    batch: list[Passage] = []
    size = 0
    for document in window:
        batch.append(document)
        size += len(document.text)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _sentence_model(settings: ChunkSettings, job: FilterJob, head: list[Passage]) -> PunktModel:
    """The model that was named, nltk's own, or one trained on the first megabytes of the input."""
    if settings.punkt_model is not None:
        data = b"\n".join(line for _, line in job.intake.lines(settings.punkt_model))
        return parse_model(data, settings.punkt_model)
    model = None if settings.save_punkt else installed_model(settings.language)
    if model is not None:
        return model
    texts = _first_bytes(head, int(settings.punkt_mb * 1e6))
    model = train_model(texts, settings.language)
    if head:
        reason = "asked for" if settings.save_punkt else f"nltk's punkt_tab for {settings.language} is not installed"
        log(
            f"{reason}: trained Punkt on the first {sum(len(text.encode()) for text in texts) / 1e3:,.0f} kB of the input "
            f"({len(texts):,} documents; {len(model.abbreviations):,} abbreviations)"
        )
    if settings.save_punkt:
        save_model(model, settings.save_punkt, replace=job.force)
    return model


def _first_bytes(documents: Iterable[Passage], size: int) -> list[str]:
    """Texts that begin within the first `size` bytes; the last is cut there."""
    texts: list[str] = []
    for document in documents:
        if size <= 0:
            break
        data = document.text[:size].encode(errors="replace")
        texts.append(document.text[:size] if len(data) <= size else data[:size].decode(errors="ignore"))
        size -= len(data)
    return texts


def _cap(settings: ChunkSettings, job: FilterJob) -> tuple[int, str | None]:
    """The longest passage, and the tokenizer that counts it in word pieces (None: counted in words)."""
    if settings.tokenizer is None:
        return settings.max_words or MAX_WORDS, None
    tokenizer = load_tokenizer(settings.tokenizer)
    if Path(settings.tokenizer).expanduser().is_dir():
        job.intake.inputs.append(folder_entry(settings.tokenizer))
    cap = settings.max_tokens or MAX_TOKENS
    special = tokenizer.num_special_tokens_to_add(pair=False)
    if settings.reserve_special:
        return max(cap - special, 1), portable(tokenizer, settings.tokenizer)
    log(
        f"passages of up to {cap} word pieces; with {special} special tokens a model reads {cap + special} "
        "(--reserve-special keeps that within the cap)"
    )
    return cap, portable(tokenizer, settings.tokenizer)

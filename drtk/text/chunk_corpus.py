"""Split a stream of documents into passages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from drtk.errors import UsageError
from drtk.records import Passage
from drtk.runtime.filter_job import Done, FilterJob
from drtk.runtime.manifest import folder_entry
from drtk.runtime.progress import log
from drtk.runtime.runners import BatchFunction, RunnerSettings, run_filter
from drtk.runtime.workers import Workers, cores
from drtk.text.chunking import MAX_TOKENS, MAX_WORDS, ChunkLines, check, needs_sentences
from drtk.text.config import ChunkSettings
from drtk.text.sentences import PunktModel, installed_model, parse_model, save_model, train_model
from drtk.text.tokenizers import load_tokenizer, portable

WINDOW = 250  # documents between two places to go on from: they are larger than most records
_BATCH = 200_000  # characters given to a worker at once
_WORTH_WORKERS = 1_000_000  # characters; below, starting processes takes longer than the work


class ChunkWindows(BatchFunction):
    """The passages of a window of documents, on `count` processes; they work on the next while this one is written.

    Further arguments are those of `ChunkLines`.
    """

    def __init__(self, count: int, *arguments: Any) -> None:
        self._workers = Workers(ChunkLines, *arguments, count=count)
        self.ahead = count > 1  # alone, this process would have both to do

    def prepare(self, records: list[Passage]) -> Iterator[tuple[list[bytes], int]]:
        """Results to come, batch by batch."""
        return self._workers.map(list(_batches(records)))

    def __call__(self, prepared: Iterator[tuple[list[bytes], int]]) -> Done:
        """The window's passages as JSON lines; counted as `empty`: documents without words."""
        lines: list[bytes] = []
        empty = 0
        for some, without in prepared:
            lines += some
            empty += without
        return Done(lines, {"empty": empty})

    def close(self) -> None:
        """End the processes."""
        self._workers.close()


def chunk_corpus(
    documents: Iterable[Passage], settings: ChunkSettings, job: FilterJob, *, running: RunnerSettings
) -> None:
    """Write the passages of `documents` through `job`, in order; documents without words are counted as `empty`.

    Raises UsageError for settings that contradict each other, DrtkError for a model or tokenizer that is not there.
    """
    check(settings)
    if running.runner != "local" and settings.workers:
        raise UsageError("--workers are processes of --runner local; --ray-workers says how many Ray shall have")
    stream = iter(documents)
    train = needs_sentences(settings) and settings.punkt_model is None
    megabytes = settings.punkt_mb if train else 0.0
    head, size = _head(stream, max(int(megabytes * 1e6), _WORTH_WORKERS))
    model = _sentence_model(settings, job, head) if needs_sentences(settings) else None
    cap, tokenizer = _cap(settings, job)
    count = settings.workers or (cores() if size >= _WORTH_WORKERS else 1)
    job.counts["empty"] = 0  # told also where there is no document at all
    run_filter(
        chain(head, stream),
        job,
        ChunkWindows,
        count if running.runner == "local" else 1,
        settings,
        cap,
        model,
        tokenizer,
        job.bare,
        running=running,
        window=WINDOW,
        unit="documents",
        gpu=False,
    )


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

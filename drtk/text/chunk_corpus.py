"""Split a stream of documents into passages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from drtk.data.jsonl import dump
from drtk.errors import UsageError
from drtk.records import Passage
from drtk.runtime.filter_job import Done, FilterJob
from drtk.runtime.manifest import folder_entry
from drtk.runtime.progress import log
from drtk.runtime.runners import BatchFunction, RunnerSettings, run_filter
from drtk.runtime.workers import Workers, count_cores
from drtk.text.chunking import MAX_TOKENS, MAX_WORDS, Chunker, check, needs_sentences
from drtk.text.config import ChunkSettings
from drtk.text.sentences import PunktModel, installed_model, parse_model, save_model, train_model
from drtk.text.tokenizers import load_tokenizer, portable

WINDOW = 250  # documents per window; they are larger than most records
_BATCH = 200_000  # characters per batch of a worker
_WORTH_WORKERS = 1_000_000  # characters; starting processes for less takes longer than the work


class ChunkWindows(BatchFunction):
    """Chunk windows of documents in `count` processes, which work on the next window while this one is written.

    arguments: those of `build_line_maker`
    """

    def __init__(self, count: int, *arguments: Any) -> None:
        self._workers = Workers(build_line_maker, *arguments, count=count)
        self.ahead = count > 1  # a single process would have to do both

    def prepare(self, records: list[Passage]) -> Iterator[tuple[list[bytes], int]]:
        """Start the work on a window; return its results, batch by batch."""
        return self._workers.map(list(_batches(records)))

    def __call__(self, prepared: Iterator[tuple[list[bytes], int]]) -> Done:
        """Return the passages as JSON lines, and the number of documents without words."""
        lines: list[bytes] = []
        empty = 0
        for batch_lines, batch_empty in prepared:
            lines += batch_lines
            empty += batch_empty
        return Done(lines, {"empty": empty})

    def close(self) -> None:
        """End the processes."""
        self._workers.close()


def build_line_maker(
    settings: ChunkSettings, cap: int, model: PunktModel | None, tokenizer: str | None, bare: bool
) -> Callable[[Sequence[Passage]], tuple[list[bytes], int]]:
    """Return a function that chunks documents and returns JSON lines and the number of documents without words.

    bare: write ids, texts and metadata only
    The other arguments are those of `Chunker`.
    """
    chunker = Chunker(settings, cap, model, tokenizer)

    def make_lines(documents: Sequence[Passage]) -> tuple[list[bytes], int]:
        chunked = chunker(documents)
        passages = [passage for each in chunked for passage in each]
        if bare:
            lines = [dump({"_id": each.id, "text": each.text, "metadata": each.metadata}) for each in passages]
        else:
            lines = [dump(each) for each in passages]
        return lines, sum(not each for each in chunked)

    return make_lines


def chunk_corpus(
    documents: Iterable[Passage], settings: ChunkSettings, job: FilterJob, *, running: RunnerSettings
) -> None:
    """Write the passages of `documents` through `job`, in order; count documents without words as `empty`.

    Raises UsageError for contradictory settings, DrtkError for a missing model or tokenizer.
    """
    check(settings)
    if running.runner != "local" and settings.workers:
        raise UsageError("`workers` has no effect with Ray; `ray_workers` sets the number of its workers")
    stream = iter(documents)
    train = needs_sentences(settings) and settings.punkt_model is None
    megabytes = settings.punkt_mb if train else 0.0
    head, size = _head(stream, max(int(megabytes * 1e6), _WORTH_WORKERS))
    model = _sentence_model(settings, job, head) if needs_sentences(settings) else None
    cap, tokenizer = _cap(settings, job)
    count = settings.workers or (count_cores() if size >= _WORTH_WORKERS else 1)
    job.counts["empty"] = 0  # also reported without documents
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
    """Return the first documents with at least `size` characters in total, and their number of characters."""
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
    """Return the named Punkt model, nltk's, or one trained on the first megabytes of the input."""
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
    """Return the texts of the first `size` bytes; the last one is cut."""
    texts: list[str] = []
    for document in documents:
        if size <= 0:
            break
        data = document.text[:size].encode(errors="replace")
        texts.append(document.text[:size] if len(data) <= size else data[:size].decode(errors="ignore"))
        size -= len(data)
    return texts


def _cap(settings: ChunkSettings, job: FilterJob) -> tuple[int, str | None]:
    """Return the largest length of a passage, and the tokenizer for word pieces (None: the length is in words)."""
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

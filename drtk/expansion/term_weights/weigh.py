"""Weigh the terms of a corpus in two passes."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from drtk.data.jsonl import dump, read_passages
from drtk.errors import MismatchError, UsageError
from drtk.expansion.config import WeightingSettings
from drtk.expansion.term_weights import TERM_WEIGHTS
from drtk.expansion.term_weights.base import (
    Needs,
    PassageSplitter,
    SplitPassage,
    Statistics,
    TermWeights,
    read_statistics,
)
from drtk.expansion.term_weights.bprop import WordAttention
from drtk.expansion.term_weights.counted import is_word
from drtk.models.model_folder import locate
from drtk.pretraining.masking.strategies import compute_mask_budget, scale_weights, sort_largest_first
from drtk.records import Passage
from drtk.runtime.filter_job import FilterJob, WindowResult
from drtk.runtime.inputs import InputTracker
from drtk.runtime.manifest import is_done, read_manifest_if_any
from drtk.runtime.progress import log
from drtk.runtime.runners import BatchFunction, RunnerSettings, run_filter
from drtk.runtime.streams import is_replaceable, is_stream
from drtk.text.rng import create_generator
from drtk.text.word_pieces import WordPieces, WordPieceTokenizer, WordSplit, align_words, split_plain
from drtk.text.words import load_stop_words, read_stopwords

RATE = 0.15  # masking rate of the report
_ROWS = {
    "hidden by chance": "random masking",
    "highest weights": "the highest weights alone",
    "hidden, max": "ROM, weights divided by their maximum",
    "hidden, minmax": "ROM, weights from minimum to maximum",
    "hidden, sum": "ROM, weights with a sum of 1",
}


def count_masked(reading: SplitPassage, pieces: WordPieces, weights: Sequence[float], seed: int) -> dict[str, int]:
    """Count the pieces of a passage's text, those masked at a rate of 15%, and the stop words and marks among these.

    The last are counted for each row of the report. pieces: of the text; weights: one per piece
    """
    empty = _is_stopword_or_mark(reading.passage.text, pieces)
    values = np.array(weights, dtype=np.float64)
    chance = create_generator(seed, reading.passage.id, "rom").random(len(values))
    scores = {
        "hidden by chance": chance,
        "highest weights": values,
        **{f"hidden, {how}": scale_weights(values, how) + chance for how in ("max", "minmax", "sum")},
    }
    budget = compute_mask_budget(RATE, len(values))
    counts = {"passages": 1, "pieces": len(values), "hidden": budget, "stop words": int(empty.sum())}
    return counts | {name: int(empty[sort_largest_first(each)[:budget]].sum()) for name, each in scores.items()}


def _is_stopword_or_mark(text: str, pieces: WordPieces) -> np.ndarray:
    """Return a mask of the pieces, (pieces,), bool."""
    spans = split_plain(text, pieces)
    listed = load_stop_words()
    words = [text[begin:end].lower().replace("’", "'") for begin, end in spans]
    is_empty = [word in listed or not is_word(word) for word in words]
    return np.array([owner < 0 or is_empty[owner] for owner in align_words(pieces, spans)], dtype=bool)


def format_report(counts: Mapping[str, Any], method: str) -> list[str]:
    """Return the lines of the table of all passages' counts, added up."""
    if not counts.get("hidden"):
        return []
    share = counts["stop words"] / counts["pieces"]
    title = (
        f"{method}: stop words and punctuation among the {RATE:.0%} of word pieces that would be masked "
        f"({counts['passages']:,} passages, {counts['pieces']:,} pieces, {share:.1%} of them such)"
    )
    return [title, *(f"  {counts[name] / counts['hidden']:6.1%}  {words}" for name, words in _ROWS.items())]


class Plan(NamedTuple):
    """The choices of a run, which travel to other processes."""

    method: str
    settings: WeightingSettings
    split: WordSplit
    tokenizer: str
    model: str | None
    device: str
    seed: int

    @property
    def needs(self) -> Needs | None:
        """The kind of collection statistics that the run requires, if any."""
        if self.method == "bprop" and self.settings.emit == "attention":
            return None
        kind: Needs | None = TERM_WEIGHTS.load(self.method).needs
        return kind


class StatisticsCollector(BatchFunction):
    """Compute statistics, one line per window. made_by: the choices that decide them"""

    def __init__(self, plan: Plan, kind: str, made_by: dict[str, Any]) -> None:
        self._kind, self._made_by = kind, made_by
        self._reader = PassageSplitter(WordPieceTokenizer(plan.tokenizer), plan.settings, plan.split)
        is_attention = kind == "attention"
        self._attention = WordAttention(plan.settings, plan.model or "", plan.device) if is_attention else None

    def prepare(self, records: list[Passage]) -> list[SplitPassage]:
        """Split the passages into words."""
        return self._reader(records)

    def __call__(self, prepared: list[SplitPassage]) -> WindowResult:
        """Return the sums of the window."""
        sums = Statistics(self._kind, self._made_by)
        values: Iterable[Mapping[str, Sequence[float]]]
        if self._attention is not None:
            values = ({word: [value] for word, value in words.items()} for words in self._attention(prepared))
        else:
            counts = (Counter(reading.words) for reading in prepared)
            values = ({word: [1, count] for word, count in words.items()} for words in counts)
        for reading, words in zip(prepared, values, strict=True):
            sums.add(words, length=sum(map(is_word, reading.words)))
        return WindowResult([sums.line()])


class PassageWeigher(BatchFunction):
    """Add "weights", one per word piece of the text, "title_weights" if titles are read, and the name of the tokenizer."""

    def __init__(self, plan: Plan, statistics: Statistics | None, bare: bool, report: bool) -> None:
        self._plan, self._bare, self._report = plan, bare, report
        self._tokenizer = WordPieceTokenizer(plan.tokenizer)
        self._reader = PassageSplitter(self._tokenizer, plan.settings, plan.split)
        self._method: TermWeights = TERM_WEIGHTS.load(plan.method)(plan.settings, statistics, plan.model, plan.device)

    def prepare(self, records: list[Passage]) -> list[SplitPassage]:
        """Split the passages into words."""
        return self._reader(records)

    def __call__(self, prepared: list[SplitPassage]) -> WindowResult:
        """Return the passages, in order, as JSON lines."""
        lines = []
        report: Counter[str] = Counter()
        for reading, weights in zip(prepared, self._method(prepared), strict=True):
            values = normalize_weights(weights, self._plan.settings.weight_norm)
            pieces = reading.spread(values, self._plan.settings.spread)
            lines.append(self._line(reading, pieces, self._method.fields(reading, values)))
            if self._report:
                texts = self._tokenizer([reading.passage.text])[0]
                report.update(count_masked(reading, texts, pieces[reading.title :], self._plan.seed))
        return WindowResult(lines, {"report": dict(report)} if self._report else {})

    def _line(self, reading: SplitPassage, pieces: list[float], more: dict[str, Any]) -> bytes:
        fields: dict[str, Any] = {"weights": pieces[reading.title :]}
        if reading.title:
            fields["title_weights"] = pieces[: reading.title]
        fields |= more
        named = {"weights_tokenizer": self._plan.tokenizer}
        passage = reading.passage
        if self._bare:
            return dump({"_id": passage.id, **fields, "metadata": named})
        kept = {name: value for name, value in passage.extra.items() if name != "title_weights"}
        return dump(replace(passage, metadata=(passage.metadata or {}) | named, extra=kept | fields))


def normalize_weights(weights: Sequence[float], how: str) -> list[float]:
    """Return the weights of a passage's words unchanged, or with a sum or maximum of 1; with six significant digits."""
    whole = sum(weights) if how == "sum" else max(weights, default=0.0) if how == "max" else 1.0
    return [float(f"{weight / whole:.6g}") if whole > 0 else 0.0 for weight in weights]


# Passages between two points to resume from. Lines of counts are few, which keeps their files small.
_COUNTED, _READ_BY_MODEL, _PLAIN = 10_000, 512, 1000
_OF_COUNTS = ("words", "stemmer", "stopwords", "title")
_OF_ATTENTION = (*_OF_COUNTS, "sub2word", "gather", "saturation", "max_length")


def make_plan(
    method: str, settings: WeightingSettings, *, tokenizer: str | None, model: str | None, device: str, seed: int
) -> Plan:
    """Return the choices of a run, checked against each other.

    Raises UsageError if a tokenizer or model is missing, MismatchError if the tokenizer is not the model's.
    """
    kind = TERM_WEIGHTS.load(method)
    if model is None and (kind.with_model or tokenizer is None):
        raise UsageError(f"`method={method}` needs {'`model`' if kind.with_model else '`tokenizer`'}")
    name = _absolute(tokenizer or model or "")
    pieces = WordPieceTokenizer(name)  # a missing tokenizer is found before the first pass
    if kind.with_model and tokenizer is not None:
        pieces.check(WordPieceTokenizer(_absolute(model or "")))
    settings = replace(settings, title=_resolve_title(settings.title, method, model))
    return Plan(method, settings, settings.words or kind.split, name, model, device, seed)


def _resolve_title(wish: str | None, method: str, model: str | None) -> Literal["join", "none"]:
    """Return how titles are read: as a model of drtk was trained to, otherwise as wished."""
    facts = None if model is None else read_manifest_if_any(locate(model)).get("term_weights")
    stated = facts.get("title") if isinstance(facts, dict) and facts.get("method") == method else None
    if wish is not None and stated is not None and wish != stated:
        raise MismatchError(f"{model}: was trained with `title={stated}`; `title={wish}` contradicts it")
    return "none" if (wish or stated) == "none" else "join"


def _absolute(name: str) -> str:
    return os.path.abspath(name) if os.path.isdir(name) else name


def describe_choices(plan: Plan, kind: str) -> dict[str, Any]:
    """Return what decides the statistics of a kind, and must be the same wherever they are added up or used."""
    settings = plan.settings
    choices = {name: getattr(settings, name) for name in (_OF_ATTENTION if kind == "attention" else _OF_COUNTS)}
    choices["words"] = plan.split
    if settings.stopwords not in ("none", "lucene"):
        choices["stopwords"] = _digest("\n".join(read_stopwords(settings.stopwords)))
    if kind == "attention":
        from drtk.models.checkpoint import digest_weights

        choices["model"] = digest_weights(Path(locate(plan.model or "")))
    elif plan.split == "pieces":
        choices["tokenizer"] = _digest(repr(WordPieceTokenizer(plan.tokenizer).identity))
    return choices


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def collect(source: str, plan: Plan, *, running: RunnerSettings, job: FilterJob) -> None:
    """Write the statistics of a collection, one line per window. Raises UsageError if the method needs none."""
    kind = plan.needs
    if kind is None:
        raise UsageError("`collect`: this method uses no collection")
    job.kind = "term statistics"
    run_filter(
        read_passages(source, tracker=job.tracker, side_files=job.side_files),
        job,
        StatisticsCollector,
        plan,
        kind,
        describe_choices(plan, kind),
        running=running,
        window=_COUNTED if kind == "counts" else _READ_BY_MODEL * 4,
    )


def merge(sources: Sequence[str], plan: Plan, job: FilterJob) -> None:
    """Write the sum of several files of statistics as one line. Raises what `read_statistics` raises."""
    if not sources or plan.needs is None:
        raise UsageError("`merge` joins the files of `collection`, for a method that uses one; name them")
    total = read_statistics(sources, plan.needs, None, tracker=job.tracker)
    job.kind = "term statistics"
    job.counts |= {"passages": total.documents, "words": len(total.words)}
    job.run([list(sources)], lambda _: [total.line()], unit="files")


def weigh(
    source: str, plan: Plan, collections: Sequence[str], *, report: bool, running: RunnerSettings, job: FilterJob
) -> None:
    """Write the passages with weights. Statistics that the method needs and nobody gives are collected first.

    Raises MismatchError for statistics of other choices, UsageError for statistics that have no effect.
    """
    kind = plan.needs
    if kind is None:
        if collections:
            raise UsageError("`collection`: this method uses no collection")
        _weigh(source, plan, None, report, running, job)
    elif collections:
        statistics = read_statistics(collections, kind, describe_choices(plan, kind), tracker=job.tracker)
        _weigh(source, plan, statistics, report, running, job)
    else:
        job.tracker.copy_streams(source, *job.side_files)
        choices = describe_choices(plan, kind)
        with _collect_input(source, plan, choices, running, job) as made:
            is_empty = not Path(made).stat().st_size
            statistics = (
                Statistics(kind, {}) if is_empty else read_statistics([made], kind, choices, tracker=InputTracker())
            )
            _weigh(source, plan, statistics, report, running, job)


def _weigh(
    source: str, plan: Plan, statistics: Statistics | None, report: bool, running: RunnerSettings, job: FilterJob
) -> None:
    passages = read_passages(source, tracker=job.tracker, side_files=job.side_files)
    if plan.method == "deepimpact":
        from drtk.expansion.term_weights.learned import iter_with_added_texts

        passages = iter_with_added_texts(passages, plan.model or "", plan.settings, source=source, tracker=job.tracker)
    window = _READ_BY_MODEL if TERM_WEIGHTS.load(plan.method).with_model else _PLAIN
    run_filter(passages, job, PassageWeigher, plan, statistics, job.bare, report, running=running, window=window)
    if report:
        for line in format_report(job.counts.get("report", {}), plan.method):
            log(line)


@contextmanager
def _collect_input(
    source: str, plan: Plan, choices: dict[str, Any], running: RunnerSettings, job: FilterJob
) -> Iterator[str]:
    """Collect the statistics of the input; yield their file.

    It is kept beside a named output, where a resumed run finds it again; otherwise it is a temporary file.
    """
    is_kept = is_replaceable(job.output) and not any(map(is_stream, (source, *job.side_files)))
    with nullcontext() if is_kept else tempfile.TemporaryDirectory(prefix="drtk-") as folder:
        first = FilterJob(
            job.command,
            "term statistics",
            f"{job.output}.collection.jsonl" if folder is None else str(Path(folder) / "collection.jsonl"),
            {"source": source, "with": list(job.side_files), **choices},
            resume=job.resume and is_kept,
            force=job.force,
            side_files=job.side_files,
            tracker=InputTracker(job.tracker.skip_bad, copies=job.tracker.copies),
            log_summary=False,
        )
        first.recover()
        if is_done(first.output, first.settings, program=first.command):
            log(f"the words of the input are counted already: {first.output}")
        else:
            log(f"no `collection`: the words of the input are counted first{f' -> {first.output}' * is_kept}")
            first.check()
            collect(source, plan, running=running, job=first)
        yield first.output

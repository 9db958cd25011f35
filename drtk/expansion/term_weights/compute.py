"""Compute term weights of a corpus: collect statistics in a first pass if required, then write weights."""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from drtk.data.readers import read_passages
from drtk.data.rows import dump
from drtk.errors import MismatchError, UsageError
from drtk.expansion.config import WeightingSettings
from drtk.expansion.term_weights import TERM_WEIGHTS
from drtk.expansion.term_weights.base import (
    CollectionStatistics,
    PassageSplitter,
    Predictor,
    SplitPassage,
    StatisticsKind,
    TermWeightingMethod,
    read_statistics,
)
from drtk.expansion.term_weights.count_based import is_word
from drtk.models.model_folder import resolve_model_folder
from drtk.pretraining.masking import compute_mask_budget, scale_weights, sort_largest_first
from drtk.records import Passage
from drtk.runtime.filter_job import BatchResult, FilterJob
from drtk.runtime.inputs import InputTracker
from drtk.runtime.manifest import is_current, read_manifest_if_any
from drtk.runtime.progress import log
from drtk.runtime.runners import BatchFunction, RunnerSettings, Workers, choose_workers, run_filter
from drtk.runtime.streams import is_replaceable, is_stream
from drtk.text.rng import create_generator
from drtk.text.word_pieces import WordPieces, WordPieceTokenizer, WordSplit, align_words, split_plain
from drtk.text.words import load_stop_words, read_stopwords

MASKING_RATE = 0.15  # of the report
_ROWS = {
    "masked at random": "random masking",
    "highest weights": "highest weights",
    "masked, max": "ROM, weights divided by their maximum",
    "masked, minmax": "ROM, weights from minimum to maximum",
    "masked, sum": "ROM, weights with a sum of 1",
}


def count_masked(
    split_passage: SplitPassage, pieces: WordPieces, weights: Sequence[float], seed: int
) -> dict[str, int]:
    """Count the word pieces of a passage, those masked, and those of stop words or punctuation.

    Returns {"passages": 1, "pieces": word pieces, "masked": masked pieces, "stop words": pieces of stop words or
    punctuation, each name in `_ROWS`: number of the latter pieces that this strategy masks}.

    pieces: word pieces of the passage text
    weights: one per word piece
    """
    text, stop_words = split_passage.passage.text, load_stop_words()
    spans = split_plain(text, pieces)
    words = [text[begin:end].lower().replace("’", "'") for begin, end in spans]
    is_empty_word = [word in stop_words or not is_word(word) for word in words]
    is_empty = np.array([owner < 0 or is_empty_word[owner] for owner in align_words(pieces, spans)], dtype=bool)
    values = np.array(weights, dtype=np.float64)
    chance = create_generator(seed, split_passage.passage.id, "rom").random(len(values))
    scores = {
        "masked at random": chance,
        "highest weights": values,
        **{f"masked, {how}": scale_weights(values, how) + chance for how in ("max", "minmax", "sum")},
    }
    budget = compute_mask_budget(MASKING_RATE, len(values))
    counts = {"passages": 1, "pieces": len(values), "masked": budget, "stop words": int(is_empty.sum())}
    for name, piece_scores in scores.items():
        counts[name] = int(is_empty[sort_largest_first(piece_scores)[:budget]].sum())
    return counts


def format_report(counts: Mapping[str, Any], method: str) -> list[str]:
    """Return the lines of a table: share of stop words and punctuation in the pieces that each strategy masks.

    Returns [] without counts.
    counts: sums of the counts of `count_masked`
    """
    if not counts.get("masked"):
        return []
    share = counts["stop words"] / counts["pieces"]
    title = (
        f"{method}: share of stop words and punctuation in the {MASKING_RATE:.0%} of word pieces that would be masked "
        f"({counts['passages']:,} passages, {counts['pieces']:,} pieces, {share:.1%} in all pieces)"
    )
    return [title, *(f"  {counts[name] / counts['masked']:6.1%}  {label}" for name, label in _ROWS.items())]


class WeightingPlan(NamedTuple):
    """Method and settings of a term-weighting run, with defaults resolved; sent to worker processes."""

    method: str
    settings: WeightingSettings
    split: WordSplit
    tokenizer: str
    model: str | None
    device: str
    seed: int

    @property
    def needs(self) -> StatisticsKind | None:
        """Kind of collection statistics that the run requires, if any."""
        if self.method == "bprop" and self.settings.emit == "attention":
            return None
        return TERM_WEIGHTS.load(self.method).needs


class SplitBatch(NamedTuple):
    """Passages that a worker process split into words.

    inputs: the model input of each passage    passages: pickled list of `SplitPassage`, which the main process only passes on
    """

    inputs: list[Any]
    passages: bytes


_PredictedBatch: TypeAlias = tuple[list[np.ndarray], bytes]  # of a `SplitBatch`: outputs of the model, and `passages`


class _WorkerTask:
    """Worker-process task: split passages into words and compute results, from model outputs if any."""

    def __init__(self, plan: WeightingPlan, statistics: CollectionStatistics | None) -> None:
        self._plan = plan
        self.method_class: type[TermWeightingMethod] = TERM_WEIGHTS.load(plan.method)
        self._method: Any = (
            self.method_class(plan.settings, statistics, plan.model)
            if self.method_class.with_model or statistics
            else None
        )

    @cached_property
    def _tokenizer(self) -> WordPieceTokenizer:
        return WordPieceTokenizer(self._plan.tokenizer)

    @cached_property
    def _split(self) -> PassageSplitter:  # not picklable, so each process makes its own
        return PassageSplitter(self._tokenizer, self._plan.settings, self._plan.split)

    def __call__(self, batch: list[Passage] | _PredictedBatch) -> Any:
        """Return a `SplitBatch` for passages if there is a model, else the result of `process`."""
        if isinstance(batch, tuple):
            return self.process(pickle.loads(batch[1]), batch[0])
        split_passages = self._split(batch)
        if not self.method_class.with_model:
            return self.process(split_passages, ())
        return SplitBatch(self._method.build_inputs(split_passages), pickle.dumps(split_passages))

    def process(self, split_passages: list[SplitPassage], outputs: Sequence[np.ndarray]) -> Any:
        """Return the result for passages. outputs: of the model, if there is one, an array per passage"""
        raise NotImplementedError


class _WorkerFunction(BatchFunction):
    """Base class of batch functions that run a task in worker processes, and the model in this process.

    count: number of worker processes; 0: $OMP_NUM_THREADS, to which runners set the share of the cores of a process
    """

    def __init__(self, plan: WeightingPlan, count: int, task: _WorkerTask) -> None:
        count = count or int(os.environ.get("OMP_NUM_THREADS", "1"))
        # The task was made here, so that its errors are raised here and forked processes share its memory.
        self._workers = Workers(partial, task, count=count)
        self._predict: Predictor | None = None
        if task.method_class.with_model:
            self._predict = task.method_class.load_predictor(plan.settings, plan.model or "", plan.device)

    def prepare(self, records: list[Passage]) -> Iterator[Any]:
        """Return an iterator over the results of the task for parts of the batch; worker processes, if any, start at once."""
        return self._workers.map([records[begin : begin + _PART_SIZE] for begin in range(0, len(records), _PART_SIZE)])

    def map(self, batches: Iterable[Iterator[Any]]) -> Iterator[BatchResult]:
        """Run the model on each batch while worker processes compute the weights of the batch before it."""
        if self._predict is None:
            yield from map(self, batches)
            return
        previous = None
        for batch in batches:
            results = self._workers.map(self._add_outputs([*batch], self._predict))
            if previous is not None:
                yield self(previous)
            previous = results
        if previous is not None:
            yield self(previous)

    @staticmethod
    def _add_outputs(parts: list[SplitBatch], predict: Predictor) -> Iterator[_PredictedBatch]:
        outputs = iter(predict([model_input for part in parts for model_input in part.inputs]))
        return (([*islice(outputs, len(part.inputs))], part.passages) for part in parts)

    def close(self) -> None:
        """Stop the processes."""
        self._workers.close()


# Statistics of a part of a batch: words, their values (see `CollectionStatistics.words`), length and number of passages.
_Sums: TypeAlias = tuple[list[str], np.ndarray, int, int]


class StatisticsCollector(_WorkerFunction):
    """Batch function that computes collection statistics; the result is one JSON line per batch.

    made_by: result of `describe_settings`, which is written with the statistics
    """

    def __init__(self, plan: WeightingPlan, count: int, kind: StatisticsKind, made_by: dict[str, Any]) -> None:
        super().__init__(plan, count, _StatisticsTask(plan, None))
        self._kind, self._made_by = kind, made_by

    def __call__(self, results: Iterable[_Sums]) -> BatchResult:
        """Add the statistics of the parts of a batch."""
        sums = CollectionStatistics(self._kind, self._made_by)
        for words, values, length, documents in results:
            sums.add(dict(zip(words, values.tolist(), strict=True)), length=length, documents=documents)
        return BatchResult([sums.to_json_line()])


class _StatisticsTask(_WorkerTask):
    def process(self, split_passages: list[SplitPassage], outputs: Sequence[np.ndarray]) -> _Sums:
        sums = CollectionStatistics("", {})
        for number, split_passage in enumerate(split_passages):
            words: Mapping[str, Sequence[float]]
            if self.method_class.with_model:
                saturations = self._method.compute_saturations(split_passage, outputs[number])
                words = {word: [value] for word, value in saturations.items()}
            else:
                words = {word: [1, count] for word, count in Counter(split_passage.words).items()}
            sums.add(words, length=sum(map(is_word, split_passage.words)))
        return [*sums.words], np.array([*sums.words.values()]), sums.length, sums.documents


class PassageWeigher(_WorkerFunction):
    """Batch function that adds "weights" (one per word piece), "title_weights" and the tokenizer name to passages.

    bare: write only the passage id and the new fields; report: add the counts of `count_masked`
    """

    def __init__(
        self, plan: WeightingPlan, count: int, statistics: CollectionStatistics | None, bare: bool, report: bool
    ) -> None:
        super().__init__(plan, count, _WeighingTask(plan, statistics, bare, report))

    def __call__(self, results: Iterable[tuple[list[bytes], Counter[str]]]) -> BatchResult:
        """Join the lines and counts of the parts of a batch."""
        lines: list[bytes] = []
        report: Counter[str] = Counter()
        for part_lines, part_report in results:
            lines += part_lines
            report.update(part_report)
        return BatchResult(lines, {"report": dict(report)} if report else {})


class _WeighingTask(_WorkerTask):
    def __init__(self, plan: WeightingPlan, statistics: CollectionStatistics | None, bare: bool, report: bool) -> None:
        super().__init__(plan, statistics)
        self._bare, self._report = bare, report

    def process(
        self, split_passages: list[SplitPassage], outputs: Sequence[np.ndarray]
    ) -> tuple[list[bytes], Counter[str]]:
        """Weigh the words of each passage, spread the weights to word pieces, and return a JSON line per passage."""
        lines = []
        report: Counter[str] = Counter()
        for split_passage, weights in zip(split_passages, self._method(split_passages, outputs), strict=True):
            values = normalize_weights(weights, self._plan.settings.weight_norm)
            pieces = split_passage.spread_to_pieces(values, self._plan.settings.spread)
            lines.append(
                self._format_line(split_passage, pieces, self._method.build_extra_fields(split_passage, values))
            )
            if self._report:
                text_pieces = self._tokenizer([split_passage.passage.text])[0]
                report.update(
                    count_masked(split_passage, text_pieces, pieces[split_passage.num_title :], self._plan.seed)
                )
        return lines, report

    def _format_line(self, split_passage: SplitPassage, weights: list[float], more_fields: dict[str, Any]) -> bytes:
        passage, num_title = split_passage.passage, split_passage.num_title
        fields: dict[str, Any] = {"weights": weights[num_title:]}
        if num_title:
            fields["title_weights"] = weights[:num_title]
        fields |= more_fields
        metadata = {"weights_tokenizer": self._plan.tokenizer}
        if self._bare:
            return dump({"_id": passage.id, **fields, "metadata": metadata})
        extra = {name: value for name, value in passage.extra.items() if name != "title_weights"}
        return dump(replace(passage, metadata=(passage.metadata or {}) | metadata, extra=extra | fields))


def normalize_weights(weights: Sequence[float], how: str) -> list[float]:
    """Scale the word weights of a passage to a sum or maximum of 1, and round them to six significant digits.

    how: "sum", "max", or "none" to round only
    """
    divisor = sum(weights) if how == "sum" else max(weights, default=0.0) if how == "max" else 1.0
    return [float(f"{weight / divisor:.6g}") if divisor > 0 else 0.0 for weight in weights]


# Passages per batch. A batch becomes one line of collection statistics, so large batches make small files.
_COUNT_BATCH, _MODEL_BATCH, _PLAIN_BATCH = 10_000, 512, 1000
_PART_SIZE = 64  # passages per task of a process
_COUNT_SETTINGS = ("words", "stemmer", "stopwords", "title")
_ATTENTION_SETTINGS = (*_COUNT_SETTINGS, "sub2word", "gather", "saturation", "max_length")


def make_weighting_plan(
    method: str, settings: WeightingSettings, *, tokenizer: str | None, model: str | None, device: str, seed: int
) -> WeightingPlan:
    """Resolve the settings of a run.

    Raises UsageError if a tokenizer or model is missing, MismatchError if the tokenizer or title setting differs
    from the model's.
    """
    kind = TERM_WEIGHTS.load(method)
    if model is None and (kind.with_model or tokenizer is None):
        raise UsageError(f"`method={method}` requires {'`model`' if kind.with_model else '`tokenizer`'}")
    name = tokenizer or model or ""
    name = os.path.abspath(name) if os.path.isdir(name) else name
    pieces = WordPieceTokenizer(name)  # raises an error for a missing tokenizer before the first pass
    if kind.with_model and tokenizer is not None and pieces.identity != WordPieceTokenizer(model or "").identity:
        raise MismatchError(f"{tokenizer}: its word pieces differ from those of the model {model}; omit `tokenizer`")
    settings = replace(settings, title=_resolve_title(settings.title, method, model))
    return WeightingPlan(method, settings, settings.words or kind.split, name, model, device, seed)


def _resolve_title(title: str | None, method: str, model: str | None) -> Literal["join", "none"]:
    """Return `title`, else that of the model's training, else "join". Raises MismatchError if the first two differ."""
    facts = None if model is None else read_manifest_if_any(resolve_model_folder(model)).get("term_weights")
    trained = facts.get("title") if isinstance(facts, dict) and facts.get("method") == method else None
    if title is not None and trained is not None and title != trained:
        raise MismatchError(f"{model}: was trained with `title={trained}`, got `title={title}`; omit `title`")
    return "none" if (title or trained) == "none" else "join"


def describe_settings(plan: WeightingPlan, kind: str) -> dict[str, Any]:
    """Return the settings that affect statistics of a kind; only statistics with equal settings can be merged or used."""
    settings = plan.settings
    names = _ATTENTION_SETTINGS if kind == "attention" else _COUNT_SETTINGS
    choices = {name: getattr(settings, name) for name in names}
    choices["words"] = plan.split
    if settings.stopwords not in ("none", "lucene"):
        choices["stopwords"] = _digest("\n".join(read_stopwords(settings.stopwords)))
    if kind == "attention":
        from drtk.models.checkpoint import digest_weights

        choices["model"] = digest_weights(Path(resolve_model_folder(plan.model or "")))
    elif plan.split == "pieces":
        choices["tokenizer"] = _digest(repr(WordPieceTokenizer(plan.tokenizer).identity))
    return choices


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def collect_statistics(source: str, plan: WeightingPlan, *, runner_settings: RunnerSettings, job: FilterJob) -> None:
    """Write collection statistics to the output of `job`: a JSON line per batch of passages, for `merge_statistics`.

    Raises UsageError for a method without collection statistics.
    """
    kind = plan.needs
    if kind is None:
        raise UsageError("`collect` has no effect, because the method uses no collection statistics; omit it")
    job.kind = "term statistics"
    passages = read_passages(source, tracker=job.tracker, side_files=job.side_files)
    count, passages = _choose_workers(plan, passages, runner_settings)
    run_filter(
        passages,
        job,
        StatisticsCollector,
        plan,
        count,
        kind,
        describe_settings(plan, kind),
        runner_settings=runner_settings,
        batch_size=_COUNT_BATCH if kind == "counts" else _MODEL_BATCH * 4,
        gpu=kind == "attention",
    )


def _choose_workers(
    plan: WeightingPlan, passages: Iterator[Passage], runner_settings: RunnerSettings
) -> tuple[int, Iterator[Passage]]:
    """Return the number of worker processes, and the passages. Processes of other runners choose their own default, 0."""
    if runner_settings.runner != "local":
        return plan.settings.num_workers, passages
    return choose_workers(passages, plan.settings.num_workers)


def merge_statistics(sources: Sequence[str], plan: WeightingPlan, job: FilterJob) -> None:
    """Merge files of collection statistics into one line.

    Raises the errors of `read_statistics`, UsageError without files or for a method without collection statistics.
    """
    if not sources or plan.needs is None:
        raise UsageError("`merge` requires the files to merge as `collection`, and a method with collection statistics")
    total = read_statistics(sources, plan.needs, None, tracker=job.tracker)
    job.kind = "term statistics"
    job.counts |= {"passages": total.documents, "words": len(total.words)}
    job.run([list(sources)], lambda _: [total.to_json_line()], unit="files")


def weigh_corpus(
    source: str,
    plan: WeightingPlan,
    collections: Sequence[str],
    *,
    report: bool,
    runner_settings: RunnerSettings,
    job: FilterJob,
) -> None:
    """Write the passages of a corpus with term weights.

    collections: files of collection statistics; if there are none and the method requires statistics, the statistics of
            the corpus are collected first
    report: log the table of `format_report`
    Raises MismatchError for statistics with other settings, UsageError for statistics that the method does not use.
    """
    kind = plan.needs
    if kind is None and collections:
        raise UsageError("`collection` has no effect, because the method uses no collection statistics; omit it")
    with ExitStack() as stack:
        statistics = None
        if kind is not None:
            made_by = describe_settings(plan, kind)
            if collections:
                statistics = read_statistics(collections, kind, made_by, tracker=job.tracker)
            else:
                job.tracker.copy_streams(source, *job.side_files)
                path = stack.enter_context(_collect_from_input(source, plan, made_by, runner_settings, job))
                has_passages = Path(path).stat().st_size > 0
                statistics = (
                    read_statistics([path], kind, made_by, tracker=InputTracker())
                    if has_passages
                    else CollectionStatistics(kind, {})
                )
        passages = read_passages(source, tracker=job.tracker, side_files=job.side_files)
        if plan.method == "deepimpact":
            from drtk.expansion.term_weights.learned import iter_checked_passages

            model = plan.model or ""
            passages = iter_checked_passages(passages, model, plan.settings, source=source, tracker=job.tracker)
        with_model = TERM_WEIGHTS.load(plan.method).with_model
        count, passages = _choose_workers(plan, passages, runner_settings)
        run_filter(
            passages,
            job,
            PassageWeigher,
            plan,
            count,
            statistics,
            job.bare,
            report,
            runner_settings=runner_settings,
            batch_size=_MODEL_BATCH if with_model else _PLAIN_BATCH,
            gpu=with_model,
        )
    if report:
        for line in format_report(job.counts.get("report", {}), plan.method):
            log(line)


@contextmanager
def _collect_from_input(
    source: str, plan: WeightingPlan, made_by: dict[str, Any], runner_settings: RunnerSettings, job: FilterJob
) -> Iterator[str]:
    """Collect the statistics of the input corpus, and yield the path of the file of statistics.

    If output and inputs are files, the statistics are stored next to the output, and reused if they are up to date;
    otherwise they are in a temporary file.
    """
    is_kept = is_replaceable(job.output) and not any(map(is_stream, (source, *job.side_files)))
    with nullcontext() if is_kept else tempfile.TemporaryDirectory(prefix="drtk-") as folder:
        collect_job = FilterJob(
            job.command,
            "term statistics",
            f"{job.output}.collection.jsonl" if folder is None else str(Path(folder) / "collection.jsonl"),
            {"source": source, "with": list(job.side_files), **made_by},
            resume=job.resume and is_kept,
            force=job.force,
            side_files=job.side_files,
            tracker=InputTracker(job.tracker.skip_bad, copies=job.tracker.copies),
            log_summary=False,
        )
        collect_job.recover()
        if is_current(collect_job.output, collect_job.settings, program=collect_job.command):
            log(f"using the collection statistics in {collect_job.output}")
        else:
            log(f"collecting statistics of the input first{f' -> {collect_job.output}' * is_kept}")
            collect_job.check()
            collect_statistics(source, plan, runner_settings=runner_settings, job=collect_job)
        yield collect_job.output

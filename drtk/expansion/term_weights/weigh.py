"""Weigh the terms of a corpus in two passes."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from drtk.data.jsonl import dump, read_passages
from drtk.errors import MismatchError, UsageError
from drtk.expansion.config import WeightingSettings
from drtk.expansion.term_weights import TERM_WEIGHTS
from drtk.expansion.term_weights.base import Reader, Reading, Statistics, TermWeights, read_statistics
from drtk.expansion.term_weights.bprop import Saturations
from drtk.expansion.term_weights.counted import is_word
from drtk.models.model_folder import locate
from drtk.pretraining.masking.strategies import largest_first, mask_budget, scale_weights
from drtk.records import Passage
from drtk.runtime.filter_job import Done, FilterJob
from drtk.runtime.inputs import Intake
from drtk.runtime.manifest import is_done, read_manifest_if_any
from drtk.runtime.progress import log
from drtk.runtime.runners import BatchFunction, RunnerSettings, run_filter
from drtk.runtime.streams import is_replaceable, is_stream
from drtk.text.rng import generator
from drtk.text.word_pieces import Pieces, WordPieceTokenizer, WordSplit, find_words, split_plain
from drtk.text.words import read_stopwords, stop_words

RATE = 0.15
_ROWS = {
    "hidden by chance": "random masking",
    "highest weights": "the highest weights alone",
    "hidden, max": "ROM, weights divided by their maximum",
    "hidden, minmax": "ROM, weights from minimum to maximum",
    "hidden, sum": "ROM, weights with a sum of 1",
}


def counted(reading: Reading, pieces: Pieces, weights: Sequence[float], seed: int) -> dict[str, int]:
    """Of a passage's text: pieces, those hidden at a rate of 15% and, of each way to choose them, the stop words and marks.

    pieces: of the text; weights: one each
    """
    empty = np.array(_says_nothing(reading.passage.text, pieces), dtype=bool)
    values = np.array(weights, dtype=np.float64)
    chance = generator(seed, reading.passage.id, "rom").random(len(values))
    scores = {
        "hidden by chance": chance,
        "highest weights": values,
        **{f"hidden, {how}": scale_weights(values, how) + chance for how in ("max", "minmax", "sum")},
    }
    budget = mask_budget(RATE, len(values))
    counts = {
        "passages": 1,
        "pieces": len(values),
        "hidden": budget,
        "stop words": int(empty.sum()),
    }
    return counts | {name: int(empty[largest_first(each)[:budget]].sum()) for name, each in scores.items()}


def _says_nothing(text: str, pieces: Pieces) -> list[bool]:
    spans = split_plain(text, pieces)
    listed = stop_words()
    words = [text[begin:end].lower().replace("’", "'") for begin, end in spans]
    said = [word not in listed and any(map(str.isalnum, word)) for word in words]
    return [owner < 0 or not said[owner] for owner in find_words(pieces, spans)]


def lines(counts: Mapping[str, Any], method: str) -> list[str]:
    """The table of all passages' counts, added up."""
    if not counts.get("hidden"):
        return []
    such = counts["stop words"] / counts["pieces"]
    title = (
        f"{method}: stop words and punctuation among the {RATE:.0%} of word pieces that would be hidden "
        f"({counts['passages']:,} passages, {counts['pieces']:,} pieces, {such:.1%} of them such)"
    )
    return [title, *(f"  {counts[name] / counts['hidden']:6.1%}  {words}" for name, words in _ROWS.items())]


class Plan(NamedTuple):
    """What is weighed, how, and with what; travels to other processes."""

    method: str
    settings: WeightingSettings
    split: WordSplit
    tokenizer: str
    model: str | None
    device: str
    seed: int


class Collect(BatchFunction):
    """A line of statistics a window.

    made_by: the choices that decide them
    """

    def __init__(self, plan: Plan, kind: str, made_by: dict[str, Any]) -> None:
        self._kind, self._made_by = kind, made_by
        self._reader = Reader(WordPieceTokenizer(plan.tokenizer), plan.settings, plan.split)
        self._saturations = Saturations(plan.settings, plan.model, plan.device) if kind == "attention" else None

    def prepare(self, records: list[Passage]) -> list[Reading]:
        """The passages' words."""
        return self._reader(records)

    def __call__(self, prepared: list[Reading]) -> Done:
        """The window's sums."""
        sums = Statistics(self._kind, self._made_by)
        found = self._saturations(prepared) if self._saturations is not None else None
        for at, reading in enumerate(prepared):
            length = sum(map(is_word, reading.words))
            if found is not None:
                sums.add({word: [value] for word, value in found[at].items()}, length=length)
            else:
                sums.add({word: [1, count] for word, count in Counter(reading.words).items()}, length=length)
        return Done([sums.line()])


class Weigh(BatchFunction):
    """Adds `weights`, one a word piece of the text, `title_weights` where a title is read, and their tokenizer's name."""

    def __init__(self, plan: Plan, statistics: Statistics | None, bare: bool, report: bool) -> None:
        self._plan, self._bare, self._report = plan, bare, report
        self._tokenizer = WordPieceTokenizer(plan.tokenizer)
        self._reader = Reader(self._tokenizer, plan.settings, plan.split)
        self._method: TermWeights = TERM_WEIGHTS.load(plan.method)(plan.settings, statistics, plan.model, plan.device)

    def prepare(self, records: list[Passage]) -> list[Reading]:
        """The passages' words."""
        return self._reader(records)

    def __call__(self, prepared: list[Reading]) -> Done:
        """The window's passages, in order, as JSON lines."""
        lines = []
        report: Counter[str] = Counter()
        for reading, found in zip(prepared, self._method(prepared), strict=True):
            values = normalised(found, self._plan.settings.normalize)
            pieces = reading.spread(values, self._plan.settings.spread)
            assert len(pieces) == len(reading.ids)
            lines.append(self._line(reading, pieces, self._method.fields(reading, values)))
            if self._report:
                texts = self._tokenizer([reading.passage.text])[0]
                report.update(counted(reading, texts, pieces[reading.title :], self._plan.seed))
        return Done(lines, {"report": dict(report)} if self._report else {})

    def _line(self, reading: Reading, pieces: list[float], more: dict[str, Any]) -> bytes:
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


def normalised(weights: Sequence[float], how: str) -> list[float]:
    """Weights of a passage's words as they are, with a sum or a maximum of 1; six figures are kept of each."""
    whole = sum(weights) if how == "sum" else max(weights, default=0.0) if how == "max" else 1.0
    return [float(f"{weight / whole:.6g}") if whole > 0 else 0.0 for weight in weights]


# Passages between two places to go on from. Of counts there are few a line, so that files stay small.
_COUNTED, _READ_BY_MODEL, _PLAIN = 10_000, 512, 1000
_OF_COUNTS = ("words", "stemmer", "stopwords", "title")
_OF_ATTENTION = (*_OF_COUNTS, "sub2word", "gather", "saturation", "max_length")


def planned(
    method: str, settings: WeightingSettings, *, tokenizer: str | None, model: str | None, device: str, seed: int
) -> Plan:
    """The choices of a run, checked against each other.

    Raises UsageError where a tokenizer is missing, MismatchError where it cuts other pieces than the model's.
    """
    kind = TERM_WEIGHTS.load(method)
    if tokenizer is None and model is None:
        raise UsageError(f"--method {method} needs {'--model' if kind.with_model else '--tokenizer'}")
    if kind.with_model and model is None:
        raise UsageError(f"--method {method} needs --model")
    name = _lasting(tokenizer or model or "")
    found = WordPieceTokenizer(name)  # here, so that one which is not there costs no pass
    if kind.with_model and tokenizer is not None:
        found.check(WordPieceTokenizer(_lasting(model or "")))
    settings = replace(settings, title=_title(settings, method, model))
    return Plan(method, settings, settings.words or kind.split, name, model, device, seed)


def _title(settings: WeightingSettings, method: str, model: str | None) -> Literal["join", "none"]:
    """How titles are read: as a model was trained to, where it was trained by drtk, and otherwise as is wished.

    Raises MismatchError for a wish that contradicts the model.
    """
    wished = settings.title
    facts = None if model is None else read_manifest_if_any(locate(model)).get("term_weights")
    stated = facts.get("title") if isinstance(facts, dict) and facts.get("method") == method else None
    if wished is not None and stated is not None and wished != stated:
        raise MismatchError(f"{model}: was trained with --title {stated}; --title {wished} contradicts it")
    return wished or ("none" if stated == "none" else "join")


def _lasting(name: str) -> str:
    """A folder is found again from any other; a hub name is one everywhere."""
    return os.path.abspath(name) if os.path.isdir(name) else name


def needed(plan: Plan) -> str | None:
    """The kind of statistics that a method needs; attention alone needs none."""
    if plan.method == "bprop" and plan.settings.emit == "attention":
        return None
    kind: str | None = TERM_WEIGHTS.load(plan.method).needs
    return kind


def choices(plan: Plan, kind: str) -> dict[str, Any]:
    """What decides the statistics of a kind, to be the same wherever they are added up or used."""
    settings = plan.settings
    found = {name: getattr(settings, name) for name in (_OF_ATTENTION if kind == "attention" else _OF_COUNTS)}
    found["words"] = plan.split
    if settings.stopwords not in ("none", "lucene"):
        found["stopwords"] = _digest("\n".join(read_stopwords(settings.stopwords)))
    if kind == "attention":
        from drtk.models.checkpoint import weights_digest

        found["model"] = weights_digest(Path(locate(plan.model or "")))
    elif plan.split == "pieces":
        found["tokenizer"] = _digest(repr(WordPieceTokenizer(plan.tokenizer).identity))
    return found


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def collect(source: str, plan: Plan, *, running: RunnerSettings, job: FilterJob) -> None:
    """Write the statistics of a collection, a line a window. Raises UsageError where the method needs none."""
    kind = needed(plan)
    if kind is None:
        raise UsageError("--collect: this method looks at no collection")
    job.kind = "term statistics"
    run_filter(
        read_passages(source, intake=job.intake, side_files=job.side_files),
        job,
        Collect,
        plan,
        kind,
        choices(plan, kind),
        running=running,
        window=_COUNTED if kind == "counts" else _READ_BY_MODEL * 4,
    )


def merge(sources: Sequence[str], plan: Plan, job: FilterJob) -> None:
    """Write the sum of several files of statistics as one line. Raises what `read_statistics` raises."""
    if not sources:
        raise UsageError("--merge joins the files of --collection; name them")
    kind = needed(plan)
    if kind is None:
        raise UsageError("--merge: this method looks at no collection")
    found = read_statistics(sources, kind, _anything, intake=job.intake)
    job.kind = "term statistics"
    job.counts |= {"passages": found.documents, "words": len(found.words)}
    job.run([list(sources)], lambda _: [found.line()], unit="files")


def _anything(made_by: Mapping[str, Any], place: str) -> None:
    """Every choice is as good as another, as long as all lines have it."""


def weigh(
    source: str, plan: Plan, collections: Sequence[str], *, report: bool, running: RunnerSettings, job: FilterJob
) -> None:
    """Write the passages with weights; where the method needs statistics and has none, they are collected first.

    Raises MismatchError for statistics of other choices, UsageError for some that are not needed.
    """
    kind = needed(plan)
    if collections and kind is None:
        raise UsageError("--collection: this method looks at no collection")
    if kind is None or collections:
        statistics = _read(collections, kind, plan, job.intake) if kind is not None else None
        passages = read_passages(source, intake=job.intake, side_files=job.side_files)
        if plan.method == "deepimpact":
            from drtk.expansion.term_weights.learned import with_added_texts

            passages = with_added_texts(passages, plan.model or "", plan.settings, source=source, intake=job.intake)
        _weigh(passages, plan, statistics, report, running, job)
        return
    job.intake.keep(source, *job.side_files)
    with _collected(source, plan, running, job) as made:
        statistics = _read([made], kind, plan, Intake()) if Path(made).stat().st_size else Statistics(kind, {})
        passages = read_passages(source, intake=job.intake, side_files=job.side_files)
        _weigh(passages, plan, statistics, report, running, job)


def _read(sources: Sequence[str], kind: str, plan: Plan, intake: Intake) -> Statistics:
    wanted = choices(plan, kind)

    def check(made_by: Mapping[str, Any], place: str) -> None:
        for name in sorted({*wanted, *made_by}):
            if made_by.get(name) != wanted.get(name):
                raise MismatchError(
                    f"{place}: was collected with {name} {made_by.get(name)}, but this run has {wanted.get(name)}"
                )

    return read_statistics(sources, kind, check, intake=intake)


def _weigh(
    passages: Iterable[Passage],
    plan: Plan,
    statistics: Statistics | None,
    report: bool,
    running: RunnerSettings,
    job: FilterJob,
) -> None:
    with_model = TERM_WEIGHTS.load(plan.method).with_model
    window = _READ_BY_MODEL if with_model else _PLAIN
    run_filter(passages, job, Weigh, plan, statistics, job.bare, report, running=running, window=window)
    if report:
        for line in lines(job.counts.get("report", {}), plan.method):
            log(line)


@contextmanager
def _collected(source: str, plan: Plan, running: RunnerSettings, job: FilterJob) -> Iterator[str]:
    """The statistics of the input itself.

    Beside a named output they are kept, and found again by a run that goes on; otherwise they are in a temporary file.
    """
    first: Callable[[str], FilterJob] = lambda output: FilterJob(  # noqa: E731 - one expression, used twice
        job.command,
        "term statistics",
        output,
        {"source": source, "with": list(job.side_files), **choices(plan, needed(plan) or "")},
        resume=job.resume,
        force=job.force,
        side_files=job.side_files,
        intake=Intake(job.intake.skip_bad, stand_ins=job.intake.stand_ins),
        log_summary=False,
    )
    if any(map(is_stream, (source, *job.side_files))) or not is_replaceable(job.output):
        log("no --collection: the words of the input itself are counted first")
        with tempfile.TemporaryDirectory(prefix="drtk-") as folder:
            made = first(str(Path(folder) / "collection.jsonl"))
            made.resume = False
            collect(source, plan, running=running, job=made)
            yield made.output
        return
    made = first(f"{job.output}.collection.jsonl")
    made.recover()
    if is_done(made.output, made.settings, program=made.command):
        log(f"the words of the input are counted already: {made.output}")
    else:
        log(f"no --collection: the words of the input itself are counted first -> {made.output}")
        made.check()
        collect(source, plan, running=running, job=made)
    yield made.output

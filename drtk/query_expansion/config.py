"""Options of query expansion and query re-ranking."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal

from drtk.config import NoEffect, option
from drtk.errors import UsageError
from drtk.models.config import NOT_BEAM, NOT_SAMPLING, GenerationSettings, ScoringSettings
from drtk.records import describe_kind_problem
from drtk.training.config import NOT_MEASURED, TrainingConfig

PASSAGE_KINDS = ("sentence", "title", "terms")  # candidates without a generator
_PROMPTED_TOKENS = 100  # docs/methods/ear.md
_TOKENS = 64  # the longest target of GAR (docs/methods/gar.md)
_RUN = (NoEffect("goes with --from-run", {"from_run": (None,)}),)
_HOLDOUT = (NoEffect("goes with --holdout", {"holdout": (False,)}),)
_TRAINED = (NoEffect("is for a model that was not trained for this", {"holdout": (True,)}),)
_OF_RUN = ("kind", "candidates", "depth", "feedback", "terms")  # the options of candidates without a generator


@dataclass(frozen=True)
class ExpansionSettings(GenerationSettings):
    """drtk expand-queries; 50 samples with top-k 50 and temperature 1 are those of docs/methods/ear.md."""

    kind: str | None = option(
        None,
        "Kind of the expansions: answer, sentence, title, or a word of your own. [default: as the generator was trained; "
        "with --from-run sentence, title and terms]",
    )
    n: int = option(50, "Texts to generate per question; repeats are dropped afterwards.", at_least=1, flag="--n")
    decode: Literal["sample", "greedy", "beam", "greedy+sample"] | None = option(  # type: ignore[assignment]
        None,
        "Decoding: sample, greedy (one text), beam (the n best), or greedy+sample (one greedy text, then samples). "
        "[default: sample; with --prompt greedy+sample]",
    )
    top_k: int = option(50, "Sample from the K most likely tokens; 0: from all.", at_least=0, no_effect=NOT_SAMPLING)
    top_p: float = option(
        1.0,
        "Of these, sample from the most likely with this total probability.",
        at_least=1e-6,
        at_most=1,
        no_effect=NOT_SAMPLING,
    )
    beams: int = option(10, "Beams of --decode beam; at least --n.", at_least=1, no_effect=NOT_BEAM)
    max_new_tokens: int | None = option(  # type: ignore[assignment]
        None,
        "Longest text to generate, in tokens. [default: as the generator was trained, or 64; with --prompt 100]",
        at_least=1,
    )
    prompt: str | None = option(
        None,
        "Prompt of a model that was not trained for this (T0, GPT-2); the question replaces …, or else precedes it.",
        no_effect=_TRAINED,
    )
    title: ClassVar[None] = None  # type: ignore[misc]
    holdout: bool = option(
        False,
        "The model is a folder of train-generator --folds: each question goes to the generator that was not trained on it.",
    )
    outside: Literal["refuse", "draw"] = option(
        "refuse",
        "holdout: a question of no fold is an error (refuse), or goes to a random generator (draw).",
        no_effect=_HOLDOUT,
    )
    candidates: int = option(10, "from-run: candidates per question and kind.", at_least=1, no_effect=_RUN)
    depth: int = option(100, "from-run: hits per question to use.", at_least=1, no_effect=_RUN)
    feedback: int = option(
        10, "from-run: hits whose most shared words are the first candidate of terms.", at_least=1, no_effect=_RUN
    )
    terms: int = option(10, "from-run: words in a candidate of terms.", at_least=1, no_effect=_RUN)

    def resolve(self, *, trained_length: int | None) -> ExpansionSettings:
        """Return the settings with their defaults. trained_length: longest target the generator was trained on, if known"""
        decode = self.decode or ("sample" if self.prompt is None else "greedy+sample")
        longest = _PROMPTED_TOKENS if self.prompt is not None else (trained_length or _TOKENS)
        return replace(
            self,
            n=1 if decode == "greedy" else self.n,
            decode=decode,
            max_new_tokens=self.max_new_tokens or longest,
        )

    def check_kind(self, *, from_run: bool) -> None:
        """Raise UsageError for an impossible kind, or for options of a generator `from_run`, which needs none."""
        if self.kind is not None and (problem := describe_kind_problem(self.kind)):
            raise UsageError(f"`kind` '{self.kind}': {problem}")
        if from_run and self.kind is not None and self.kind not in PASSAGE_KINDS:
            raise UsageError(f"`kind` {self.kind}: `from_run` makes {', '.join(PASSAGE_KINDS)}")
        for item in fields(self) if from_run else ():
            if item.name not in _OF_RUN and getattr(self, item.name) != item.default:
                raise UsageError(f"`{item.name}` goes with `model`")


READ = {"ri": 64, "rd": 256}  # tokens of a candidate (docs/methods/ear.md)
EPOCHS = {"ri": 2.0, "rd": 3.0}  # docs/methods/ear.md
DEPTH = 100  # passages that are searched for an answer


@dataclass(frozen=True)
class LabelSettings:
    """drtk rerank-queries label (docs/methods/ear.md)."""

    depth: int = option(DEPTH, "Passages per candidate to search for an answer.", at_least=1)
    max_rank: int = option(101, "Rank of a candidate that retrieves no answer; above --depth.", at_least=2)
    top1: bool = option(True, "Write title and text of each candidate's first passage, which --variant rd reads.")
    match: Literal["tokens", "regex"] = option(
        "tokens", "How answers are matched: tokens (DPR's matching), or regex (answers are patterns: CuratedTREC)."
    )
    match_title: bool = option(False, "Search titles for answers too (GAR), not only texts (DPR).")
    k1: float | None = option(None, "BM25 k1. [default: the index's, or 0.9]", at_least=0)
    b: float | None = option(None, "BM25 b, 0 to 1. [default: the index's, or 0.4]", at_least=0, at_most=1)
    threads: int = option(0, "Lucene: search threads; 0 uses every core.", at_least=0)
    batch_size: int = option(1000, "Candidates searched together, and between two points to resume from.", at_least=1)

    def check(self) -> None:
        """Raise UsageError if candidates that retrieve nothing would rank among those that retrieve something."""
        if self.max_rank <= self.depth:
            raise UsageError(f"`max_rank` {self.max_rank}: must be above `depth`, {self.depth}")


@dataclass(frozen=True)
class QueryRerankerConfig(TrainingConfig):
    """drtk rerank-queries train (docs/methods/ear.md). The defaults are those of thesis table B.1 for NQ, RD."""

    batch_size: int = option(
        4, "Questions in one step, each with all its candidates, over all devices together.", at_least=1
    )
    epochs: float | None = option(  # type: ignore[assignment]
        None, "Passes over the questions. [default: 2; rd 3]", at_least=0
    )
    warmup: float = option(10_000.0, "Steps in which the learning rate rises; linear: below 1, a share.", at_least=0)
    eval_steps: int = option(500, "--dev: steps between evaluations.", at_least=1)
    patience: int | None = option(
        None, "--dev: stop after so many evaluations without improvement.", at_least=1, no_effect=(NOT_MEASURED,)
    )
    learning_rate: ClassVar[float] = 0.0  # type: ignore[misc]  # see `max_lr`
    weight_decay: ClassVar[float] = 0.0  # type: ignore[misc]
    variant: Literal["ri", "rd"] = option(
        "ri", "Input: ri, question and expansion; rd, the expanded query's first passage too."
    )
    style: Literal["official", "thesis"] = option(
        "official", "How the parts are separated: official, [SEP] between all; thesis, 'question ? expansion' as one."
    )
    max_length: int | None = option(
        None, "Longest input, in tokens; the last parts are cut first. [default: 64; rd 256]", at_least=8
    )
    candidates: int = option(50, "Candidates per question to train on: its first different ones.", at_least=2)
    max_rank: int = option(101, "Rank of candidates that found no answer (the thesis tries 101 and 250).", at_least=2)
    depth: int | None = option(
        None,
        "Depth of the search for answers: greater ranks in the labels mean none found. [default: as the labels say, "
        "or 100]",
        at_least=1,
    )
    pair_weight: Literal["offset", "sum"] = option(
        "offset",
        "Weights of pairs: offset, equal for each distance in the order of ranks (as released); sum (as printed).",
    )
    skip_ties: bool = option(
        True, "Leave out pairs of equal rank, whose order is arbitrary (the released code has them)."
    )
    rank_margin: float = option(0.01, "Margin of a pair, for each rank between its candidates.", at_least=0)
    micro_batch_size: int | None = option(
        None, "Questions in memory at once on a device; the step stays the same.", at_least=1
    )
    schedule: Literal["inverse-sqrt", "linear"] = option(
        "inverse-sqrt",
        "The learning rate at step t: inverse-sqrt, max-lr * min(t^-.5, t * warmup^-1.5); linear, up to max-lr and down to 0.",
    )
    max_lr: float = option(
        2e-3, "inverse-sqrt: a factor, not a rate: the highest rate is max-lr / sqrt(warmup), 2e-5.", at_least=0
    )
    dev_questions: int | None = option(
        None,
        "--dev: questions to evaluate with, evenly spread. [default: all]",
        at_least=1,
        no_effect=(NOT_MEASURED,),
    )

    def check(self) -> None:
        """Raise UsageError for values that contradict each other."""
        if self.depth is not None:
            self.check_depth(self.depth)
        if self.schedule == "inverse-sqrt" and self.warmup < 1:
            raise UsageError(f"`warmup` {self.warmup:g}: `schedule` inverse-sqrt needs a number of steps")

    def check_depth(self, depth: int) -> None:
        """Raise UsageError if candidates that found nothing would rank among those that found something."""
        if self.max_rank <= depth:
            raise UsageError(f"`max_rank` {self.max_rank}: must be above the depth of the labels, {depth}")


_NO_INDEX = (NoEffect("goes with --index", {"index": (None,)}),)


@dataclass(frozen=True)
class ChooseSettings(ScoringSettings):
    """drtk rerank-queries apply (docs/methods/ear.md)."""

    select: Literal["scorer", "oracle", "concat", "greedy", "first"] = option(
        "scorer",
        "Candidate to choose: the scorer's, oracle (the best label), concat (all as one query), greedy (decoded so), first.",
    )
    max_candidates: int | None = option(None, "Choose among the first N distinct candidates.", at_least=1)
    n_best: int = option(1, "Queries per question and kind; more than one: KIND.1.jsonl … KIND.N.jsonl.", at_least=1)
    max_clauses: int | None = option(
        None,
        "concat: cut queries to so many distinct words; Lucene takes 1024 by default, drtk any number.",
        at_least=1,
        no_effect=(NoEffect("goes with --select concat", {"select": ("scorer", "oracle", "greedy", "first")}),),
    )
    k1: float | None = option(None, "--index: BM25 k1. [default: the index's, or 0.9]", at_least=0, no_effect=_NO_INDEX)
    b: float | None = option(
        None, "--index: BM25 b, 0 to 1. [default: the index's, or 0.4]", at_least=0, at_most=1, no_effect=_NO_INDEX
    )

    def check(self) -> None:
        """Raise UsageError for settings that contradict each other."""
        if self.select in ("concat", "greedy") and self.n_best > 1:
            raise UsageError(f"`n_best` {self.n_best}: `select` {self.select} has one query per question and kind")


@dataclass(frozen=True)
class ReadSettings:
    """drtk read (docs/methods/fid.md). The figures are those of the released large readers."""

    depth: int = option(100, "Passages per question to read, the first of its ranking.", at_least=1)
    order: Literal["score", "rank"] = option("rank", "Column of the run that orders a ranking: rank or score.")
    max_length: int = option(
        250, "Longest passage with its question and title, in tokens; the text is cut.", at_least=2
    )
    max_new_tokens: int = option(50, "Longest answer, in tokens.", at_least=1)
    batch_tokens: int | None = option(
        None,
        "Tokens of passages per batch, at least one question's. [default: 32,768 on a CPU, 131,072 on a GPU]",
        at_least=1,
    )
    precision: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "Compute dtype; auto is float32 on a CPU, bfloat16 on a GPU."
    )

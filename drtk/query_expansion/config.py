"""Options of query expansion and query re-ranking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from drtk.config import option
from drtk.errors import UsageError
from drtk.models.config import GenerationSettings, ScoringSettings
from drtk.records import kind_problem
from drtk.training.config import TrainingConfig

PASSAGE_KINDS = ("sentence", "title", "terms")  # candidates that need no generator
_PROMPTED_TOKENS = 100  # methods, section 7.3
_TOKENS = 64  # the longest target of GAR (methods, section 7.2)
_OF_PASSAGES = ("candidates", "depth", "feedback", "terms")


@dataclass(frozen=True)
class ExpansionSettings:
    """drtk expand-queries; 50 samples with top-k 50 and temperature 1 are those of methods, section 7.3."""

    kind: str | None = option(
        None,
        "What the expansions are: answer, sentence, title, or a word of your own. [default: what the generator was trained "
        "for; with --from-run sentence, title and terms]",
    )
    n: int = option(50, "Texts to write for each question; repeats are left out afterwards.", at_least=1, flag="--n")
    decode: Literal["sample", "greedy", "beam", "greedy+sample"] | None = option(
        None,
        "How tokens are chosen: sample, greedy (one text), beam (the n best), or greedy+sample (one greedy text, then samples). "
        "[default: sample; with --prompt greedy+sample]",
    )
    top_k: int = option(50, "Draw among the so many most likely tokens; 0: among all.", at_least=0)
    top_p: float = option(
        1.0, "Of these, draw among the most likely that together have this probability.", at_least=1e-6, at_most=1
    )
    temperature: float = option(1.0, "Divides the logits: below 1 the likely become likelier.", at_least=1e-6)
    beams: int = option(10, "Beams of --decode beam; at least --n.", at_least=1)
    max_new_tokens: int | None = option(
        None,
        "Longest text to write, in tokens. [default: as the generator was trained, or 64; with --prompt 100]",
        at_least=1,
    )
    prompt: str | None = option(
        None,
        "For a model that was not trained for this (T0, GPT-2): what it reads, the question in the place of …, or else before it.",
    )
    prefix: str | None = option(
        None, "Put before every question; a space follows it; by default as the model was trained, or nothing."
    )
    max_length: int | None = option(
        None,
        "Longest input in tokens; the question is cut, never the prompt; by default as the model was trained, or 512.",
        at_least=2,
    )
    batch_tokens: int | None = option(
        None, "Tokens of input and output at once. [default: 16,384 on a CPU, 131,072 on a GPU]", at_least=1
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "Numbers the model computes with: auto is float32 on a CPU, bfloat16 on a GPU."
    )
    holdout: bool = option(
        False,
        "The model is a folder of train-generator --folds: each question goes to the generator that did not see it.",
    )
    outside: Literal["refuse", "draw"] = option(
        "refuse",
        "With --holdout, a question of no fold: refuse it, or draw one of the generators, none of which saw it.",
    )
    candidates: int = option(10, "With --from-run: candidates of each kind for each question.", at_least=1)
    depth: int = option(100, "With --from-run: hits of each question that are looked at.", at_least=1)
    feedback: int = option(
        10, "With --from-run: hits whose most shared words are the first candidate of terms.", at_least=1
    )
    terms: int = option(10, "With --from-run: words in a candidate of terms.", at_least=1)

    @property
    def decoding(self) -> Literal["sample", "greedy", "beam", "greedy+sample"]:
        """How tokens are chosen, where nothing was said too."""
        return self.decode or ("sample" if self.prompt is None else "greedy+sample")

    def generation(self, *, trained_length: int | None) -> GenerationSettings:
        """What the writing engine takes. trained_length: longest text that the generator learnt to write, where it says so."""
        usual = _PROMPTED_TOKENS if self.prompt is not None else (trained_length or _TOKENS)
        return GenerationSettings(
            n=1 if self.decoding == "greedy" else self.n,
            decode=self.decoding,
            top_k=self.top_k,
            top_p=self.top_p,
            temperature=self.temperature,
            beams=self.beams,
            max_new_tokens=self.max_new_tokens or usual,
            prefix=self.prefix,
            max_length=self.max_length,
            batch_tokens=self.batch_tokens,
            dtype=self.dtype,
        )

    def check(self, *, from_run: bool) -> None:
        """Raise UsageError for a choice other than its default that is not looked at, or for a kind that cannot be."""
        usual = ExpansionSettings()
        kept = ("kind", *_OF_PASSAGES)
        for name in self.__dataclass_fields__:
            if name != "kind" and (name in kept) != from_run and getattr(self, name) != getattr(usual, name):
                told = "not with --from-run" if from_run else "only with --from-run"
                raise UsageError(f"--{name.replace('_', '-')}: {told}")
        if self.kind is not None and (problem := kind_problem(self.kind)):
            raise UsageError(f"--kind '{self.kind}': {problem}")
        if from_run:
            if self.kind is not None and self.kind not in PASSAGE_KINDS:
                raise UsageError(f"--kind {self.kind}: --from-run makes {', '.join(PASSAGE_KINDS)}")
            return
        if self.decoding == "greedy" and self.n not in (1, usual.n):
            raise UsageError(f"--n {self.n}: --decode greedy writes one text")
        for flag, changed, decode in (
            ("--top-k", self.top_k != usual.top_k, "sample"),
            ("--top-p", self.top_p != usual.top_p, "sample"),
            ("--temperature", self.temperature != usual.temperature, "sample"),
            ("--beams", self.beams != usual.beams, "beam"),
        ):
            if changed and decode not in self.decoding:
                raise UsageError(f"{flag}: only with --decode {decode}")
        if self.outside != usual.outside and not self.holdout:
            raise UsageError("--outside: only with --holdout")
        if self.holdout and self.prompt is not None:
            raise UsageError(
                "--prompt is for a model that was not trained for this; --holdout is for generators that were"
            )


READ = {"ri": 64, "rd": 256}  # tokens of a candidate (methods, section 7.6)
EPOCHS = {"ri": 2.0, "rd": 3.0}  # methods, section 7.7
DEPTH = 100  # passages among which an answer is looked for; ranks beyond are of candidates that found none


@dataclass(frozen=True)
class LabelSettings:
    """drtk rerank-queries label (methods, section 7.4)."""

    depth: int = option(DEPTH, "Passages of each candidate that are looked through for an answer.", at_least=1)
    max_rank: int = option(101, "Rank of a candidate that finds no answer; above --depth.", at_least=2)
    top1: bool = option(True, "Keep title and text of each candidate's first passage, which --scorer rd reads.")
    match: Literal["tokens", "regex"] = option(
        "tokens", "How answers are looked for: tokens (DPR's matching), or regex (answers are patterns: CuratedTREC)."
    )
    match_title: bool = option(False, "Look for answers in titles too (GAR), not in texts alone (DPR).")
    k1: float | None = option(None, "BM25's k1. [default: as the index advises, or 0.9]", at_least=0)
    b: float | None = option(None, "BM25's b, 0 to 1. [default: as the index advises, or 0.4]", at_least=0, at_most=1)
    threads: int = option(0, "Lucene: searching threads; 0 takes every core.", at_least=0)
    batch: int = option(1000, "Candidates searched together, and between two places to go on from.", at_least=1)

    def check(self) -> None:
        """Raise UsageError where a candidate that finds nothing would rank among those that find something."""
        if self.max_rank <= self.depth:
            raise UsageError(f"--max-rank {self.max_rank}: must be above --depth, {self.depth}")


@dataclass(frozen=True)
class QueryRerankerConfig(TrainingConfig):
    """drtk rerank-queries train (methods, sections 7.5 to 7.7). The defaults are those of thesis table B.1 for NQ, RD."""

    batch: int = option(
        4, "Questions in one step, each with all its candidates, over all devices together.", at_least=1
    )
    epochs: float | None = option(  # type: ignore[assignment]
        None, "Passes over the questions. [default: 2; rd 3]", at_least=0
    )
    warmup: float = option(10_000.0, "Steps in which the learning rate rises; linear: below 1, a share.", at_least=0)
    eval_every: int = option(500, "--dev: steps between evaluations.", at_least=1)
    patience: int | None = option(None, "--dev: stop after so many evaluations without improvement.", at_least=1)
    lr: ClassVar[float] = 0.0  # type: ignore[misc]  # see `max_lr`
    weight_decay: ClassVar[float] = 0.0  # type: ignore[misc]
    scorer: Literal["ri", "rd"] = option(
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
    alpha: float = option(0.01, "Margin of a pair, for each rank between its candidates.", at_least=0)
    micro_batch: int | None = option(
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
        None, "--dev: questions to evaluate with, evenly spread. [default: all]", at_least=1
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


@dataclass(frozen=True)
class ChooseSettings(ScoringSettings):
    """drtk rerank-queries apply (methods, sections 7.8 and 7.9)."""

    select: Literal["scorer", "oracle", "concat", "greedy", "first"] = option(
        "scorer",
        "Which candidate: the scorer's, oracle (the best label), concat (all as one query), greedy (so generated), first.",
    )
    max_candidates: int | None = option(None, "Choose among the first N distinct candidates.", at_least=1)
    top: int = option(1, "Queries of each question and kind; more than one: KIND.1.jsonl … KIND.N.jsonl.", at_least=1)
    max_clauses: int | None = option(
        None, "concat: cut queries to so many distinct words; a stock Lucene takes 1024, drtk any number.", at_least=1
    )
    k1: float | None = option(None, "--index: BM25's k1. [default: as the index advises, or 0.9]", at_least=0)
    b: float | None = option(
        None, "--index: BM25's b, 0 to 1. [default: as the index advises, or 0.4]", at_least=0, at_most=1
    )

    def check(self) -> None:
        """Raise UsageError for settings that contradict each other."""
        if self.select == "concat" and self.top > 1:
            raise UsageError("--top: --select concat makes one query of all candidates")
        if self.select == "greedy" and self.top > 1:
            raise UsageError("--top: a question has one greedy candidate of a kind")
        if self.max_clauses is not None and self.select != "concat":
            raise UsageError("--max-clauses: only with --select concat")


@dataclass(frozen=True)
class ReadSettings:
    """drtk read (methods: section 7.11). The figures are those of the released large readers."""

    depth: int = option(100, "Passages of each question that are read, the first of its ranking.", at_least=1)
    order: Literal["score", "rank"] = option("rank", "What orders a ranking: rank, that column of the run, or score.")
    max_length: int = option(
        250, "Longest passage with its question and title, in tokens; the text is cut.", at_least=2
    )
    max_new_tokens: int = option(50, "Longest answer, in tokens.", at_least=1)
    batch_tokens: int | None = option(
        None,
        "Tokens of passages that are answered from at once, at least one question's. [default: 32,768 on a CPU, 131,072 on a GPU]",
        at_least=1,
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "Numbers the model computes with: auto is float32 on a CPU, bfloat16 on a GPU."
    )

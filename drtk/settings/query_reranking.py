"""How expansions of questions are labelled, and how a model that chooses among them is trained and used (EAR)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.errors import UsageError
from drtk.settings.core import knob
from drtk.settings.scoring import ScoringSettings

READ = {"ri": 64, "rd": 256}  # tokens of a candidate (methods, section 7.6)
EPOCHS = {"ri": 2.0, "rd": 3.0}  # methods, section 7.7
DEPTH = 100  # passages among which an answer is looked for; ranks beyond are of candidates that found none


@dataclass(frozen=True)
class LabelSettings:
    """drtk rerank-queries label (methods, section 7.4)."""

    depth: int = knob(DEPTH, "Passages of each candidate that are looked through for an answer.", at_least=1)
    max_rank: int = knob(101, "Rank of a candidate that finds no answer; above --depth.", at_least=2)
    top1: bool = knob(True, "Keep title and text of each candidate's first passage, which --scorer rd reads.")
    match: Literal["tokens", "regex"] = knob(
        "tokens", "How answers are looked for: tokens (DPR's matching), or regex (answers are patterns: CuratedTREC)."
    )
    match_title: bool = knob(False, "Look for answers in titles too (GAR), not in texts alone (DPR).")
    k1: float | None = knob(None, "BM25's k1. [default: as the index advises, or 0.9]", at_least=0)
    b: float | None = knob(None, "BM25's b, 0 to 1. [default: as the index advises, or 0.4]", at_least=0, at_most=1)
    threads: int = knob(0, "Lucene: searching threads; 0 takes every core.", at_least=0)
    batch: int = knob(1000, "Candidates searched together, and between two places to go on from.", at_least=1)

    def check(self) -> None:
        """Raise UsageError where a candidate that finds nothing would rank among those that find something."""
        if self.max_rank <= self.depth:
            raise UsageError(f"--max-rank {self.max_rank}: must be above --depth, {self.depth}")


@dataclass(frozen=True)
class QueryRerankerSettings:
    """drtk rerank-queries train (methods, sections 7.5 to 7.7). The defaults are those of thesis table B.1 for NQ, RD."""

    scorer: Literal["ri", "rd"] = knob(
        "ri", "What is read: ri, question and expansion; rd, the expanded query's first passage too."
    )
    style: Literal["official", "thesis"] = knob(
        "official", "How the parts are set apart: official, [SEP] between all; thesis, 'question ? expansion' as one."
    )
    max_length: int | None = knob(
        None, "Longest input, in tokens; the last parts are cut first. [default: 64; rd 256]", at_least=8
    )
    candidates: int = knob(50, "Candidates of each question that are trained on: its first different ones.", at_least=2)
    max_rank: int = knob(101, "Rank of candidates that found no answer (the thesis tries 101 and 250).", at_least=2)
    depth: int | None = knob(
        None,
        "How deep was looked for answers: greater ranks in the labels mean none found. [default: as the labels say, "
        "or 100]",
        at_least=1,
    )
    pair_weight: Literal["offset", "sum"] = knob(
        "offset",
        "Weights of pairs: offset, alike for each distance in the order of ranks (as released); sum (as printed).",
    )
    skip_ties: bool = knob(
        True, "Leave out pairs of equal rank, whose order is arbitrary (the released code has them)."
    )
    alpha: float = knob(0.01, "Margin of a pair, for each rank between its candidates.", at_least=0)
    batch: int = knob(4, "Questions in one step, each with all its candidates, over all devices together.", at_least=1)
    micro_batch: int | None = knob(
        None, "Questions that go through a device at once; less memory, the same step.", at_least=1
    )
    epochs: float | None = knob(None, "Passes over the questions. [default: 2; rd 3]", at_least=0)
    steps: int | None = knob(None, "Steps to train for, in place of --epochs.", at_least=1, instead_of="epochs")
    schedule: Literal["inverse-sqrt", "linear"] = knob(
        "inverse-sqrt",
        "The learning rate at step t: inverse-sqrt, max-lr * min(t^-.5, t * warmup^-1.5); linear, up to max-lr and down to 0.",
    )
    max_lr: float = knob(
        2e-3, "inverse-sqrt: a factor, not a rate: the highest rate is max-lr / sqrt(warmup), 2e-5.", at_least=0
    )
    warmup: float = knob(10_000.0, "Steps in which the learning rate rises; linear: below 1, a share.", at_least=0)
    dev_questions: int | None = knob(
        None, "--dev: so many of its questions are measured, evenly spread. [default: all]", at_least=1
    )
    eval_every: int = knob(500, "--dev: steps between measurements.", at_least=1)
    patience: int | None = knob(None, "--dev: end after so many measurements that are not the best.", at_least=1)
    precision: Literal["auto", "float32", "float16", "bfloat16"] = knob(
        "auto", "Numbers of the forward pass; auto is bfloat16 on a GPU that has it, float32 elsewhere."
    )
    gradient_checkpointing: bool = knob(False, "Compute activations twice and keep fewer of them in memory.")
    log_every: int = knob(10, "Steps between entries of log.jsonl.", at_least=1)
    save_every: int = knob(500, "Steps between checkpoints that --resume can go on from.", at_least=1)
    trainer: tuple[str, ...] = knob(
        (), "KEY=VALUE for an argument of transformers' TrainingArguments without an option here; repeatable."
    )

    def check(self) -> None:
        """Raise UsageError for settings that contradict each other."""
        if self.depth is not None:
            self.check_depth(self.depth)
        if self.schedule == "inverse-sqrt" and self.warmup < 1:
            raise UsageError(f"--warmup {self.warmup:g}: --schedule inverse-sqrt wants a number of steps")

    def check_depth(self, depth: int) -> None:
        """Raise UsageError where candidates that found nothing among so many would rank among those that found something."""
        if self.max_rank <= depth:
            raise UsageError(f"--max-rank {self.max_rank}: must be above the depth of the labels, {depth}")


@dataclass(frozen=True)
class ChooseSettings(ScoringSettings):
    """drtk rerank-queries apply (methods, sections 7.8 and 7.9)."""

    select: Literal["scorer", "oracle", "concat", "greedy", "first"] = knob(
        "scorer",
        "Which candidate: the scorer's, oracle (the best label), concat (all as one query), greedy (so generated), first.",
    )
    max_candidates: int | None = knob(None, "Choose among the first N distinct candidates.", at_least=1)
    top: int = knob(1, "Queries of each question and kind; more than one: KIND.1.jsonl … KIND.N.jsonl.", at_least=1)
    max_clauses: int | None = knob(
        None, "concat: cut queries to so many distinct words; a stock Lucene takes 1024, drtk any number.", at_least=1
    )
    k1: float | None = knob(None, "--index: BM25's k1. [default: as the index advises, or 0.9]", at_least=0)
    b: float | None = knob(
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

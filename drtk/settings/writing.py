"""How a model that writes is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.errors import UsageError
from drtk.settings.core import knob

GAR = "gar-"  # what tasks about questions begin with; the kind of expansion follows


@dataclass(frozen=True)
class GeneratorSettings:
    """drtk train-generator. Lengths and learning rate are those of methods, section 2.1 (T5, passage to query)."""

    task: Literal["doc2query", "gar-answer", "gar-sentence", "gar-title"] = knob(
        "doc2query",
        "What is learnt: doc2query (passage to query), or GAR (question to answer, to the sentence that holds it, or to titles).",
    )
    depth: int = knob(100, "GAR: hits of each question in --run that are looked at.", at_least=1)
    answer_case: Literal["kept", "initial"] = knob(
        "kept", "GAR: answers in capitals alone as they are, or with initial capitals (TriviaQA)."
    )
    title_mode: Literal["all", "first"] = knob(
        "all", "GAR titles: of all answer-bearing passages among the hits, or of the first."
    )
    separator: str = knob(", ", "GAR titles: what stands between two.")
    match: Literal["tokens", "regex"] = knob(
        "tokens",
        "GAR: how answers are looked for: tokens (DPR's matching), or regex (answers are patterns: CuratedTREC).",
    )
    match_title: bool = knob(
        False, "GAR titles: look for answers in titles too (as GAR's scripts do), not in texts alone."
    )
    folds: int | None = knob(
        None,
        "GAR: train so many generators, each without one fold of the questions, for expand-queries --holdout.",
        at_least=2,
    )
    batch: int = knob(64, "Pairs in one step, over all devices together.", at_least=1)
    epochs: float = knob(2.0, "Passes over the pairs.", at_least=1e-6)
    steps: int | None = knob(None, "Steps to train for, in place of --epochs.", at_least=1, instead_of="epochs")
    lr: float = knob(1e-3, "Highest learning rate; 1e-3 is for T5, BART wants about 3e-5.", at_least=0)
    schedule: Literal["constant", "linear", "cosine"] = knob(
        "constant", "What becomes of the learning rate: it stays, or falls to 0 at the last step."
    )
    warmup: float = knob(0.0, "Steps in which the learning rate rises; below 1, a share of all steps.", at_least=0)
    weight_decay: float = knob(0.0, "Weight decay, biases and norms left out.", at_least=0)
    label_smoothing: float = knob(
        0.0, "Share of each target's probability spread over all words.", at_least=0, at_most=0.999
    )
    title: Literal["join", "none"] | None = knob(
        None, "A passage's title: join (before its text) or none; by default as the start model says, or join."
    )
    prefix: str | None = knob(
        None, "Put before every passage; a space follows it; by default as the start model says, or nothing."
    )
    max_length: int | None = knob(
        None,
        "Longest input in tokens; the passage is cut, never the prefix; by default as the start model says, or 512.",
        at_least=2,
    )
    target_length: int = knob(64, "Longest text to write, in tokens, with the one that ends it.", at_least=2)
    dev_share: float | None = knob(
        None,
        "Share of the passages, by a hash of their ids, to measure with instead of training.",
        at_least=0,
        at_most=1,
    )
    dev_limit: int = knob(1000, "Pairs to measure with, at most.", at_least=1)
    eval_every: int = knob(500, "Steps between two measurements on the pairs held out.", at_least=1)
    select: Literal["rouge1", "rouge2", "rougeL", "loss"] | None = knob(
        None,
        "Which weights are kept: the best on the pairs held out by this; loss writes nothing and is quick. "
        "[default: rougeL; GAR rouge1]",
    )
    patience: int | None = knob(None, "End training after so many measurements without a better one.", at_least=1)
    precision: Literal["auto", "float32", "float16", "bfloat16"] = knob(
        "auto", "Numbers of the forward pass; auto is bfloat16 on a GPU that has it, float32 elsewhere."
    )
    gradient_checkpointing: bool = knob(False, "Compute activations twice and keep fewer of them in memory.")
    log_every: int = knob(10, "Steps between entries of log.jsonl.", at_least=1)
    save_every: int = knob(500, "Steps between checkpoints that --resume can go on from.", at_least=1)
    trainer: tuple[str, ...] = knob(
        (), "KEY=VALUE for an argument of transformers' TrainingArguments without an option here; repeatable."
    )

    @property
    def kind(self) -> str | None:
        """The kind of expansion that a GAR task writes: answer, sentence or title; None for doc2query."""
        return self.task.removeprefix(GAR) if self.task.startswith(GAR) else None

    @property
    def best_by(self) -> Literal["rouge1", "rouge2", "rougeL", "loss"]:
        """By what the best weights are told: --select, or ROUGE-1 for GAR (methods, section 7.2) and ROUGE-L for doc2query."""
        return self.select or ("rougeL" if self.kind is None else "rouge1")

    def check(self) -> None:
        """Raise UsageError for a choice other than its default that --task does not look at."""
        usual = type(self)
        found = ("gar-sentence", "gar-title")  # targets are found in passages
        questions = ("gar-answer", *found)
        for flag, changed, tasks in (
            ("--title", self.title is not None, ("doc2query",)),
            ("--depth", self.depth != usual.depth, found),
            ("--answer-case", self.answer_case != usual.answer_case, ("gar-answer",)),
            ("--title-mode", self.title_mode != usual.title_mode, ("gar-title",)),
            ("--separator", self.separator != usual.separator, ("gar-title",)),
            ("--match", self.match != usual.match, found),
            ("--match-title", self.match_title != usual.match_title, ("gar-title",)),
            ("--folds", self.folds is not None, questions),
        ):
            if changed and self.task not in tasks:
                raise UsageError(f"{flag}: only with --task {' or '.join(tasks)}")

"""How a model that writes is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import knob


@dataclass(frozen=True)
class GeneratorSettings:
    """drtk train-generator. Lengths and learning rate are those of methods, section 2.1 (T5, passage to query)."""

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
    select: Literal["rouge1", "rouge2", "rougeL", "loss"] = knob(
        "rougeL", "Which weights are kept: the best on the pairs held out by this; loss writes nothing and is quick."
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

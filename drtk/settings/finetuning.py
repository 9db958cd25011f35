"""How a retriever is trained from examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import knob
from drtk.settings.encoding import Similarity, Title


@dataclass(frozen=True)
class RetrieverSettings:
    """drtk train-retriever (methods: sections 6.2 to 6.5). The defaults are those of SimLM's Table 12."""

    loss: str = knob("infonce", "What is minimised; infonce is the contrastive loss.")
    similarity: Similarity | None = knob(
        None, "How vectors are compared; by default as the start model says, or cosine."
    )
    temperature: float = knob(0.02, "Scores are divided by this before the softmax.", at_least=1e-6)
    negatives: int = knob(15, "Hard negatives of each query; the rest of the batch is added to them.", at_least=0)
    batch: int = knob(64, "Examples in one step, over all devices together.", at_least=1)
    epochs: float = knob(3.0, "Passes over the examples.", at_least=0)
    steps: int | None = knob(None, "Steps to train for, in place of --epochs.", at_least=1, instead_of="epochs")
    lr: float = knob(2e-5, "Highest learning rate.", at_least=0)
    warmup: float = knob(0.1, "Steps in which the learning rate rises; below 1, a share of all steps.", at_least=0)
    weight_decay: float = knob(0.01, "Weight decay, biases and norms left out.", at_least=0)
    query_length: int | None = knob(None, "Longest query, in tokens; by default 32, or what the model can.", at_least=3)
    passage_length: int | None = knob(
        None, "Longest passage, in tokens; by default 144, or what the model can.", at_least=3
    )
    query_prompt: str | None = knob(None, "Text put before each query; by default as the start model says.")
    passage_prompt: str | None = knob(None, "Text put before each passage; by default as the start model says.")
    title: Title | None = knob(
        None, "Passage titles: join (title, space, text), segment (a pair) or none; by default as the start model says."
    )
    pooling: str | None = knob(None, "Pooling of the trained model; by default that of the start model.")
    normalize: bool | None = knob(None, "Whether the trained model gives vectors of length 1; by default as the start.")
    untied: bool = knob(False, "Train an encoder each for queries and passages (OUT/query, OUT/passage).")
    mask_duplicate_positives: bool = knob(
        False, "Leave a query's own positive out of its negatives where another example of the batch brings it too."
    )
    precision: Literal["auto", "float32", "float16", "bfloat16"] = knob(
        "auto", "Numbers of the forward pass; auto is bfloat16 on a GPU that has it, float32 elsewhere."
    )
    gradient_checkpointing: bool = knob(False, "Compute activations twice and keep fewer of them in memory.")
    log_every: int = knob(10, "Steps between entries of log.jsonl.", at_least=1)
    save_every: int = knob(500, "Steps between checkpoints that --resume can go on from.", at_least=1)
    trainer: tuple[str, ...] = knob(
        (), "KEY=VALUE for an argument of transformers' TrainingArguments without an option here; repeatable."
    )

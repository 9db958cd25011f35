"""How an encoder is pre-trained: the loop around a composition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import option


@dataclass(frozen=True)
class PretrainSettings:
    """drtk pretrain; presets hold the figures of their papers."""

    batch: int = option(2048, "Examples in one step, over all devices together.", at_least=1)
    micro_batch: int | None = option(
        None,
        "Examples in memory at once on one device; by default all of its share of the batch, or as many of it as fit.",
        at_least=1,
    )
    steps: int | None = option(None, "Steps to train for, in place of --epochs.", at_least=1, replaces="epochs")
    epochs: float = option(8.0, "Passes over the passages.", at_least=1e-6)
    lr: float = option(1e-4, "Highest learning rate.", at_least=0)
    warmup: float = option(0.1, "Steps in which the learning rate rises; below 1, a share of all steps.", at_least=0)
    weight_decay: float = option(0.01, "Weight decay, biases and norms left out.", at_least=0)
    max_length: int = option(
        144, "Longest text of a slot that names no length, in tokens, special ones too.", at_least=5
    )
    held_out: int = option(
        0,
        "Passages kept out of training, on which the losses are measured; whole documents of them where neighbours are read.",
        at_least=0,
    )
    eval_every: int = option(1000, "Steps between measurements on what was held out, and of a probe.", at_least=1)
    precision: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "Numbers of the forward pass; auto is bfloat16 on a GPU that has it, float32 elsewhere."
    )
    gradient_checkpointing: bool = option(False, "Compute activations twice and keep fewer of them in memory.")
    compile: bool = option(False, "Compile the encoder's layers with torch.compile.")
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2", "flash_attention_3"] = option(
        "auto",
        "Implementation of attention, by transformers' name; auto is flash attention, which skips padding, on a GPU with "
        "16-bit numbers where it is installed, sdpa elsewhere.",
    )
    fused: bool = option(True, "AdamW as one kernel, where torch has it for the device (CPU, CUDA).")
    log_every: int = option(10, "Steps between entries of log.jsonl.", at_least=1)
    save_every: int = option(0, "Steps between encoders kept as OUT/step-N; 0: the last one alone.", at_least=0)
    report_to: tuple[str, ...] = option(
        (), "Whom to tell what log.jsonl holds: tensorboard (files in OUT/tensorboard), wandb, …; repeatable."
    )
    checkpoint_every: int = option(500, "Steps between checkpoints that --resume can go on from.", at_least=1)
    trainer: tuple[str, ...] = option(
        (), "KEY=VALUE for an argument of transformers' TrainingArguments without an option here; repeatable."
    )

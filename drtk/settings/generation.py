"""How text is generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.errors import UsageError
from drtk.settings.core import knob


@dataclass(frozen=True)
class GenerationSettings:
    """drtk doc2query; the figures are those of query-as-context pre-training."""

    n: int = knob(5, "Texts to write for each passage.", at_least=1, flag="--n")
    decode: Literal["sample", "greedy", "beam", "greedy+sample"] = knob(
        "sample",
        "How tokens are chosen: sample, greedy (one text), beam (the n best), or greedy+sample (one greedy text, then samples).",
    )
    top_k: int = knob(25, "Draw among the so many most likely tokens; 0: among all.", at_least=0)
    top_p: float = knob(
        0.95, "Of these, draw among the most likely that together have this probability.", at_least=1e-6, at_most=1
    )
    temperature: float = knob(1.0, "Divides the logits: below 1 the likely become likelier.", at_least=1e-6)
    beams: int = knob(4, "Beams of --decode beam; at least --n.", at_least=1)
    max_new_tokens: int = knob(64, "Longest text to write, in tokens.", at_least=1)
    title: Literal["join", "none"] | None = knob(
        None, "A passage's title: join (before its text) or none; by default as the model was trained, or join."
    )
    prefix: str | None = knob(
        None,
        "Put before every passage; a space follows it (all-with_prefix-t5-base-v1: text2query:); "
        "by default as the model was trained, or nothing.",
    )
    max_length: int | None = knob(
        None,
        "Longest input in tokens; the passage is cut, never the prefix; by default as the model was trained, or 512.",
        at_least=2,
    )
    batch_tokens: int | None = knob(
        None, "Tokens of input and output at once. [default: 16,384 on a CPU, 131,072 on a GPU]", at_least=1
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = knob(
        "auto", "Numbers the model computes with: auto is float32 on a CPU, bfloat16 on a GPU."
    )

    def check(self) -> None:
        """Raise UsageError for a choice other than its default that --decode does not look at."""
        usual = type(self)
        if self.decode == "greedy" and self.n not in (1, usual.n):
            raise UsageError(f"--n {self.n}: --decode greedy writes one text")
        for flag, changed, decode in (
            ("--top-k", self.top_k != usual.top_k, "sample"),
            ("--top-p", self.top_p != usual.top_p, "sample"),
            ("--temperature", self.temperature != usual.temperature, "sample"),
            ("--beams", self.beams != usual.beams, "beam"),
        ):
            if changed and decode not in self.decode:
                raise UsageError(f"{flag}: only with --decode {decode}")


@dataclass(frozen=True)
class ContinuationSettings(GenerationSettings):
    """drtk continue-text; MASTER's paper names no figures, these are those of methods, section 2.4."""

    n: int = knob(1, "Continuations to write for each passage.", at_least=1, flag="--n")
    top_k: int = knob(50, "Draw among the so many most likely tokens; 0: among all.", at_least=0)
    max_new_tokens: int = knob(128, "Longest continuation, in tokens.", at_least=1)

"""How questions are expanded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.errors import UsageError
from drtk.records import kind_problem
from drtk.settings.core import knob
from drtk.settings.generation import GenerationSettings

PASSAGE_KINDS = ("sentence", "title", "terms")  # candidates that need no generator
_PROMPTED_TOKENS = 100  # methods, section 7.3
_TOKENS = 64  # the longest target of GAR (methods, section 7.2)
_OF_PASSAGES = ("candidates", "depth", "feedback", "terms")


@dataclass(frozen=True)
class ExpansionSettings:
    """drtk expand-queries; 50 samples with top-k 50 and temperature 1 are those of methods, section 7.3."""

    kind: str | None = knob(
        None,
        "What the expansions are: answer, sentence, title, or a word of your own. [default: what the generator was trained "
        "for; with --from-run sentence, title and terms]",
    )
    n: int = knob(50, "Texts to write for each question; repeats are left out afterwards.", at_least=1, flag="--n")
    decode: Literal["sample", "greedy", "beam", "greedy+sample"] | None = knob(
        None,
        "How tokens are chosen: sample, greedy (one text), beam (the n best), or greedy+sample (one greedy text, then samples). "
        "[default: sample; with --prompt greedy+sample]",
    )
    top_k: int = knob(50, "Draw among the so many most likely tokens; 0: among all.", at_least=0)
    top_p: float = knob(
        1.0, "Of these, draw among the most likely that together have this probability.", at_least=1e-6, at_most=1
    )
    temperature: float = knob(1.0, "Divides the logits: below 1 the likely become likelier.", at_least=1e-6)
    beams: int = knob(10, "Beams of --decode beam; at least --n.", at_least=1)
    max_new_tokens: int | None = knob(
        None,
        "Longest text to write, in tokens. [default: as the generator was trained, or 64; with --prompt 100]",
        at_least=1,
    )
    prompt: str | None = knob(
        None,
        "For a model that was not trained for this (T0, GPT-2): what it reads, the question in the place of …, or else before it.",
    )
    prefix: str | None = knob(
        None, "Put before every question; a space follows it; by default as the model was trained, or nothing."
    )
    max_length: int | None = knob(
        None,
        "Longest input in tokens; the question is cut, never the prompt; by default as the model was trained, or 512.",
        at_least=2,
    )
    batch_tokens: int | None = knob(
        None, "Tokens of input and output at once. [default: 16,384 on a CPU, 131,072 on a GPU]", at_least=1
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = knob(
        "auto", "Numbers the model computes with: auto is float32 on a CPU, bfloat16 on a GPU."
    )
    holdout: bool = knob(
        False,
        "The model is a folder of train-generator --folds: each question goes to the generator that did not see it.",
    )
    outside: Literal["refuse", "draw"] = knob(
        "refuse",
        "With --holdout, a question of no fold: refuse it, or draw one of the generators, none of which saw it.",
    )
    candidates: int = knob(10, "With --from-run: candidates of each kind for each question.", at_least=1)
    depth: int = knob(100, "With --from-run: hits of each question that are looked at.", at_least=1)
    feedback: int = knob(
        10, "With --from-run: hits whose most shared words are the first candidate of terms.", at_least=1
    )
    terms: int = knob(10, "With --from-run: words in a candidate of terms.", at_least=1)

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

"""Options of query expansion and query reranking."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from drtk.config import HARDWARE, METHOD, TRAINING, NoEffect, option, redeclare, require_defaults, setting
from drtk.errors import UsageError
from drtk.models.config import (
    NOT_BEAM,
    NOT_SAMPLING,
    NOT_VLLM,
    PRECISION,
    CrossEncoderSettings,
    GenerationSettings,
    Precision,
)
from drtk.records import describe_kind_problem
from drtk.training.config import NOT_MEASURED, TrainingConfig

EXTRACTED_KINDS = ("sentence", "title", "terms")  # candidates without a generator
_PROMPTED_TOKENS = 100  # docs/methods/ear.md
_TOKENS = 64  # the longest target of GAR (docs/methods/gar.md)
_RUN = (NoEffect("requires --from-run", {"from_run": (None,)}),)
_TRAINED = (NoEffect("cannot be combined with --holdout", {"holdout": (True,)}),)
_OF_RUN = ("kind", "candidates", "depth", "feedback", "terms")  # the options of candidates without a generator


@redeclare("prefix", advanced=True)
@redeclare("batch_tokens", no_effect=NOT_VLLM)
@dataclass(frozen=True)
class ExpansionSettings(GenerationSettings):
    """Settings of drtk expand-queries; the sampling defaults are from docs/methods/ear.md."""

    kind: str | None = option(
        None,
        "Type of expansion, such as answer, sentence or title. [default: as trained; --from-run: all]",
        metavar="NAME",
        panel=METHOD,
    )
    n: int = option(50, "Texts to generate per question, before deduplication.", at_least=1, flag="--n")
    decode: Literal["sample", "greedy", "beam", "greedy+sample"] | None = option(  # type: ignore[assignment]
        None, "Decoding method. [default: sample, or greedy+sample if --prompt is given]"
    )
    top_k: int = option(50, "Sample from the N most likely tokens; 0: all.", at_least=0, no_effect=NOT_SAMPLING)
    top_p: float = setting(
        1.0,
        "Top-p (nucleus) sampling: cumulative probability, above 0, at most 1.",
        at_least=1e-6,
        at_most=1,
        no_effect=NOT_SAMPLING,
    )
    beams: int = setting(10, "Beams, at least --n (--decode beam).", at_least=1, no_effect=NOT_BEAM)
    max_new_tokens: int | None = option(  # type: ignore[assignment]
        None, "Maximum output length in tokens. [default: 100 with --prompt, else as trained, or 64]", at_least=1
    )
    prompt: str | None = option(
        None,
        "Instruction for the model; the question replaces the character … in it, or else precedes it.",
        no_effect=_TRAINED,
    )
    engine: Literal["transformers", "vllm"] = option(  # type: ignore[misc]
        "transformers",
        "Generation engine; vllm requires the vllm extra, a GPU and a decoder-only model.",
        panel=HARDWARE,
    )
    title: ClassVar[None] = None  # type: ignore[misc]
    holdout: bool = option(
        False, "Cross-fitting: expand each question with the generator trained without it.", panel=METHOD
    )
    candidates: int = setting(
        10, "Maximum number of candidates per question and kind (from_run).", at_least=1, no_effect=_RUN
    )
    depth: int = setting(100, "Top passages per question to use (from_run).", at_least=1, no_effect=_RUN)
    feedback: int = setting(10, "Top passages to extract feedback terms from (from_run).", at_least=1, no_effect=_RUN)
    terms: int = setting(10, "Feedback terms per candidate (from_run).", at_least=1, no_effect=_RUN)

    def resolve(self, *, trained_length: int | None) -> ExpansionSettings:
        """Return the settings with defaults in place of None, and with `n` 1 for greedy decoding.

        trained_length: maximum length of a training target, in tokens, if known
        """
        decode = self.decode or ("sample" if self.prompt is None else "greedy+sample")
        longest = _PROMPTED_TOKENS if self.prompt is not None else (trained_length or _TOKENS)
        return replace(
            self, n=1 if decode == "greedy" else self.n, decode=decode, max_new_tokens=self.max_new_tokens or longest
        )

    def check_options(self, *, from_run: bool) -> None:
        """Raise UsageError for an invalid kind, or with `from_run` for options that require a generator."""
        if self.kind is not None and (problem := describe_kind_problem(self.kind)):
            raise UsageError(f"`kind` '{self.kind}': {problem}")
        if from_run and self.kind is not None and self.kind not in EXTRACTED_KINDS:
            raise UsageError(f"`kind` {self.kind} requires `model`; `from_run` supports {', '.join(EXTRACTED_KINDS)}")
        if from_run:
            require_defaults(self, "requires `model`", besides=_OF_RUN)


INPUT_LENGTHS = {"ri": 64, "rd": 256}  # tokens of a candidate (docs/methods/ear.md)
DEFAULT_EPOCHS = {"ri": 2.0, "rd": 3.0}  # docs/methods/ear.md


@dataclass(frozen=True)
class _BM25Settings:
    """BM25 parameters for searching expanded queries."""

    k1: float | None = setting(None, "BM25 k1, term-frequency saturation. [default: the index's, else 0.9]", at_least=0)
    b: float | None = setting(
        None, "BM25 b, length normalization, 0 to 1. [default: the index's, else 0.4]", at_least=0, at_most=1
    )


@dataclass(frozen=True)
class LabelSettings(_BM25Settings):
    """Settings of drtk rerank-queries label (docs/methods/ear.md)."""

    depth: int = option(100, "Top passages to search for an answer.", at_least=1)
    max_rank: int = setting(
        101, "Rank assigned to candidates that retrieve no answer; must exceed the depth.", at_least=2
    )
    top1: bool = setting(True, "Write title and text of the top passage of each candidate (for variant rd).")
    match: Literal["tokens", "regex"] = option(
        "tokens", "Match answers by tokens (as in DPR) or as regular expressions."
    )
    match_title: bool = setting(False, "Also search passage titles for answers.")
    threads: int = option(0, "CPU threads; 0: all cores.", at_least=0, panel=HARDWARE)
    batch_size: int = option(1000, "Candidates per batch.", at_least=1, panel=HARDWARE)

    def check(self) -> None:
        """Raise UsageError unless `max_rank`, the rank of a candidate without an answer, is above the search depth."""
        if self.max_rank <= self.depth:
            raise UsageError(f"`max_rank` {self.max_rank}: must be above `depth`, {self.depth}")


@redeclare("eval_steps", no_effect=())
@redeclare("eval_steps", "precision", advanced=True)
@dataclass(frozen=True)
class QueryRerankerConfig(TrainingConfig):
    """Settings of drtk rerank-queries train (docs/methods/ear.md).

    The defaults of `max_rank`, `batch_size` and `max_lr` are the best for NQ and variant rd (Chuang's thesis, table B.1).
    """

    batch_size: int = option(
        4, "Candidate lists (of a question and kind) per optimizer step, over all devices.", at_least=1, panel=TRAINING
    )
    epochs: float | None = option(  # type: ignore[assignment]
        None, "Passes over the candidate lists. [default: 2 for variant ri, 3 for rd]", at_least=0, panel=TRAINING
    )
    warmup: float = setting(
        10_000.0, "Warm-up steps; a value below 1 is a fraction of all steps (linear schedule only).", at_least=0
    )
    learning_rate: ClassVar[float] = 0.0  # type: ignore[misc]  # see `max_lr`
    weight_decay: ClassVar[float] = 0.0  # type: ignore[misc]
    variant: Literal["ri", "rd"] = setting(
        "ri", "Model input: question and expansion (ri), or also the top passage (rd)."
    )
    style: Literal["official", "thesis"] = setting(
        "official", "Input format: [SEP] between the parts (official), or 'question ? expansion' (thesis)."
    )
    max_length: int | None = option(
        None, "Maximum input length in tokens. [default: 64 for variant ri, 256 for rd]", at_least=8, panel=TRAINING
    )
    candidates: int = setting(
        50, "Maximum number of distinct candidates per question and kind to train on.", at_least=2
    )
    max_rank: int = setting(101, "Rank assigned to candidates that retrieve no answer.", at_least=2)
    pair_weight: Literal["offset", "sum"] = setting(
        "offset", "Pair weights: as in the released code (offset), or as in the paper (sum)."
    )
    skip_ties: bool = setting(True, "Ignore pairs of candidates with equal rank.")
    rank_margin: float = setting(0.01, "Ranking margin of a pair, per rank of difference.", at_least=0)
    micro_batch_size: int | None = setting(
        None, "Candidate lists per forward pass and device. [default: all of a step]", at_least=1, panel=HARDWARE
    )
    schedule: Literal["inverse-sqrt", "linear"] = setting(
        "inverse-sqrt", "Learning-rate schedule: max_lr * min(t^-.5, t * warmup^-1.5), or linear."
    )
    max_lr: float = setting(
        2e-3, "Peak learning rate (linear), or factor with peak max_lr / sqrt(warmup) (inverse-sqrt).", at_least=0
    )
    dev_kind: str | None = setting(None, "Expansion kind to evaluate on. [default: --kind]", no_effect=(NOT_MEASURED,))
    dev_questions: int | None = setting(
        None,
        "Maximum number of candidate lists of --dev to evaluate, sampled at even intervals. [default: all]",
        at_least=1,
        no_effect=(NOT_MEASURED,),
    )

    def check(self) -> None:
        """Raise UsageError for values that contradict each other."""
        if self.schedule == "inverse-sqrt" and self.warmup < 1:
            raise UsageError(
                f"`warmup` {self.warmup:g}: `schedule=inverse-sqrt` requires a number of steps, at least 1"
            )


@redeclare("max_length", advanced=True)
@redeclare("k1", "b", no_effect=(NoEffect("requires --index", {"index": (None,)}),))
@dataclass(frozen=True)
class SelectionSettings(_BM25Settings, CrossEncoderSettings):
    """Settings of drtk rerank-queries apply (docs/methods/ear.md)."""

    select: Literal["scorer", "oracle", "concat", "greedy", "first"] = option(
        "scorer", "Candidates: best by model (scorer) or label (oracle), all (concat), greedily decoded, or the first."
    )
    max_candidates: int | None = setting(
        None, "Maximum number of distinct candidates per question and kind to use. [default: all]", at_least=1
    )
    n_best: int = option(1, "Expanded queries to keep per question and kind.", at_least=1)

    def check(self) -> None:
        """Raise UsageError for settings that contradict each other."""
        if self.select in ("concat", "greedy") and self.n_best > 1:
            raise UsageError(
                f"`n_best` {self.n_best}: `select` {self.select} returns one query per question and kind; omit `n_best`"
            )


@dataclass(frozen=True)
class ReadSettings:
    """Settings of drtk read (docs/methods/fid.md). The defaults are those of the released large models."""

    depth: int = option(100, "Top passages per question to read.", at_least=1)
    order: Literal["score", "rank"] = setting("rank", "Order documents by the score or the rank column of the run.")
    max_length: int = option(250, "Maximum length of question, title and text in tokens.", at_least=2)
    max_new_tokens: int = option(50, "Maximum answer length in tokens.", at_least=1)
    batch_tokens: int | None = setting(
        None, "Maximum tokens per batch. [default: 32768 on a CPU, 131072 on a GPU]", at_least=1
    )
    precision: Precision = option("auto", PRECISION, panel=HARDWARE)
